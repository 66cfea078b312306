"""The server's /metrics as numbers."""

from servelab import prometheus

TEXT = """\
# HELP vllm:num_preemptions_total Cumulative number of preemption from the engine.
# TYPE vllm:num_preemptions_total counter
vllm:num_preemptions_total{engine="0",model_name="a"} 3.0
vllm:num_preemptions_total{engine="1",model_name="a"} 4.0
vllm:num_preemptions_created{engine="0",model_name="a"} 1.7e+09
vllm:kv_cache_usage_perc{engine="0",model_name="a \\"quoted\\", with } and \\\\"} 0.25 1395066363000
vllm:time_to_first_token_seconds_bucket{engine="0",le="0.1",model_name="a"} 7.0
vllm:time_to_first_token_seconds_sum{engine="0",model_name="a"} 1.5
vllm:cache_config_info{block_size="128",cache_dtype="auto",engine="0",num_gpu_blocks="25"} 1.0
process_resident_memory_bytes 1.048576e+06
vllm:broken{engine="0"} NaN
vllm:half{engine="0"
process_cpu_seconds_total
"""


def test_keeps_names_and_labels_as_written_and_drops_buckets_and_stamps() -> None:
    """Every sample but buckets, creation stamps and what is no finite number is there under the server's spelling."""
    metrics = prometheus.parse(TEXT)
    assert metrics['vllm:num_preemptions_total{engine="0",model_name="a"}'] == 3.0
    assert metrics["process_resident_memory_bytes"] == 1048576.0
    assert metrics['vllm:time_to_first_token_seconds_sum{engine="0",model_name="a"}'] == 1.5
    assert len(metrics) == 6
    assert prometheus.parse(TEXT.encode()) == metrics


def test_sums_over_engines_and_says_when_a_metric_is_not_there() -> None:
    """A counter of a server with two engines is their sum; an unknown one is None, never 0."""
    metrics = prometheus.parse(TEXT)
    assert prometheus.value(metrics, "vllm:num_preemptions_total") == 7.0
    assert prometheus.value(metrics, "vllm:num_preemptions") is None
    assert prometheus.value(metrics, "vllm:kv_cache_usage_perc") == 0.25


def test_reads_labels_with_quotes_braces_and_commas() -> None:
    """A model name may hold anything; its label comes back as it was."""
    metrics = prometheus.parse(TEXT)
    [(labels, _)] = prometheus.labelled(metrics, "vllm:kv_cache_usage_perc")
    assert labels["model_name"] == 'a "quoted", with } and \\'


def test_cache_config_is_the_engines_own_word() -> None:
    """The KV cache's settings are the info metric's labels; a server without it gives nothing."""
    assert prometheus.cache_config(prometheus.parse(TEXT))["num_gpu_blocks"] == "25"
    assert prometheus.cache_config({}) == {}
