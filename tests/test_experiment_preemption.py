"""E3: where preemption begins, and what resumed requests computed again, are recovered from made-up
counters."""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from made_points import counters, request
from made_study import placed, said, study
from servelab import iteration_log
from servelab.experiments import preemption, workloads
from servelab.records import PointRecord, requests_table

CONFIG = preemption.Config(input_tokens=[128], output_tokens=[32], concurrency=[4, 16])


def cell(
    concurrency: int,
    preemptions: int,
    again: int | None,
    context: int = 0,
    options: dict[str, Any] | None = None,
) -> PointRecord:
    """A load of concurrency × 2 requests; `again` tokens were computed twice, `context` of them as context."""
    name, workload = workloads.closed(concurrency, 128, 32, 2 * concurrency)
    rows = [request(i, 0.1 * i, input_tokens=128, output_tokens=32) for i in range(2 * concurrency)]
    steps = {
        "steps": 9,
        "context_tokens": len(rows) * 128 + context,
        "generation_tokens": len(rows) * 31 + (again or 0) - context,
    }
    extra = {} if again is None else {"scheduler": steps}
    metrics = counters({"num_preemptions": 5}, {"num_preemptions": 5 + preemptions})
    session = {"kv_cache_tokens": 1024}
    return placed(
        rows, workload, options or {}, "s1", f"{name}-r1", metrics=metrics, extra=extra, session=session
    )


def analysed(*records: PointRecord) -> dict:
    return said(preemption.analyse(study("preemption", records), "e", CONFIG))


def test_preemptions_above_the_boundary_support_it() -> None:
    """4 × 160 tokens fit into 1,024 and do not preempt, 16 × 160 do not fit and do: the boundary holds."""
    found = analysed(cell(4, 0, 0), cell(16, 7, 0))
    assert found["preemption_boundary"]["above_with"] == 1
    assert found["preemption_boundary"]["below_without"] == 1
    assert found["preemption_boundary"]["lowest"] == pytest.approx(16 * 160 / 1024)
    assert found["preemption_most"]["preemptions"] == 7


def test_preemptions_below_the_boundary_in_tokens_are_set_against_whole_blocks() -> None:
    """4 × 160 tokens fit into 7 × 128, but not their 8 blocks of 128: whole blocks explain the preemption."""
    small = cell(4, 3, None)
    small.meta.session["cache_config"] = {"block_size": "128", "num_gpu_blocks": "8"}
    assert analysed(small, cell(16, 7, None))["preemption_boundary_blocks"]["below_with"] == 1


def test_no_more_requests_run_than_the_server_lets() -> None:
    """16 requests want 2,560 tokens of 1,024, but at most 4 run: that nothing is preempted contradicts nothing."""
    options = {"max_num_seqs": 4}
    found = analysed(*(cell(c, 0, 0, options=options) for c in (4, 16)))
    assert "preemption_none" not in found


def test_preemptions_below_the_boundary_contradict_it() -> None:
    """A load that fits by calculation and preempts all the same is told."""
    assert analysed(cell(4, 3, None), cell(16, 7, None))["preemption_below_boundary"]["below_with"] == 1


@pytest.mark.parametrize(
    ("again_each", "template"),
    [(16, "preemption_resume_hits"), (140, "preemption_resume_either"), (170, "preemption_resume_misses")],
)
def test_what_resumed_requests_found_is_told_from_what_was_computed_again(
    again_each: int, template: str
) -> None:
    """Fewer tokens than the input: found. More than input + output: not. Between them: cannot be told."""
    found = analysed(cell(4, 0, 0), cell(16, 10, 10 * again_each))
    assert found[template]["per_preemption"] == pytest.approx(again_each)
    assert len([name for name in found if name.startswith("preemption_resume")]) == 1


def test_what_was_computed_again_as_context_gives_no_lower_bound() -> None:
    """A request preempted while it is read in has less than its input to lose: hits cannot be proven then."""
    found = analysed(cell(4, 0, 0), cell(16, 10, 160, context=60))
    assert found["preemption_resume_either"]["low"] == 0


def test_an_account_that_does_not_add_up_is_not_used() -> None:
    """Where calm loads already miss their known sum of tokens, nothing is concluded about resumed
    requests."""
    assert "preemption_resume_inexact" in analysed(cell(4, 0, 500), cell(16, 10, 160))


def test_without_a_log_of_steps_it_is_not_measured() -> None:
    """No counter of /metrics can tell; then the report says so."""
    assert "preemption_resume_unknown" in analysed(cell(4, 0, None), cell(16, 10, None))


STEP = (
    "(APIServer pid=1) INFO 11-29 16:48:04 [loggers.py:197] Engine 000: Iteration({}): {} context requests, "
    "{} context tokens, {} generation requests, {} generation tokens, iteration elapsed time: 8.10 ms, "
    "CPU KV cache usage: 1.0%"
)


def test_the_tokens_of_all_steps_less_those_needed_are_those_computed_again() -> None:
    """Two requests of 10 + 3 tokens need 12 computed tokens each; 9 more in the steps were computed twice."""
    rows = requests_table([request(i, 0.0, input_tokens=10, output_tokens=3) for i in range(2)])
    steps = [STEP.format(0, 2, 20, 0, 0), STEP.format(1, 0, 0, 2, 2), "noise", STEP.format(2, 0, 0, 2, 11)]
    totals = iteration_log.totals(steps)
    assert totals == {"steps": 3, "context_tokens": 20, "generation_requests": 4, "generation_tokens": 13}
    assert iteration_log.recomputed(totals, rows) == iteration_log.Recomputed(tokens=33 - 24, context=0)


def test_a_log_with_missing_steps_is_no_account() -> None:
    """A log that was cut in the middle gives no sum."""
    assert iteration_log.totals([STEP.format(0, 1, 1, 0, 0), STEP.format(2, 1, 1, 0, 0)]) == {}
    assert iteration_log.totals(["nothing of the kind"]) == {}


@pytest.mark.real
@pytest.mark.timeout(1800)  # the first of them may make the server's environment
def test_the_account_of_steps_is_vllms_own(real_server: Any) -> None:
    """On vLLM's own scheduler the account is exactly what the preempted lost less what vLLM says they found."""
    script = Path(__file__).parent / "vllm_scheduler.py"
    environment = {**os.environ, "HF_HUB_OFFLINE": "1"}
    command = [str(real_server.python), str(script), str(real_server.model)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, env=environment)
    loads = [json.loads(line[5:]) for line in done.stdout.splitlines() if line.startswith("told ")]
    assert len(loads) == 3, done.stderr[-2000:]
    for told in loads:
        shape = {"input_tokens": told["input"], "output_tokens": told["output"]}
        rows = requests_table([request(i, 0.0, **shape) for i in range(told["count"])])
        again = iteration_log.recomputed(told, rows)
        assert again is not None and told["preemptions"] > 0
        assert again.tokens == told["lost"] - told["found"]
    assert any(told["found"] > 0 for told in loads)
