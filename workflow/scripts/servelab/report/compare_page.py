"""The page that sets two studies side by side."""

from collections import Counter
from pathlib import Path

from servelab import compare
from servelab.figures import compare as figures
from servelab.records import write_atomically
from servelab.report.build import Entry, Report, study_language
from servelab.report.cells import TableView
from servelab.report.page import render
from servelab.report.sections import Sections
from servelab.report.tables import write_table
from servelab.report.words import Words


def build(
    folders: tuple[Path, Path], out_html: Path, figures_dir: Path, language: str | None = None
) -> Report:
    """Read two studies' tables folders and write their comparison, with figures and tables as files beside it.

    Raises BadTablesError (a folder that cannot be read), ValueError (no such language), OSError (the disk).
    """
    a, b = (compare.read(folder) for folder in folders)
    words = Words.of(language or study_language(a.info))
    figures_dir.mkdir(parents=True, exist_ok=True)
    beside = figures_dir.name if figures_dir.parent == out_html.parent else ""
    report = page(a, b, words, figures_dir, beside)
    for table in compare.analyse(a, b).tables:
        write_table(figures_dir, table)
    write_atomically(out_html, report.html.encode("utf-8"))
    return report


def page(
    a: compare.Measured, b: compare.Measured, words: Words, figures_dir: Path | None = None, beside: str = ""
) -> Report:
    """The comparison as HTML."""
    analysis = compare.analyse(a, b)
    maker = Sections(words, a.points, figures_dir, beside)
    section = maker.section(analysis, figures.figures)
    tables: dict[str, TableView] = {table.id: table for table in section.tables}
    outcomes = Counter(finding.template.removeprefix("compare_") for finding in analysis.findings)
    both, only_a, only_b = compare.common(a, b)
    headings = [(name, words(f"compare.{name}")) for name in ("summary", "settings", "differences", "rest")]
    contents = [Entry(name, str(n), title) for n, (name, title) in enumerate(headings, 1)]
    names = {"a": a.name, "b": b.name}
    context = {
        "kind": words("report.kind", version=(a.info.get("versions") or {}).get("servelab", "")),
        "title": words("compare.title", names),
        "subtitle": words("compare.subtitle"),
        "authors": [],
        "contents": contents,
        "lead": words("compare.lead" if both else "compare.none_common", common=both, **names),
        "only": words("compare.only", only_a=only_a, only_b=only_b, **names) if only_a or only_b else "",
        "machines": words("compare.machines") if _machines(a) != _machines(b) else "",
        "counts": words(
            "compare.counts", n=sum(outcomes.values()), **{k: outcomes[k] for k in ("yes", "no", "unknown")}
        ),
        "both": both,
        "settings": tables.get("changed_settings") if len(analysis.tables[0].frame) else None,
        "ratios": tables.get("ratios"),
        "figures": section.figures,
        "seen": [
            s
            for s, f in zip(section.sentences, analysis.findings, strict=True)
            if f.template == "compare_yes"
        ],
    }
    return Report(render("compare.html.j2", words, context), tuple(sorted(words.missing)))


def _machines(study: compare.Measured) -> set[str]:
    return {str(machine.get("id")) for machine in study.info.get("machines") or []}
