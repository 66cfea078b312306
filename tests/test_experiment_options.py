"""E4, E5, E8: settings are compared with the right base, on the right quantity, and no more is said than is
known."""

import pytest

from made_points import closed_rows
from made_study import placed, said, study
from servelab.experiments import cuda_graphs, kv_dtype, max_num_seqs, workloads
from servelab.records import PointRecord, series_table
from servelab.texts import catalogue


def load(
    options: dict, at: str, ttft_s: float = 0.05, gap_s: float = 0.01, concurrency: int = 8,
    input_tokens: int = 64,
    repeat: int = 1, gauges: tuple[int, int] | None = None, **meta: object,
) -> PointRecord:  # fmt: skip
    """A closed loop in which every request has this TTFT and these gaps."""
    name, workload = workloads.closed(concurrency, input_tokens, 16, 4 * concurrency)
    rows = closed_rows(concurrency, 4, ttft_s=ttft_s, gap_s=gap_s, input_tokens=input_tokens)
    record = placed(rows, workload, options, at, f"{name}-r{repeat}", repeat, **meta)
    if gauges is not None:
        names = ("vllm:num_requests_running", "vllm:num_requests_waiting")
        polls = [{"at_s": 0.05, "name": n, "value": float(v)} for n, v in zip(names, gauges, strict=True)]
        record.series = series_table(polls)
    return record


def test_caps_are_compared_with_the_largest_over_starts() -> None:
    """Two starts a cap: half the speed at cap 4 against 8 is a difference, and the queue is where the
    gauges say."""
    records = [
        load({"max_num_seqs": cap}, f"s{cap}-{n}", gap_s=gap * (1 + n / 1000), gauges=gauges)
        for cap, gap, gauges in ((4, 0.02, (4, 4)), (8, 0.01, (8, 0)))
        for n in (1, 2)
    ]
    config = max_num_seqs.Config(max_num_seqs=[4, 8], concurrency=8)
    analysis = max_num_seqs.analyse(study("max_num_seqs", records), "e", config)
    found = said(analysis)
    truth = (0.05 + 15 * 0.01) / (0.05 + 15 * 0.02)
    assert found["max_num_seqs_throughput_different"]["ratio"] == pytest.approx(truth, rel=0.01)
    assert found["max_num_seqs_throughput_different"]["most"] == 8
    waiting = [f.values for f in analysis.findings if f.template == "max_num_seqs_queue"]
    assert {(values["cap"], values["running"], values["waiting"]) for values in waiting} == {
        (8, 8.0, 0.0),
        (4, 4.0, 4.0),
    }


def test_one_start_each_is_not_called_a_difference() -> None:
    """With a single start a setting, even a factor of two is reported without a verdict."""
    records = [
        load({"max_num_seqs": cap}, f"s{cap}", gap_s=0.08 / cap, repeat=r) for cap in (4, 8) for r in (1, 2)
    ]
    found = said(
        max_num_seqs.analyse(study("max_num_seqs", records), "e", max_num_seqs.Config(max_num_seqs=[4, 8]))
    )
    assert "max_num_seqs_throughput_unknown" in found
    assert not [name for name in found if name.endswith(("_different", "_same"))]


@pytest.mark.parametrize("starts", [(1, 1), (1, 2), (2, 1)])
@pytest.mark.parametrize(
    ("module", "options", "config"),
    [
        (max_num_seqs, ({"max_num_seqs": 8}, {"max_num_seqs": 4}), max_num_seqs.Config()),
        (kv_dtype, ({"kv_cache_dtype": "auto"}, {"kv_cache_dtype": "fp8"}), kv_dtype.Config()),
        (cuda_graphs, ({"enforce_eager": True}, {"enforce_eager": False}), cuda_graphs.Config()),
    ],
)
def test_without_a_verdict_no_more_starts_are_denied_than_are_missing(
    module: object, options: tuple[dict, dict], config: object, starts: tuple[int, int]
) -> None:
    """One start on one side is enough for «not known»; the other may have several, so the text speaks of one side."""
    records = [
        load(setting, f"s{side}-{n}", gap_s=0.01 * (1 + side / 2))
        for side, setting in enumerate(options)
        for n in range(starts[side])
    ]
    kind = module.KIND  # type: ignore[attr-defined]
    analysis = module.analyse(study(kind, records), "e", config)  # type: ignore[attr-defined]
    unknown = [found for found in analysis.findings if found.template.endswith("_unknown")]
    assert unknown
    for found in unknown:
        text = catalogue("en").text(f"findings.{found.template}", found.values)
        assert "where a side has one server start only" in text and "each" not in text
        korean = catalogue("ko").text(f"findings.{found.template}", found.values)
        assert "하나뿐인 쪽이 있어" in korean and "하나씩" not in korean


def test_equal_starts_are_not_told_apart_and_the_visible_difference_is_given() -> None:
    """Two settings that differ less than their starts do are «no difference can be seen», with what would
    have been."""
    records = [
        load({"max_num_seqs": cap}, f"s{cap}-{n}", gap_s=0.01 * (1 + n / 50))
        for cap in (4, 8)
        for n in (1, 2, 3)
    ]
    found = said(
        max_num_seqs.analyse(study("max_num_seqs", records), "e", max_num_seqs.Config(max_num_seqs=[4, 8]))
    )
    assert found["max_num_seqs_throughput_same"]["visible"] > 0


