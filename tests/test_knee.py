"""The knee of curves whose knee is known is found, with an interval, or it is said that there is none."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from made_points import counters, request
from made_study import placed, said, study
from servelab import knee, knee_models, knee_report, sweep_table
from servelab.efficiency import efficiencies
from servelab.experiments import load_sweep
from servelab.spec import Workload

SWEEP = (1, 2, 4, 8, 16, 32, 64)


def batching(c, half=20.0, limit=np.inf, fall=0.0):
    """c / (1 + c/half), flat from `limit` on, or falling with the power `fall`."""
    inside = np.minimum(c, limit)
    return 66 * inside / (1 + inside / half) * (np.maximum(c / limit, 1)) ** -fall


def rows(curve, starts=3, repeats=2, noise=0.005, sweep=SWEEP, seed=0, **columns):
    """Rows of a sweep whose throughput follows a curve, with noise per start and repeat."""
    rng = np.random.default_rng(seed)
    made = []
    for start in range(starts):
        own = rng.normal(0, noise)
        for c in sweep:
            for repeat in range(repeats):
                value = float(curve(np.array([float(c)]))[0]) * np.exp(own + rng.normal(0, noise))
                made.append({"concurrency": c, "session_id": f"s{start}", "repeat": repeat, "value": value})
    frame = pd.DataFrame(made)
    frame["steady_throughput_tok_s"] = frame["output_throughput_tok_s"] = frame.pop("value")
    frame["ttft_mean_ms"] = np.nan
    frame[["status", "verdict"]] = "ok", "valid"
    frame["preemptions"], frame["capacity_requests"] = 0.0, np.nan
    return frame.assign(**columns)


@pytest.mark.parametrize("limit", [6.0, 11.0, 24.0, 34.0, 45.0])
def test_a_hard_limit_is_found_between_the_measured_concurrencies(limit):
    """Batching up to a limit, then flat: the interval holds the limit; 10 % where two points lie beyond it."""
    found = knee.fit(rows(lambda c: batching(c, 40, limit)))
    assert found.status == knee.FOUND
    assert found.knee == pytest.approx(limit, rel=0.1 if limit < 32 else 0.3)
    assert found.low < limit
    assert found.high is None or limit < found.high


def test_a_fall_beyond_the_limit_does_not_hide_it():
    """The notes' shape: growth to 34, then less than before; the knee lies between 32 and 64 at any rate."""
    found = knee.fit(rows(lambda c: batching(c, 18, 34, fall=0.3), sweep=(1, 2, 4, 8, 16, 24, 32, 48, 64)))
    assert found.low < 34 < found.high
    assert found.curve.at(np.array([64.0]))[0] < found.curve.at(np.array([34.0]))[0]


def test_smooth_saturation_has_its_knee_where_growth_falls_to_a_quarter():
    """c / (1 + c/5): elasticity is 1/4 at three times the half-saturation, 15."""
    found = knee.fit(rows(lambda c: batching(c, 5)))
    assert found.low < 15 < found.high
    assert found.knee == pytest.approx(15, rel=0.15)


def test_throughput_that_still_rises_has_no_knee_within_the_range():
    """Batching with half-saturation at 100, measured up to 64: the answer is «none», not an extrapolation."""
    found = knee.fit(rows(lambda c: batching(c, 100)))
    assert (found.status, found.knee, found.high) == (knee.RISING, None, None)


def test_throughput_that_never_rises_is_saturated_from_the_start():
    """Flat from concurrency 1: no knee within the range, on its other side."""
    found = knee.fit(rows(lambda c: np.full_like(c, 500.0)))
    assert (found.status, found.knee, found.low) == (knee.SATURATED, None, None)


def test_three_concurrencies_are_no_fit():
    """A curve through three points says nothing."""
    found = knee.fit(rows(lambda c: batching(c, 40, 8), sweep=(1, 4, 16)))
    assert (found.status, found.curve) == (knee.TOO_FEW, None)


