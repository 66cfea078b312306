"""Variation within a server and between server starts, and what follows for comparing two settings.

Repeats on one server are not independent measurements of a setting: the start is the unit. Every function
here takes values by start, `{start: [value of each repeat]}`, and none pools over starts as if that did not
matter. Formulas with their sources: docs/statistics.md.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import scipy  # as a whole: scipy.stats is loaded at its first use, not each time that a config is read

from servelab.stats import LEVEL

ByStart = Mapping[object, Sequence[float]]
OfStarts = Mapping[object, float]


@dataclass(frozen=True)
class Components:
    """One-way random effects: value = mean + start + repeat. Variances in the squared unit of the values.

    within: variance of repeats on one server, None without a start of two or more repeats. between: variance
    of starts, None with fewer than two starts (unknown, not zero). between_raw may be negative: then the data
    show no variation between starts, and `between` is 0. Intervals: None where the variance is.
    """

    mean: float
    starts: int
    values: int
    within: float | None
    within_low: float | None
    within_high: float | None
    between: float | None
    between_low: float | None
    between_high: float | None
    between_raw: float | None
    df_within: int
    df_between: int

    @property
    def share_between(self) -> float | None:
        """Share of the variance of one measurement that lies between starts; None where unknown."""
        if self.within is None or self.between is None:
            return None
        total = self.within + self.between
        return self.between / total if total > 0 else None


@dataclass(frozen=True)
class Ratio:
    """Setting b over setting a, of geometric means over starts, with an interval.

    basis: what the interval rests on
      "starts"         variation between the starts of these settings themselves (the full interval)
      "repeatability"  one start a setting; variation between starts taken from the repeatability experiment
      "within"         one start a setting, nothing known about starts: covers repeats on these servers only
      "none"           single values: no interval
    visible: the smallest relative difference that would have been seen with 80 % probability; None without
    interval.
    """

    ratio: float
    low: float | None
    high: float | None
    basis: str
    df: float | None
    visible: float | None

    @property
    def different(self) -> bool | None:
        """Whether the interval excludes 1; None where there is no interval, or it does not cover starts."""
        if self.low is None or self.high is None or self.basis == "within":
            return None
        return not self.low <= 1 <= self.high


def components(groups: ByStart, level: float = LEVEL) -> Components:
    """Variance within and between starts, method of moments for unbalanced data (Searle et al. 1992, 3.6).

    within = MSW with its chi-square interval; between = (MSB - MSW) / n0, n0 = (N - sum n_i^2 / N)/(a - 1).
    The interval of between is Williams' (1962). With few starts it is very wide, and that is the truth.
    Raises ValueError without any value.
    """
    arrays = [np.asarray(values, dtype=float) for values in groups.values() if len(values)]
    if not arrays:
        raise ValueError("no values")
    sizes = np.array([array.size for array in arrays])
    total, starts = int(sizes.sum()), len(arrays)
    mean = float(np.concatenate(arrays).mean())
    df_within, df_between = total - starts, starts - 1
    tail = (1 - level) / 2
    within = within_low = within_high = None
    if df_within > 0:
        squares = float(sum(((array - array.mean()) ** 2).sum() for array in arrays))
        within = squares / df_within
        within_low, within_high = _chi_square_interval(within, df_within, tail)
    between = between_low = between_high = raw = None
    if df_between > 0:
        ms_between = float(sum(array.size * (array.mean() - mean) ** 2 for array in arrays)) / df_between
        n0 = (total - float((sizes**2).sum()) / total) / df_between
        if within is None:  # one repeat a start: the two cannot be told apart, all of it is given to starts
            raw = ms_between / n0
            between_low, between_high = _chi_square_interval(raw, df_between, tail)
        else:
            raw = (ms_between - within) / n0
            between_low, between_high = _williams(ms_between, within, df_between, df_within, n0, tail)
        between = max(0.0, raw)
    return Components(
        mean, starts, total, within, within_low, within_high, between, between_low, between_high, raw,
        df_within, df_between,
    )  # fmt: skip


def _chi_square_interval(variance: float, df: int, tail: float) -> tuple[float, float]:
    chi = scipy.stats.chi2(df)
    return df * variance / float(chi.ppf(1 - tail)), df * variance / float(chi.ppf(tail))


def _williams(
    ms_between: float, ms_within: float, df_between: int, df_within: int, n0: float, tail: float
) -> tuple[float, float]:
    """Williams, J. S. (1962), A confidence interval for variance components, Biometrika 49."""
    chi = scipy.stats.chi2(df_between)
    f = scipy.stats.f(df_between, df_within)
    low = df_between * (ms_between - ms_within * float(f.ppf(1 - tail))) / (n0 * float(chi.ppf(1 - tail)))
    high = df_between * (ms_between - ms_within * float(f.ppf(tail))) / (n0 * float(chi.ppf(tail)))
    return max(0.0, low), max(0.0, high)


def mean_over_starts(groups: ByStart, level: float = LEVEL) -> tuple[float, float | None, float | None]:
    """Mean of a setting over starts with a t-interval over the starts' means; (mean, None, None) with one start."""
    means = np.array([np.mean(values) for values in groups.values() if len(values)])
    if means.size == 0:
        raise ValueError("no values")
    mean = float(means.mean())
    if means.size < 2:
        return mean, None, None
    half = float(
        scipy.stats.t.ppf((1 + level) / 2, means.size - 1) * means.std(ddof=1) / math.sqrt(means.size)
    )
    return mean, mean - half, mean + half


