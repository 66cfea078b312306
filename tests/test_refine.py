"""The next concurrencies are those that narrow the knee's interval, and never more than the budget."""

import numpy as np
import pandas as pd
import pytest

from servelab import refine, refined
from servelab.config.schema import Refine, Study
from test_knee import batching
from test_knee import rows as sweep_rows


def rows(curve, **how):
    """Rows of one sweep as the points table has them, each point 10 s long."""
    frame = sweep_rows(curve, **how)
    return frame.assign(
        experiment="load", kind="load_sweep", model="tiny", slug="server", workload_kind="closed",
        input_tokens=512, output_tokens=128, options='{"max-num-seqs":64}', duration_s=10.0, ready_s=30.0,
        start=frame["session_id"],
    )  # fmt: skip


def asked(frame, max_points=4, max_minutes=60.0):
    return refine.propose(frame, Study(refine=Refine(max_points, max_minutes)))


def test_a_wide_interval_is_cut_in_the_middle():
    """A limit at 11, measured at 1, 4, 16, 64 with noise: the gap that holds the knee is cut first."""
    frame = rows(lambda c: batching(c, 40, 11), sweep=(1, 2, 4, 16, 64), noise=0.03)
    found = asked(frame)
    assert found[0].reason == "wide"
    assert found[0].concurrency == 8
    assert (found[0].experiment, found[0].model, found[0].options) == ("load", "tiny", {"max-num-seqs": 64})


def test_a_narrow_interval_asks_for_nothing():
    """Where the knee is known to a few percent no point is worth its time."""
    assert (
        asked(rows(lambda c: batching(c, 40, 11), noise=0.001, sweep=(1, 2, 4, 8, 10, 11, 12, 14, 32))) == []
    )


def test_throughput_that_still_rises_is_measured_further_up():
    """No knee up to 64: twice that."""
    found = asked(rows(lambda c: batching(c, 200)))
    assert [(one.concurrency, one.reason) for one in found] == [(128, "rising")]


def test_saturation_from_the_start_is_measured_further_down():
    """Flat from 4 on: 2. Flat from 1 on: there is nothing below."""
    flat = lambda c: np.full_like(c, 500.0)  # noqa: E731
    assert [one.concurrency for one in asked(rows(flat, sweep=(4, 8, 16, 32, 64)))] == [2]
    assert asked(rows(flat)) == []


def test_too_few_concurrencies_are_filled_in():
    """Three concurrencies are no fit; the gaps between them come first."""
    found = asked(rows(lambda c: batching(c, 40, 11), sweep=(1, 8, 64)))
    assert {one.reason for one in found} == {"too_few"}
    assert {one.concurrency for one in found} == {3, 23}


def test_the_budget_in_points_and_minutes_is_kept():
    """Two points of 3 starts × (30 s + 2 × 10 s) fit into six minutes; one into three; none into one."""
    frame = rows(lambda c: batching(c, 40, 11), sweep=(1, 8, 64))
    assert all(one.seconds == pytest.approx(150) for one in asked(frame)[:1])
    assert len(asked(frame, max_points=1)) == 1
    assert len(asked(frame, max_minutes=0.5)) == 0
    assert sum(one.seconds for one in asked(frame, max_minutes=9)) <= 540


def test_a_concurrency_that_failed_is_not_proposed_again():
    """128 was tried and the server died: it is not asked for a second time."""
    frame = rows(lambda c: batching(c, 200))
    tried = frame[frame["concurrency"] == 64].assign(concurrency=128, status="failed")
    together = pd.concat([frame, tried], ignore_index=True)
    assert asked(together) == []


def test_series_take_turns_and_only_load_sweeps_are_refined():
    """Two models share the budget; another experiment's points are nobody's knee."""
    sweep = (4, 8, 16, 32, 64)
    one = rows(lambda c: batching(c, 200), sweep=sweep)
    other = rows(lambda c: np.full_like(c, 500.0), sweep=sweep).assign(model="large")
    elsewhere = one.assign(kind="preemption", experiment="preemption")
    found = asked(pd.concat([one, other, elsewhere], ignore_index=True))
    assert {(p.model, p.concurrency) for p in found} == {("tiny", 128), ("large", 2)}
    assert {p.experiment for p in found} == {"load"}


def test_a_concurrency_costs_what_all_servers_and_lengths_take():
    """128 goes to all three series of the experiment: 2 × 3 starts of 30 s, 3 × 3 starts × 2 repeats of 20 s."""
    short = rows(lambda c: batching(c, 200))
    long = short.assign(input_tokens=2048)
    large = short.assign(model="large", slug="large")
    together = pd.concat([short, long, large], ignore_index=True)
    (found,) = asked(together)
    assert (found.concurrency, found.seconds) == (128, pytest.approx(2 * 90 + 3 * 120))
    assert asked(together, max_minutes=8.9) == []
    (alone,) = asked(short)
    assert alone.seconds == pytest.approx(90 + 120)


def test_time_of_a_series_without_points_is_guessed_and_invalid_points_take_time_too():
    """A model whose points all failed counts like the other; one whose points are invalid by its own times."""
    one = rows(lambda c: batching(c, 200))
    failed = one.assign(model="large", slug="large", status="failed", duration_s=np.nan)
    invalid = one.assign(model="large", slug="large", verdict="invalid", duration_s=40.0)
    assert asked(pd.concat([one, failed], ignore_index=True))[0].seconds == pytest.approx(2 * (90 + 120))
    assert asked(pd.concat([one, invalid], ignore_index=True))[0].seconds == pytest.approx(180 + 120 + 480)


def test_what_two_series_ask_for_is_measured_and_counted_once():
    """Two models with the same gaps: each concurrency once, so that both gaps fit into a budget of two."""
    one = rows(lambda c: batching(c, 40, 11), sweep=(1, 8, 64))
    both = pd.concat([one, one.assign(model="large", slug="large")], ignore_index=True)
    assert sorted(p.concurrency for p in asked(both, max_points=2)) == [3, 23]
    assert sorted(p.concurrency for p in asked(both, max_minutes=10)) == [3, 23]


@pytest.mark.parametrize(
    ("name", "written", "expected"),
    [
        ("load_sweep", None, [1, 2, 4, 8, 16, 24, 32, 64]),
        ("load_sweep", {}, [1, 2, 4, 8, 16, 24, 32, 64]),
        ("load_sweep", {"concurrency": [1, 32]}, [1, 24, 32]),
        ("mine", {"kind": "load_sweep", "concurrency": 4}, [4, 24]),
        ("mine", {"kind": "load_sweep", "starts": 2}, [1, 2, 4, 8, 16, 24, 32, 64]),
    ],
)
def test_an_added_concurrency_joins_the_list_that_is_measured(name, written, expected):
    """Whether the config writes a list, a single value, or nothing and means the kind's default."""
    raw = {"study": "s", "experiments": {name: written}}
    made = refined.apply(raw, {name: [24], "gone": [3]})
    assert made["experiments"] == {name: {**(written or {}), "concurrency": expected}}
    assert raw["experiments"] == {name: written}


def test_an_experiment_that_has_no_concurrency_any_more_gets_none():
    """An experiment of another kind under the old name is left as it is."""
    raw = {"experiments": {"mine": {"kind": "startup"}}}
    assert refined.apply(raw, {"mine": [24]}) == raw
