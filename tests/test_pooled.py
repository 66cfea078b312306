"""A percentile of several points of a server start is that of their requests together, never a mean of percentiles."""

import numpy as np
import pytest

from made_points import request
from made_study import placed, study
from servelab import pooled, stats
from servelab.experiments import comparison
from servelab.spec import Workload

TTFT = "ttft_p50_ms"


def at(ttfts_s, options, session, repeat=1):
    """A point whose i-th request waits ttfts_s[i] for its first token."""
    rows = [request(i, 10.0 * i, ttft_s=ttft) for i, ttft in enumerate(ttfts_s)]
    workload = Workload(kind="closed", input_tokens=64, output_tokens=16, concurrency=1, requests=len(rows))
    return placed(rows, workload, options, session, f"c1-{session}-r{repeat}", repeat)


# Two repeats whose medians are 0.1 and 0.4 s; of all six requests together the median is 0.15 s.
UNEVEN = ([0.1, 0.1, 0.1, 0.2], [0.4, 0.4])
EVEN = ([0.1, 0.1, 0.1], [0.1, 0.1, 0.1])


def two_settings():
    records = [
        at(ttfts, {"max_num_seqs": cap}, f"s{cap}", repeat)
        for cap, points in ((8, EVEN), (16, UNEVEN))
        for repeat, ttfts in enumerate(points, 1)
    ]
    return study("max_num_seqs", records)


def test_settings_are_compared_by_the_percentile_of_all_requests() -> None:
    """1.5 times: the geometric mean of the medians, 2 times, is no percentile of anything."""
    data = two_settings()
    base, other = (data.rows[data.rows["max_num_seqs"] == cap] for cap in (8, 16))
    found = comparison.compare(data, base, other, TTFT)
    assert (found.base, found.other) == pytest.approx((100.0, 150.0))
    assert found.ratio.ratio == pytest.approx(1.5)
    assert found.ratio.low < 1.5 < found.ratio.high
    assert np.sqrt(found.ratio.low * found.ratio.high) == pytest.approx(1.5)


def test_a_rate_is_compared_by_means_over_starts() -> None:
    """Throughput is no percentile: the geometric mean of the repeats."""
    data = two_settings()
    base, other = (data.rows[data.rows["max_num_seqs"] == cap] for cap in (8, 16))
    found = comparison.compare(data, base, other, "output_throughput_tok_s")
    each = other["output_throughput_tok_s"].to_numpy(dtype=float)
    assert found.other == pytest.approx(float(np.sqrt(each[0] * each[1])))


def test_a_load_has_for_each_start_the_percentiles_of_its_points_together() -> None:
    """One row a load and server start, over its usable points: two repeats together, an invalid one in none."""
    last = [*UNEVEN[0][:3], 0.3]
    records = [
        at(UNEVEN[0], {}, "s1", 1),
        at(last, {}, "s1", 2),
        at([9.0] * 4, {}, "s1", 3),
        at(last, {}, "s2"),
    ]
    rows = pooled.loads(study("load_sweep", records, c1_s1_r3="invalid")).set_index("session_id")
    assert list(rows.index) == ["s1", "s2"]
    assert list(rows["points"]) == [2, 1]
    assert rows.loc["s1", TTFT] == pytest.approx(100.0)
    assert rows.loc["s1", "ttft_p95_ms"] == pytest.approx(1000 * np.percentile([0.1] * 6 + [0.2, 0.3], 95))
    assert rows.loc["s2", "ttft_p95_ms"] == pytest.approx(1000 * np.percentile(last, 95))


def test_starts_are_the_unit_and_weigh_the_same() -> None:
    """Two starts, one with three points: the geometric mean of the starts' own medians, not of all requests."""
    records = [at([0.1] * 4, {"max_num_seqs": 8}, "s1", repeat) for repeat in (1, 2, 3)]
    records += [at([0.4] * 4, {"max_num_seqs": 8}, "s2")]
    records += [at([0.2] * 4, {"max_num_seqs": 16}, name) for name in ("s3", "s4")]
    data = study("max_num_seqs", records)
    base, other = (data.rows[data.rows["max_num_seqs"] == cap] for cap in (8, 16))
    found = comparison.compare(data, base, other, TTFT)
    assert (found.base, found.ratio.ratio) == pytest.approx((200.0, 1.0))
    assert found.ratio.basis == "starts"


def test_settings_on_two_machines_are_not_compared() -> None:
    """A difference between machines would be taken for one between settings."""
    data = two_settings()
    base, other = (data.rows[data.rows["max_num_seqs"] == cap] for cap in (8, 16))
    assert comparison.compare(data, base, other.assign(machine_id="elsewhere"), TTFT) is None


def test_p99_needs_as_many_gaps_as_its_interval() -> None:
    """15 gaps a request: 24 requests have 360, too few for a p99; 25 have 375."""
    for requests, there in ((24, False), (25, True)):
        rows = pooled.loads(study("load_sweep", [at([0.1] * requests, {}, "s1")]))
        assert (rows["itl_p99_ms"].notna().iloc[0]) == there
        assert rows["itl_p50_ms"].iloc[0] == pytest.approx(10.0)
    assert 360 < stats.requests_needed(99) <= 375
