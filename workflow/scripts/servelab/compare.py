"""Two studies side by side: what changed in settings and versions, and which differences both could see.

A load is comparable if experiment kind, model, server options and workload are the same in both. Its ratio
is of geometric means over server starts, the start being the unit (variance.py); a start's percentile is that of
all its requests of the load (pooled.py). A difference is seen if the ratio's interval excludes 1.
"""

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from servelab import pooled, variance
from servelab.claims import CALCULATED, MEASURED, Analysis, Finding, Table
from servelab.report.tables import read_analyses, read_loads, read_points

KIND = "compare"
METRICS = ("output_throughput_tok_s", *pooled.PERCENTILES)
Starts = dict[object, list[float]]  # values by server start
_NOT_A_SETTING = ("study", "report")


@dataclass(frozen=True)
class Measured:
    """A study as the comparison sees it: a row a point, and a row a load and server start (pooled.loads)."""

    name: str
    info: Mapping[str, Any]
    points: pd.DataFrame
    loads: pd.DataFrame


def read(folder: Path) -> Measured:
    """A study from its tables folder. Raises BadTablesError."""
    _, info = read_analyses(folder)
    name = str(info.get("study") or folder.parent.name)
    return Measured(name, info, read_points(folder), read_loads(folder))


def analyse(a: Measured, b: Measured) -> Analysis:
    """Settings that changed and a ratio for each common load and quantity; findings for what was seen."""
    settings = pd.DataFrame(changes(a.info, b.info), columns=["setting", "a", "b"])
    rows = list(_ratios(a, b))
    frame = pd.DataFrame(rows)
    tables = [Table("changed_settings", settings, template="compare_settings")]
    findings: list[Finding] = []
    if len(frame):
        columns = {
            "a_value": ("", MEASURED),
            "b_value": ("", MEASURED),
            "ratio": ("", CALCULATED),
            "visible": ("", CALCULATED),
            "points": ("", MEASURED),
        }
        tables.append(Table("ratios", frame, columns, template="compare_ratios"))
        findings = [_finding(row) for row in rows]
    return Analysis(KIND, tables=tables, findings=sorted(findings, key=lambda f: -f.weight))