def test_failed_and_invalid_points_are_left_out_and_counted():
    """A trap at 64 (three times the throughput) and a failed point at 32 change nothing but the count."""
    good = rows(lambda c: batching(c, 40, 11))
    bad = good[good["concurrency"] == 64].assign(
        verdict="invalid", steady_throughput_tok_s=5000.0, output_throughput_tok_s=5000.0
    )
    broken = good[good["concurrency"] == 32].assign(status="failed", steady_throughput_tok_s=np.nan)
    found = knee.fit(pd.concat([good, bad, broken], ignore_index=True))
    assert found.excluded == len(bad) + len(broken)
    assert found.knee == pytest.approx(11, rel=0.1)


def test_preempting_points_are_used_and_marked():
    """Preemption is a fact about a load, not a fault."""
    frame = rows(lambda c: batching(c, 40, 11))
    frame.loc[frame["concurrency"] >= 32, "preemptions"] = 4.0
    found = knee.fit(frame)
    assert found.preempting == (32.0, 64.0)
    assert found.values == len(frame)


def test_noisier_points_have_a_wider_interval():
    """Twenty times the noise on one start, well above the width."""
    widths = []
    for noise in (0.003, 0.06):
        found = knee.fit(rows(lambda c: batching(c, 40, 20), noise=noise, starts=1))
        widths.append((found.high or 64) / (found.low or 1))
    assert widths[1] > 1.3 * widths[0]


def test_one_start_and_single_values_still_have_an_interval():
    """With nothing repeated, what the fit leaves over is what is known of the noise."""
    found = knee.fit(rows(lambda c: batching(c, 40, 20), starts=1, repeats=1, noise=0.01))
    assert found.low < 20 < found.high


def test_a_start_that_is_faster_everywhere_does_not_widen_the_interval():
    """It moves the scale, not the knee."""
    even = rows(lambda c: batching(c, 40, 20), noise=0.003)
    uneven = even.copy()
    uneven.loc[uneven["session_id"] == "s0", "steady_throughput_tok_s"] *= 1.2
    ranges = [(f.low, f.high) for f in (knee.fit(even), knee.fit(uneven))]
    assert ranges[0] == pytest.approx(ranges[1], rel=0.05)


def test_the_whole_runs_throughput_is_fitted_where_steady_state_is_missing():
    """One metric for all points: never a mixture."""
    frame = rows(lambda c: batching(c, 40, 20))
    frame.loc[3, "steady_throughput_tok_s"] = np.nan
    assert knee.fitted_metric(frame) == "output_throughput_tok_s"
    assert knee.fit(frame).knee == pytest.approx(20, rel=0.1)


def test_capacity_is_held_against_the_interval():
    """Inside, outside, unknown."""
    frame = rows(lambda c: batching(c, 40, 20))
    assert knee.fit(frame.assign(capacity_requests=20.5)).capacity_inside is True
    assert knee.fit(frame.assign(capacity_requests=45.0)).capacity_inside is False
    assert knee.fit(frame).capacity_inside is None


def test_an_interval_without_ends_agrees_with_nothing():
    """Where the points do not say where the knee is, no capacity can be said to agree with it."""
    frame = rows(lambda c: batching(c, 40, 12), starts=1, repeats=1, noise=0.35, seed=4, sweep=(1, 4, 16, 64))
    found = knee.fit(frame.assign(capacity_requests=20.0))
    assert (found.low, found.high, found.capacity_inside) == (None, None, None)


def test_a_rate_is_never_said_to_be_possibly_negative():
    """Two starts far apart have a t-interval that reaches below zero: it is cut off there."""
    frame = rows(lambda c: batching(c, 40), starts=2, repeats=1, noise=0.0, sweep=(8,))
    frame.loc[frame["session_id"] == "s0", "output_throughput_tok_s"] *= 3
    cells = sweep_table.rate_cells(frame, "output_throughput_tok_s")
    assert cells["output_throughput_tok_s_low"] == 0.0
    assert cells["output_throughput_tok_s_high"] > cells["output_throughput_tok_s"] > 0


def test_the_latency_knee_is_where_the_queue_begins():
    """Mean TTFT grows slowly up to 20 and like a queue beyond; without a queue there is no latency knee."""
    frame = rows(lambda c: batching(c, 40, 20))
    c = frame["concurrency"].astype(float)
    wiggle = np.random.default_rng(3).normal(0, 0.01, len(frame))
    queue = 50 * c**0.3 * np.maximum(c / 20, 1) ** 2.5 * np.exp(wiggle)
    found = knee.fit(frame.assign(ttft_mean_ms=queue))
    assert found.latency_low < 20 < found.latency_high
    assert knee.fit(frame.assign(ttft_mean_ms=50 * c**0.8 * np.exp(wiggle))).latency_knee is None


