"""The knee: fit throughput against concurrency, choose the curve by prediction, say how sure.

1. Every family of `knee_models` is fitted to the mean logarithms by least squares on its grid.
2. Families are compared by leaving out one concurrency at a time and predicting it.
3. The data are resampled: residuals of starts (of repeats with one start, of the fit with single values),
   pooled over concurrencies and inflated to their degrees of freedom, are drawn again; a family is drawn with a
   weight that its prediction error gives it; among the curves that fit a resample equally well one is drawn.
   So breaks that the points cannot tell apart are all in the interval.
4. Each drawn knee is blurred by CORNER, since a real server's corner is rounder than the curve's.

The estimate is the median of the draws, the interval their 2.5 % and 97.5 % points. On simulated servers with
a known knee the interval's coverage is printed by benchmarks/knee. Definition and formulas:
docs/statistics.md.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import pandas as pd

from servelab.knee_models import FAMILIES, LATENCY_FAMILIES, Floats, Grid, grid, latency_grid, log_shape

DRAWS = 300
CORNER = 0.05
TIES = 0.25  # of the variance of a mean: curves nearer than that to the best are as good
# A family that cannot follow the points at all is out of the race however its clipped errors look: likelihood of its
# best fit, tempered, since no family is exactly true.
MISFIT_TEMPER = 4.0
NOISE_FLOOR = 0.005  # nothing is known to better than the notes' half percent
# A family that extrapolates badly at one end is not out of the race for that alone: errors are clipped
# (logarithm).
CLIPPED_ERROR, CLIPPED_LATENCY_ERROR = 0.15, 1.0
LEAST_CONCURRENCIES = 4
FOUND, RISING, SATURATED, TOO_FEW = "found", "rising", "saturated", "too_few"


@dataclass(frozen=True)
class Curve:
    """A fitted curve: family, its parameters, scale; error: root mean square of its held-out predictions (log)."""

    family: str
    parameters: Mapping[str, float]
    log_scale: float
    error: float

    def at(self, concurrency: Floats) -> Floats:
        """The curve's values [n]."""
        columns = {name: np.array([value]) for name, value in self.parameters.items()}
        shape = log_shape(self.family, columns, np.asarray(concurrency, dtype=float))[0]
        return np.asarray(np.exp(self.log_scale + shape))


@dataclass(frozen=True)
class KneeResult:
    """What can be said of the knee of one server configuration and load shape.

    status: "found"; "rising" (throughput still follows at the highest concurrency: no knee within the range);
    "saturated" (it does not follow from the lowest on); "too_few" (fewer than four usable concurrencies).
    knee, low, high: requests at once; low or high is None where the interval runs out of the measured range.
    curve: the family that predicts held-out points best; candidates: all, by error. values: points used.
    preempting: concurrencies with preemptions; excluded: failed and invalid points that were left out.
    latency_knee: the same for mean TTFT (where it begins to grow faster than concurrency), None if it does
    not. capacity: requests that the KV cache holds; capacity_inside: whether it lies in the interval, None if
    unknown.
    """

    status: str
    knee: float | None = None
    low: float | None = None
    high: float | None = None
    curve: Curve | None = None
    candidates: tuple[Curve, ...] = ()
    concurrencies: tuple[float, ...] = ()
    values: int = 0
    starts: int = 0
    preempting: tuple[float, ...] = ()
    excluded: int = 0
    latency_knee: float | None = None
    latency_low: float | None = None
    latency_high: float | None = None
    capacity: float | None = None
    capacity_inside: bool | None = None
    draws: Floats = field(default_factory=lambda: np.empty(0), repr=False)


@dataclass(frozen=True)
class _Sample:
    """Mean logarithms [n] at the concurrencies [n], and pooled residuals of one value with how many make a mean."""

    concurrency: Floats
    mean: Floats
    residuals: Floats
    count: Floats

    @property
    def variance(self) -> float:
        """Variance of a mean as repeats and starts show it, 0 where there are none."""
        if not self.residuals.size:
            return 0.0
        return float((self.residuals**2).mean() * (1 / self.count).mean())


