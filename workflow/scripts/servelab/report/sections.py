"""Analyses → sections of the paper: question, method, findings, tables, figures, what it does not say."""

import base64
import importlib
import importlib.util
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import pandas as pd

from servelab.claims import NOT_MEASURED, Analysis, Finding, Table
from servelab.report.cells import TableView, table_view
from servelab.report.drawing import Draw, FigureView, figure_views
from servelab.report.tables import csv
from servelab.report.words import Words

EMBEDDED_CSV_BYTES = 60_000
LAST_KINDS = (
    "repeatability",
    "validity",
    "what_to_set",
)  # sections of the whole study, after the experiments


@dataclass(frozen=True)
class Sentence:
    """A finding in words. links: (anchor, words) of the tables it rests on."""

    text: str
    status: str
    stance: str = ""
    links: tuple[tuple[str, str], ...] = ()


@dataclass
class SectionView:
    """One section of the paper. reason: why it was not measured, empty if it was."""

    id: str
    kind: str
    title: str
    name: str = ""
    question: str = ""
    method: list[str] = field(default_factory=list)
    says_not: list[str] = field(default_factory=list)
    reason: str = ""
    sentences: list[Sentence] = field(default_factory=list)
    tables: list[TableView] = field(default_factory=list)
    figures: list[FigureView] = field(default_factory=list)
    listings: list[tuple[str, str, str]] = field(default_factory=list)  # file name, title, text

    @property
    def full_title(self) -> str:
        """The title, with the experiment's own name where its kind is not enough to tell it from others."""
        return f"{self.title} ({self.name})" if self.name else self.title

    @property
    def parts(self) -> list[tuple[str, TableView | FigureView]]:
        """Figures and tables in reading order: a figure stands before the table that holds its numbers."""
        rest = list(self.figures)
        out: list[tuple[str, TableView | FigureView]] = []
        for table in self.tables:
            own = [figure for figure in rest if figure.table == table.id]
            out += [("figure", figure) for figure in own] + [("table", table)]
            rest = [figure for figure in rest if figure not in own]
        return [("figure", figure) for figure in rest] + out


@dataclass
class Sections:
    """Builds sections one after the other; tables and figures are numbered through the whole paper.

    beside: name of the folder with the figures' and tables' files, relative to the HTML file.
    """

    words: Words
    points: pd.DataFrame
    folder: Path | None = None
    beside: str = ""
    places: dict[str, int] = field(default_factory=dict)
    tables_so_far: int = 0
    figures_so_far: int = 0
    anchors: dict[str, tuple[str, int]] = field(default_factory=dict)

    def section(self, analysis: Analysis, draw: Draw | None) -> SectionView:
        """Lay one analysis out. draw: the kind's `figures` function, None if it has none."""
        words, kind = self.words, analysis.kind
        view = SectionView(
            id=f"s-{analysis.experiment or kind}",
            kind=kind,
            title=words.optional(f"experiments.{kind}.title", analysis.experiment or kind),
            name=analysis.experiment if analysis.experiment not in ("", kind) else "",
            question=words.optional(f"experiments.{kind}.question"),
            method=words.listed(f"experiments.{kind}.method"),
            says_not=words.listed(f"experiments.{kind}.says_not"),
        )
        if analysis.status == NOT_MEASURED:
            view.reason = reason_text(analysis, words)
        view.tables = [self.table(table) for table in analysis.tables]
        if draw is not None and analysis.status != NOT_MEASURED:
            view.figures = self.drawn(analysis, draw)
        ordered = sorted(analysis.findings, key=lambda finding: -finding.weight)
        view.sentences = [self.sentence(finding) for finding in ordered]
        return view

    def table(self, table: Table) -> TableView:
        """Lay one table out, number it, and make its CSV available in the page if it is small."""
        self.tables_so_far += 1
        view = table_view(table, self.words, self.tables_so_far)
        view.csv = f"{self.beside}/{table.id}.csv" if self.beside else ""
        data = csv(table.frame)
        if len(data) <= EMBEDDED_CSV_BYTES:
            view.csv_data = "data:text/csv;charset=utf-8;base64," + base64.b64encode(data).decode("ascii")
        self.anchors[table.id] = (f"t-{table.id}", view.number)
        return view

    def sentence(self, finding: Finding) -> Sentence:
        """A finding in words, with links to its tables."""
        links = [self.anchors[table] for table in finding.tables if table in self.anchors]
        values = dict(finding.values)
        for name, group in (
            ("metric", "columns"),
            ("phase", "phases"),
        ):  # names of ours, in the reader's words
            if isinstance(values.get(name), str):
                values[name] = self.words.optional(f"{group}.{values[name]}", str(values[name]))
        text = open_ends(
            self.words(f"findings.{finding.template}", values), self.words("status.not_measured")
        )
        only = self.points["model"].dropna().unique()  # the only model need not be named in every sentence
        if len(only) == 1 and values.get("model") == only[0]:
            for mark in (", ", ": "):
                text = without_start(text, f"{values.get('model')}{mark}")
        return Sentence(
            text=text,
            status=finding.status,
            stance=finding.stance,
            links=tuple((anchor, self.words("report.table_n", n=number)) for anchor, number in links),
        )

    def drawn(self, analysis: Analysis, draw: Draw) -> list[FigureView]:
        """An analysis's figures, numbered, with their files' names relative to the page."""
        views = figure_views(
            with_points(analysis, self.points),
            draw,
            self.words,
            self.places,
            self.figures_so_far + 1,
            self.folder,
        )
        self.figures_so_far += len(views)
        for view in views:
            if view.svg_file and self.beside:
                view.svg_file = f"{self.beside}/{view.svg_file}"
                view.png_file = f"{self.beside}/{view.png_file}"
        return views