def test_a_family_is_named_by_what_the_data_are():
    """A straight line is fitted by a straight line; a batch curve with a limit by that."""
    assert knee.fit(rows(lambda c: batching(c, 40, 20), noise=0.002)).curve.family == "capped"
    line = knee.fit(rows(lambda c: 60 * c, noise=0.002))
    assert line.candidates[0].error < 0.01


@pytest.mark.parametrize("family", [f for f in knee_models.FAMILIES if f != "linear"])
def test_the_knee_of_every_family_is_where_its_elasticity_falls_below_a_quarter(family):
    """The closed forms agree with the definition, taken numerically from the curve itself."""
    grid = knee_models.grid(tuple(float(c) for c in SWEEP))
    index = knee_models.FAMILIES.index(family)
    members = np.flatnonzero(
        (grid.family == index) & np.isfinite(grid.knee) & (grid.knee > 1.2) & (grid.knee < 60)
    )
    at = np.exp(np.linspace(0, np.log(64), 3000))
    for member in (
        np.random.default_rng(0).choice(members, min(len(members), 25), replace=False) if len(members) else []
    ):
        parameters = {n: np.array([v[member]]) for n, v in grid.parameters.items() if not np.isnan(v[member])}
        shape = knee_models.log_shape(family, parameters, at)[0]
        follows = np.gradient(shape, np.log(at)) >= knee_models.ELASTICITY
        last = at[np.flatnonzero(follows)[-1]] if follows.any() else 1.0
        assert last == pytest.approx(grid.knee[member], rel=0.01)


def test_efficiency_is_the_notes_figure():
    """66 tok/s at 1 and 383 at 8 are 5.8 × and 73 %; 831 at 32 are 12.6 × and 39 % (L01 to L03)."""
    frame = rows(lambda c: c, sweep=(1, 8, 32), starts=2, repeats=1, noise=0.0)
    frame["output_throughput_tok_s"] = frame["concurrency"].map({1: 66.0, 8: 383.0, 32: 831.0})
    found = {one.concurrency: one for one in efficiencies(frame)}
    assert found[8].speedup == pytest.approx(5.8, abs=0.01)
    assert found[8].efficiency == pytest.approx(0.73, abs=0.005)
    assert found[32].efficiency == pytest.approx(0.39, abs=0.005)


def test_efficiency_is_compared_within_a_start():
    """A start twice as fast everywhere has the same efficiency: the interval stays narrow."""
    frame = rows(lambda c: batching(c, 40), starts=3, repeats=1, noise=0.002)
    frame.loc[frame["session_id"] == "s0", "output_throughput_tok_s"] *= 2
    eight = next(one for one in efficiencies(frame) if one.concurrency == 8)
    assert eight.high / eight.low < 1.05
    assert efficiencies(frame[frame["concurrency"] > 1]) == []


