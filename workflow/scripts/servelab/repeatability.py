"""E10: how far a number repeats, on one server and from start to start, and what difference could be seen.

Rates get a mean with an interval over starts. Percentiles are shown as they came, with their range: a mean of
percentiles would be no percentile of anything; p99 of too few gaps is left out. Variances are of logarithms, so
they are relative ones.
"""

import math
from typing import Any

import pandas as pd

from servelab import stats, variance
from servelab.claims import CALCULATED, MEASURED, Analysis, Finding, Table
from servelab.experiments import comparison
from servelab.experiments.base import StudyData
from servelab.summary import without_bare_tails
from servelab.sweep_table import rate_cells

KIND = "repeatability"
GROUP = ("model", "slug", "input_tokens", "output_tokens", "concurrency")
RATE = "output_throughput_tok_s"
QUANTITIES = (RATE, "ttft_p50_ms", "ttft_p95_ms", "itl_p50_ms", "itl_p99_ms")
DESIGNS = ((1, 1), (1, 5), (3, 1), (3, 5), (5, 5))  # (starts, repeats) of each of two settings
WITHIN, BEYOND, SINGLE = "within", "beyond", "single"
_COLUMNS = {
    "mean": ("", MEASURED),
    "smallest": ("", MEASURED),
    "largest": ("", MEASURED),
    "relative_spread": ("%", MEASURED),
    "cv_within": ("%", MEASURED),
    "cv_between": ("%", MEASURED),
    "share_between": ("%", CALCULATED),
    "tolerance": ("1", CALCULATED),
}


def analyse(data: StudyData, name: str) -> Analysis:
    """Tables `repeatability`, `repeatability_values`, `visible_difference` (by template) and the findings."""
    missing = comparison.nothing(data, KIND, name, changes_server=False)
    if missing is not None:
        return missing
    usable = without_bare_tails(data.usable(data.rows_of(name)))
    groups = list(comparison.groups(usable, GROUP))
    made = [
        spread(rows, quantity, data.study.tolerance) | group | {"quantity": quantity}
        for group, rows in groups
        for quantity in QUANTITIES
        if rows[quantity].notna().any()
    ]
    order = [*GROUP, "quantity"]
    frame = pd.DataFrame(made)
    frame = frame[[*order, *(column for column in frame if column not in order)]]
    visible = [row | group for group, rows in groups for row in visible_differences(rows)]
    tables = [
        Table(f"{name}_repeatability", frame, _COLUMNS, name, KIND),
        Table(f"{name}_values", _values(usable), {}, name, "repeatability_values"),
    ]
    if visible:
        columns = {"visible": ("%", CALCULATED)}
        tables.append(
            Table(f"{name}_visible_difference", pd.DataFrame(visible), columns, name, "visible_difference")
        )
    findings = [
        finding for group, rows in groups for finding in _findings(rows, group, data.study.tolerance, name)
    ]
    return Analysis(KIND, name, tables=tables, findings=findings)


def spread(rows: pd.DataFrame, quantity: str, tolerance: float) -> dict[str, Any]:
    """How far one quantity of one load repeats; ratios in percent, None where there is nothing to compare.

    relative_spread: (largest - smallest) / middle value. cv_within, cv_between: standard deviations of the
    logarithm on one server and between starts. share_between: part of the variance of one measurement that
    lies between starts. outcome: within or beyond the tolerance, or single (one value).
    """
    groups = comparison.by_start(rows, quantity)
    values = [value for each in groups.values() for value in each]
    middle = stats.middle(values)
    relative = (max(values) - min(values)) / middle if len(values) > 1 and middle else None
    known = variance.log_components(groups) if min(values) > 0 and len(values) > 1 else None
    outcome = SINGLE if relative is None else WITHIN if relative <= tolerance else BEYOND
    cells: dict[str, Any] = {
        "points": len(values),
        "starts": len(groups),
        "smallest": min(values),
        "largest": max(values),
        "relative_spread": _percent(relative),
        "cv_within": _percent(known.within if known else None, root=True),
        "cv_between": _percent(known.between if known else None, root=True),
        "share_between": _percent(known.share_between if known else None),
        "tolerance": tolerance,
        "outcome": outcome,
    }
    if known and known.between_high is not None:
        cells["cv_between_low"] = _percent(known.between_low, root=True)
        cells["cv_between_high"] = _percent(known.between_high, root=True)
    if quantity == RATE:
        cells |= rate_cells(rows, quantity, "mean")
    return cells


def visible_differences(rows: pd.DataFrame) -> list[dict[str, Any]]:
    """Smallest difference in throughput that two settings would have to show, for several designs, in percent.

    80 % power at the 5 % level, with the variances of these rows and the degrees of freedom of their starts.
    [] where the variance between starts is not known.
    """
    groups = comparison.by_start(rows, RATE)
    if not groups or min(value for each in groups.values() for value in each) <= 0:
        return []
    known = variance.log_components(groups)
    if known.between is None:
        return []
    found = []
    for starts, repeats in DESIGNS:
        one = known.between / starts + (known.within or 0.0) / (starts * repeats)
        df = known.df_between if starts == 1 else 2 * (starts - 1)
        visible = variance.smallest_visible_difference(math.sqrt(2 * one), df)
        found.append({"starts_each": starts, "repeats_each": repeats, "visible": 100 * visible})
    return found


def _values(rows: pd.DataFrame) -> pd.DataFrame:
    """Every value as it came, a row for each point."""
    columns = [*GROUP, "start", "repeat", "order", "verdict", *QUANTITIES]
    return rows[columns].reset_index(drop=True)


def _findings(rows: pd.DataFrame, group: dict[str, Any], tolerance: float, name: str) -> list[Finding]:
    cells = spread(rows, RATE, tolerance) if rows[RATE].notna().any() else None
    if cells is None:
        return []
    tables = (f"{name}_repeatability", f"{name}_values")
    ratios = {
        key: None if cells[key] is None else cells[key] / 100
        for key in ("relative_spread", "cv_within", "cv_between", "share_between")
    }
    values = {**group, **cells, **ratios}
    template = f"repeatability_{cells['outcome']}"
    stance = {WITHIN: "supports", BEYOND: "contradicts"}.get(cells["outcome"], "cannot_tell")
    out = [Finding(template, values, MEASURED, name, tables, 60, "repeatability", stance)]
    if cells["cv_between"] is None:
        out.append(Finding("repeatability_starts_unknown", values, MEASURED, name, tables, 20, "starts"))
        return out
    out.append(Finding("repeatability_shares", values, MEASURED, name, tables, 25, "starts"))
    best = {(row["starts_each"], row["repeats_each"]): row["visible"] for row in visible_differences(rows)}
    if best:
        seen = {**values, "one": best[(1, 1)] / 100, "three": best[(3, 1)] / 100, "five": best[(5, 5)] / 100}
        table = f"{name}_visible_difference"
        out.append(Finding("visible_difference", seen, CALCULATED, name, (table,), 35, "visible"))
    return out


def _percent(value: float | None, root: bool = False) -> float | None:
    if value is None:
        return None
    return 100 * (math.sqrt(value) if root else value)
