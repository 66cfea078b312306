"""Arithmetic of drawing: which columns and digits, where ticks and labels stand. Pure."""

import math
from collections.abc import Sequence

import pandas as pd


def tidy(data: pd.DataFrame, columns: Sequence[str]) -> pd.DataFrame:
    """Only the columns that are drawn, floats to six significant digits: the drawing stays small."""
    names = [name for name in dict.fromkeys(columns) if name and name in data]
    frame = data.loc[:, names].reset_index(drop=True).copy()
    for name in names:
        if pd.api.types.is_float_dtype(frame[name]):
            frame[name] = [rounded(value) for value in frame[name]]
    return frame


def rounded(value: float, digits: int = 6) -> float:
    """A float to so many significant digits."""
    return float(f"{value:.{digits}g}") if math.isfinite(value) else math.nan


def thin(values: Sequence[float], *, log: bool, most: int) -> list[float]:
    """At most about `most` of the sorted values, spread evenly on the scale, the first and the last kept."""
    if len(values) <= 2:
        return list(values)
    place = [math.log(v) if log and v > 0 else v for v in values]
    gap = (place[-1] - place[0]) / most
    kept = [0]
    for i in range(1, len(values) - 1):
        if place[i] - place[kept[-1]] >= gap * 0.999 and place[-1] - place[i] >= gap * 0.999:
            kept.append(i)
    return [values[i] for i in (*kept, len(values) - 1)]


def apart(
    ends: Sequence[float], all_values: Sequence[float], height: int, *, log: bool, gap_px: int = 15
) -> list[float]:
    """Where labels near `ends` stand so that they are at least `gap_px` from each other.

    ends, all_values, result: data units of an axis `height` pixels high over `all_values`.
    """
    usable = [v for v in all_values if math.isfinite(v) and (v > 0 or not log)]
    if not usable or len(ends) < 2:
        return list(ends)
    scale = math.log if log else float
    low, high = scale(min(usable)), scale(max(usable))
    gap = gap_px / height * ((high - low) or 1.0)
    order = sorted(range(len(ends)), key=lambda i: ends[i])
    places = [scale(ends[i]) if ends[i] > 0 or not log else low for i in order]
    for i in range(1, len(places)):
        places[i] = max(places[i], places[i - 1] + gap)
    over = max(
        0.0, places[-1] - max(high, scale(ends[order[-1]]) if ends[order[-1]] > 0 or not log else high)
    )
    if over:  # the stack grew out at the top: centre it on the labels it pushed
        places = [place - over / 2 for place in places]
    out = [0.0] * len(ends)
    for i, place in zip(order, places, strict=True):
        out[i] = math.exp(place) if log else place
    return out


def log_ticks(values: Sequence[float]) -> list[float]:
    """Round numbers (1, 2, 5 × a power of ten) over the positive values of a log axis, at most about seven."""
    known = [value for value in values if value > 0 and math.isfinite(value)]
    if not known:
        return []
    low, high = math.floor(math.log10(min(known))), math.ceil(math.log10(max(known)))
    if max(known) < 3 * min(known):
        return _even_ticks(min(known), max(known))
    for steps in ((1, 1.5, 2, 3, 5, 7), (1, 2, 3, 5), (1, 2, 5), (1, 3), (1,)):
        ticks = [step * 10.0**power for power in range(low, high + 1) for step in steps]
        inside = [tick for tick in ticks if min(known) * 0.95 <= tick <= max(known) * 1.05]
        if len(inside) <= 7:
            return inside
    return [10.0**power for power in range(low, high + 1, max(1, -(-(high - low) // 6)))]


def _even_ticks(low: float, high: float) -> list[float]:
    """Multiples of a round step from low to high, two to six: over a short range a log axis is nearly even."""
    if low == high:
        return [low]
    power = 10.0 ** math.floor(math.log10(high - low))
    for step in (power / 10, power / 5, power / 2, power, 2 * power, 5 * power):
        ticks = [float(f"{n * step:.10g}") for n in range(math.ceil(low / step), math.floor(high / step) + 1)]
        if len(ticks) <= 6:
            return ticks
    return [low, high]
