"""The statistics agree with known answers, and say None where they cannot know."""

import math

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats as scipy_stats
from statsmodels.regression.mixed_linear_model import MixedLM

from servelab import stats, variance


@given(
    st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=60),
    st.floats(0, 100),
)
def test_percentile_is_linear_interpolation_between_order_statistics(values, q):
    """The percentile is the value at position (n - 1) q / 100 of the sorted sample."""
    ordered = sorted(values)
    position = (len(ordered) - 1) * q / 100
    low = ordered[math.floor(position)]
    high = ordered[math.ceil(position)]
    expected = low + (high - low) * (position - math.floor(position))
    assert stats.percentile(values, q) == pytest.approx(expected, rel=1e-9, abs=1e-6)


def test_percentile_of_nothing_is_none():
    """No values, no percentile."""
    assert stats.percentile([], 50) is None


@pytest.mark.parametrize(("q", "needed"), [(50, 6), (95, 72), (99, 368)])
def test_percentile_interval_exists_from_the_known_sample_size_on(q, needed):
    """p50 needs 6 values, p95 72, p99 368; one fewer gives None."""
    assert stats.requests_needed(q) == needed
    assert stats.percentile_interval(range(needed - 1), q) is None
    assert stats.percentile_interval(range(needed), q) is not None


def test_median_interval_is_the_textbook_one():
    """For n = 20 the 95 % interval of the median runs from the 6th to the 15th value (coverage 95.9 %)."""
    interval = stats.percentile_interval(range(1, 21), 50)
    assert (interval.low, interval.high) == (6, 15)


def test_percentile_interval_covers_as_often_as_it_says():
    """Of 400 samples of 150 the p90 interval covers the true value in at least 93 %."""
    rng = np.random.default_rng(5)
    truth = scipy_stats.expon.ppf(0.9)
    hits = 0
    for _ in range(400):
        interval = stats.percentile_interval(rng.exponential(size=150), 90)
        hits += interval.low <= truth <= interval.high
    assert hits / 400 >= 0.93


def test_cluster_bootstrap_is_wider_when_gaps_of_a_request_go_together():
    """Gaps that are alike within a request carry less information than as many independent ones."""
    rng = np.random.default_rng(1)
    level = rng.normal(10, 1, size=40)
    alike = [np.full(30, value) + rng.normal(0, 0.01, 30) for value in level]
    shuffled = np.split(rng.permutation(np.concatenate(alike)), 40)
    together = stats.bootstrap_percentile(alike, 50)
    apart = stats.bootstrap_percentile(shuffled, 50)
    assert together.half_width > 2 * apart.half_width
    assert together.value == pytest.approx(apart.value)


def test_weighted_percentile_equals_the_written_out_sample():
    """Drawing a request twice is the same as writing its gaps down twice."""
    rng = np.random.default_rng(2)
    ordered = np.sort(rng.normal(size=30))
    counts = rng.integers(0, 4, size=30)
    for q in (0, 37.5, 50, 99, 100):
        expected = np.percentile(np.repeat(ordered, counts), q)
        assert stats._weighted_percentile(ordered, counts, q) == pytest.approx(expected)


def test_bootstrap_gives_a_point_for_equal_values_and_none_for_too_few():
    """No spread, no width; under six values no interval at all."""
    same = stats.bootstrap([3.0] * 10, lambda sample: float(sample.mean()))
    assert (same.low, same.high) == (3.0, 3.0)
    assert stats.bootstrap([1, 2, 3], lambda sample: float(sample.mean())) is None
    varied = stats.bootstrap(range(50), lambda sample: float(np.mean(sample)))
    assert varied.low < 24.5 < varied.high


def test_mean_interval_equals_scipys():
    """The t-interval is scipy's."""
    values = [831, 833, 831, 832, 831]
    low, high = scipy_stats.t.interval(0.95, 4, np.mean(values), scipy_stats.sem(values))
    interval = stats.mean_interval(values)
    assert (interval.low, interval.high) == pytest.approx((low, high))
    assert stats.mean_interval([831]) is None


def _starts(between, within, starts, repeats, seed=0):
    rng = np.random.default_rng(seed)
    return {s: list(100 + rng.normal(0, between) + rng.normal(0, within, repeats)) for s in range(starts)}


def test_components_equal_reml_on_balanced_data():
    """Method of moments and statsmodels' REML agree where the data are balanced and the estimate positive."""
    groups = _starts(3, 1, 6, 5)
    found = variance.components(groups)
    table = pd.DataFrame([(s, v) for s, values in groups.items() for v in values], columns=["s", "v"])
    model = MixedLM(table["v"], np.ones(len(table)), groups=table["s"]).fit(reml=True)
    assert found.within == pytest.approx(model.scale, rel=1e-3)
    assert found.between == pytest.approx(float(model.cov_re.iloc[0, 0]), rel=1e-2)


def test_components_of_unbalanced_data_are_unbiased():
    """Over 400 unbalanced studies the mean of each variance lies within 10 % of the truth."""
    rng = np.random.default_rng(3)
    raw, within = [], []
    for _ in range(400):
        groups = {i: list(rng.normal(0, 2) + rng.normal(0, 1, n)) for i, n in enumerate((2, 5, 3, 7, 4, 4))}
        found = variance.components(groups)
        raw.append(found.between_raw)
        within.append(found.within)
    assert np.mean(raw) == pytest.approx(4, rel=0.1)
    assert np.mean(within) == pytest.approx(1, rel=0.1)


