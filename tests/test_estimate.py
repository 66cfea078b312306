"""Estimates: from what was measured here, and never a reason to fail."""

from dataclasses import replace
from pathlib import Path

import pytest

from servelab import estimate
from servelab.spec import Workload
from test_spec import POINT, START

HEAVY = replace(
    POINT, name="heavy", workload=Workload(concurrency=2, input_tokens=800, output_tokens=400, requests=40)
)


def test_what_was_measured_before_is_the_estimate(tmp_path: Path) -> None:
    """The median of the same load's past durations; other loads are scaled by past over assumed."""
    path = tmp_path / "results/timings.jsonl"
    assert estimate.read(path) == estimate.Timings()
    assumed = estimate.point_seconds(estimate.Timings(), START, POINT)
    assumed_heavy = estimate.point_seconds(estimate.Timings(), START, HEAVY)
    for seconds in (2 * assumed, 3 * assumed, 100 * assumed):
        estimate.record(path, START, POINT, seconds, ready_s=7.0)
    timings = estimate.read(path)
    assert estimate.point_seconds(timings, START, POINT) == pytest.approx(3 * assumed, rel=0.05)
    assert estimate.point_seconds(timings, START, HEAVY) == pytest.approx(3 * assumed_heavy, rel=0.05)
    assert estimate.start_seconds(timings, START) == pytest.approx(12.0)


def test_compiled_starts_and_restarts_take_longer(tmp_path: Path) -> None:
    """Eager and compiled starts are told apart; a restart is preceded by a start that fills the cache."""
    path = tmp_path / "timings.jsonl"
    eager = replace(START, options={**START.options, "enforce_eager": True})
    compiled = replace(START, options={**START.options, "enforce_eager": False})
    estimate.record(path, eager, POINT, 5.0, ready_s=50.0)
    guessed = estimate.start_seconds(estimate.read(path), compiled)
    assert guessed > estimate.start_seconds(estimate.read(path), eager) == pytest.approx(55.0)
    estimate.record(path, compiled, POINT, 5.0, ready_s=170.0)
    timings = estimate.read(path)
    assert estimate.start_seconds(timings, compiled) == pytest.approx(175.0)
    assert estimate.start_seconds(timings, eager) == pytest.approx(55.0)
    assert estimate.start_seconds(timings, replace(eager, boot="restart")) == pytest.approx(110.0)


def test_no_points_cost_nothing() -> None:
    """A start whose points are all there is not started, so it takes no time."""
    assert estimate.seconds(estimate.Timings(), START, []) == 0
    assert estimate.seconds(estimate.Timings(), START, [POINT]) > estimate.start_seconds(
        estimate.Timings(), START
    )


@pytest.mark.parametrize(
    "workload",
    [
        Workload(kind="boot"),
        Workload(kind="perplexity", segments=4, segment_tokens=128),
        Workload(kind="interference", victim_output_tokens=64, inserted=3, input_tokens=512),
        Workload(kind="open", duration_s=30, input_tokens=8, output_tokens=4, rate_rps=2.0),
        Workload(kind="closed", concurrency=4, requests=8, input_tokens=8, output_tokens=4),
    ],
)
def test_every_kind_of_load_has_an_estimate(workload: Workload) -> None:
    """No kind is free, and sending for a time takes at least that time."""
    seconds = estimate.point_seconds(estimate.Timings(), START, replace(POINT, workload=workload))
    assert seconds > 0
    assert seconds >= workload.duration_s


def test_an_open_loop_takes_as_long_as_it_sends_however_fast_the_server_was(tmp_path: Path) -> None:
    """A trace to its end or as far as it is used, a number of requests at their rate; past speed changes none of it."""
    path, trace = tmp_path / "timings.jsonl", tmp_path / "trace.txt"
    trace.write_text("# Tuesday\n100\n160.5\n220\n", encoding="utf-8")
    shape = {"kind": "open", "input_tokens": 8, "output_tokens": 4}
    loads = {
        120.0: Workload(**shape, arrival="trace", trace=str(trace)),
        60.0: Workload(**shape, arrival="trace", trace=str(trace), duration_s=60.0),
        50.0: Workload(**shape, rate_rps=2.0, requests=100),
        25.0: Workload(**shape, arrival="ramp", rate_rps=2.0, rate_end_rps=6.0, requests=100),
    }
    estimate.record(path, START, POINT, 1e-6, ready_s=1.0)  # a far faster server than assumed
    for timings, most in ((estimate.Timings(), 1.0), (estimate.read(path), 0.0)):
        for sending, workload in loads.items():
            seconds = estimate.point_seconds(timings, START, replace(POINT, workload=workload))
            assert sending <= seconds <= sending + most, workload
    gone = Workload(**shape, arrival="trace", trace=str(tmp_path / "gone.txt"))
    assert estimate.point_seconds(estimate.Timings(), START, replace(POINT, workload=gone)) < 5


def test_broken_lines_of_the_timings_are_passed_over(tmp_path: Path) -> None:
    """A line cut short by a power loss, or of a later servelab, costs one estimate and nothing else."""
    path = tmp_path / "timings.jsonl"
    estimate.record(path, START, POINT, 5.0, ready_s=1.0)
    with path.open("a", encoding="utf-8") as file:
        file.write('{"device": "cpu"\n[]\n{"device": "cpu", "engine": "vllm", "workload": {"colour": 3}}\n')
    estimate.record(path, START, POINT, 5.0, ready_s=1.0)
    assert estimate.point_seconds(estimate.read(path), START, POINT) == 5.0


@pytest.mark.parametrize(
    ("seconds", "text"), [(0, "0 s"), (45.4, "45 s"), (89, "89 s"), (720, "12 min"), (11_100, "3 h 05 min")]
)
def test_times_are_said_as_people_say_them(seconds: float, text: str) -> None:
    """Seconds, minutes, hours: whatever is readable at that length."""
    assert estimate.clock(seconds) == text
