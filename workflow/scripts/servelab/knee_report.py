"""E1's tables and findings: every load with intervals, efficiency, the knee with its interval, the fitted curve."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas as pd

from servelab import knee, knee_models
from servelab.claims import CALCULATED, MEASURED, NOT_MEASURED, Analysis, Finding, Table
from servelab.efficiency import Efficiency, efficiencies
from servelab.experiments import comparison
from servelab.experiments.base import StudyData
from servelab.knee import FOUND, KneeResult
from servelab.sweep_table import COLUMNS, SHAPE, load_row

Group = tuple[dict[str, Any], pd.DataFrame]
_NOTED_CONCURRENCY = 8  # the notes quote efficiency at 8
_FALL = 0.02


def analyse(data: StudyData, name: str, kind: str) -> Analysis:
    """Tables `load_sweep`, `knee`, `knee_curve`, `knee_models` (by template) and the findings of one load sweep."""
    missing = comparison.nothing(data, kind, name, changes_server=False)
    if missing is not None:
        return missing
    rows = data.rows_of(name)
    shapes = list(_shapes(rows[rows["workload_kind"] == "closed"]))
    results = [(group, same, knee.fit(same)) for group, same in shapes]
    tables = [
        Table(f"{name}_load_sweep", _loads(data, shapes), COLUMNS, name, "load_sweep"),
        Table(f"{name}_knee", _knees(results), _KNEE_COLUMNS, name, "knee"),
        Table(f"{name}_knee_models", _models(results), {"error": ("1", CALCULATED)}, name, "knee_models"),
    ]
    curve = _curves(results)
    if len(curve):
        columns = {name: (unit, CALCULATED) for name, unit in _CURVE_UNITS.items() if name in curve}
        tables.append(Table(f"{name}_knee_curve", curve, columns, name, "knee_curve"))
    findings = [f for group, same, result in results for f in _findings(data, name, group, same, result)]
    return Analysis(kind, name, tables=tables, findings=findings)


_KNEE_COLUMNS = {
    "knee": ("requests", MEASURED),
    "latency_knee": ("requests", MEASURED),
    "capacity_requests": ("requests", CALCULATED),
    "points": ("", MEASURED),
    "excluded": ("", MEASURED),
}
_CURVE_UNITS = {"output_throughput_tok_s": "tok/s", "steady_throughput_tok_s": "tok/s"}


def _shapes(rows: pd.DataFrame) -> Iterator[Group]:
    yield from comparison.groups(rows, SHAPE)


def _loads(data: StudyData, shapes: list[Group]) -> pd.DataFrame:
    made = []
    for group, same in shapes:
        usable = data.usable(same)
        speed = {found.concurrency: found for found in efficiencies(usable)}
        for load, points in comparison.groups(usable, ("concurrency",)):
            row = {**group, **load, **load_row(data, points)}
            made.append(row | _speed_cells(speed.get(float(load["concurrency"]))))
    frame = pd.DataFrame(made)
    return (
        frame.sort_values([*SHAPE, "concurrency"], kind="stable", ignore_index=True) if len(frame) else frame
    )


def _speed_cells(found: Efficiency | None) -> dict[str, Any]:
    if found is None:
        return {}
    cells: dict[str, Any] = {"speedup": found.speedup, "efficiency": found.efficiency}
    if found.low is not None and found.high is not None:
        cells |= {"speedup_low": found.low, "speedup_high": found.high}
        scale = found.base / found.concurrency
        cells |= {"efficiency_low": found.low * scale, "efficiency_high": found.high * scale}
    return cells


def _knees(results: list[tuple[dict[str, Any], pd.DataFrame, KneeResult]]) -> pd.DataFrame:
    return pd.DataFrame(
        [
            {
                **group,
                "outcome": found.status,
                "knee": found.knee,
                "knee_low": found.low,
                "knee_high": found.high,
                "curve": found.curve.family if found.curve else None,
                "latency_knee": found.latency_knee,
                "latency_knee_low": found.latency_low,
                "latency_knee_high": found.latency_high,
                "capacity_requests": found.capacity,
                "capacity_inside": found.capacity_inside,
                "preempting": ", ".join(f"{c:g}" for c in found.preempting) or "-",
                "points": found.values,
                "starts": found.starts,
                "excluded": found.excluded,
            }
            for group, _, found in results
        ]
    )


def _models(results: list[tuple[dict[str, Any], pd.DataFrame, KneeResult]]) -> pd.DataFrame:
    made = [
        {
            **group,
            "curve": curve.family,
            "error": curve.error,
            "parameters": ", ".join(f"{name}={value:.3g}" for name, value in curve.parameters.items()) or "-",
        }
        for group, _, found in results
        for curve in found.candidates
    ]
    return pd.DataFrame(made, columns=[*SHAPE, "curve", "error", "parameters"])


def _curves(results: list[tuple[dict[str, Any], pd.DataFrame, KneeResult]]) -> pd.DataFrame:
    """The best curve of each series at 120 concurrencies of the measured range, in the unit it was fitted in."""
    made = []
    for group, same, found in results:
        if found.curve is None:
            continue
        at = np.geomspace(found.concurrencies[0], found.concurrencies[-1], 120)
        metric = knee.fitted_metric(StudyData.usable(same))
        made += [
            {**group, "concurrency": float(c), metric: float(y)}
            for c, y in zip(at, found.curve.at(at), strict=True)
        ]
    return pd.DataFrame(made)


def _findings(
    data: StudyData, name: str, group: dict[str, Any], same: pd.DataFrame, found: KneeResult
) -> list[Finding]:
    usable = data.usable(same)
    return [
        *_knee_findings(name, group, found),
        *_efficiency_findings(name, group, usable),
        *_fall_findings(data, name, group, usable),
        *_goodput_findings(data, name, group, usable),
    ]


def _knee_findings(name: str, group: dict[str, Any], found: KneeResult) -> list[Finding]:
    tables = (f"{name}_knee", f"{name}_load_sweep")
    values: dict[str, Any] = {
        **group,
        "knee": found.knee,
        "low": found.low,
        "high": found.high,
        "first": found.concurrencies[0] if found.concurrencies else None,
        "last": found.concurrencies[-1] if found.concurrencies else None,
        "count": len(found.concurrencies),
        "elasticity": knee_models.ELASTICITY,
        "capacity": found.capacity,
        "latency": found.latency_knee,
        "latency_low": found.latency_low,
        "latency_high": found.latency_high,
    }
    template = f"knee_{found.status}"
    if found.status == FOUND and (found.low is None or found.high is None):
        template = "knee_open_below" if found.low is None else "knee_open_above"
        if found.low is None and found.high is None:
            template = "knee_anywhere"
    status = MEASURED if found.concurrencies and found.curve else NOT_MEASURED
    out = [Finding(template, values, status, name, tables, weight=90, group="knee")]
    if found.capacity_inside is not None:
        template = "knee_capacity_agrees" if found.capacity_inside else "knee_capacity_differs"
        stance = "supports" if found.capacity_inside else "contradicts"
        if found.low is None or found.high is None:
            template = "knee_capacity_possible" if found.capacity_inside else "knee_capacity_excluded"
            stance = "cannot_tell" if found.capacity_inside else stance
        out.append(Finding(template, values, MEASURED, name, tables, 60, "knee_capacity", stance))
    if found.latency_knee is not None:
        out.append(Finding("knee_latency", values, MEASURED, name, tables, weight=50, group="knee_latency"))
    return out


def _efficiency_findings(name: str, group: dict[str, Any], usable: pd.DataFrame) -> list[Finding]:
    """The notes' sentence at concurrency 8 (or the nearest measured one), and at the highest."""
    found = [one for one in efficiencies(usable) if one.concurrency > 1]
    if not found:
        return []
    nearest = min(found, key=lambda one: abs(np.log(one.concurrency / _NOTED_CONCURRENCY)))
    chosen = list({one.concurrency: one for one in (nearest, found[-1])}.values())
    return [
        Finding(
            "efficiency",
            {
                **group,
                "concurrency": one.concurrency,
                "speedup": one.speedup,
                "efficiency": one.efficiency,
                "low": one.low,
                "high": one.high,
            },
            MEASURED,
            name,
            (f"{name}_load_sweep",),
            weight=30,
            group="efficiency",
        )
        for one in chosen
    ]