def open_ends(text: str, missing: str) -> str:
    """The text with intervals that have no end written as such: (18–not measured) is (≥ 18)."""
    gap = re.escape(missing)
    text = re.sub(rf"\s?\({gap}\s?[–~]\s?{gap}\)", "", text)
    text = re.sub(rf"\(([^()]*?)\s?[–~]\s?{gap}\)", r"(≥ \1)", text)
    return re.sub(rf"\({gap}\s?[–~]\s?([^()]*?)\)", r"(≤ \1)", text)


def without_start(text: str, start: str) -> str:
    """The text without what it starts with, a capital letter in front again unless an option's name is there."""
    rest = text.removeprefix(start)
    if rest == text or not rest.strip():
        return text
    return rest if "_" in rest.split()[0] else rest[0].upper() + rest[1:]


def with_points(analysis: Analysis, points: pd.DataFrame) -> Analysis:
    """The analysis with the rows of its points as one more table, `points`: figures draw raw points under summaries.

    The rows are the experiment's own, or all of them for an analysis of the whole study.
    """
    rows = points
    if analysis.experiment and "experiment" in points:
        rows = points[points["experiment"] == analysis.experiment]
    return replace(analysis, tables=[*analysis.tables, Table("points", rows.reset_index(drop=True))])


def reason_text(analysis: Analysis, words: Words) -> str:
    """Why an experiment was not measured, in words."""
    if not analysis.reason:
        return words("report.no_reason")
    return words(f"reasons.{analysis.reason}", analysis.reason_values)


def drawer(kind: str) -> Draw | None:
    """The `figures` function of a kind: servelab/figures/<kind>.py, None if there is no such module."""
    name = f"servelab.figures.{kind}"
    if importlib.util.find_spec(name) is None:
        return None
    draw: Draw = importlib.import_module(name).figures
    return draw


def heaviest(analyses: Sequence[Analysis], count: int = 3) -> list[Finding]:
    """The findings that matter most, one of a group: what the abstract says."""
    found = [f for analysis in analyses for f in analysis.findings if f.status != NOT_MEASURED]
    out: list[Finding] = []
    groups: set[str] = set()
    for finding in sorted(found, key=lambda f: -f.weight):
        group = finding.group or finding.template
        if group not in groups:
            groups.add(group)
            out.append(finding)
    return out[:count]


def in_order(analyses: Sequence[Analysis]) -> tuple[list[Analysis], dict[str, Analysis]]:
    """(the experiments' analyses in their order, the whole study's by kind)."""
    last = {a.kind: a for a in analyses if a.kind in LAST_KINDS}
    return [a for a in analyses if a.kind not in LAST_KINDS], last


def kinds_of(config: Mapping[str, object]) -> dict[str, str]:
    """Experiment name → kind, from a study's config."""
    experiments = config.get("experiments")
    if not isinstance(experiments, Mapping):
        return {}
    return {
        str(name): str(value.get("kind") or name) if isinstance(value, Mapping) else str(name)
        for name, value in experiments.items()
    }
