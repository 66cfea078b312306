"""How far numbers repeat is said with what it rests on; open loops say what the server kept up with."""

import numpy as np
import pytest

from made_points import request
from made_study import placed, said, study
from servelab import open_loop_report, repeatability
from servelab.experiments import open_loop
from servelab.experiments import repeatability as experiment
from servelab.spec import Workload


def repeated(starts=3, repeats=5, between=0.0, within=0.001, seed=0):
    """The same point again and again; a token takes 10 ms, give or take."""
    rng = np.random.default_rng(seed)
    made = []
    for start in range(1, starts + 1):
        own = rng.normal(0, between)
        for repeat in range(1, repeats + 1):
            gap = 0.01 * np.exp(own + rng.normal(0, within))
            points = [request(i, i * (0.05 + 15 * gap), gap_s=gap) for i in range(8)]
            workload = Workload(kind="closed", input_tokens=64, output_tokens=16, concurrency=1, requests=8)
            made.append(
                placed(points, workload, {}, at=f"s{start}", start=start, repeat=repeat, name=f"c1-r{repeat}")
            )
    return made


def test_steady_numbers_are_within_the_tolerance():
    """0.05 % of noise on three starts: within half a percent, and a difference of a percent would be seen."""
    values = said(repeatability.analyse(study("repeatability", repeated(within=0.0005)), "e"))
    assert values["repeatability_within"]["points"] == 15
    assert 0 < values["visible_difference"]["three"] < 0.01


def test_starts_that_differ_are_beyond_it_and_their_share_is_named():
    """3 % between starts, 0.1 % within: almost all of the variance lies between starts."""
    values = said(repeatability.analyse(study("repeatability", repeated(between=0.03, seed=1)), "e"))
    assert "repeatability_beyond" in values
    assert values["repeatability_shares"]["share_between"] > 0.9
    assert values["visible_difference"]["one"] > values["visible_difference"]["three"] > 0.01


def test_one_start_leaves_starts_unknown():
    """Five repeats on one server say nothing about another start, and no visible difference is claimed."""
    values = said(repeatability.analyse(study("repeatability", repeated(starts=1)), "e"))
    assert "repeatability_starts_unknown" in values
    assert "visible_difference" not in values


def test_one_value_is_no_repetition():
    """A single point has no spread."""
    values = said(repeatability.analyse(study("repeatability", repeated(starts=1, repeats=1)), "e"))
    assert values["repeatability_single"]["relative_spread"] is None


def test_percentiles_have_a_range_and_no_mean():
    """A mean of percentiles is no percentile: the table has it for throughput alone."""
    table = repeatability.analyse(study("repeatability", repeated()), "e").tables[0].frame
    means = table.set_index("quantity")["mean"]
    assert means[repeatability.RATE] > 0
    assert means.drop(repeatability.RATE).isna().all()
    assert table["smallest"].notna().all()


def test_the_notes_spread_is_found_again():
    """831 833 831 832 831 (R01): 0.24 % from end to end, within half a percent."""
    data = study("repeatability", repeated(starts=1))
    rows = data.rows.assign(output_throughput_tok_s=[831.0, 833.0, 831.0, 832.0, 831.0])
    cells = repeatability.spread(rows, repeatability.RATE, 0.005)
    assert cells["relative_spread"] == pytest.approx(100 * 2 / 831)
    assert cells["outcome"] == repeatability.WITHIN


def test_the_experiments_plan_has_its_points():
    """One point a combination; the requests are four a slot and at least eight unless given."""
    plan = next(iter(experiment.expand(experiment.Config(concurrency=[32, 1]))))
    assert [(name, w.requests) for name, w in plan.workloads] == [("c1-i512-o128", 8), ("c32-i512-o128", 128)]
    assert (experiment.Config().starts, experiment.Config().repeats) == (3, 5)


