"""A reference beside the study: for each of its ids, the study's own value under the nearest condition.

A reference is config/references/<name>.csv with the columns id, experiment, model, condition, metric, unit,
value, low, high, status, note. A matcher (see field_notes.py) finds what this study has for an id;
«nothing» is an answer too.

A matcher reads the points (one row a point) or an experiment's tables; of a study of several models, those of
the reference's. Where the nearest condition is not the reference's own, the counterpart says which it is.
Absolute values of another machine or model are never judged: the comparison is of shape (ratios, signs, order),
and the report says so.
"""

import csv
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pandas as pd

from servelab import stats
from servelab.claims import CALCULATED, MEASURED, Analysis, Table
from servelab.reference_files import FOLDER


@dataclass(frozen=True)
class Reference:
    """One row of a reference table."""

    id: str
    experiment: str
    model: str
    condition: str
    metric: str
    unit: str
    value: float | None
    low: float | None
    high: float | None
    status: str
    note: str


@dataclass(frozen=True)
class Counterpart:
    """The study's value for a reference id. condition: under what it was had; n: points it rests on."""

    value: float | None
    condition: str
    status: str = MEASURED
    low: float | None = None
    high: float | None = None
    n: int = 0
    points: tuple[str, ...] = ()
    table: str = ""


def load(name: str, folder: Path = FOLDER) -> list[Reference]:
    """Read a reference table. Raises FileNotFoundError, or ValueError for a row that is none."""
    if not re.fullmatch(r"[A-Za-z0-9._-]+", name):
        raise ValueError(f"reference {name!r} is no file name")
    with (folder / f"{name}.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    return [_reference(row) for row in rows]


def _reference(row: Mapping[str, str]) -> Reference:
    try:
        value, low, high = (float(row[name]) if row[name] else None for name in ("value", "low", "high"))
        text = {
            n: row[n] for n in ("id", "experiment", "model", "condition", "metric", "unit", "status", "note")
        }
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"reference row {row.get('id')!r}: {error}") from error
    return Reference(**text, value=value, low=low, high=high)


# --- matching -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Condition:
    """Where in the study to look. None: any.

    concurrency, input_tokens, output_tokens: the nearest there is, on a log scale.
    kinds: experiment kinds in order of preference. options: point columns and the values that count as equal.
    """

    kinds: tuple[str, ...]
    concurrency: int | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None
    workload_kind: str = "closed"
    options: Mapping[str, tuple[object, ...]] | None = None


FULL_PRECISION = ("auto", "bf16", "bfloat16", None)
EIGHT_BIT = ("fp8", "fp8_e4m3", "fp8_e5m2", "int8")


def rows_for(points: pd.DataFrame, condition: Condition) -> pd.DataFrame:
    """Usable points under the nearest condition, all of one kind; empty if the study has none."""
    usable = points[(points["status"] == "ok") & (points["verdict"] != "invalid")]
    for kind in condition.kinds:
        rows = usable[(usable["kind"] == kind) & (usable["workload_kind"] == condition.workload_kind)]
        for column, allowed in (condition.options or {}).items():
            rows = kept(rows, column, allowed)
        wanted = {
            column: getattr(condition, column) for column in ("input_tokens", "output_tokens", "concurrency")
        }
        rows = nearest(rows, {column: value for column, value in wanted.items() if value is not None})
        if len(rows):
            return rows
    return usable.iloc[0:0]


def nearest(rows: pd.DataFrame, wanted: Mapping[str, float]) -> pd.DataFrame:
    """Rows of the load nearest to the wanted values: least sum of |log(value ÷ wanted)|, the smaller of two equals."""
    columns = list(wanted)
    known = rows[(rows[columns] > 0).all(axis=1)] if columns else rows
    if not columns or not len(known):
        return known

    def distance(load: tuple[float, ...]) -> tuple[float, tuple[float, ...]]:
        apart = sum(abs(math.log(v / wanted[c])) for c, v in zip(columns, load, strict=True))
        return round(apart, 9), load

    loads = {tuple(float(v) for v in load) for load in known[columns].itertuples(index=False, name=None)}
    best = min(loads, key=distance)
    return known[(known[columns].astype(float) == list(best)).all(axis=1)]


def kept(rows: pd.DataFrame, column: str, allowed: Sequence[object]) -> pd.DataFrame:
    """Rows whose value in a column is one of the allowed ones; None among them stands for a missing value."""
    return rows.loc[[i for i, value in rows[column].items() if _among(value, allowed)]]


def _among(value: object, allowed: Sequence[object]) -> bool:
    missing = value is None or value is pd.NA or (isinstance(value, float) and math.isnan(value))
    return (None in allowed) if missing else value in allowed