def fit(rows: pd.DataFrame, metric: str | None = None, seed: int = 1) -> KneeResult:
    """The knee of these points: one server configuration, one input and output length, verdicts filled.

    metric: column to fit; left out, steady-state throughput where every usable point has it, else that of the
    whole run. Failed and invalid points are left out and counted.
    """
    usable = rows[(rows["status"] == "ok") & (rows["verdict"] != "invalid") & rows["concurrency"].notna()]
    metric = metric or fitted_metric(usable)
    usable = usable[usable[metric].notna() & (usable[metric] > 0)]
    excluded = len(rows) - len(usable)
    preempted = usable[usable["preemptions"].fillna(0) > 0]
    about = {
        "concurrencies": tuple(sorted({float(c) for c in usable["concurrency"]})),
        "values": len(usable),
        "starts": int(usable["session_id"].nunique()),
        "preempting": tuple(sorted({float(c) for c in preempted["concurrency"]})),
        "excluded": excluded,
        "capacity": _capacity(usable),
    }
    if len(about["concurrencies"]) < LEAST_CONCURRENCIES:  # type: ignore[arg-type]
        return KneeResult(TOO_FEW, **about)  # type: ignore[arg-type]
    rng = np.random.default_rng(seed)
    sample = _sample(usable, metric)
    candidates, draws = fit_means(sample, grid(tuple(sample.concurrency)), FAMILIES, rng)
    status, knee, low, high = located(draws, sample.concurrency)
    latency = _latency(usable, rng)
    inside = None
    if status == FOUND and about["capacity"] is not None and not (low is None and high is None):
        capacity = float(about["capacity"])  # type: ignore[arg-type]
        inside = (low is None or low <= capacity) and (high is None or capacity <= high)
    return KneeResult(
        status, knee, low, high, candidates[0], candidates, latency_knee=latency[0], latency_low=latency[1],
        latency_high=latency[2], capacity_inside=inside, draws=draws, **about,  # type: ignore[arg-type]
    )  # fmt: skip


def fitted_metric(usable: pd.DataFrame) -> str:
    """Steady-state throughput if every point has it (no drain at the end of a run), else the whole run's."""
    steady = usable["steady_throughput_tok_s"]
    return "steady_throughput_tok_s" if len(steady) and steady.notna().all() else "output_throughput_tok_s"


def fit_means(
    sample: _Sample,
    curves: Grid,
    families: tuple[str, ...],
    rng: np.random.Generator,
    clipped: float = CLIPPED_ERROR,
) -> tuple[tuple[Curve, ...], Floats]:
    """(candidates by held-out error, drawn knees [DRAWS])."""
    count = sample.concurrency.size
    parts = _parts(curves, families, count)
    noise = sample.variance + NOISE_FLOOR**2
    found: list[Curve] = []
    misfits: list[float] = []
    least: list[float] = []
    for name, part in parts.items():
        missed = np.minimum(np.abs(_held_out(curves, part, sample.mean, noise)), clipped)
        error = float(np.sqrt(np.mean(missed**2)))
        squares = _squares(curves.log_shape[part], sample.mean[None, :])[:, 0]
        best = part.start + int(np.argmin(squares))
        parameters = {key: float(v[best]) for key, v in curves.parameters.items() if not np.isnan(v[best])}
        scale = float((sample.mean - curves.log_shape[best]).mean())
        found.append(Curve(name, parameters, scale, error))
        least.append(float(squares.min()))
        misfits.append(least[-1] / max(count - 1 - len(parameters), 1))
    order = sorted(range(len(found)), key=lambda i: found[i].error)
    errors = np.array([curve.error for curve in found])
    spread = max(sample.variance, misfits[order[0]])
    weights = (np.maximum(errors, 1e-6) / max(float(errors.min()), 1e-6)) ** (-count / 2)
    worse = (np.array(least) - min(least)) / max(spread, noise)
    weights *= np.exp(-worse / (2 * MISFIT_TEMPER))
    means = _resample(sample, spread, rng)
    picked = rng.choice(len(found), DRAWS, p=weights / weights.sum())
    knees = np.empty(DRAWS)
    for i, part in enumerate(parts.values()):
        these = np.flatnonzero(picked == i)
        if these.size:
            knees[these] = _drawn(curves, part, means[these], max(spread, NOISE_FLOOR**2 / 4), rng)
    return tuple(found[i] for i in order), knees * np.exp(rng.normal(0, CORNER, DRAWS))


