"""The paper's end: comparison with a reference, external evidence, what was not measured, provenance."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pandas as pd

from servelab import field_notes, stats
from servelab.claims import MEASURED, NOT_MEASURED, Analysis, Table
from servelab.references import Counterpart, Reference
from servelab.report.cells import figure
from servelab.report.sections import SectionView, kinds_of
from servelab.report.words import Words

_RATIO_UNITS = {"x": 1.0, "%": 0.0}  # unit of a shape → the value that means «no change»
_CHANGES = ("_ratio", "_change")
POINT_COLUMNS = (
    "experiment", "slug", "start", "repeat", "point", "verdict", "cause", "output_throughput_tok_s",
    "ttft_p50_ms", "itl_p99_ms", "preemptions",
)  # fmt: skip


@dataclass(frozen=True)
class ReferenceRow:
    """One id side by side. direction: a key of `reference.`: same, opposite, flat, absolute or empty."""

    id: str
    what: str
    condition: str
    theirs: str
    their_status: str
    ours: str
    our_status: str
    our_condition: str
    direction: str
    group: str


@dataclass
class ReferenceView:
    """The comparison with a reference, groups of rows by experiment."""

    name: str
    groups: list[tuple[str, list[ReferenceRow]]] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    found: int = 0
    total: int = 0

    def rows(self, there: bool) -> list[tuple[str, list[ReferenceRow]]]:
        """The groups with only the rows that have a counterpart, or only those that have none."""
        kept = [
            (group, [row for row in rows if (row.our_status != NOT_MEASURED) == there])
            for group, rows in self.groups
        ]
        return [(group, rows) for group, rows in kept if rows]


@dataclass(frozen=True)
class EvidenceRow:
    """A claim from elsewhere and this study's value."""

    source: str
    conditions: str
    claim: str
    theirs: str
    ours: str
    verdict: str  # a key of `evidence.`: agrees, differs, not_comparable


@dataclass
class MissingView:
    """What the study cannot say. experiments: (title, anchor, reason)."""

    experiments: list[tuple[str, str, str]] = field(default_factory=list)
    absent: list[str] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    ids: list[str] = field(default_factory=list)
    beyond: list[str] = field(default_factory=list)


def reference_view(
    name: str, rows: Sequence[Reference], analyses: Sequence[Analysis], points: pd.DataFrame, words: Words
) -> ReferenceView:
    """Each id of a reference beside the study's counterpart."""
    view = ReferenceView(name, total=len(rows))
    for row in rows:
        found = field_notes.beside(row, analyses, points)
        if found is None:
            view.missing.append(row.id)
        else:
            view.found += 1
        line = _reference_row(row, found, words)
        if not view.groups or view.groups[-1][0] != line.group:
            view.groups.append((line.group, []))
        view.groups[-1][1].append(line)
    return view


def _reference_row(row: Reference, found: Counterpart | None, words: Words) -> ReferenceRow:
    return ReferenceRow(
        id=row.id,
        what=_metric(row.metric, words),
        condition=row.condition,
        theirs=_amount(row.value, row.low, row.high, row.unit, 6),
        their_status=row.status,
        ours="" if found is None else _amount(found.value, found.low, found.high, row.unit),
        our_status=NOT_MEASURED if found is None else found.status,
        our_condition="" if found is None else found.condition,
        direction="" if found is None else direction(row, found),
        group=words.optional(
            f"experiments.{row.experiment}.title",
            words.optional(f"reference.group.{row.experiment}", row.experiment),
        ),
    )


def direction(row: Reference, found: Counterpart) -> str:
    """Whether a change goes the same way in both: same, opposite, flat (ours is within 2 % of none), absolute."""
    if (
        row.unit not in _RATIO_UNITS
        or not row.metric.endswith(_CHANGES)
        or row.value is None
        or found.value is None
    ):
        return "absolute"
    none = _RATIO_UNITS[row.unit]
    close = 2.0 if row.unit == "%" else 0.02
    theirs, ours = row.value - none, found.value - none
    if abs(ours) <= close:
        return "same" if abs(theirs) <= close else "flat"
    return "same" if theirs * ours > 0 or abs(theirs) <= close else "opposite"


def _metric(name: str, words: Words) -> str:
    for key in (name, f"{name}_ms", f"{name}_tok_s"):
        if words.has(f"columns.{key}"):
            return words(f"columns.{key}")
    return name.replace("_", " ")


