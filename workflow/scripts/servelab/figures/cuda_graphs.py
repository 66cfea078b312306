"""E8 drawn: throughput with the defaults and eager, a panel a concurrency."""

from servelab.claims import Analysis, Figure
from servelab.figures.series import id_of
from servelab.figures.settings import dots, measured, named
from servelab.figures.style import Style


def figures(analysis: Analysis, style: Style) -> list[Figure]:
    """A panel for each concurrency; none where only one setting was measured."""
    rows = measured(analysis, "loads", "output_throughput_tok_s")
    if not len(rows) or rows["enforce_eager"].nunique() < 2:
        return []
    usual = "graphs" if rows["graphs"].eq(True).any() else "compiled"
    rows["setting"] = ["eager" if eager else usual for eager in rows["enforce_eager"]]
    rows["label"] = named(rows, ("setting",))
    width = style.panel_width(2)
    axis = style.text("axes.concurrency")
    panels = [
        style.panel(
            dots(same, style, "output_throughput_tok_s", "axes.throughput"),
            height=26 * same["label"].nunique(),
            width=width,
            title=f"{axis}: {concurrency:g}",
        )
        for concurrency, same in rows.groupby("concurrency")
    ]
    table = id_of(analysis, "loads")
    return [
        Figure(
            f"{analysis.experiment}-graphs", style.grid(panels), "cuda_graphs", {}, table, analysis.experiment
        )
    ]
