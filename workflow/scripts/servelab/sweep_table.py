"""One row for each load of a sweep: what its points come to, with intervals over starts or requests.

Rates are means over starts with a t-interval. Percentiles are of the requests (gaps) of all points of the
load together; an interval over repeats of percentiles would average what may not be averaged.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from servelab import pooled, stats
from servelab.claims import MEASURED
from servelab.experiments import comparison
from servelab.experiments.base import StudyData
from servelab.request_times import RequestTimes

SHAPE = ("model", "slug", "input_tokens", "output_tokens")
RATES = ("output_throughput_tok_s", "steady_throughput_tok_s", "goodput_rps")
MEANS = ("running_mean", "waiting_mean", "joules_per_token")
COLUMNS: dict[str, tuple[str, str]] = {
    "output_throughput_tok_s": ("tok/s", MEASURED),
    "steady_throughput_tok_s": ("tok/s", MEASURED),
    "goodput_rps": ("1/s", MEASURED),
    "per_request_tok_s": ("tok/s", MEASURED),
    "speedup": ("×", MEASURED),
    "efficiency": ("1", MEASURED),
    "ttft_p50_ms": ("ms", MEASURED),
    "ttft_p95_ms": ("ms", MEASURED),
    "ttft_p99_ms": ("ms", MEASURED),
    "itl_p50_ms": ("ms", MEASURED),
    "itl_p99_ms": ("ms", MEASURED),
    "itl_max_ms": ("ms", MEASURED),
    "running_mean": ("", MEASURED),
    "waiting_mean": ("", MEASURED),
    "kv_usage_max": ("1", MEASURED),
    "preemptions": ("", MEASURED),
    "joules_per_token": ("J", MEASURED),
}
# Of more gaps every so-manieth request is resampled: an interval a little too wide, and not minutes of work.
_GAPS_MOST = 400_000


def load_row(data: StudyData, rows: pd.DataFrame) -> dict[str, Any]:
    """Cells of one load (usable points only): every name of COLUMNS where there is a value, and its interval."""
    cells: dict[str, Any] = {"points": len(rows), "starts": int(rows["session_id"].nunique())}
    for column in RATES:
        cells |= rate_cells(rows, column)
    for column in MEANS:
        known = rows[column].dropna()
        if len(known):
            cells[column] = float(known.mean())
    for column, value in (
        ("kv_usage_max", rows["kv_usage_max"].max()),
        ("preemptions", rows["preemptions"].sum()),
    ):
        if rows[column].notna().any():
            cells[column] = float(value)
    return cells | _latencies(data, rows)


def rate_cells(rows: pd.DataFrame, column: str, name: str = "") -> dict[str, float]:
    """A rate's mean over starts with its t-interval, cut off at 0: with two starts it can reach below."""
    cells = comparison.level(rows, column).cells(name or column)
    return {key: max(value, 0.0) for key, value in cells.items() if value is not None}


def _latencies(data: StudyData, rows: pd.DataFrame) -> dict[str, Any]:
    times = [found for _, found in pooled.points_times(data, rows) if found.start_s.size]
    if not times:
        return {}
    ttft = 1000 * np.concatenate([found.ttft_s for found in times])
    cells: dict[str, Any] = {"n": int(ttft.size)}
    for q in (50, 95, 99):
        cells |= _percentile(
            f"ttft_p{q}_ms", stats.percentile_interval(ttft, q), stats.percentile(ttft, q), q
        )
    rates = np.concatenate([found.tokens / np.maximum(found.e2e_s, 1e-9) for found in times])
    cells["per_request_tok_s"] = stats.percentile(rates, 50)
    return cells | itl_cells(times)


def itl_cells(times: Sequence[RequestTimes]) -> dict[str, Any]:
    """itl_p50_ms and itl_p99_ms with intervals (whole requests resampled), itl_max_ms; {} without a gap.

    p99 is left out where the gaps are too few for its interval.
    """
    gaps = [1000 * part for found in times for part in found.gaps_by_request()]
    total = sum(part.size for part in gaps)
    if not total:
        return {}
    pooled = np.concatenate(gaps)
    resampled = gaps[:: -(-total // _GAPS_MOST)]
    cells: dict[str, Any] = {"itl_max_ms": float(pooled.max())}
    for q in (50, 99):
        value, interval = stats.percentile(pooled, q), stats.bootstrap_percentile(resampled, q, resamples=200)
        cells |= _percentile(f"itl_p{q}_ms", interval, value, q)
    return cells


def _percentile(
    name: str, interval: stats.Interval | None, value: float | None, q: float
) -> Mapping[str, Any]:
    """A percentile's cells: with its interval, or the bare value where it is not a far tail; p99 never alone."""
    if interval is not None:
        return {name: value, f"{name}_low": interval.low, f"{name}_high": interval.high}
    return {name: value} if q < 99 else {}
