"""Open loop: latency and goodput against arrival rate, whatever the server does. Tables and findings."""

from typing import Any

import pandas as pd

from servelab.claims import MEASURED, Analysis, Finding, Table
from servelab.experiments import comparison
from servelab.experiments.base import StudyData
from servelab.sweep_table import COLUMNS, SHAPE, load_row, rate_cells

KIND = "open_loop"
KEPT_UP = 0.95
_EXTRA = {
    "rate_rps": ("1/s", MEASURED),
    "request_throughput_rps": ("1/s", MEASURED),
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
        lags = rows["send_lag_p99_ms"].dropna()
        cells["send_lag_p99_ms"] = float(lags.max()) if len(lags) else None
        made.append(cells)
    table = Table(f"{name}_open_loop", pd.DataFrame(made), {**_EXTRA, **COLUMNS}, name, KIND)
    findings = [
        _finding(group, rows, name, table.id)
        for group, rows in comparison.groups(table.frame, (*SHAPE, "arrival"))
        if rows["rate_rps"].notna().sum() > 1
    ]
    return Analysis(KIND, name, tables=[table], findings=findings)


def _arrival(data: StudyData, row: dict[str, Any]) -> str:
    workload = data.load(row).meta.spec["workload"]
    if workload.get("arrival") == "trace":
        return str(workload.get("trace", "trace")).rsplit("/", 1)[-1]
    return str(workload.get("arrival", "poisson"))


def _finding(group: dict[str, Any], rows: pd.DataFrame, name: str, table: str) -> Finding:
    """The highest rate that the server kept up with: answered at 95 % of the arrival rate or more."""
    ordered = rows.dropna(subset=["rate_rps", "request_throughput_rps"]).sort_values("rate_rps")
    kept = ordered[ordered["request_throughput_rps"] >= KEPT_UP * ordered["rate_rps"]]
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
