"""E5q drawn: perplexity of every point, a row a setting."""

import altair as alt

from servelab.claims import Analysis, Figure
from servelab.figures.series import id_of
from servelab.figures.settings import measured, named
from servelab.figures.style import Style


def figures(analysis: Analysis, style: Style) -> list[Figure]:
    """One mark a point; partly scored points are hollow. None with fewer than two settings."""
    rows = measured(analysis, "perplexity", "perplexity")
    if not len(rows) or len(rows[["kv_cache_dtype", "attention_backend"]].drop_duplicates()) < 2:
        return []
    rows["label"] = named(rows, ("kv_cache_dtype", "attention_backend"))
    whole = rows["segments_ok"] == rows["segments_asked"]
    rows["verdict"] = ["valid" if each else "suspect" for each in whole]
    x = style.x("perplexity", "tables.perplexity.columns.perplexity", form=",.4~f")
    y = alt.Y(**style.category("label", "", list(dict.fromkeys(rows["label"]))))
    marks = style.points(rows, x, y, tooltip=("repeat", "start"), size=60)
    panel = style.panel(
        marks, height=30 * rows["label"].nunique(), width=style.width - (150 if style.narrow else 260)
    )
    table = id_of(analysis, "perplexity")
    return [Figure(f"{analysis.experiment}-points", panel, "perplexity", {}, table, analysis.experiment)]
