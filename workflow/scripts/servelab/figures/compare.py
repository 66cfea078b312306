"""Two studies: the ratio of each common load and quantity with its interval."""

from servelab.claims import Analysis, Figure
from servelab.figures.style import Rule, Style

MOST_ROWS = 60


def figures(analysis: Analysis, style: Style) -> list[Figure]:
    """A forest of ratios; none if no load is common. At most MOST_ROWS rows, the widest ratios first."""
    tables = [table for table in analysis.tables if table.id == "ratios"]
    if not tables:
        return []
    frame = tables[0].frame.copy()
    frame["metric"] = [style.words.get(f"columns.{name}", name) for name in frame["metric"]]
    frame["row"] = frame["metric"] + ", " + frame["load"]
    frame["size"] = (frame["ratio"] - 1).abs()
    shown = frame.sort_values("size", ascending=False).head(MOST_ROWS)
    x = style.x("ratio", "axes.ratio", log=bool((shown["ratio"] > 0).all()), form=",~r")
    forest = style.forest(shown, "row", x, "ratio_low", "ratio_high")
    height = 26 * len(shown)
    chart = style.panel(forest, style.rules(x, [Rule(1.0, "1", token="muted")], height), height=height)  # noqa: S106
    values = {
        "n": len(frame),
        "yes": int((frame["seen"] == "yes").sum()),
        "low": float(frame["ratio"].min()),
        "high": float(frame["ratio"].max()),
    }
    return [Figure("compare-ratios", chart, "compare", values, "ratios")]
