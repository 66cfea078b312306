"""E12: advice follows from the points, says its price, and is «not measured» where nothing supports it."""

import subprocess
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest
import yaml

import test_experiment_options as options
import test_experiment_perplexity as quality
from made_points import closed_rows
from made_study import placed, study
from programs import need
from servelab import alert_rules, recommend
from servelab.claims import Analysis, Table
from servelab.config.schema import Objective, Study
from servelab.experiments import kv_dtype, perplexity, workloads
from servelab.experiments.base import StudyData
from servelab.records import PointRecord
from servelab.texts import LANGUAGES, catalogue


def sweep(concurrency: int, ttft_s: float) -> PointRecord:
    """A point of a load sweep in which every request waits ttft_s for its first token."""
    name, workload = workloads.closed(concurrency, 64, 16, 4 * concurrency)
    return placed(
        closed_rows(concurrency, 4, ttft_s=ttft_s), workload, {"max_model_len": 2048}, "s1", f"{name}-r1"
    )


SWEEP = [sweep(1, 0.05), sweep(4, 0.1), sweep(8, 0.2), sweep(16, 2.0)]


def with_objective(data: StudyData, **bounds: float) -> StudyData:
    return replace(data, study=Study(study="test", objective=Objective(**bounds)))


def values(analysis: Analysis) -> dict[str, object]:
    """Setting → value; every sentence of the analysis can be written in every language."""
    for finding in analysis.findings:
        for language in LANGUAGES:
            assert catalogue(language).text(f"findings.{finding.template}", finding.values)
    frame = analysis.tables[0].frame
    texts = [None if pd.isna(value) else str(value) for value in frame["value"]]
    return dict(zip(frame["setting"], texts, strict=True))


def test_the_largest_concurrency_within_the_objective_is_advised_with_the_price_of_the_next() -> None:
    """TTFT p95 of at most 500 ms: 8 at once; 16 would be slower than asked, and by how much is said."""
    data = with_objective(study("load_sweep", SWEEP), ttft_p95_ms=500.0)
    analysis = recommend.analyse(data, [])
    assert values(analysis)["concurrency"] == "8"
    told = next(finding for finding in analysis.findings if finding.template == "set_concurrency").values
    assert told["next"] == 16 and told["next_ttft"] == pytest.approx(2000.0)
    rests_on = analysis.tables[0].frame.set_index("setting").loc["concurrency", "rests_on"]
    assert rests_on == "points/2.arrow, points/3.arrow"


def test_more_at_once_that_only_waits_longer_is_not_advised() -> None:
    """8 at once meet the objective too but give less than 4: the limit is 4."""
    points = [sweep(1, 0.05), sweep(4, 0.1), sweep(8, 0.45)]
    analysis = recommend.analyse(with_objective(study("load_sweep", points), ttft_p95_ms=500.0), [])
    assert values(analysis)["concurrency"] == "4"
    rules = recommend.artefacts("test", Objective(ttft_p95_ms=500.0), analysis)["alerts.yaml"]
    assert "> 4" in rules


def test_an_objective_that_nothing_meets_is_told() -> None:
    """If not even one request at a time meets it, no limit is advised."""
    data = with_objective(study("load_sweep", [*SWEEP]), ttft_p95_ms=10.0)
    analysis = recommend.analyse(data, [])
    assert analysis.status == "not_measured" and analysis.reason == "nothing_supports_a_setting"


def test_too_few_gaps_quote_no_p99_and_all_of_them_must_be_within_the_bound() -> None:
    """60 and 240 gaps of 10 ms: no ITL p99 is quoted, the longest gap is, and it is what the bound is held against."""
    points = [sweep(1, 0.05), sweep(4, 0.1)]
    kept = recommend.analyse(with_objective(study("load_sweep", points), itl_p99_ms=20.0), [])
    assert values(kept)["concurrency"] == "4"
    told = {finding.template: finding.values for finding in kept.findings}
    assert told["set_concurrency_open_few"]["at_gap"] == pytest.approx(10.0)
    beyond = recommend.analyse(with_objective(study("load_sweep", points), itl_p99_ms=5.0), [])
    assert beyond.status == "not_measured"
    for language in LANGUAGES:
        text = catalogue(language).text("findings.set_concurrency_open_few", told["set_concurrency_open_few"])
        assert "ITL p99 10" not in text


