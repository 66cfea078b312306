"""Curves that throughput may follow as concurrency grows, each with a physical meaning and a defined knee.

Every curve is scale × shape(concurrency; parameters); the scale is fitted in closed form on the logarithm,
the other parameters lie on a grid, so that a fit is exhaustive and hundreds of resampled fits are one matrix
product.

The knee is where throughput stops following concurrency: the concurrency from which one percent more of it
brings less than ELASTICITY percent more throughput. Where a curve has a break, that is the break.

    linear          c                               nothing limits: no knee
    power           c^b                             follows less than proportionally: no knee unless b is small
    saturating      c / (1 + c/a)                   a step costs a fixed part and a part for each request (batching)
    roofline        min(c, k)                       linear, then a hard limit (slots, KV cache)
    falling         min(c, k) × (k/c)^r beyond k    a hard limit, and loss beyond it (preemption)
    capped          saturating up to k, flat        batching, then a hard limit
    capped_falling  saturating up to k, falling     the same with loss beyond the limit
    usl             c / (1 + s(c-1) + m c(c-1))     universal scalability law (Gunther 1993): contention, coherency
    segmented       c^b up to k, then c^g           two straight lines on logarithmic axes
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

ELASTICITY = 0.25
FAMILIES = (
    "linear", "power", "saturating", "roofline", "falling", "capped", "capped_falling", "usl", "segmented",
)  # fmt: skip
LATENCY_FAMILIES = (
    "power",
    "rise",
)  # one slope, or a break into a steeper one: mean TTFT against concurrency
_BREAK_STEP, _BATCH_STEP = 1.06, 1.25
_FALLS = (0.04, 0.1, 0.2, 0.4, 0.7)
_RISES = tuple(np.round(np.arange(0.25, 1.11, 0.05), 3))


@dataclass(frozen=True)
class Grid:
    """All candidate curves over one set of concurrencies.

    concurrency [n]; family [G] (index into FAMILIES); parameters: name → [G], NaN where a family has none;
    log_shape [G, n]: logarithm of the shape at the concurrencies; knee [G]: inf where the curve has none,
    0 where it never follows concurrency.
    """

    concurrency: Floats
    family: NDArray[np.int64]
    parameters: Mapping[str, Floats]
    log_shape: Floats
    knee: Floats


def log_shape(family: str, parameters: Mapping[str, Floats], concurrency: Floats) -> Floats:
    """Logarithm of a family's shape [G, n] for parameters [G] at concurrencies [n]."""
    c = concurrency[None, :]
    column = {name: np.asarray(values, dtype=float)[:, None] for name, values in parameters.items()}
    if family == "linear":
        return np.asarray(np.log(c) * np.ones((1, 1)))
    if family == "power":
        return np.asarray(column["b"] * np.log(c))
    if family == "usl":
        return np.asarray(np.log(c) - np.log1p(column["s"] * (c - 1) + column["m"] * c * (c - 1)))
    if family in ("segmented", "rise"):
        below = column["b"] * np.log(np.minimum(c, column["k"]))
        return np.asarray(below + column["g"] * np.log(np.maximum(c / column["k"], 1)))
    k = column.get("k", np.full((1, 1), np.inf))
    inside = np.minimum(c, k)
    shape = np.log(inside) - (np.log1p(inside / column["a"]) if "a" in column else 0.0)
    return np.asarray(shape - column.get("r", np.zeros((1, 1))) * np.log(np.maximum(c / k, 1)))


def knee_of(family: str, parameters: Mapping[str, Floats]) -> Floats:
    """The knee of each parameter set [G] by the definition above."""
    e = ELASTICITY
    p = {name: np.asarray(values, dtype=float) for name, values in parameters.items()}
    if family == "linear":
        return np.array([np.inf])
    if family == "power":
        return np.where(p["b"] >= e, np.inf, 0.0)
    if family == "usl":  # elasticity = (1 - s - m c²) / (1 + s (c-1) + m c (c-1)) = e, solved for c
        square, linear, rest = p["m"] * (1 + e), e * (p["s"] - p["m"]), (1 - e) * (1 - p["s"])
        with np.errstate(divide="ignore", invalid="ignore"):
            curved = (-linear + np.sqrt(linear**2 + 4 * square * rest)) / (2 * square)
            straight = rest / linear
        return np.where(square > 0, curved, np.where(linear > 0, straight, np.inf))
    if family == "rise":
        return np.asarray(p["k"], dtype=np.float64)
    if family == "segmented":
        broken = np.where(p["g"] < e, p["k"], np.inf)
        return np.where(p["b"] < e, 0.0, broken)
    smooth = p["a"] * (1 - e) / e if "a" in p else np.inf
    flat = np.full_like(next(iter(p.values())), np.inf)
    return np.asarray(np.minimum(p.get("k", flat), smooth), dtype=np.float64)


