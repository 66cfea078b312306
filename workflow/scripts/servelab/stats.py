"""Percentiles and intervals for one point's requests: the only percentile function of the project lives here.

Everything is about one sample. What may be said over repeats and server starts is in `variance.py`.
Formulas with their sources: docs/statistics.md.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import scipy  # as a whole: scipy.stats is loaded at its first use, not each time that a config is read
from numpy.typing import ArrayLike, NDArray

LEVEL = 0.95

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Interval:
    """An estimate with its interval, in the unit of the data. n: how many values it rests on."""

    value: float
    low: float
    high: float
    n: int
    level: float = LEVEL

    @property
    def half_width(self) -> float:
        """Half the interval's length; relative to the value it is what «±» stands for."""
        return (self.high - self.low) / 2


def percentile(values: ArrayLike, q: float) -> float | None:
    """The q-th percentile (0 to 100), linear between order statistics (Hyndman & Fan 1996, type 7); None if empty."""
    array = np.asarray(values, dtype=float)
    return float(np.percentile(array, q)) if array.size else None


def middle(values: ArrayLike) -> float | None:
    """The lower middle value: of percentiles one that was measured, as a mean of two is not; None if empty."""
    array = np.sort(np.asarray(values, dtype=float))
    return float(array[(array.size - 1) // 2]) if array.size else None


def requests_needed(q: float, level: float = LEVEL) -> int:
    """How many independent values a two-sided order-statistic interval of the q-th percentile needs.

    The largest value must lie above the percentile with probability 1 - (1 - level)/2, the smallest below it
    likewise: n >= ln((1 - level)/2) / ln(max(p, 1 - p)). 6 for the median, 72 for p95, 368 for p99.
    """
    p = q / 100
    if not 0 < p < 1:
        raise ValueError(f"q={q}: a percentile with an interval lies between 0 and 100")
    return math.ceil(math.log((1 - level) / 2) / math.log(max(p, 1 - p)))


def percentile_interval(values: ArrayLike, q: float, level: float = LEVEL) -> Interval | None:
    """Distribution-free interval of a percentile from order statistics; None where there are too few values.

    The interval [x(l), x(u)] covers the percentile with probability at least `level`, each tail at most
    (1 - level)/2, for independent values of any distribution (David & Nagaraja, Order Statistics, 2003, 7.1).
    """
    array = np.sort(np.asarray(values, dtype=float))
    n = array.size
    if n < requests_needed(q, level):
        return None
    tail = (1 - level) / 2
    binomial = scipy.stats.binom(n, q / 100)
    below = int(binomial.ppf(tail))  # largest l (from 1) with P(B <= l - 1) <= tail
    above = int(binomial.ppf(1 - tail)) + 1  # smallest u with P(B >= u) <= tail
    if below < 1 or above > n:
        return None
    value = float(np.percentile(array, q))
    return Interval(value, float(array[below - 1]), float(array[above - 1]), n, level)


def bootstrap_percentile(
    groups: Sequence[ArrayLike], q: float, level: float = LEVEL, resamples: int = 400, seed: int = 1
) -> Interval | None:
    """Interval of a percentile of pooled values that come in groups (gaps of one request): requests are resampled.

    Gaps of one request depend on each other, so whole requests are drawn with replacement (the cluster
    bootstrap, Davison & Hinkley 1997, 3.8); percentile interval. None with fewer than 6 groups, or fewer
    values than an independent sample would need. n is the number of groups.
    """
    arrays = [np.asarray(group, dtype=float) for group in groups if np.size(group)]
    total = sum(array.size for array in arrays)
    if len(arrays) < 6 or total < requests_needed(q, level):
        return None
    pooled = np.concatenate(arrays)
    order = np.argsort(pooled, kind="stable")
    owner = np.repeat(np.arange(len(arrays)), [array.size for array in arrays])[order]
    ordered = pooled[order]
    rng = np.random.default_rng(seed)
    found = [
        _weighted_percentile(ordered, np.bincount(draw, minlength=len(arrays))[owner], q)
        for draw in rng.integers(0, len(arrays), size=(resamples, len(arrays)))
    ]
    low, high = np.percentile(found, [50 * (1 - level), 50 * (1 + level)])
    return Interval(float(np.percentile(pooled, q)), float(low), float(high), len(arrays), level)


def _weighted_percentile(ordered: Floats, counts: NDArray[np.int64], q: float) -> float:
    """Type-7 percentile of `ordered` with each value standing `counts` times; the repeats are never written out."""
    ends = np.cumsum(counts)
    position = (ends[-1] - 1) * q / 100
    left = int(np.searchsorted(ends, math.floor(position), side="right"))
    right = int(np.searchsorted(ends, math.ceil(position), side="right"))
    part = position - math.floor(position)
    return float(ordered[left] + part * (ordered[right] - ordered[left]))


def bootstrap(
    values: ArrayLike,
    statistic: Callable[[Floats], float],
    level: float = LEVEL,
    resamples: int = 1000,
    seed: int = 1,
) -> Interval | None:
    """Bootstrap interval of any statistic over requests (bias-corrected and accelerated); None under 6 values."""
    array = np.asarray(values, dtype=float)
    if array.size < 6:
        return None
    value = float(statistic(array))
    if np.ptp(array) == 0:
        return Interval(value, value, value, array.size, level)
    result = scipy.stats.bootstrap(
        (array,),
        lambda sample: statistic(np.asarray(sample)),
        n_resamples=resamples,
        confidence_level=level,
        vectorized=False,
        rng=np.random.default_rng(seed),
    )
    low, high = float(result.confidence_interval.low), float(result.confidence_interval.high)
    if math.isnan(low) or math.isnan(high):
        return None
    return Interval(value, low, high, array.size, level)


def mean_interval(values: ArrayLike, level: float = LEVEL) -> Interval | None:
    """Student's t-interval of the mean of independent values; None under two values."""
    array = np.asarray(values, dtype=float)
    n = array.size
    if n < 2:
        return None
    mean = float(array.mean())
    half = float(scipy.stats.t.ppf((1 + level) / 2, n - 1)) * float(array.std(ddof=1)) / math.sqrt(n)
    return Interval(mean, mean - half, mean + half, n, level)


def coefficient_of_variation(values: ArrayLike) -> float | None:
    """Standard deviation (n - 1) over the mean; None under two values or for a mean of zero."""
    array = np.asarray(values, dtype=float)
    if array.size < 2 or array.mean() == 0:
        return None
    return float(array.std(ddof=1) / abs(array.mean()))