def _amount(value: float | None, low: float | None, high: float | None, unit: str, digits: int = 4) -> str:
    shown = "" if unit in ("1", "count", "") else f" {'×' if unit == 'x' else unit}"
    middle = "" if value is None else _short(value, digits)
    ends = "" if low is None or high is None else f"{_short(low, digits)}–{_short(high, digits)}"
    if middle and ends and len({middle, *ends.split("–")}) > 1:
        return f"{middle} ({ends}){shown}"
    return f"{middle or ends}{shown}"


def _short(value: float, digits: int) -> str:
    """So many significant digits, without zeros behind the point that say nothing."""
    if value % 1 == 0:
        return figure(value, "")
    text = figure(float(f"{value:.{digits}g}"), "", digits)
    return text.rstrip("0").rstrip(".") if "." in text else text


def evidence_rows(
    config: Mapping[str, Any], analyses: Sequence[Analysis], points: pd.DataFrame, words: Words
) -> list[EvidenceRow]:
    """The config's external evidence beside this study's values."""
    out = []
    for item in (config.get("report") or {}).get("external_evidence") or []:
        value = study_value(str(item.get("metric", "")), analyses, points)
        theirs = float(item.get("value") or 0.0)
        tolerance = float(item.get("tolerance") or 0.1)
        verdict = "not_comparable"
        if value is not None and theirs:
            verdict = "agrees" if abs(value / theirs - 1) <= tolerance else "differs"
        out.append(
            EvidenceRow(
                source=str(item.get("source", "")),
                conditions=str(item.get("conditions", "")),
                claim=str(item.get("claim", "")),
                theirs=figure(theirs, "", 4),
                ours=words("status.not_measured") if value is None else figure(value, "", 4),
                verdict=verdict,
            )
        )
    return out


def study_value(metric: str, analyses: Sequence[Analysis], points: pd.DataFrame) -> float | None:
    """A value of the study by name; None if it has none.

    metric: an id of the field notes (L05), or a column of the points with conditions, comma-separated:
    `ttft_p50_ms where concurrency=32, input_tokens=512`. Several points: the lower middle one; points of several
    models have none in common, and a condition must name one (`model=qwen3-0.6b`).
    """
    if metric in field_notes.MATCHERS:
        found = field_notes.counterpart(metric, analyses, points)
        return None if found is None else found.value
    column, _, conditions = metric.partition(" where ")
    rows = points[(points["status"] == "ok") & (points["verdict"] != "invalid")]
    for condition in filter(None, (part.strip() for part in conditions.split(","))):
        name, _, wanted = (part.strip() for part in condition.partition("="))
        if name not in rows:
            return None
        rows = rows.loc[[i for i, value in rows[name].items() if _same(value, wanted)]]
    if column.strip() not in rows or rows["model"].nunique() > 1:
        return None
    values = rows[column.strip()].dropna()
    return stats.middle(values)


def _same(value: object, wanted: str) -> bool:
    try:
        return float(value) == float(wanted)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return str(value) == wanted


def missing_view(
    analyses: Sequence[Analysis],
    sections: Sequence[SectionView],
    points: pd.DataFrame,
    config: Mapping[str, Any],
    reference: ReferenceView | None,
    known_kinds: Sequence[str],
    words: Words,
) -> MissingView:
    """Everything that the report cannot say, with the reason where one is known."""
    view = MissingView(beyond=words.listed("missing.beyond_list"))
    view.experiments = [(section.title, section.id, section.reason) for section in sections if section.reason]
    there = {a.kind for a in analyses} | set(kinds_of(config).values())
    view.absent = [
        words.optional(f"experiments.{kind}.title", kind) for kind in known_kinds if kind not in there
    ]
    failed = points[points["status"] != "ok"]
    for cause, rows in failed.groupby("cause", dropna=False):
        name = words.optional(f"causes.{cause}", str(cause))
        view.failed.append(words("missing.failed_line", n=len(rows), cause=name))
    view.ids = [] if reference is None else reference.missing
    return view


def points_table(points: pd.DataFrame) -> Table:
    """The columns of the points that a person wants to look through."""
    names = [name for name in POINT_COLUMNS if name in points]
    units = {
        "output_throughput_tok_s": "tok/s",
        **{name: "ms" for name in names if name.endswith("_ms")},
        "preemptions": "",
    }
    columns = {name: (unit, MEASURED) for name, unit in units.items() if name in names}
    return Table("points", points[names], columns)


def anchor(text: str) -> str:
    """A text as an anchor: letters, digits and hyphens."""
    return re.sub(r"[^A-Za-z0-9]+", "-", text).strip("-").lower()
