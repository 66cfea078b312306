"""From a folder of tables to the paper: `build` reads, `paper` lays out (pure but for the figures' files)."""

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from servelab import cite, compare, recommend, reference_files, references
from servelab.claims import NOT_MEASURED, Analysis, Table
from servelab.config.schema import Objective
from servelab.records import write_atomically
from servelab.report import answers, back, doubts, front
from servelab.report.page import render
from servelab.report.sections import LAST_KINDS, Sections, SectionView, drawer
from servelab.report.tables import LISTINGS, LOADS, POINTS, read_analyses, read_loads, read_points
from servelab.report.words import Words
from servelab.summary import without_bare_tails

_BEFORE = ("questions", "environment")
_AFTER = ("reference", "answers", "evidence", "missing", "versions", "provenance", "cite")
_MADE = (".csv", ".svg", ".png")


@dataclass(frozen=True)
class Report:
    """What was built: the HTML text, and ids that no catalogue of its language has."""

    html: str
    missing_texts: tuple[str, ...]


@dataclass(frozen=True)
class Entry:
    """A line of the contents. off: the section was not measured."""

    id: str
    n: str
    title: str
    off: bool = False


def build(folder: Path, out_html: Path, figures_dir: Path, language: str | None = None) -> Report:
    """Read a study's tables folder, write the paper and, into `figures_dir`, its figures and tables as files.

    From the folder of the paper's own name go the figures and tables that an earlier paper left there.
    language: "en" or "ko"; None takes the study's own. Raises BadTablesError (a folder that cannot be read),
    ValueError (no such language), OSError (the disk).
    """
    analyses, info = read_analyses(folder)
    points = read_points(folder)
    words = Words.of(language or study_language(info))
    figures_dir.mkdir(parents=True, exist_ok=True)
    beside = figures_dir.name if figures_dir.parent == out_html.parent else ""
    name = reference_files.name_of(info.get("config") or {})
    place = reference_files.find(name, folder)
    table = place if place is not None and place.is_file() else None
    other = place if table is None else None
    studies: tuple[compare.Measured, compare.Measured] | None = None
    if other is not None and (other / f"{LOADS}.arrow").exists():
        this = compare.Measured(str(info.get("study", "")), info, points, read_loads(folder))
        studies = (compare.read(other), this)
    older = name if other is not None and studies is None else ""
    if figures_dir.resolve() == out_html.with_suffix("").resolve():
        _remove_earlier(figures_dir)
    report = paper(analyses, info, points, words, figures_dir, beside, studies, older, table)
    for file in sorted(folder.glob("*.csv")):
        shutil.copyfile(file, figures_dir / file.name)
    write_atomically(out_html, report.html.encode("utf-8"))
    return report


def _remove_earlier(figures_dir: Path) -> None:
    """Nothing goes where no earlier paper left its table of points: that folder is somebody's own."""
    if not (figures_dir / f"{POINTS}.csv").is_file():
        return
    for file in sorted(figures_dir.iterdir()):
        if file.is_file() and (file.suffix in _MADE or file.name in LISTINGS):
            file.unlink()


def study_language(info: Mapping[str, Any]) -> str:
    """The language that the study's config asks for."""
    config = info.get("config") or {}
    return str(info.get("language") or (config.get("report") or {}).get("language") or "en")


def paper(
    analyses: Sequence[Analysis],
    info: Mapping[str, Any],
    points: pd.DataFrame,
    words: Words,
    figures_dir: Path | None = None,
    beside: str = "",
    studies: tuple[compare.Measured, compare.Measured] | None = None,
    older: str = "",
    table: Path | None = None,
) -> Report:
    """The paper as HTML.

    figures_dir: where SVG and PNG files go, None for no files. studies: the study that the config names as the
    reference, and this one; in place of a reference table. older: such a study whose tables must be made again.
    table: the reference's CSV file; None for the one of its name in config/references.
    """
    config = info.get("config") or {}
    points = without_bare_tails(points)
    maker = Sections(words, points, figures_dir, beside)
    env = front.environment(info, maker)
    sections = [maker.section(analysis, drawer(analysis.kind)) for analysis in arranged(analyses)]
    count = front.counts(points)
    if not any(section.kind == doubts.KIND for section in sections):
        last = [s for s in sections if s.kind in LAST_KINDS[LAST_KINDS.index(doubts.KIND) + 1 :]]
        sections = [s for s in sections if s not in last] + [doubts.section(points, count, maker), *last]
    _unique_ids(sections)
    _add_listings(sections, analyses, info, words, figures_dir)
    against = None
    if studies is not None:
        against = maker.section(compare.analyse(*studies), drawer(compare.KIND))
    reference, absent = (None, "") if against else _reference(config, analyses, points, words, table)
    if older:
        absent = words("reference.older", name=older)
    title = study_title(info, words)
    measured = info.get("measured") or []
    date = str(measured[-1] if measured else info.get("created") or "")[:10]
    authors = [str(author) for author in (config.get("report") or {}).get("authors") or []]
    names = [("abstract", False), *((name, False) for name in _BEFORE)]
    heading = {name: words(f"{name}.title") for name in ("abstract", *_BEFORE, *_AFTER)}
    contents = _contents([*(name for name, _ in names)], sections, heading)
    said = front.abstract(analyses, maker)
    context = {
        "kind": words("report.kind", version=_versions(info).get("servelab", "")),
        "title": title,
        "subtitle": words("report.subtitle", study=info.get("study", ""), engines=_engines(info), date=date),
        "authors": authors,
        "contents": contents,
        "number": {entry.id: entry.n for entry in contents},
        "heading": heading,
        "lead": words(
            "abstract.lead", points=count.points, sessions=count.sessions, models=_models(info, words)
        ),
        "abstract": said,
        "sure": front.how_sure(count, sections, said, words),
        "questions": front.questions(sections, words),
        "env": env,
        "sections": sections,
        "reference": reference,
        "reference_absent": absent,
        "study_reference": against,
        "answers": answers.answers(points, sections, count, words),
        "evidence": back.evidence_rows(config, analyses, points, words),
        "missing": back.missing_view(analyses, sections, points, config, reference, known_kinds(), words),
        "measured": " – ".join(dict.fromkeys(str(moment)[:16].replace("T", " ") for moment in measured)),
        "created": str(info.get("created") or "")[:16].replace("T", " "),
        "version_tables": [maker.table(_versions_table(info))] if _versions(info) else [],
        "info": {"commit": "", "commands": [], "config_yaml": "", **info},
        "seed": config.get("seed", 1),
        "pins": [(str(name), str(text)) for name, text in (info.get("pins") or {}).items()],
        "points": maker.table(back.points_table(points)),
        "bibtex": cite.bibtex(str(info.get("study", "")), title, authors, date, _versions(info)),
        "cff": cite.cff(str(info.get("study", "")), title, authors, date, _versions(info)),
    }
    html = render("paper.html.j2", words, context)
    return Report(html, tuple(sorted(words.missing)))


