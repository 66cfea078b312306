"""The next concurrencies are those that narrow the knee's interval, and never more than the budget."""

import numpy as np
import pandas as pd
import pytest

from servelab import refine
from servelab.config.schema import Refine, Study
from test_knee import batching
from test_knee import rows as sweep_rows


def rows(curve, **how):
    """Rows of one sweep as the points table has them, each point 10 s long."""
    frame = sweep_rows(curve, **how)
    return frame.assign(
        experiment="load", kind="load_sweep", model="tiny", slug="server", workload_kind="closed",
        input_tokens=512, output_tokens=128, options='{"max-num-seqs":64}', duration_s=10.0, ready_s=30.0,
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
    one = rows(lambda c: batching(c, 200))
    other = one.assign(model="large")
    elsewhere = one.assign(kind="preemption", experiment="preemption")
    found = asked(pd.concat([one, other, elsewhere], ignore_index=True))
    assert {p.model for p in found} == {"tiny", "large"}
    assert {p.experiment for p in found} == {"load"}
