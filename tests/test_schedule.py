"""Arrival times: seeded, of the rate and burstiness asked for, and what a bad trace says."""

import hashlib
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

from servelab.schedule import arrivals, measured_arrivals, read_trace, slots, warmup_count
from servelab.spec import ChangedInputError, Workload


def open_loop(**changes: Any) -> Workload:
    return Workload(
        kind="open", input_tokens=8, output_tokens=8, **{"rate_rps": 10.0, "requests": 100, **changes}
    )


def first(workload: Workload, count: int, seed: int = 1) -> np.ndarray[Any, np.dtype[np.float64]]:
    return np.array(list(islice(arrivals(workload, np.random.default_rng(seed)), count)))


@pytest.mark.parametrize(("kind", "shape"), [("poisson", 1.0), ("gamma", 0.25), ("gamma", 4.0)])
def test_gaps_have_the_distribution_asked_for(kind: str, shape: float) -> None:
    """Gaps follow the gamma distribution of mean 1/rate and the given shape (Kolmogorov-Smirnov, seeded)."""
    times = first(open_loop(arrival=kind, burstiness=shape), 4000)
    gaps = np.diff(times, prepend=0.0)
    assert stats.kstest(gaps, stats.gamma(shape, scale=1 / (10 * shape)).cdf).pvalue > 0.01
    assert np.all(gaps >= 0)


def test_constant_arrivals_are_equally_spaced_from_zero() -> None:
    """The n-th arrival is n/rate, without the error of summed gaps."""
    assert np.array_equal(first(open_loop(arrival="constant"), 1000), np.arange(1000) / 10.0)


@pytest.mark.parametrize(("low", "high"), [(2.0, 18.0), (18.0, 2.0), (0.0, 20.0), (10.0, 10.0)])
def test_a_ramps_rate_goes_linearly_from_one_to_the_other(low: float, high: float) -> None:
    """Counts in the quarters of a long ramp are those of the rate's integral, within four standard deviations."""
    workload = open_loop(arrival="ramp", rate_rps=low, rate_end_rps=high, duration_s=400.0, requests=0)
    times = first(workload, 10**6)
    edges = np.linspace(0, 400, 5)
    counts = np.histogram(times, edges)[0]
    rate = low + (high - low) * (edges[:-1] + 50) / 400
    assert np.all(np.abs(counts - rate * 100) < 4 * np.sqrt(rate * 100))
    assert times.max() <= 400 and np.all(np.diff(times) >= 0)


def test_the_same_seed_gives_the_same_schedule() -> None:
    """Two runs of a study meet the server at the same moments."""
    assert np.array_equal(first(open_loop(), 50, seed=4), first(open_loop(), 50, seed=4))
    assert not np.array_equal(first(open_loop(), 50, seed=4), first(open_loop(), 50, seed=5))


def test_warm_up_arrivals_come_first_on_the_same_axis() -> None:
    """Warm-up is the schedule's beginning, so the measured arrivals meet a server in the middle of its work."""
    before, measured = measured_arrivals(open_loop(requests=20), np.random.default_rng(1), 5)
    whole = first(open_loop(), 25)
    assert np.allclose([*before, *measured], whole) and (len(before), len(measured)) == (5, 20)


def test_a_duration_ends_the_measured_arrivals() -> None:
    """Sending stops so many seconds after the last warm-up arrival."""
    before, measured = measured_arrivals(open_loop(requests=0, duration_s=3.0), np.random.default_rng(1), 4)
    assert len(measured) > 10
    assert max(measured) - before[-1] < 3.0 and min(measured) >= before[-1]


def test_a_trace_is_read_from_its_first_arrival(tmp_path: Path) -> None:
    """Comments and empty lines are skipped; times count from the first."""
    trace = tmp_path / "trace.txt"
    trace.write_text("# seconds\n100.5\n\n101.0 # second\n101.0\n103\n", encoding="utf-8")
    assert read_trace(trace) == [0.0, 0.5, 0.5, 2.5]
    _, measured = measured_arrivals(
        open_loop(arrival="trace", trace=str(trace), requests=3), np.random.default_rng(1), 0
    )
    assert measured == [0.0, 0.5, 0.5]


def test_a_trace_that_changed_since_the_config_was_read_is_refused(tmp_path: Path) -> None:
    """What is sent is what the point's key says: a trace of another content, or none any more, is named as changed."""
    trace = tmp_path / "trace.txt"
    trace.write_text("1\n2\n", encoding="utf-8")
    digest = hashlib.sha256(trace.read_bytes()).hexdigest()[:32]
    workload = open_loop(arrival="trace", trace=str(trace), trace_digest=digest)
    assert first(workload, 2).tolist() == [0.0, 1.0]
    trace.write_text("1\n3\n", encoding="utf-8")
    with pytest.raises(ChangedInputError, match=r"trace\.txt has changed"):
        first(workload, 2)
    trace.unlink()
    with pytest.raises(ChangedInputError, match=r"trace\.txt cannot be read any more"):
        first(workload, 2)


@pytest.mark.parametrize("text", ["1.0\nsoon\n", "2.0\n1.0\n", "nan\n", "# nothing\n", ""])
def test_a_bad_trace_is_an_error_with_its_place(tmp_path: Path, text: str) -> None:
    """A trace that is no list of ascending times is refused, naming the file."""
    trace = tmp_path / "trace.txt"
    trace.write_text(text, encoding="utf-8")
    with pytest.raises(ValueError, match=r"trace\.txt"):
        read_trace(trace)


@pytest.mark.parametrize(
    "changes",
    [
        {"rate_rps": 0.0},
        {"arrival": "sometimes"},
        {"arrival": "gamma", "burstiness": 0.0},
        {"arrival": "ramp", "rate_rps": -1.0, "rate_end_rps": 2.0},
        {"arrival": "ramp", "rate_rps": 1.0, "rate_end_rps": 2.0, "requests": 0},
    ],
)
def test_rates_that_make_no_sense_are_refused(changes: dict[str, Any]) -> None:
    """A schedule that cannot be is an error before anything is sent."""
    with pytest.raises(ValueError, match=r"rate_rps|arrival|burstiness|ramp"):
        first(open_loop(**changes), 3)


def test_a_closed_loop_warms_every_slot_and_no_more() -> None:
    """As many warm-up requests as slots that can be busy; a number given by the study stands."""
    assert warmup_count(Workload(concurrency=8, requests=100)) == 8
    assert (
        warmup_count(Workload(concurrency=8, requests=3)) == slots(Workload(concurrency=8, requests=3)) == 3
    )
    assert warmup_count(Workload(concurrency=8, requests=100, warmup_requests=0)) == 0
    assert warmup_count(open_loop(arrival="ramp")) == 0
    assert warmup_count(Workload(concurrency=1, requests=9, input_tokens=9, shared_prefix_tokens=8)) == 2