def _fall_findings(data: StudyData, name: str, group: dict[str, Any], usable: pd.DataFrame) -> list[Finding]:
    """Throughput at the highest concurrency against the highest throughput: does more load cost throughput?"""
    loads = {float(g["concurrency"]): rows for g, rows in comparison.groups(usable, ("concurrency",))}
    means = {c: comparison.level(rows, "output_throughput_tok_s").value for c, rows in loads.items()}
    known = {c: value for c, value in means.items() if value}
    if len(known) < 2:
        return []
    best, last = max(known, key=lambda c: known[c]), max(known)
    if best == last or known[last] > (1 - _FALL) * known[best]:
        return []
    compared = comparison.compare(data, loads[best], loads[last], "output_throughput_tok_s")
    if compared is None:
        return []
    values = {**group, "best": best, "last": last}
    return [comparison.compared("throughput_falls", compared, values, name, (f"{name}_load_sweep",), 45)]


def _goodput_findings(
    data: StudyData, name: str, group: dict[str, Any], usable: pd.DataFrame
) -> list[Finding]:
    """The concurrency with the highest goodput, where the study has an objective."""
    known = usable[usable["goodput_rps"].notna()]
    if not len(known):
        return []
    levels = {
        float(load["concurrency"]): comparison.level(rows, "goodput_rps")
        for load, rows in comparison.groups(known, ("concurrency",))
    }
    best = max(levels, key=lambda c: levels[c].value or 0.0)
    level, objective = levels[best], data.study.objective
    values = {
        **group,
        "concurrency": best,
        "goodput": level.value,
        "low": level.low,
        "high": level.high,
        "ttft": objective.ttft_p95_ms or None,
        "itl": objective.itl_p99_ms or None,
    }
    template = "goodput_best" if level.value else "goodput_none"
    return [Finding(template, values, MEASURED, name, (f"{name}_load_sweep",), weight=40, group="goodput")]
