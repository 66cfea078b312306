"""E11 drawn: every point of the study in the order of measuring, with its verdict."""

from servelab.claims import Analysis, Figure
from servelab.figures.series import frame_of
from servelab.figures.style import Style, alt


def figures(analysis: Analysis, style: Style) -> list[Figure]:
    """A row an experiment, a mark a point from left to right in the order of measuring; none without a point."""
    points = frame_of(analysis, "points")
    if points is None or not len(points):
        return []
    rows = points.sort_values("started_at", kind="stable", na_position="last").copy()
    rows["verdict"] = [
        "invalid" if s != "ok" else v for s, v in zip(rows["status"], rows["verdict"], strict=True)
    ]
    rows["verdict"] = rows["verdict"].fillna("valid")
    rows["nth"] = range(1, len(rows) + 1)
    experiments = list(dict.fromkeys(rows["experiment"]))
    x = style.x("nth", "axes.nth")
    y = alt.Y(**style.category("experiment", "", experiments))
    height = 24 * len(experiments)
    width = style.width - (150 if style.narrow else 190)
    chart = style.panel(style.points(rows, x, y, tooltip=("slug", "point")), height=height, width=width)
    count = rows["verdict"].value_counts()
    values = {
        "points": len(rows),
        **{name: int(count.get(name, 0)) for name in ("valid", "suspect", "invalid")},
    }
    return [Figure("validity-points", chart, "validity", values, "points", analysis.experiment)]