def changes(a: Mapping[str, Any], b: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    """(name, value in a, value in b) of every setting, version and machine that differs."""
    flat = [_facts(info) for info in (a, b)]
    names = sorted(flat[0].keys() | flat[1].keys())
    return [
        (name, flat[0].get(name, "–"), flat[1].get(name, "–"))
        for name in names
        if flat[0].get(name) != flat[1].get(name)
    ]


def _facts(info: Mapping[str, Any]) -> dict[str, str]:
    config = {k: v for k, v in (info.get("config") or {}).items() if k not in _NOT_A_SETTING}
    found = dict(_flat("", config))
    found |= {f"version of {name}": str(value) for name, value in (info.get("versions") or {}).items()}
    found["machine"] = ", ".join(sorted(str(m.get("id")) for m in info.get("machines") or []))
    for model in info.get("models") or []:
        found[f"model {model.get('name')}"] = str(model.get("fingerprint"))
    return found


def _flat(prefix: str, node: object) -> Iterator[tuple[str, str]]:
    if isinstance(node, Mapping):
        for key, value in node.items():
            yield from _flat(f"{prefix}.{key}" if prefix else str(key), value)
    else:
        yield prefix, node if isinstance(node, str) else json.dumps(node, ensure_ascii=False)


def _ratios(a: Measured, b: Measured) -> Iterator[dict[str, Any]]:
    sides = [_groups(study.points) for study in (a, b)]
    together = [_of_starts(study.loads) for study in (a, b)]
    for key in sides[0]:
        if key not in sides[1]:
            continue
        for metric in METRICS:
            starts = [_by_start(side[key], metric) for side in sides]
            if not all(starts):
                continue
            of_starts = None
            if metric in pooled.PERCENTILES:
                of_starts = (together[0].get((key, metric), {}), together[1].get((key, metric), {}))
                if any(not of_starts[i].get(start, 0.0) > 0 for i in (0, 1) for start in starts[i]):
                    continue  # a p99 of too few gaps
            yield _row(key, metric, starts, of_starts, _repeatability(a, b, key, metric))


def _of_starts(loads: pd.DataFrame) -> dict[tuple[tuple[str, ...], str], dict[object, float]]:
    """(load, percentile) → server start → its value over all its requests."""
    found: dict[tuple[tuple[str, ...], str], dict[object, float]] = {}
    for row in loads.to_dict("records"):
        key = tuple(str(row[part]) for part in pooled.LOAD)
        for metric in pooled.PERCENTILES:
            found.setdefault((key, metric), {})[str(row["session_id"])] = float(row[metric])
    return found


def _row(
    key: tuple[str, ...],
    metric: str,
    starts: Sequence[Starts],
    of_starts: tuple[variance.OfStarts, variance.OfStarts] | None,
    known: variance.Components | None,
) -> dict[str, Any]:
    ratio = variance.ratio_interval(starts[0], starts[1], known, of_starts=of_starts)
    values = [variance.geometric_mean(side, of_starts and of_starts[i]) for i, side in enumerate(starts)]
    seen = {True: "yes", False: "no", None: "unknown"}[ratio.different]
    return {
        "load": describe(key),
        "metric": metric,
        "a_value": values[0],
        "b_value": values[1],
        "ratio": ratio.ratio,
        "ratio_low": ratio.low,
        "ratio_high": ratio.high,
        "visible": ratio.visible,
        "seen": seen,
        "basis": ratio.basis,
        "points": sum(len(each) for side in starts for each in side.values()),
    }


def describe(key: tuple[str, ...]) -> str:
    """A load in a few words: kind, concurrency or rate, input and output, options that are set."""
    kind, model, options, workload = key
    load = json.loads(workload)
    parts = [kind.replace("_", " ")]
    for word, name in (
        ("c", "concurrency"),
        ("rate ", "rate_rps"),
        ("in ", "input_tokens"),
        ("out ", "output_tokens"),
    ):
        if load.get(name):
            parts.append(f"{word}{load[name]}")
    parts += [f"{name}={value}" for name, value in json.loads(options).items()]
    return " · ".join([*parts, model])


def common(a: Measured, b: Measured) -> tuple[int, int, int]:
    """How many loads are in both, only in a, only in b."""
    left, right = set(_groups(a.points)), set(_groups(b.points))
    return len(left & right), len(left - right), len(right - left)


def _groups(points: pd.DataFrame) -> dict[tuple[str, ...], pd.DataFrame]:
    usable = points[(points["status"] == "ok") & (points["verdict"] != "invalid")]
    usable = usable[usable["workload_kind"].isin(["closed", "open"])]
    return {
        tuple(str(part) for part in key): rows for key, rows in usable.groupby(list(pooled.LOAD), sort=False)
    }


def _by_start(rows: pd.DataFrame, metric: str) -> Starts:
    found: Starts = {}
    for session, value in zip(rows["session_id"], rows[metric], strict=True):
        if value is not None and not pd.isna(value) and value > 0:
            found.setdefault(str(session), []).append(float(value))
    return found


def _repeatability(a: Measured, b: Measured, key: tuple[str, ...], metric: str) -> variance.Components | None:
    """How the metric repeats on servers of this load's model, where a study has three starts or more."""
    model = key[pooled.LOAD.index("model")]
    for study in (b, a):
        points = study.points
        rows = points[(points["kind"] == "repeatability") & (points["model"] == model)]
        rows = rows[(rows["status"] == "ok") & (rows["verdict"] != "invalid")]
        for _, same in rows.groupby(["options", "workload"], sort=False):
            values = _by_start(same, metric)
            if len(values) > 2:
                return variance.log_components(values)
    return None


def _finding(row: Mapping[str, Any]) -> Finding:
    values = {
        "load": row["load"],
        "metric": row["metric"],
        "ratio": row["ratio"],
        "low": row["ratio_low"],
        "high": row["ratio_high"],
        "visible": row["visible"],
    }
    size = abs(math.log(row["ratio"])) if row["ratio"] > 0 else 0.0
    weight = {"yes": 50 + min(int(100 * size), 49), "no": 10, "unknown": 5}[row["seen"]]
    return Finding(f"compare_{row['seen']}", values, CALCULATED, tables=("ratios",), weight=weight)