def test_capacity_stands_in_whole_blocks_and_by_tokens() -> None:
    """3,200 tokens in 25 blocks of 128: 25 requests of 80 tokens, each in a block of its own; by tokens alone 40."""
    session = {"kv_cache_tokens": 3200, "cache_config": {"block_size": "128", "num_gpu_blocks": "25"}}
    records = [load({"max_num_seqs": 4}, "s1", session=session)]
    config = max_num_seqs.Config(max_num_seqs=[4])
    row = max_num_seqs.analyse(study("max_num_seqs", records), "e", config).tables[0].frame.iloc[0]
    assert (row["capacity_requests"], row["capacity_by_tokens"]) == (25, 40)


CONFIG = kv_dtype.Config(
    short_concurrency=1, short_input_tokens=64, output_tokens=16, long_concurrency=8, long_input_tokens=1024
)


def test_an_eight_bit_cache_gains_at_long_input_and_not_at_short() -> None:
    """Short loads are compared by throughput, long ones by TTFT; the capacity stands beside them."""
    records = []
    for dtype, tokens, long_ttft in (("auto", 4096, 4.0), ("fp8", 8192, 1.0)):
        session = {"session": {"kv_cache_tokens": tokens}}
        for n in (1, 2):
            options, at = {"kv_cache_dtype": dtype}, f"{dtype}{n}"
            slower = 1 + n / 1000
            records.append(load(options, at, ttft_s=0.05 * slower, concurrency=1, **session))
            records.append(load(options, at, ttft_s=long_ttft * slower, input_tokens=1024, **session))
    found = said(kv_dtype.analyse(study("kv_dtype", records), "e", CONFIG))
    assert found["kv_dtype_long_ttft_different"]["ratio"] == pytest.approx(0.25, rel=0.01)
    assert found["kv_dtype_short_throughput_same"]["ratio"] == pytest.approx(1.0, rel=0.01)
    assert found["kv_dtype_capacity"]["ratio"] == pytest.approx(2.0)
    assert found["kv_dtype_capacity"]["needed"] == 8 * (1024 + 16)


def test_a_dtype_that_the_engine_cannot_do_is_not_measured_and_the_rest_stands() -> None:
    """A server that refuses fp8 leaves its own words and an empty row; the other dtype keeps its numbers."""
    good = load({"kv_cache_dtype": "auto"}, "a", concurrency=1)
    refused = load({"kv_cache_dtype": "fp8"}, "b", concurrency=1)
    refused.requests = refused.requests.slice(0, 0)
    refused.meta.status, refused.meta.cause, refused.meta.detail = (
        "failed",
        "server_start",
        "fp8 is not supported",
    )
    analysis = kv_dtype.analyse(study("kv_dtype", [good, refused]), "e", CONFIG)
    assert said(analysis)["setting_not_measured"]["detail"] == "fp8 is not supported"
    frame = analysis.tables[0].frame.set_index("kv_cache_dtype")["output_throughput_tok_s"]
    assert frame["auto"] > 0 and frame.isna()["fp8"]


@pytest.mark.parametrize(("graphs", "what"), [(True, "graphs"), (False, "compiled")])
def test_graphs_are_called_graphs_only_where_they_were_captured(graphs: bool, what: str) -> None:
    """The log decides whether the comparison is one of CUDA graphs or of compilation; eager is the base."""
    records = [
        load({"enforce_eager": eager}, f"{eager}{n}", gap_s=gap * (1 + n / 1000),
             session={"log": {"graphs": graphs and not eager}, "ready_s": 30.0 if eager else 55.0})
        for eager, gap in ((False, 0.006), (True, 0.009)) for n in (1, 2)
    ]  # fmt: skip
    found = said(cuda_graphs.analyse(study("cuda_graphs", records), "e", cuda_graphs.Config()))
    assert found[f"{what}_throughput_different"]["ratio"] == pytest.approx(
        (0.05 + 0.135) / (0.05 + 0.09), rel=0.01
    )
    assert found[f"{what}_ready"]["difference"] == pytest.approx(25.0)


@pytest.mark.parametrize("module", [max_num_seqs, kv_dtype, cuda_graphs])
def test_an_experiment_without_a_usable_point_says_why(module: object) -> None:
    """All failed, all invalid, and attached servers each have their own reason; no table, no finding."""
    failed = load({}, "a")
    failed.meta.status, failed.meta.cause, failed.meta.detail = "failed", "server_start", "out of memory"
    kind = module.KIND  # type: ignore[attr-defined]
    analyse, config = module.analyse, module.Config()  # type: ignore[attr-defined]
    refused = analyse(study(kind, [failed]), "e", config)
    assert (refused.status, refused.reason) == ("not_measured", "experiment_all_failed")
    assert refused.reason_values["detail"] == "out of memory"
    invalid = analyse(study(kind, [load({}, "a")], c8_i64_o16_r1="invalid"), "e", config)
    assert invalid.reason == "experiment_all_invalid"
    attached = analyse(study(kind, [load({}, "a", session={"boot": "attached"})]), "e", config)
    assert attached.reason == "experiment_attached"