def test_what_was_not_measured_is_not_advised() -> None:
    """A study of a sweep alone supports a concurrency and nothing else."""
    found = values(recommend.analyse(with_objective(study("load_sweep", SWEEP), ttft_p95_ms=500.0), []))
    assert {setting for setting, value in found.items() if value is None} == set(recommend.SETTINGS) - {
        "concurrency"
    }


def test_a_setting_that_was_not_varied_stays_as_the_study_sets_it() -> None:
    """One chunk size on every server is no default of the server's; what no server was given is."""
    name, workload = workloads.closed(4, 64, 16, 16)
    points = [
        placed(
            closed_rows(4, 4),
            workload,
            {"max_num_batched_tokens": 512, "max-num-seqs": seqs},
            at,
            f"{name}-r1",
        )
        for seqs, at in ((8, "s1"), (16, "s2"))
    ]
    analysis = recommend.analyse(study("load_sweep", points), [])
    assert values(analysis)["max_num_batched_tokens"] is None
    told = {
        finding.values["setting"]: finding for finding in analysis.findings if "setting" in finding.values
    }
    assert told["max_num_batched_tokens"].template == "set_not_varied"
    assert told["max_num_batched_tokens"].values["kept"] == "--max-num-batched-tokens=512"
    assert {told[name].template for name in ("max_num_seqs", "kv_cache_dtype")} == {"set_not_measured"}


def test_a_setting_whose_other_value_failed_was_varied() -> None:
    """512 worked and 1024 did not: 512 is not called the one that was never changed."""
    _, workload = workloads.closed(4, 64, 16, 16)
    points = [
        placed(closed_rows(4, 4), workload, {"max_num_batched_tokens": tokens}, at, f"{at}-r1")
        for tokens, at in ((512, "s1"), (1024, "s2"))
    ]
    analysis = recommend.analyse(study("load_sweep", points, s2_r1="invalid"), [])
    told = {f.values["setting"]: f.template for f in analysis.findings if "setting" in f.values}
    assert told["max_num_batched_tokens"] == "set_not_measured"


def caps(
    gaps_s: dict[int, float], starts: int = 2, spread: float = 0.001, concurrency: int = 8,
    ttft_s: float = 0.05, experiment: str = "e", **more: object,
) -> list[PointRecord]:  # fmt: skip
    """Points of max_num_seqs with these gaps by cap; the n-th of the starts is slower by n times the spread."""
    return [
        options.load(
            {"max_num_seqs": cap, **more}, f"{experiment}-{cap}-{n}-{more}", ttft_s, gap * (1 + n * spread),
            concurrency, experiment=experiment,
        )
        for cap, gap in gaps_s.items() for n in range(1, starts + 1)
    ]  # fmt: skip


def advised(analysis: Analysis, setting: str) -> tuple[str, dict[str, object]]:
    """The text's id and values of the sentence about a setting."""
    found = [finding for finding in analysis.findings if finding.group == f"what_to_set {setting}"]
    assert len(found) == 1
    return found[0].template, dict(found[0].values)


@pytest.mark.parametrize("bound", [0.0, 10.0])
@pytest.mark.parametrize(
    ("gaps_s", "starts", "spread", "ending"),
    [
        ({4: 0.02, 8: 0.01}, 2, 0.001, ""),
        ({4: 0.0101, 8: 0.01}, 3, 0.02, "_same"),
        ({4: 0.02, 8: 0.01}, 1, 0.0, "_unknown"),
    ],
)
def test_a_cap_that_cannot_be_told_from_the_next_is_not_called_the_best(
    bound: float, gaps_s: dict[int, float], starts: int, spread: float, ending: str
) -> None:
    """«The most» only where starts show it; else the text says that they cannot be told apart, or have one start."""
    data = with_objective(study("max_num_seqs", caps(gaps_s, starts, spread)), ttft_p95_ms=bound)
    analysis = recommend.analyse(data, [])
    assert values(analysis)["max_num_seqs"] == "8"
    template, told = advised(analysis, "max_num_seqs")
    assert template == ("set_max_num_seqs_unmet" if bound else "set_max_num_seqs") + ending
    assert told["other"] == 4