@lru_cache(maxsize=16)
def grid(concurrency: tuple[float, ...]) -> Grid:
    """All candidate curves for these concurrencies (rising, at least two)."""
    at = np.asarray(concurrency, dtype=float)
    return _assembled(at, [_family(name, at) for name in FAMILIES])


@lru_cache(maxsize=16)
def latency_grid(concurrency: tuple[float, ...]) -> Grid:
    """Candidate curves of mean TTFT: growing with one slope, or from a break on faster than concurrency does.

    The break is where the slope rises above 1 (twice the requests, more than twice the wait) by at least a
    half: a queue that grows, not the prompts of more requests being read in one after the other.
    """
    at = np.asarray(concurrency, dtype=float)
    slopes = np.round(np.arange(-0.2, 3.01, 0.1), 3)
    power = {"b": slopes}
    knees = np.full(slopes.size, np.inf)
    k, b, g = (
        mesh.ravel() for mesh in np.meshgrid(_breaks(at), slopes[slopes <= 1.5], np.arange(1.0, 6.01, 0.25))
    )
    keep = g >= b + 0.5
    rise = {"b": b[keep], "k": k[keep], "g": g[keep]}
    return _assembled(
        at,
        [
            (power, log_shape("power", power, at), knees),
            (rise, log_shape("rise", rise, at), knee_of("rise", rise)),
        ],
    )


def _assembled(at: Floats, parts: list[tuple[dict[str, Floats], Floats, Floats]]) -> Grid:
    names = ("a", "b", "k", "r", "g", "s", "m")
    sizes = [len(knees) for _, _, knees in parts]
    parameters = {
        name: np.concatenate(
            [
                np.asarray(values[name], dtype=float) if name in values else np.full(size, np.nan)
                for (values, _, _), size in zip(parts, sizes, strict=True)
            ]
        )
        for name in names
    }
    return Grid(
        at,
        np.repeat(np.arange(len(parts)), sizes),
        parameters,
        np.concatenate([shape for _, shape, _ in parts]),
        np.concatenate([knees for _, _, knees in parts]),
    )


def _breaks(at: Floats) -> Floats:
    """Where a break may lie: inside the range, since it needs a point on either side."""
    return np.asarray(np.exp(np.arange(np.log(at[0]), np.log(at[-1]), np.log(_BREAK_STEP)))[1:])


def _family(name: str, at: Floats) -> tuple[dict[str, Floats], Floats, Floats]:
    """(parameters, log shapes, knees) of one family on its grid."""
    low, high = float(at[0]), float(at[-1])
    breaks = _breaks(at)
    batch = np.exp(np.arange(np.log(low / 4), np.log(high * 8), np.log(_BATCH_STEP)))
    falls = np.array(_FALLS)
    axes: dict[str, dict[str, Floats]] = {
        "linear": {},
        "power": {"b": np.arange(-0.2, 1.11, 0.025)},
        "saturating": {"a": batch},
        "roofline": {"k": breaks},
        "falling": {"k": breaks, "r": falls},
        "capped": {"a": batch, "k": breaks},
        "capped_falling": {"a": batch, "k": breaks, "r": falls},
        "usl": {
            "s": np.concatenate([[0.0], np.geomspace(1 / (8 * high), 0.9, 24)]),
            "m": np.concatenate([[0.0], np.geomspace(0.02 / high**2, 8 / high, 24)]),
        },
        "segmented": {
            "b": np.array(_RISES),
            "k": breaks,
            "g": np.array([-0.6, -0.3, -0.15, -0.05, 0.0, 0.05, 0.15]),
        },
    }
    names = list(axes[name])
    meshes = np.meshgrid(*axes[name].values(), indexing="ij") if names else []
    parameters = {axis: mesh.ravel() for axis, mesh in zip(names, meshes, strict=True)}
    shapes = log_shape(name, parameters, at)
    return parameters, shapes, knee_of(name, parameters)
