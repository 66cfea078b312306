"""E10 drawn: every repeat against the middle one of all, start by start; the study's tolerance as a band."""

import pandas as pd

from servelab import stats
from servelab.claims import Analysis, Figure
from servelab.figures.series import SHAPE, frame_of, id_of
from servelab.figures.style import Chart, Rule, Style, alt

METRICS = {
    "output_throughput_tok_s": "axes.throughput_relative",
    "ttft_p50_ms": "axes.ttft_relative",
    "itl_p99_ms": "axes.itl_relative",
}


def figures(analysis: Analysis, style: Style) -> list[Figure]:
    """One figure a repeated load with two points or more: a panel a quantity, a column of dots a server start."""
    points = frame_of(analysis, "points")
    if points is None or not len(points):
        return []
    measured = points[points["status"].eq("ok")]
    shape = [name for name in (*SHAPE, "concurrency") if name in measured]
    out: list[Figure] = []
    for _, rows in measured.groupby(shape, dropna=False, sort=True):
        if len(rows) > 1:
            out.append(_figure(rows, analysis, style, len(out) + 1))
    return out


def _figure(rows: pd.DataFrame, analysis: Analysis, style: Style, number: int) -> Figure:
    panels = [_panel(rows, metric, analysis, style) for metric in METRICS if rows[metric].notna().sum() > 1]
    spreads = {metric: _spread(rows, metric) for metric in METRICS}
    values = {
        "points": len(rows),
        "starts": int(rows["session_id"].nunique()),
        "concurrency": _first(rows, "concurrency"),
        "input": _first(rows, "input_tokens"),
        "output": _first(rows, "output_tokens"),
        "tolerance": _tolerance(analysis),
        "throughput": spreads["output_throughput_tok_s"],
        "ttft": spreads["ttft_p50_ms"],
        "itl": spreads["itl_p99_ms"],
    }
    name = f"{analysis.experiment or analysis.kind}-repeats" + (f"-{number}" if number > 1 else "")
    table = id_of(analysis, "repeatability") or "points"
    return Figure(name, style.grid(panels, columns=3), "repeatability", values, table, analysis.experiment)


def _panel(rows: pd.DataFrame, metric: str, analysis: Analysis, style: Style) -> Chart:
    known = rows[rows[metric].notna()]
    believed = known[known["verdict"] != "invalid"]
    middle = stats.middle((believed if len(believed) else known)[metric]) or 1.0
    frame = rows.assign(
        relative=100 * (rows[metric].astype(float) / middle - 1),
        start=[f"{int(start)}" for start in rows["start"]],
    )
    height = 190
    y = style.y("relative", METRICS[metric])
    axis = alt.Axis(title=style.text("axes.start"), labelAngle=0, grid=False)
    x = alt.X(
        **{
            **style.category("start", "", [f"{n}" for n in sorted({int(s) for s in rows["start"]})]),
            "axis": axis,
        }
    )
    layers = [style.points(frame, x, y, tooltip=("repeat", metric), size=42)]
    tolerance = _tolerance(analysis)
    low, high = (None, None) if tolerance is None else (-100 * tolerance, 100 * tolerance)
    layers.insert(0, style.rules(y, [Rule(0.0, "", low, high, "muted")], height))
    each = frame[(frame["verdict"] != "invalid") & frame["relative"].notna()]
    middles = each.groupby("start", as_index=False)[["relative"]].quantile(0.5, interpolation="lower")
    tick = alt.Chart(middles).mark_tick(thickness=2, width=22, color=style.colour_of("default"))
    layers.append(tick.encode(x=x, y=y))
    return style.panel(*layers, height=height, width=style.panel_width(3) if not style.narrow else 0)


def _spread(rows: pd.DataFrame, metric: str) -> float | None:
    values = rows[rows["verdict"] != "invalid"][metric].dropna().astype(float)
    return float((values.max() - values.min()) / (stats.middle(values) or 1.0)) if len(values) > 1 else None


def _first(rows: pd.DataFrame, column: str) -> float | None:
    known = rows[column].dropna()
    return float(known.iloc[0]) if len(known) else None


def _tolerance(analysis: Analysis) -> float | None:
    for table in analysis.tables:
        if "tolerance" in table.frame and table.frame["tolerance"].notna().any():
            return float(table.frame["tolerance"].dropna().iloc[0])
    return None