def test_interval_of_the_variance_between_starts_covers():
    """With three starts of five repeats the interval covers the true variance in at least 92 % of 300 studies."""
    hits = 0
    for seed in range(300):
        found = variance.components(_starts(1, 1, 3, 5, seed))
        hits += found.between_low <= 1 <= found.between_high
    assert hits / 300 >= 0.92


def test_one_start_leaves_the_variance_between_starts_unknown():
    """Unknown is not zero."""
    found = variance.components({1: [1.0, 2.0, 3.0]})
    assert found.within == pytest.approx(1.0)
    assert found.between is None and found.share_between is None


def test_ratio_over_starts_does_not_pool_repeats():
    """Fifty repeats on each of two starts know no more about starts than two starts do."""
    few = variance.ratio_interval(_starts(1, 0.01, 2, 2), _starts(1, 0.01, 2, 2, 1))
    many = variance.ratio_interval(_starts(1, 0.01, 2, 50), _starts(1, 0.01, 2, 50, 1))
    pooled = stats.mean_interval(np.concatenate(list(_starts(1, 0.01, 2, 50).values())))
    assert few.basis == many.basis == "starts"
    assert many.high - many.low > 5 * 2 * pooled.half_width / 100


def test_ratio_interval_equals_welch_on_log_means():
    """With several starts a side it is Welch's interval of the starts' mean logarithms."""
    a, b = _starts(2, 1, 5, 1, 3), _starts(1, 1, 4, 1, 4)
    la, lb = (np.log([v[0] for v in g.values()]) for g in (a, b))
    low, high = scipy_stats.ttest_ind(lb, la, equal_var=False).confidence_interval(0.95)
    found = variance.ratio_interval(a, b)
    assert (math.log(found.low), math.log(found.high)) == pytest.approx((low, high))


def test_ratio_of_single_starts_covers_truth_only_with_borrowed_variance():
    """One start a side: alone the interval covers repeats only and decides nothing; borrowed, it covers."""
    hits = decided = 0
    for seed in range(200):
        known = variance.log_components(_starts(2, 0.3, 4, 5, 1000 + seed))
        base, other = _starts(2, 0.3, 1, 5, seed), _starts(2, 0.3, 1, 5, 500 + seed)
        borrowed = variance.ratio_interval(base, other, known)
        alone = variance.ratio_interval(base, other)
        assert borrowed.basis == "repeatability" and alone.basis == "within"
        hits += borrowed.low <= 1 <= borrowed.high
        decided += alone.different is not None
    assert hits / 200 >= 0.92
    assert decided == 0


@pytest.mark.parametrize(("q", "between", "within"), [(50, 0.05, 0.3), (95, 0.2, 0.1)])
def test_a_ratio_of_percentiles_covers_by_the_spread_of_starts(q, between, within):
    """Four starts on one side and three on the other, two points each, unequal in size: 95 % of intervals cover 1."""
    rng = np.random.default_rng(3)
    hits = 0
    for _ in range(200):
        repeats, whole = [], []
        for starts in (4, 3):
            own = rng.normal(0, between, starts)
            points = {i: [np.exp(o + rng.normal(0, within, n)) for n in (40, 120)] for i, o in enumerate(own)}
            repeats.append({i: [float(np.percentile(p, q)) for p in each] for i, each in points.items()})
            whole.append({i: float(np.percentile(np.concatenate(each), q)) for i, each in points.items()})
        found = variance.ratio_interval(*repeats, of_starts=(whole[0], whole[1]))
        hits += found.low <= 1 <= found.high
        logs = [np.mean(np.log(list(side.values()))) for side in whole]
        assert found.ratio == pytest.approx(math.exp(logs[1] - logs[0]))
    assert 0.91 <= hits / 200 <= 0.985


def test_the_middle_of_percentiles_is_one_of_them():
    """Of an even number the lower one, not a mean of two; of nothing None."""
    assert stats.middle([4.0, 1.0, 2.0, 3.0]) == 2.0
    assert stats.middle([5.0]) == 5.0
    assert stats.middle([]) is None


def test_single_values_give_no_interval():
    """One number a side and nothing else known: a ratio, no interval, no verdict."""
    found = variance.ratio_interval({1: [100.0]}, {1: [110.0]})
    assert found.ratio == pytest.approx(1.1)
    assert (found.low, found.high, found.basis, found.different) == (None, None, "none", None)


def test_a_difference_of_the_smallest_visible_size_is_seen_four_times_in_five():
    """Planting exactly that difference, the interval excludes 1 in 80 % of studies (within noise)."""
    sigma, starts = 0.02, 4
    se, df = sigma * math.sqrt(2 / starts), 2 * (starts - 1)
    shift = variance.smallest_visible_difference(se, df)
    rng = np.random.default_rng(7)
    seen = 0
    for _ in range(400):
        a, b = rng.normal(0, sigma, starts), rng.normal(math.log1p(shift), sigma, starts)
        seen += scipy_stats.ttest_ind(a, b).pvalue < 0.05
    assert seen / 400 == pytest.approx(0.8, abs=0.06)


@pytest.mark.parametrize("values", [[0.0, 1.0], []])
def test_a_ratio_of_what_has_no_logarithm_is_refused(values):
    """Zero or nothing is an error that names itself, not a NaN."""
    with pytest.raises(ValueError, match=r"above zero|no values"):
        variance.ratio_interval({1: values}, {1: [1.0]})