def sweep_points(limit=8, starts=2, repeats=2):
    """Whole points of a closed loop: a token takes longer with more requests, and beyond `limit` they queue."""
    rng = np.random.default_rng(4)
    made = []
    for start in range(1, starts + 1):
        for c in (1, 2, 4, 8, 16, 32):
            for repeat in range(1, repeats + 1):
                running = min(c, limit)
                gap = 0.01 * (1 + running / 30) * (1 + rng.normal(0, 0.004))
                length = 0.02 + 15 * gap
                ttft = 0.02 + length * (c / running - 1)
                points = [
                    request(i, (i // c) * (ttft + 15 * gap), ttft_s=ttft, gap_s=gap, slot=i % c)
                    for i in range(4 * c)
                ]
                workload = Workload(
                    kind="closed", input_tokens=64, output_tokens=16, concurrency=c, requests=4 * c
                )
                made.append(
                    placed(
                        points,
                        workload,
                        {"max-num-seqs": limit},
                        at=f"s{start}",
                        start=start,
                        name=f"c{c}-i64-o16-r{repeat}",
                        repeat=repeat,
                        session={"log": {"kv_cache_tokens": 80 * limit}},
                        metrics=counters({"num_preemptions": 0}, {"num_preemptions": 0}),
                    )
                )
    return made


def test_the_analysis_of_a_sweep_says_knee_capacity_and_efficiency():
    """A server that holds 8 requests: the knee is there, capacity agrees, TTFT queues from there on."""
    analysis = knee_report.analyse(study("load_sweep", sweep_points()), "e", "load_sweep")
    values = said(analysis)
    assert values["knee_found"]["knee"] == pytest.approx(8, rel=0.12)
    assert "knee_capacity_agrees" in values
    assert values["knee_latency"]["latency"] == pytest.approx(8, rel=0.5)
    assert {t.template for t in analysis.tables} == {"load_sweep", "knee", "knee_models", "knee_curve"}
    loads = analysis.tables[0].frame
    assert loads["points"].tolist() == [4] * 6
    assert loads["speedup"].iloc[0] == pytest.approx(1.0)


def test_goodput_names_the_concurrency_that_serves_most_within_the_objective():
    """Queueing breaks the objective beyond 8; an objective nobody can meet is said to be met nowhere."""
    data = study("load_sweep", sweep_points(starts=1, repeats=1))
    rows = data.rows.assign(goodput_rps=[1.0, 2.0, 4.0, 7.0, 3.0, 0.0])
    values = said(knee_report.analyse(replace(data, rows=rows), "e", "load_sweep"))
    assert (values["goodput_best"]["concurrency"], values["goodput_best"]["goodput"]) == (8, 7.0)
    nobody = replace(data, rows=rows.assign(goodput_rps=0.0))
    assert "goodput_none" in said(knee_report.analyse(nobody, "e", "load_sweep"))


def test_a_p99_without_an_interval_is_not_in_the_table():
    """Of 16 requests p99 is not quoted, p50 has its interval; of 512 both are."""
    data = study("load_sweep", sweep_points())
    small = sweep_table.load_row(data, data.rows[data.rows["concurrency"] == 1])
    large = sweep_table.load_row(data, data.rows[data.rows["concurrency"] == 32])
    assert "ttft_p99_ms" not in small and "ttft_p50_ms_low" in small
    assert "ttft_p99_ms" in large and "ttft_p99_ms_low" in large


def test_percentiles_of_a_load_are_of_its_requests_not_of_its_points():
    """Two points with TTFT 10 and 1000 ms in unequal numbers: the median is that of all requests together."""
    workload = Workload(kind="closed", input_tokens=64, output_tokens=16, concurrency=1, requests=3)
    fast = placed([request(i, float(i), ttft_s=0.01) for i in range(30)], workload, {}, repeat=1)
    slow = placed([request(i, float(i), ttft_s=1.0) for i in range(10)], workload, {}, repeat=2, name="p-r2")
    data = study("load_sweep", [fast, slow])
    assert sweep_table.load_row(data, data.rows)["ttft_p50_ms"] == pytest.approx(10)


def test_a_sweep_without_a_usable_point_says_why():
    """All invalid: not measured, with the reason."""
    records = sweep_points(starts=1, repeats=1)
    data = study("load_sweep", records)
    data.rows["verdict"], data.rows["reasons"] = "invalid", '[{"reason": "same_prompt"}]'
    analysis = knee_report.analyse(data, "e", "load_sweep")
    assert (analysis.status, analysis.reason) == ("not_measured", "experiment_all_invalid")


def test_points_of_the_sweep_are_named_and_counted_by_the_config():
    """Four requests a slot, at least eight; a duration replaces the count; nonsense is named."""
    plan = next(iter(load_sweep.expand(load_sweep.Config(concurrency=[8, 1], input_tokens=[512]))))
    assert [(name, w.requests) for name, w in plan.workloads] == [("c1-i512-o128", 8), ("c8-i512-o128", 32)]
    timed = next(iter(load_sweep.expand(load_sweep.Config(concurrency=[2], duration_s=5.0))))
    assert (timed.workloads[0][1].requests, timed.workloads[0][1].duration_s) == (0, 5.0)
    with pytest.raises(ValueError, match="concurrency: 0"):
        load_sweep.expand(load_sweep.Config(concurrency=[0]))
    with pytest.raises(ValueError, match="shared_prefix_tokens: 600"):
        load_sweep.expand(load_sweep.Config(shared_prefix_tokens=600))
