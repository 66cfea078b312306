"""Open loop: latency and goodput against arrival rate, whatever the server does. Tables and findings.

A server keeps up with a rate if requests do not wait longer and longer. Where they arrive at rate a and are answered
at rate b < a, latency grows by a/b - 1 seconds in each second: that slope is estimated (Theil–Sen), so that neither
the time that the last answers take nor the number of arrivals that a Poisson process happened to draw decides.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
import scipy  # as a whole: scipy.stats is loaded at its first use

from servelab import pooled
from servelab.claims import MEASURED, Analysis, Finding, Table
from servelab.experiments import comparison
from servelab.experiments.base import StudyData
from servelab.request_times import RequestTimes
from servelab.sweep_table import COLUMNS, SHAPE, load_row, rate_cells

KIND = "open_loop"
KEPT_UP = 0.95  # answered ÷ arriving, from which on a rate counts as kept up with
LEAST_REQUESTS = 6
MOST_REQUESTS = 1000  # of more, every so-manieth: the slope looks at all pairs
_EXTRA = {
    "rate_rps": ("1/s", MEASURED),
    "request_throughput_rps": ("1/s", MEASURED),
    "latency_growth": ("s/s", MEASURED),
    "send_lag_p99_ms": ("ms", MEASURED),
}


def analyse(data: StudyData, name: str) -> Analysis:
    """Table `open_loop`: one row for each arrival process and rate; findings on where the server kept up."""
    missing = comparison.nothing(data, KIND, name, changes_server=False)
    if missing is not None:
        return missing
    usable = data.usable(data.rows_of(name)).copy()
    usable["arrival"] = [_arrival(data, row) for row in comparison.each_row(usable)]
    made = []
    for group, rows in comparison.groups(usable, (*SHAPE, "arrival", "rate_rps")):
        cells: dict[str, Any] = {**group, **load_row(data, rows)}
        cells |= rate_cells(rows, "request_throughput_rps")
        if group["arrival"] != "ramp" and group["rate_rps"] is not None:
            cells |= latency_growth([times for _, times in pooled.points_times(data, rows)])
        lags = rows["send_lag_p99_ms"].dropna()
        cells["send_lag_p99_ms"] = float(lags.max()) if len(lags) else None
        made.append(cells)
    table = Table(f"{name}_open_loop", pd.DataFrame(made), {**_EXTRA, **COLUMNS}, name, KIND)
    findings = [
        _finding(group, rows, name, table.id)
        for group, rows in comparison.groups(table.frame, (*SHAPE, "arrival"))
        if "latency_growth" in rows and rows["latency_growth"].notna().sum() > 1
    ]
    return Analysis(KIND, name, tables=[table], findings=findings)


def latency_growth(points: Sequence[RequestTimes]) -> dict[str, float]:
    """Seconds by which latency grew in each second of a run, with its 95 % interval; {} under 6 requests.

    Theil–Sen slope of intended start → last token against intended start, over the requests of all points (Sen 1968,
    Journal of the American Statistical Association 63).
    """
    points = [times for times in points if times.start_s.size]
    if sum(times.start_s.size for times in points) < LEAST_REQUESTS:
        return {}
    at = np.concatenate([times.start_s - times.start_s.min() for times in points])
    latency = np.concatenate([times.e2e_s for times in points])
    step = -(-at.size // MOST_REQUESTS)
    at, latency = at[::step], latency[::step]
    if np.ptp(at) == 0:
        return {}
    slope, _, low, high = scipy.stats.theilslopes(latency, at, 0.95)
    return {
        "latency_growth": float(slope),
        "latency_growth_low": float(low),
        "latency_growth_high": float(high),
    }


def _arrival(data: StudyData, row: dict[str, Any]) -> str:
    workload = data.load(row).meta.spec["workload"]
    if workload.get("arrival") == "trace":
        return str(workload.get("trace", "trace")).rsplit("/", 1)[-1]
    return str(workload.get("arrival", "poisson"))


def _finding(group: dict[str, Any], rows: pd.DataFrame, name: str, table: str) -> Finding:
    """The highest rate below the first one at which latency grew: by more than 1/0.95 - 1, its interval above 0."""
    ordered = rows.dropna(subset=["latency_growth", "request_throughput_rps"]).sort_values("rate_rps")
    grew = (ordered["latency_growth"] > 1 / KEPT_UP - 1) & (ordered["latency_growth_low"] > 0)
    kept = ordered[~grew.cummax()]
    first, last = ordered.iloc[0], ordered.iloc[-1]
    values: dict[str, Any] = {
        **group,
        "low": float(first["rate_rps"]),
        "high": float(last["rate_rps"]),
        "ttft_low": float(first["ttft_p50_ms"]),
        "ttft_high": float(last["ttft_p50_ms"]),
        "kept": float(kept["rate_rps"].max()) if len(kept) else None,
        "answered": float(last["request_throughput_rps"]),
    }
    if not len(kept):
        template = "open_loop_never_kept_up"
    elif float(kept["rate_rps"].max()) == float(last["rate_rps"]):
        template = "open_loop_kept_up"
    else:
        template = "open_loop_kept_up_until"
    return Finding(template, values, MEASURED, name, (table,), weight=45, group=KIND)
