"""A row says what happened in a point whose truth is known."""

import numpy as np
import pyarrow as pa
import pytest

from made_points import closed_rows, counters, failed, point, request
from servelab import records, server_counters, summary
from servelab.config.schema import Objective
from servelab.spec import Workload


def _row(record, objective=None):
    return summary.row(record, "load_sweep", "results/x.arrow", objective)


def test_latencies_and_throughput_are_the_planted_ones():
    """TTFT 50 ms, each gap 10 ms, TPOT 10 ms, E2E 200 ms; throughput is tokens / (last token - first send)."""
    row = _row(point(closed_rows(concurrency=2, each=10)))
    assert row["ttft_p50_ms"] == pytest.approx(50)
    assert row["itl_max_ms"] == pytest.approx(10)
    assert row["tpot_p99_ms"] == pytest.approx(10)
    assert row["e2e_p50_ms"] == pytest.approx(200)
    assert row["output_throughput_tok_s"] == pytest.approx(20 * 16 / 2.0)
    assert row["per_request_tok_s"] == pytest.approx(16 / 0.2)
    assert (row["ttft_n"], row["itl_n"]) == (20, 20 * 15)


def test_every_column_is_there_and_nothing_else():
    """A row has exactly the names of COLUMNS, and a table their order."""
    row = _row(point(closed_rows()))
    assert list(row) == list(summary.COLUMNS)
    assert list(summary.frame([row]).columns) == list(summary.COLUMNS)


def test_warm_up_and_failed_requests_do_not_enter_latencies():
    """A slow warm-up changes nothing; a failed request is counted as failed and has no latency."""
    rows = [*closed_rows(), request(0, -50.0, ttft_s=40, role="warmup"), failed(20, 0.1)]
    row = _row(point(rows))
    assert row["ttft_max_ms"] == pytest.approx(50)
    assert (row["requests_ok"], row["requests_failed"]) == (20, 1)


def test_a_chunk_with_several_tokens_is_one_gap():
    """Three tokens in one chunk: a gap of 30 ms, 10 ms a token, and all tokens counted."""
    one = request(0, 0.0, output_tokens=7)
    one |= {"chunk_s": [0.05, 0.08, 0.11], "chunk_tokens": [1, 3, 3], "end_s": 0.11}
    row = _row(point([one]))
    assert row["itl_p50_ms"] == pytest.approx(30)
    assert row["itl_token_p50_ms"] == pytest.approx(10)
    assert row["tokens_per_chunk"] == pytest.approx(7 / 3)
    assert row["output_tokens_total"] == 7


def test_gaps_never_cross_from_one_request_to_the_next():
    """Requests of different lengths: every gap belongs to one request."""
    rows = [request(i, 10.0 * i, output_tokens=n) for i, n in enumerate((1, 5, 1, 2))]
    row = _row(point(rows))
    assert row["itl_n"] == 4 + 1
    assert row["itl_max_ms"] == pytest.approx(10)


def test_open_loop_times_from_the_intended_start():
    """A request sent late by 0.3 s waited 0.3 s more; the lag is reported beside it."""
    rows = [request(i, 1.0 * i + 0.3, intended_s=1.0 * i) for i in range(10)]
    workload = Workload(kind="open", input_tokens=64, output_tokens=16, rate_rps=1.0, requests=10)
    row = _row(point(rows, workload))
    assert row["ttft_p50_ms"] == pytest.approx(350)
    assert row["send_lag_p50_ms"] == pytest.approx(300)
    assert row["concurrency"] is None and row["rate_rps"] == 1.0


def test_steady_throughput_counts_tokens_inside_the_window_only():
    """Tokens delivered while every slot was busy, over that time."""
    record = point(
        closed_rows(concurrency=1, each=4),
        window={"first_send_s": 0, "last_token_s": 0.8, "steady_start_s": 0.2, "steady_end_s": 0.6},
    )
    assert _row(record)["steady_throughput_tok_s"] == pytest.approx(32 / 0.4)


def test_goodput_counts_requests_that_meet_both_bounds():
    """One request too late, one with a stall: eight of ten are good."""
    rows = [request(i, 1.0 * i) for i in range(10)]
    rows[3] = request(3, 3.0, ttft_s=0.5)
    stalled = rows[5]["chunk_s"]
    rows[5]["chunk_s"] = [*stalled[:-1], stalled[-1] + 0.4]
    row = _row(point(rows), Objective(ttft_p95_ms=100, itl_p99_ms=50))
    assert row["goodput_rps"] == pytest.approx(8 / row["duration_s"])
    assert _row(point(rows), Objective())["goodput_rps"] is None


def test_interference_takes_ttft_from_the_inserted_and_gaps_from_the_victim():
    """Only the victim's gaps that overlap the insertion count, a stall that began before it included."""
    victim = request(0, 0.0, output_tokens=21, gap_s=0.1, role="victim")
    victim["chunk_s"] = [s + (0.5 if i > 10 else 0) for i, s in enumerate(victim["chunk_s"])]
    inserted = request(0, 1.1, ttft_s=0.4, output_tokens=1, role="inserted")
    workload = Workload(kind="interference", input_tokens=64, inserted=1, victim_input_tokens=64)
    row = _row(point([victim, inserted], workload))
    assert row["ttft_p50_ms"] == pytest.approx(400)
    assert row["itl_max_ms"] == pytest.approx(600)
    assert row["itl_n"] < 20