def test_the_only_cap_within_the_objective_is_called_so() -> None:
    """A cap beyond the bound may be faster: the one within it is advised and not called the fastest."""
    records = caps({4: 0.02}, ttft_s=0.05) + caps({8: 0.001}, ttft_s=0.2)
    data = with_objective(study("max_num_seqs", records), ttft_p95_ms=100.0)
    analysis = recommend.analyse(data, [])
    assert values(analysis)["max_num_seqs"] == "4"
    template, told = advised(analysis, "max_num_seqs")
    assert template == "set_max_num_seqs_only"
    assert told["other_throughput"] > told["throughput"]


def test_caps_are_judged_under_one_load() -> None:
    """Of two experiments the heavier load counts: what cap 4 gains at 2 at once says nothing of 8 at once."""
    light = caps({4: 0.001, 8: 0.02}, concurrency=2, experiment="light")
    heavy = caps({4: 0.02, 8: 0.01}, experiment="heavy")
    analysis = recommend.analyse(study("max_num_seqs", light + heavy), [])
    assert values(analysis)["max_num_seqs"] == "8"
    _, told = advised(analysis, "max_num_seqs")
    assert told["concurrency"] == 8
    assert told["throughput"] == pytest.approx(8 * 16 / (0.05 + 15 * 0.01), rel=0.01)
    rests_on = analysis.tables[0].frame.set_index("setting").loc["max_num_seqs", "points"]
    assert rests_on == len(heavy)


def test_caps_are_judged_on_servers_with_the_same_other_options() -> None:
    """Compiled and eager servers of one experiment are not averaged, and the sentence names its own."""
    records = caps({4: 0.02, 8: 0.01}, enforce_eager=False) + caps({4: 0.001, 8: 0.02}, enforce_eager=True)
    analysis = recommend.analyse(study("max_num_seqs", records), [])
    assert values(analysis)["max_num_seqs"] == "8"
    assert advised(analysis, "max_num_seqs")[1]["model"] == "tiny (enforce_eager=False)"


def dtype_points(fp8_ttft_s: float, **more: float) -> StudyData:
    """A kv_dtype experiment at long input: auto with a TTFT of 4 s, fp8 and further dtypes with their own."""
    records = [
        options.load({"kv_cache_dtype": dtype}, f"{dtype}{n}", ttft * (1 + n / 1000), input_tokens=1024)
        for dtype, ttft in {"auto": 4.0, "fp8": fp8_ttft_s, **more}.items() for n in (1, 2)
    ]  # fmt: skip
    return study("kv_dtype", records)


def perplexities(*points: PointRecord) -> Analysis:
    return perplexity.analyse(study("perplexity", points), "e", quality.CONFIG)


@pytest.mark.parametrize(
    ("fp8_ttft_s", "shift", "template", "value"),
    [
        (1.0, 0.001, "set_kv_dtype_gain", "fp8"),
        (1.0, 0.1, "set_kv_dtype_quality_worse", "auto"),
        (1.0, -0.02, "set_kv_dtype_quality_unexplained", "auto"),
        (1.0, None, "set_kv_dtype_quality_unknown", "auto"),
        (4.0, 0.001, "set_kv_dtype_no_gain", "auto"),
    ],
)
def test_an_eight_bit_cache_needs_speed_and_a_perplexity_that_is_explained(
    fp8_ttft_s: float, shift: float | None, template: str, value: str
) -> None:
    """fp8 is advised only where it is faster and its perplexity was measured, hardly worse, and not
    «better»."""
    data = dtype_points(fp8_ttft_s)
    found = [kv_dtype.analyse(data, "e", options.CONFIG)]
    if shift is not None:
        found.append(perplexities(AUTO, quality.point("fp8", 1, quality.shifted(shift))))
    analysis = recommend.analyse(data, found)
    assert values(analysis)["kv_cache_dtype"] == value
    assert template in {finding.template for finding in analysis.findings}


