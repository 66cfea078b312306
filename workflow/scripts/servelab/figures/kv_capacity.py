"""E2 drawn: KV tokens of every start, first starts and restarts apart."""

import altair as alt

from servelab.claims import Analysis, Figure
from servelab.figures.series import id_of
from servelab.figures.settings import measured, named
from servelab.figures.style import Style


def figures(analysis: Analysis, style: Style) -> list[Figure]:
    """One mark a start, a row a dtype and boot; none without a capacity."""
    rows = measured(analysis, "kv_capacity", "kv_cache_tokens")
    if not len(rows):
        return []
    rows["boot"] = [style.words.get(f"boot.{boot}", str(boot)) for boot in rows["boot"]]
    rows["label"] = named(rows, ("kv_cache_dtype", "boot"))
    rows["verdict"] = "valid"
    x = style.x("kv_cache_tokens", "columns.kv_cache_tokens", zero=True)
    y = alt.Y(**style.category("label", "", list(dict.fromkeys(rows["label"]))))
    marks = style.points(rows, x, y, tooltip=("start",), size=60)
    panel = style.panel(
        marks, height=30 * rows["label"].nunique(), width=style.width - (150 if style.narrow else 260)
    )
    table = id_of(analysis, "kv_capacity")
    return [Figure(f"{analysis.experiment}-tokens", panel, "kv_capacity", {}, table, analysis.experiment)]