def described(rows: pd.DataFrame) -> str:
    """The condition of rows in the reference's own manner: concurrency=4 input=128 output=32 …"""
    parts = []
    for label, column in (
        ("concurrency", "concurrency"),
        ("input", "input_tokens"),
        ("output", "output_tokens"),
        ("max_num_seqs", "max_num_seqs"),
        ("kv_cache_dtype", "kv_cache_dtype"),
        ("boot", "boot"),
    ):
        if column not in rows or (column == "boot" and set(rows["workload_kind"]) != {"boot"}):
            continue
        known = sorted({_plain(v) for v in rows[column].dropna()})
        if known and (len(known) > 1 or known[0] not in ("", "0", "any")):
            parts.append(f"{label}={known[0]}" if len(known) == 1 else f"{label}={known[0]}…{known[-1]}")
    return " ".join(parts)


_SIZE = re.compile(r"(?<![a-z0-9.])\d+(?:\.\d+)?[bm](?![a-z0-9])")


def model_like(name: str, models: Sequence[str]) -> str | None:
    """Which of a study's models a reference means: the one of that name, whose name begins with it, or of its size.

    Upper case and the folder before a slash do not count. None if none is it, or several are.
    """
    wanted = _bare(name)
    size = _SIZE.search(wanted)
    bare = {model: _bare(model) for model in models}
    for fitting in (
        [model for model, known in bare.items() if known == wanted],
        [model for model, known in bare.items() if wanted and known.startswith(wanted)],
        [model for model, known in bare.items() if size and size[0] in _SIZE.findall(known)],
    ):
        if len(fitting) == 1:
            return fitting[0]
    return None


def _bare(model: str) -> str:
    return model.rsplit("/", 1)[-1].casefold()


def of_model(
    analyses: Sequence[Analysis], points: pd.DataFrame, model: str
) -> tuple[list[Analysis], pd.DataFrame]:
    """Analyses and points with one model's rows only; a table that has none of them is left out."""
    found = []
    for analysis in analyses:
        tables = [
            replace(table, frame=table.frame[table.frame["model"] == model])
            if "model" in table.frame
            else table
            for table in analysis.tables
        ]
        filled = [table for table in tables if len(table.frame) or "model" not in table.frame]
        found.append(replace(analysis, tables=filled))
    return found, points[points["model"] == model]


def _plain(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def level(points: pd.DataFrame, condition: Condition, column: str) -> Counterpart | None:
    """One quantity under one condition: mean over points, with their range. Of percentiles the middle point's."""
    rows = rows_for(points, condition)
    values = rows[column].dropna() if column in rows else rows.get(column, pd.Series(dtype=float))
    if not len(values):
        return None
    middle = _middle(values, column)
    low, high = (float(values.min()), float(values.max())) if len(values) > 1 else (None, None)
    return Counterpart(middle, described(rows), MEASURED, low, high, len(values), _names(rows))


def ratio(points: pd.DataFrame, base: Condition, other: Condition, column: str) -> Counterpart | None:
    """The quantity under `other` over that under `base`; None if the study cannot tell the two apart."""
    a, b = rows_for(points, base), rows_for(points, other)
    if not len(a) or not len(b) or set(a["key"]) & set(b["key"]):
        return None
    below, above = a[column].dropna(), b[column].dropna()
    if not len(below) or not len(above) or not _middle(below, column):
        return None
    condition = f"{described(b)} / {described(a)}"
    return Counterpart(
        _middle(above, column) / _middle(below, column),
        condition,
        CALCULATED,
        n=len(a) + len(b),
        points=_names(b),
    )


def _middle(values: "pd.Series[float]", column: str) -> float:
    """The mean of rates and counts; of percentiles and largest values, which may not be averaged, the middle one."""
    if "_p" in column or column.endswith("_max_ms"):
        return stats.middle(values) or 0.0
    return float(values.mean())


def spread(points: pd.DataFrame, condition: Condition, columns: Sequence[str]) -> Counterpart | None:
    """The widest relative range (max - min over mean, %) of several quantities over repeats on one server."""
    rows = rows_for(points, condition)
    widest = None
    for column in columns:
        for _, values in rows.groupby("session_id")[column]:
            if values.count() > 1 and values.mean():
                share = 100 * float((values.max() - values.min()) / values.mean())
                widest = share if widest is None else max(widest, share)
    return None if widest is None else Counterpart(widest, described(rows), CALCULATED, n=len(rows))


def _names(rows: pd.DataFrame) -> tuple[str, ...]:
    return tuple(str(path) for path in rows["path"]) if "path" in rows else ()


def table_of(analyses: Sequence[Analysis], kind: str, template: str = "") -> Table | None:
    """A kind's first table (of a template)."""
    for analysis in analyses:
        if analysis.kind == kind:
            for table in analysis.tables:
                if not template or template in (table.template, table.id):
                    return table
    return None


Matcher = Callable[[Sequence[Analysis], pd.DataFrame], Counterpart | None]