def located(draws: Floats, concurrency: Floats) -> tuple[str, float | None, float | None, float | None]:
    """(status, knee, low, high) from drawn knees; what lies outside the measured range is not extrapolated."""
    first, last = float(concurrency[0]), float(concurrency[-1])
    if float((draws > last).mean()) >= 0.5:
        low = float(np.percentile(draws, 2.5, method="lower"))
        return RISING, None, low if first <= low <= last else None, None
    if float((draws <= first).mean()) >= 0.5:
        high = float(np.percentile(draws, 97.5, method="higher"))
        return SATURATED, None, None, high if high <= last else None
    clipped = np.clip(draws, first, last)
    low, high = (float(np.percentile(draws, q, method="nearest")) for q in (2.5, 97.5))
    return FOUND, float(np.median(clipped)), low if low > first else None, high if high <= last else None


def _parts(curves: Grid, families: tuple[str, ...], count: int) -> dict[str, slice]:
    """Family → its place in the grid; families with more parameters than the points can hold out are left away."""
    edges = np.searchsorted(curves.family, np.arange(len(families) + 1))
    found = {}
    for name, begin, end in zip(families, edges[:-1], edges[1:], strict=True):
        free = 1 + sum(not np.isnan(values[begin]) for values in curves.parameters.values())
        if free <= count - 2:
            found[name] = slice(int(begin), int(end))
    return found


def _squares(shapes: Floats, means: Floats, weights: Floats | None = None) -> Floats:
    """Least sum of squares [G, B] of means [B, n] about scale × shapes [G, n], the scale fitted; weights [n]."""
    w = np.ones(shapes.shape[1]) if weights is None else weights
    m = shapes - (shapes @ w / w.sum())[:, None]
    y = means - (means @ w / w.sum())[:, None]
    total = ((m * m) @ w)[:, None] + ((y * y) @ w)[None, :] - 2 * (m * w) @ y.T
    return np.asarray(np.maximum(total, 0.0))


def _held_out(curves: Grid, part: slice, mean: Floats, noise: float) -> Floats:
    """Prediction errors [n] of a family, each concurrency left out in turn.

    Curves that fit the others about equally well predict together, weighted by their likelihood at this
    noise.
    """
    shapes = curves.log_shape[part]
    errors = np.empty(mean.size)
    for j in range(mean.size):
        w = np.ones(mean.size)
        w[j] = 0.0
        squares = _squares(shapes, mean[None, :], w)[:, 0]
        likelihood = np.exp(-(squares - squares.min()) / (2 * noise))
        predicted = mean @ w / w.sum() + shapes[:, j] - shapes @ w / w.sum()
        errors[j] = mean[j] - float(likelihood @ predicted / likelihood.sum())
    return errors


def _drawn(curves: Grid, part: slice, means: Floats, spread: float, rng: np.random.Generator) -> Floats:
    """A knee for each resample [B]: of the best curve, or of one drawn from those that are as good."""
    squares = _squares(curves.log_shape[part], means)
    good = squares <= squares.min(axis=0) + TIES * spread
    knees = curves.knee[part]
    return np.array([knees[rng.choice(np.flatnonzero(good[:, b]))] for b in range(means.shape[0])])