AUTO = quality.point("auto", 1, quality.LOSSES)
HARDLY = quality.shifted(0.001)


def test_a_perplexity_measured_in_an_earlier_experiment_counts() -> None:
    """Two perplexity experiments: the second measured no fp8, the first's fp8 is still known."""
    found = [
        perplexities(AUTO, quality.point("fp8", 1, HARDLY)),
        perplexities(AUTO, quality.point("fp8_e5m2", 1, HARDLY)),
    ]
    analysis = recommend.analyse(dtype_points(1.0), found)
    assert advised(analysis, "kv_cache_dtype")[0] == "set_kv_dtype_gain"


@pytest.mark.parametrize(
    "points",
    [
        (quality.point("fp8_e5m2", 1, quality.LOSSES), quality.point("fp8", 1, HARDLY)),
        (quality.point("auto", 1, quality.LOSSES, backend="FLASHINFER"),
         quality.point("fp8", 1, HARDLY, backend="TRITON_ATTN")),
    ],
    ids=["another dtype", "another backend"],
)  # fmt: skip
def test_a_perplexity_against_something_else_supports_no_dtype(points: tuple[PointRecord, ...]) -> None:
    """fp8's change must be one from auto, which it replaces, on the same backend; any other says nothing of it."""
    analysis = recommend.analyse(dtype_points(1.0), [perplexities(*points)])
    assert values(analysis)["kv_cache_dtype"] == "auto"
    template, told = advised(analysis, "kv_cache_dtype")
    assert template == "set_kv_dtype_quality_unknown" and told["perplexity"] is None


def test_every_dtype_is_judged_and_a_gain_preferred() -> None:
    """fp8 gains nothing, fp8_e5m2 does: it is advised, though it comes later."""
    found = [perplexities(AUTO, quality.point("fp8_e5m2", 1, HARDLY))]
    analysis = recommend.analyse(dtype_points(4.0, fp8_e5m2=1.0), found)
    assert values(analysis)["kv_cache_dtype"] == "fp8_e5m2"
    assert advised(analysis, "kv_cache_dtype")[0] == "set_kv_dtype_gain"


def test_dtypes_are_judged_on_servers_with_the_same_other_options() -> None:
    """A gain of eager servers is none of the compiled ones, which the sentence names."""
    records = [
        options.load(
            {"kv_cache_dtype": dtype, "enforce_eager": eager}, f"{dtype}{eager}{n}", ttft * (1 + n / 1000),
            input_tokens=1024,
        )
        for eager, dtype, ttft in (
            (False, "auto", 4.0), (False, "fp8", 4.0), (True, "auto", 40.0), (True, "fp8", 1.0),
        )
        for n in (1, 2)
    ]  # fmt: skip
    template, told = advised(recommend.analyse(study("kv_dtype", records), []), "kv_cache_dtype")
    assert template == "set_kv_dtype_no_gain"
    assert told["model"] == "tiny (enforce_eager=False)"


def test_a_chunk_measured_in_an_earlier_experiment_counts() -> None:
    """Two chunk experiments: the second has one chunk only, the first supports a setting."""
    found = [
        Analysis("chunked_prefill", name, tables=[Table(name, frame, {}, name, "chunked_prefill")])
        for name, frame in (("a", chunk_table(c512=69.0, c2048=227.0)), ("b", chunk_table(c1024=129.0)))
    ]
    analysis = recommend.analyse(with_objective(study("load_sweep", SWEEP), itl_p99_ms=250.0), found)
    assert values(analysis)["max_num_batched_tokens"] == "2048"


def chunk_table(**runs: float) -> pd.DataFrame:
    return pd.DataFrame([
        {"model": "tiny", "server": None, "max_num_batched_tokens": int(name[1:]), "itl_max_ms": gap,
         "long_ttft_max_ms": 500.0 - gap / 10}
        for name, gap in runs.items()
    ])  # fmt: skip