def ratio_interval(
    base: ByStart,
    other: ByStart,
    repeatability: Components | None = None,
    level: float = LEVEL,
    of_starts: tuple[OfStarts, OfStarts] | None = None,
) -> Ratio:
    """Ratio other/base of a positive quantity, on the log scale, the start as the unit.

    of_starts: the value of each start of base and of other, where it is not the geometric mean of its repeats: a
    percentile may not be averaged over points, so a start's is that of all its requests. The repeats' own values
    then only say how far points of one server differ.

    Two or more starts on both sides: Welch's t-interval of the difference of the starts' mean logarithms
    (Welch 1947). A side with one start borrows the variances of `repeatability` (components of *logarithms*,
    see log_components) and the degrees of freedom of its starts; without it the interval covers repeats only.
    Raises ValueError for no values or a value that is not above zero.
    """
    a, b = _logs(base), _logs(other)
    means = [
        _means(group, None if of_starts is None else of_starts[i]) for i, group in enumerate((base, other))
    ]
    estimate = float(means[1].mean() - means[0].mean())
    sides = [_side(group, mean, repeatability) for group, mean in zip((a, b), means, strict=True)]
    bases = [side[2] for side in sides]
    basis = next((name for name in ("none", "within", "repeatability") if name in bases), "starts")
    if basis == "none":
        return Ratio(math.exp(estimate), None, None, "none", None, None)
    if basis == "within":  # both sides by their repeats, so that the interval says one thing
        sides = [_within_side(group) or (0.0, math.inf, "none") for group in (a, b)]
        if any(side[2] == "none" for side in sides):
            return Ratio(math.exp(estimate), None, None, "none", None, None)
    shared = bases == ["repeatability", "repeatability"]
    variance = sum(side[0] for side in sides)
    df = sides[0][1] if shared else _welch_df([(side[0], side[1]) for side in sides])
    se = math.sqrt(variance)
    half = float(scipy.stats.t.ppf((1 + level) / 2, df)) * se
    visible = None if basis == "within" else smallest_visible_difference(se, df, level)
    return Ratio(math.exp(estimate), math.exp(estimate - half), math.exp(estimate + half), basis, df, visible)


def geometric_mean(groups: ByStart, of_starts: OfStarts | None = None) -> float:
    """Geometric mean over starts of each start's own value: what ratio_interval compares. Raises ValueError like it."""
    return math.exp(float(_means(groups, of_starts).mean()))


def _means(groups: ByStart, of_starts: OfStarts | None) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """The logarithm of each start's value: as given, else the mean of its repeats' logarithms."""
    if of_starts is None:
        return np.array([logs.mean() for logs in _logs(groups)])
    return np.array([logs[0] for logs in _logs({start: [of_starts[start]] for start in groups})])


def log_components(groups: ByStart, level: float = LEVEL) -> Components:
    """Components of the logarithms: variances are squared relative ones, as ratio_interval borrows them."""
    return components({start: [math.log(v) for v in values] for start, values in groups.items()}, level)


def smallest_visible_difference(
    standard_error: float, df: float, level: float = LEVEL, power: float = 0.8
) -> float:
    """Smallest relative difference that a t-test of log-means finds with probability `power`.

    standard_error: of the difference of log-means. The power of a t-test follows the noncentral t
    distribution (Cohen 1988); solved for the difference, and given back as a ratio minus 1.
    """
    if standard_error <= 0:
        return 0.0
    critical = float(scipy.stats.t.ppf((1 + level) / 2, df))

    def missing(shift: float) -> float:
        return float(scipy.stats.nct.sf(critical, df, shift)) - power

    upper = 4.0
    while missing(upper) < 0:
        upper *= 2
    return math.expm1(float(scipy.optimize.brentq(missing, 0.0, upper)) * standard_error)


def _logs(groups: ByStart) -> list[np.ndarray[tuple[int], np.dtype[np.float64]]]:
    arrays = [np.asarray(values, dtype=float) for values in groups.values() if len(values)]
    if not arrays:
        raise ValueError("no values")
    if any((array <= 0).any() for array in arrays):
        raise ValueError("a ratio needs values above zero")
    return [np.log(array) for array in arrays]


def _side(
    groups: list[np.ndarray[tuple[int], np.dtype[np.float64]]],
    means: np.ndarray[tuple[int], np.dtype[np.float64]],
    repeatability: Components | None,
) -> tuple[float, float, str]:
    """(variance of the side's mean, its degrees of freedom, basis)."""
    if means.size >= 2:
        return float(means.var(ddof=1)) / means.size, means.size - 1, "starts"
    if repeatability is not None and repeatability.between is not None:
        n = groups[0].size
        within = repeatability.within or 0.0
        between_raw = max(repeatability.between, 0.0)
        variance = between_raw + within / n
        # conservative: all of it is known no better than the variance between starts is
        return variance, float(repeatability.df_between), "repeatability"
    return _within_side(groups) or (0.0, math.inf, "none")


def _within_side(
    groups: list[np.ndarray[tuple[int], np.dtype[np.float64]]],
) -> tuple[float, float, str] | None:
    df = sum(group.size - 1 for group in groups)
    if df < 1:
        return None
    pooled = float(sum(((group - group.mean()) ** 2).sum() for group in groups)) / df
    per_start = [pooled / group.size for group in groups]
    return sum(per_start) / len(groups) ** 2, float(df), "within"


def _welch_df(parts: Sequence[tuple[float, float]]) -> float:
    variance = sum(part for part, _ in parts)
    if variance <= 0:
        return min(df for _, df in parts)
    return variance**2 / sum(part**2 / df for part, df in parts if df > 0)