def _resample(sample: _Sample, spread: float, rng: np.random.Generator) -> Floats:
    """Resampled means [DRAWS, n]: pooled residuals drawn again, with at least the variance that the fit left over."""
    n = sample.mean.size
    if not sample.residuals.size:
        return sample.mean + rng.normal(0, np.sqrt(spread), (DRAWS, n))
    noise = np.empty((DRAWS, n))
    for j, count in enumerate(sample.count.astype(int)):
        noise[:, j] = rng.choice(sample.residuals, (DRAWS, count)).mean(axis=1)
    scale = np.sqrt(spread / sample.variance) if sample.variance > 0 else 1.0
    return sample.mean + noise * max(scale, 1.0)


def _sample(usable: pd.DataFrame, metric: str) -> _Sample:
    """Means and residuals of the logarithms. The unit is the start: its repeats are averaged first."""
    values = pd.DataFrame(
        {
            "c": usable["concurrency"].astype(float),
            "start": usable["session_id"].fillna("?").astype(str),
            "y": np.log(usable[metric].astype(float)),
        }
    )
    cells = values.groupby(["c", "start"])["y"].mean().reset_index()
    means = cells.groupby("c")["y"].mean()
    counts = np.asarray(cells.groupby("c")["y"].size(), dtype=float)
    at = means.index.to_numpy(dtype=float)
    residuals, free = _start_residuals(cells)
    if free < 1:  # one start: what its repeats say, each mean resting on so many of them
        centred = values["y"] - values.groupby(["c", "start"])["y"].transform("mean")
        free = len(values) - len(cells)
        residuals = centred.to_numpy()[values.groupby(["c", "start"])["y"].transform("size").to_numpy() > 1]
        counts = np.asarray(values.groupby("c")["y"].size(), dtype=float)
    if free < 1 or not residuals.size:
        return _Sample(at, means.to_numpy(), np.empty(0), counts)
    inflated = residuals * np.sqrt(residuals.size / free)
    return _Sample(at, means.to_numpy(), inflated, counts)


def _start_residuals(cells: pd.DataFrame) -> tuple[Floats, int]:
    """(residuals, degrees of freedom) of start means about concurrency and start effects; none with one start."""
    starts, at = cells["start"].nunique(), cells["c"].nunique()
    if starts < 2:
        return np.empty(0), 0
    y = cells.pivot(index="c", columns="start", values="y").to_numpy(dtype=float)
    for _ in range(20):  # alternating means: a start that is faster everywhere moves the scale, not the knee
        y = y - np.nanmean(y, axis=1, keepdims=True)
        y = y - np.nanmean(y, axis=0, keepdims=True)
    return y[~np.isnan(y)], len(cells) - at - starts + 1


def _capacity(usable: pd.DataFrame) -> float | None:
    known = usable["capacity_requests"].dropna()
    return float(known.median()) if len(known) else None


def _latency(
    usable: pd.DataFrame, rng: np.random.Generator
) -> tuple[float | None, float | None, float | None]:
    """(knee, low, high) of mean TTFT, which may be averaged over repeats as a percentile may not."""
    rows = usable[usable["ttft_mean_ms"].notna() & (usable["ttft_mean_ms"] > 0)]
    if rows["concurrency"].nunique() < LEAST_CONCURRENCIES:
        return None, None, None
    sample = _sample(rows, "ttft_mean_ms")
    candidates, draws = fit_means(
        sample, latency_grid(tuple(sample.concurrency)), LATENCY_FAMILIES, rng, CLIPPED_LATENCY_ERROR
    )
    if candidates[0].family != "rise":
        return None, None, None
    # where it is, given that there is one: that there is one was decided by prediction
    status, knee, low, high = located(draws[np.isfinite(draws)], sample.concurrency)
    return (knee, low, high) if status == FOUND else (None, None, None)