def test_counters_are_deltas_summed_over_engines():
    """Two engines: the deltas add up; a counter that is not there is None, one that fell is None."""
    metrics = counters(
        {"num_preemptions": 2, "prefix_cache_hits": 9}, {"num_preemptions": 5, "prefix_cache_hits": 3}
    )
    metrics["before"]['vllm:num_preemptions_total{engine="1"}'] = 0
    metrics["after"]['vllm:num_preemptions_total{engine="1"}'] = 4
    row = _row(point(closed_rows(), metrics=metrics))
    assert row["preemptions"] == 7
    assert row["prefix_hits"] is None and row["prefix_queries"] is None


def test_capacity_in_requests_is_kv_tokens_over_tokens_of_a_request():
    """22,048 tokens hold 34.45 requests of 512 + 128 (C06)."""
    workload = Workload(kind="closed", input_tokens=512, output_tokens=128, concurrency=2, requests=2)
    record = point([request(0, 0.0)], workload, session={"log": {"kv_cache_tokens": 22048}})
    assert _row(record)["capacity_requests"] == pytest.approx(34.45)


@pytest.mark.parametrize(
    ("tokens", "block", "shape", "requests"), [(22048, 16, (512, 128), 34.45), (3200, 128, (128, 32), 12.5)]
)
def test_capacity_counts_whole_blocks(tokens, block, shape, requests):
    """A request of 160 tokens takes two blocks of 128; 640 tokens are 40 blocks of 16 and lose nothing."""
    workload = Workload(
        kind="closed", input_tokens=shape[0], output_tokens=shape[1], concurrency=2, requests=2
    )
    session = {"cache_config": {"block_size": str(block), "num_gpu_blocks": str(tokens // block)}}
    row = _row(point([request(0, 0.0)], workload, session=session))
    assert row["kv_block_tokens"] == block and row["kv_cache_tokens"] == tokens
    assert row["capacity_requests"] == pytest.approx(requests)


def test_polled_gauges_are_taken_inside_the_window():
    """A poll after the last token does not count; engines are summed at each poll."""
    record = point(closed_rows())
    name = "vllm:num_requests_running"
    rows = [
        {"at_s": at, "name": f'{name}{{engine="{e}"}}', "value": value}
        for at, value in ((0.5, 2.0), (1.0, 3.0), (99.0, 50.0))
        for e in (0, 1)
    ]
    record.series = records.series_table(rows)
    row = _row(record)
    assert (row["running_mean"], row["running_max"]) == (5.0, 6.0)


@pytest.mark.parametrize("kind", ["perplexity", "boot"])
def test_kinds_without_streams_have_no_latency(kind):
    """A start or a perplexity run is no load: latency and throughput are not measured."""
    row = _row(point([], Workload(kind=kind)))
    assert row["ttft_p50_ms"] is None and row["output_throughput_tok_s"] is None


def test_a_point_where_everything_failed_is_still_a_row():
    """Status and counts are there, every measured figure is None."""
    row = _row(point([failed(0, 0.0)], status="failed", cause="all_failed"))
    assert (row["status"], row["requests_failed"]) == ("failed", 1)
    assert row["ttft_p50_ms"] is None and row["output_throughput_tok_s"] is None


def test_table_survives_arrow_and_keeps_types():
    """Counts stay whole numbers with gaps, figures floats, flags booleans; Arrow takes the table as it is."""
    rows = [_row(point(closed_rows())), _row(point([failed(0, 0.0)], status="failed"))]
    rows[0]["enforce_eager"] = True
    table = summary.frame(rows)
    back = pa.Table.from_pandas(table).to_pandas()
    assert str(table["ttft_n"].dtype) == "Int64"
    assert table["output_throughput_tok_s"].dtype == np.float64
    assert str(table["enforce_eager"].dtype) == "boolean"
    assert back["requests_failed"].tolist() == [0, 1]


def test_settings_are_read_by_name_whatever_their_spelling():
    """max-num-seqs and max_num_seqs are one setting; what was not given is None."""
    row = _row(point(closed_rows()))
    assert row["max_num_seqs"] == 64
    assert row["kv_cache_dtype"] is None
    assert row["options"] == '{"max-num-seqs":64}'


def test_capacity_falls_back_to_blocks_times_block_size():
    """A server that logs no KV size but exposes its blocks: 100 blocks of 16 tokens."""
    record = point(closed_rows(), session={"cache_config": {"num_gpu_blocks": "100", "block_size": "16"}})
    assert _row(record)["kv_cache_tokens"] == 1600


def test_capacity_is_that_of_all_data_parallel_engines():
    """Each engine says its own cache; requests are spread over both."""
    record = point([request(0, 0.0)], session={"kv_cache_tokens": 1000, "kv_cache_bytes": 5000})
    record.meta.spec["server"]["options"] = {"data_parallel_size": 2}
    assert server_counters.kv_capacity(record.meta) == (2000, 10000)


def test_joules_per_token_count_the_tokens_of_the_warm_up_too():
    """The meter ran during the warm-up, so its tokens share the energy."""
    rows = [*closed_rows(concurrency=1, each=9), request(0, -5.0, role="warmup")]
    row = _row(point(rows, extra={"energy_j": 320.0}))
    assert row["joules_per_token"] == pytest.approx(320 / 160)
    assert _row(point(rows))["joules_per_token"] is None