def arrivals(rate, answered_after, arrival="poisson"):
    """20 requests at a rate; the i-th has its first token after answered_after(i) seconds."""
    points = [request(i, i / rate, ttft_s=answered_after(i), slot=None) for i in range(20)]
    workload = Workload(
        kind="open", input_tokens=64, output_tokens=16, rate_rps=rate, requests=20, arrival=arrival
    )
    return placed(points, workload, {}, name=f"poisson-r{rate:g}")


def test_an_open_loop_says_up_to_where_the_server_kept_up():
    """At 1 request a second every answer comes at once; at 10 the queue grows by half a second a request."""
    data = study("open_loop", [arrivals(1, lambda i: 0.05), arrivals(10, lambda i: 0.5 * i + 0.05)])
    values = said(open_loop_report.analyse(data, "e"))
    assert values["open_loop_kept_up_until"]["kept"] == 1
    assert values["open_loop_kept_up_until"]["ttft_high"] > 10 * values["open_loop_kept_up_until"]["ttft_low"]


def test_an_open_loop_that_always_or_never_keeps_up_says_so():
    """All rates kept up with; none kept up with."""
    always = study("open_loop", [arrivals(1, lambda i: 0.05), arrivals(2, lambda i: 0.05)])
    never = study("open_loop", [arrivals(10, lambda i: i + 0.05), arrivals(20, lambda i: i + 0.05)])
    assert "open_loop_kept_up" in said(open_loop_report.analyse(always, "e"))
    assert "open_loop_never_kept_up" in said(open_loop_report.analyse(never, "e"))


def test_slow_answers_are_no_queue() -> None:
    """Eight seconds for every answer: an idle server keeps up, however long the last one takes."""
    data = study("open_loop", [arrivals(0.25, lambda i: 8 + i % 3), arrivals(0.5, lambda i: 8 + i % 3)])
    analysis = open_loop_report.analyse(data, "e")
    assert "open_loop_kept_up" in said(analysis)
    assert abs(analysis.tables[0].frame["latency_growth"]).max() < 0.05


def test_latency_grows_by_what_arrives_too_fast() -> None:
    """Two requests a second, one answered: a second later for every second. A ramp has no rate to judge."""
    data = study("open_loop", [arrivals(1, lambda i: 1.0), arrivals(2, lambda i: 0.5 * i)])
    analysis = open_loop_report.analyse(data, "e")
    assert list(analysis.tables[0].frame["latency_growth"]) == pytest.approx([0.0, 1.0])
    assert said(analysis)["open_loop_kept_up_until"]["kept"] == 1
    ramps = study("open_loop", [arrivals(rate, lambda i: 0.5 * i, arrival="ramp") for rate in (1, 2)])
    analysis = open_loop_report.analyse(ramps, "e")
    assert not analysis.findings and "latency_growth" not in analysis.tables[0].frame


def test_open_loop_points_are_named_by_process_and_rate():
    """Rates × processes, a ramp with its end, traces last; a wrong process or two equal names are refused."""
    config = open_loop.Config(
        rates=[2, 0.5], processes=["poisson", "ramp"], rate_end_rps=8, traces=["traces/monday.txt"]
    )
    plan = next(iter(open_loop.expand(config)))
    assert [name for name, _ in plan.workloads] == [
        "poisson-r0.5-i512-o128",
        "poisson-r2-i512-o128",
        "ramp8-r0.5-i512-o128",
        "ramp8-r2-i512-o128",
        "trace-monday-i512-o128",
    ]
    with pytest.raises(ValueError, match="processes: 'poison'"):
        open_loop.expand(open_loop.Config(processes=["poison"]))
    with pytest.raises(ValueError, match="same point name"):
        open_loop.expand(open_loop.Config(traces=["a/day.txt", "b/day.txt"]))
    with pytest.raises(ValueError, match="rate_end_rps"):
        open_loop.expand(open_loop.Config(processes=["ramp"]))