@pytest.mark.parametrize(
    ("bound", "template", "value"),
    [(250.0, "set_chunk", "2048"), (50.0, "set_chunk_unmet", "512"), (0.0, "set_chunk_prompts", "8192")],
)
def test_the_chunk_follows_from_the_bound_on_gaps(bound: float, template: str, value: str) -> None:
    """The largest chunk whose longest gap is within the bound; the nearest one; without a bound the fastest
    prompts."""
    table = Table("t", chunk_table(c512=69.0, c2048=227.0, c8192=445.0), {}, "e", "chunked_prefill")
    found = Analysis("chunked_prefill", "e", tables=[table])
    data = with_objective(study("load_sweep", SWEEP), itl_p99_ms=bound)
    analysis = recommend.analyse(data, [found])
    assert values(analysis)["max_num_batched_tokens"] == value
    assert template in {finding.template for finding in analysis.findings}


def test_the_command_line_can_be_pasted() -> None:
    """`vllm serve` with the model, what all servers shared and what is advised, quoted for a shell."""
    data = with_objective(study("load_sweep", SWEEP), ttft_p95_ms=500.0)
    analysis = recommend.analyse(data, [])
    script = recommend.artefacts("test", data.study.objective, analysis)["serve.sh"]
    assert "vllm serve tiny --max-model-len=2048" in script
    done = subprocess.run(["sh", "-n"], input=script, text=True, capture_output=True)
    assert done.returncode == 0, done.stderr


LIMITS = alert_rules.Limits(ttft_p95_ms=500.0, itl_p99_ms=250.0, concurrency=32, max_num_seqs=16)


def test_alerting_rules_are_for_exactly_these_limits() -> None:
    """Preemptions above zero, 16 waiting of 32, TTFT p95 0.5 s, ITL p99 0.25 s; no objective, no rule for
    it."""
    rules = {
        rule["alert"]: rule["expr"]
        for rule in yaml.safe_load(alert_rules.rules("s", LIMITS))["groups"][0]["rules"]
    }
    assert rules["VllmPreemptions"].endswith("> 0")
    assert rules["VllmRequestsWaiting"].endswith("> 16")
    assert rules["VllmConcurrency"].endswith("> 32")
    assert rules["VllmTtftP95"].endswith("> 0.5") and "0.95" in rules["VllmTtftP95"]
    assert rules["VllmItlP99"].endswith("> 0.25") and "0.99" in rules["VllmItlP99"]
    bare = yaml.safe_load(alert_rules.rules("s", alert_rules.Limits()))["groups"][0]["rules"]
    assert {rule["alert"] for rule in bare} == {"VllmPreemptions", "VllmRequestsWaiting"}


def test_promtool_accepts_the_rules_and_they_fire(tmp_path: Path) -> None:
    """promtool checks the rules' syntax, and its unit test sees them fire above the limits and be still
    below."""
    promtool = need("promtool", "prometheus")
    (tmp_path / "alerts.yaml").write_text(alert_rules.rules("s", LIMITS), encoding="utf-8")
    checked = subprocess.run(
        [promtool, "check", "rules", "alerts.yaml"], cwd=tmp_path, capture_output=True, text=True
    )
    assert checked.returncode == 0, checked.stderr + checked.stdout
    series = 'vllm:num_requests_waiting{model_name="m"}'
    fired = {"alertname": "VllmRequestsWaiting", "eval_time": "20m", "exp_alerts": [{
        "exp_labels": {"severity": "warning", "model_name": "m"},
        "exp_annotations": {"summary": "More than 16 requests wait in the server's queue (m)"},
    }]}  # fmt: skip
    still = {"alertname": "VllmPreemptions", "eval_time": "20m", "exp_alerts": []}
    tests = {"rule_files": ["alerts.yaml"], "evaluation_interval": "1m", "tests": [{
        "interval": "1m", "input_series": [{"series": series, "values": "17x30"}],
        "alert_rule_test": [fired, still],
    }]}  # fmt: skip
    (tmp_path / "test.yaml").write_text(yaml.safe_dump(tests), encoding="utf-8")
    done = subprocess.run(
        [promtool, "test", "rules", "test.yaml"], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr + done.stdout
