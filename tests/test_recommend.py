"""E12: advice follows from the points, says its price, and is «not measured» where nothing supports it."""

import shutil
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
from servelab import alert_rules, recommend
from servelab.claims import Analysis
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


def test_what_was_not_measured_is_not_advised() -> None:
    """A study of a sweep alone supports a concurrency and nothing else."""
    found = values(recommend.analyse(with_objective(study("load_sweep", SWEEP), ttft_p95_ms=500.0), []))
    assert {setting for setting, value in found.items() if value is None} == set(recommend.SETTINGS) - {
        "concurrency"
    }


def dtype_points(fp8_ttft_s: float) -> StudyData:
    records = [
        options.load({"kv_cache_dtype": dtype}, f"{dtype}{n}", ttft * (1 + n / 1000), input_tokens=1024)
        for dtype, ttft in (("auto", 4.0), ("fp8", fp8_ttft_s)) for n in (1, 2)
    ]  # fmt: skip
    return study("kv_dtype", records)


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
        moved = [loss + shift * (1 + 0.1 * (i % 3)) for i, loss in enumerate(quality.LOSSES)]
        records = [quality.point("auto", 1, quality.LOSSES), quality.point("fp8", 1, moved)]
        found.append(perplexity.analyse(study("perplexity", records), "e", quality.CONFIG))
    analysis = recommend.analyse(data, found)
    assert values(analysis)["kv_cache_dtype"] == value
    assert template in {finding.template for finding in analysis.findings}


def chunk_table(**runs: float) -> pd.DataFrame:
    return pd.DataFrame([
        {"model": "tiny", "max_num_batched_tokens": int(name[1:]), "itl_max_ms": gap,
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
    from servelab.claims import Table

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


@pytest.mark.skipif(
    shutil.which("promtool") is None, reason="promtool (Debian's prometheus package) is not installed"
)
def test_promtool_accepts_the_rules_and_they_fire(tmp_path: Path) -> None:
    """promtool checks the rules' syntax, and its unit test sees them fire above the limits and be still
    below."""
    (tmp_path / "alerts.yaml").write_text(alert_rules.rules("s", LIMITS), encoding="utf-8")
    checked = subprocess.run(
        ["promtool", "check", "rules", "alerts.yaml"], cwd=tmp_path, capture_output=True, text=True
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
        ["promtool", "test", "rules", "test.yaml"], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr + done.stdout
