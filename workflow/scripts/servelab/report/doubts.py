"""The section on validity, made from the points: which of them are doubted, why, and what to do about it."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pandas as pd

from servelab.claims import MEASURED, Analysis, Table
from servelab.figures import validity
from servelab.gates.evidence import Reason
from servelab.report.front import Counts
from servelab.report.sections import Sections, SectionView, Sentence
from servelab.report.words import Words
from servelab.validity import from_json

KIND = "validity"
_SEVERITIES = ("invalid", "suspect", "note")
_NAMED = 3  # so many points of a reason are named; the CSV of all points has them all


def section(points: pd.DataFrame, count: Counts, maker: Sections) -> SectionView:
    """Counts of verdicts, and every reason that was given with its cause, its remedy and its points."""
    words = maker.words
    view = SectionView(
        id=f"s-{KIND}",
        kind=KIND,
        title=words("doubts.title"),
        question=words("doubts.question"),
        method=words.listed("doubts.method"),
        says_not=words.listed("doubts.says_not"),
    )
    table = reasons(points, words)
    if len(table.frame):
        laid_out = maker.table(table)
        view.tables = [replace(laid_out, struck=[False] * len(laid_out.rows))]
    view.figures = maker.drawn(Analysis(KIND), validity.figures) if count.points else []
    links = tuple((f"t-{t.id}", words("report.table_n", n=t.number)) for t in view.tables)
    view.sentences = [Sentence(words("doubts.counts", vars(count)), MEASURED, links=links)]
    return view


def reasons(points: pd.DataFrame, words: Words) -> Table:
    """A row for each reason: how grave, cause and remedy in the words of its first point, and its points.

    A failed point that was not judged is listed with the cause it was recorded with.
    """
    found: dict[tuple[str, str], list[tuple[Mapping[str, Any], Reason]]] = {}
    for point in points.to_dict("records"):
        row = {str(name): value for name, value in point.items()}
        for reason in from_json(row["reasons"]) or _unjudged(row):
            found.setdefault((reason.severity, reason.reason), []).append((row, reason))
    ordered = sorted(
        found.items(), key=lambda item: (_SEVERITIES.index(item[0][0]), -len(item[1]), item[0][1])
    )
    rows = [_row(severity, name, given, words) for (severity, name), given in ordered]
    names = ["severity", "doubt", "remedy", "which", "points"]
    return Table("doubts", pd.DataFrame(rows, columns=names), {"points": ("", MEASURED)})


def _row(
    severity: str, name: str, given: list[tuple[Mapping[str, Any], Reason]], words: Words
) -> dict[str, object]:
    values = given[0][1].values
    which = [f"{row['experiment']} {row['point']}" for row, _ in given[:_NAMED]]
    return {
        "severity": words(f"doubts.{severity}"),
        "doubt": words.optional(f"validity.{name}.cause", name.replace("_", " "), values),
        "remedy": words.optional(f"validity.{name}.remedy", "–", values),
        "which": ", ".join(which) + (" …" if len(given) > _NAMED else ""),
        "points": len(given),
    }


def _unjudged(row: Mapping[str, Any]) -> list[Reason]:
    if row["status"] == "ok":
        return []
    return [Reason("point_failed", "invalid", {"why": row["cause"], "detail": row["detail"] or ""})]