def arranged(analyses: Sequence[Analysis]) -> list[Analysis]:
    """Experiments first, then what is said of the whole study, in the paper's order."""
    order = {kind: place for place, kind in enumerate(LAST_KINDS)}
    return sorted(analyses, key=lambda analysis: order.get(analysis.kind, -1))


def known_kinds() -> list[str]:
    """Every kind of experiment there is, in the report's order."""
    from servelab.experiments import KINDS

    return list(KINDS)


def study_title(info: Mapping[str, Any], words: Words) -> str:
    """The config's title, or one made from the models."""
    config = info.get("config") or {}
    given = (config.get("report") or {}).get("title")
    return str(given) if given else words("report.default_title", models=_models(info, words))


def _add_listings(
    sections: Sequence[SectionView],
    analyses: Sequence[Analysis],
    info: Mapping[str, Any],
    words: Words,
    figures_dir: Path | None,
) -> None:
    """What can be pasted from the recommendation (command lines, alerting rules), in the page and as files."""
    config = info.get("config") or {}
    bounds = {key: float(value) for key, value in (config.get("objective") or {}).items()}
    for analysis in analyses:
        if analysis.kind != recommend.KIND or analysis.status == NOT_MEASURED:
            continue
        files = recommend.artefacts(str(info.get("study", "")), Objective(**bounds), analysis)
        for section in (s for s in sections if s.kind == recommend.KIND):
            section.listings = [
                (name, words(f"listings.{name.split('.')[0]}"), text) for name, text in files.items()
            ]
        if figures_dir is not None:
            for name, text in files.items():
                write_atomically(figures_dir / name, text.encode("utf-8"))


def _contents(
    first: Sequence[str], sections: Sequence[SectionView], heading: Mapping[str, str]
) -> list[Entry]:
    entries = [Entry(name, "", heading[name]) for name in first[:1]]
    listed = [(name, heading[name], False) for name in first[1:]]
    listed += [(s.id, s.full_title, bool(s.reason)) for s in sections]
    listed += [(name, heading[name], False) for name in _AFTER]
    return entries + [Entry(id_, str(n), title, off) for n, (id_, title, off) in enumerate(listed, 1)]


def _unique_ids(sections: Sequence[SectionView]) -> None:
    seen: dict[str, int] = {}
    for section in sections:
        section.id = "s-" + (back.anchor(section.id[2:]) or section.kind)
        seen[section.id] = seen.get(section.id, 0) + 1
        if seen[section.id] > 1:
            section.id = f"{section.id}-{seen[section.id]}"


def _reference(
    config: Mapping[str, Any],
    analyses: Sequence[Analysis],
    points: pd.DataFrame,
    words: Words,
    table: Path | None,
) -> tuple[back.ReferenceView | None, str]:
    name = reference_files.name_of(config)
    if not name:
        return None, words("reference.absent")
    try:
        rows = references.load(name, reference_files.FOLDER if table is None else table.parent)
    except (FileNotFoundError, ValueError):
        return None, words("reference.unreadable", name=name)
    return back.reference_view(name, rows, analyses, points, words), ""


def _models(info: Mapping[str, Any], words: Words) -> str:
    names = [str(model.get("name", "")) for model in info.get("models") or []]
    return words("report.and").join(names) or str(info.get("study", ""))


def _engines(info: Mapping[str, Any]) -> str:
    return ", ".join(
        " ".join(str(engine[key]) for key in ("name", "version") if engine.get(key))
        for engine in info.get("engines") or []
    )


def _versions(info: Mapping[str, Any]) -> dict[str, str]:
    """Name → version; the server goes by its engine's name where the study has one engine."""
    versions = {str(name): str(version) for name, version in (info.get("versions") or {}).items() if version}
    names = {str(engine.get("name") or "") for engine in info.get("engines") or []} - {"", *versions}
    if len(names) == 1 and "server" in versions:
        versions[names.pop()] = versions.pop("server")
    return versions


def _versions_table(info: Mapping[str, Any]) -> Table:
    return Table("versions", pd.DataFrame(sorted(_versions(info).items()), columns=["name", "version"]))


def measured_anything(analyses: Sequence[Analysis]) -> bool:
    """Whether any analysis yielded something."""
    return any(analysis.status != NOT_MEASURED for analysis in analyses)
