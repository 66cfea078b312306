"""E1 drawn: throughput with knee and capacity, latency, and where the requests stand, against concurrency."""

import math

import pandas as pd

from servelab import stats
from servelab.claims import Analysis, Figure
from servelab.figures.series import Series, frame_of, id_of, means_of, middle_points, series_of, sound
from servelab.figures.style import Chart, Rule, Style

THROUGHPUT = "output_throughput_tok_s"
STEADY = "steady_throughput_tok_s"
LATENCIES = {
    "ttft": ("ttft_p50_ms", "ttft_p95_ms"),
    "itl": ("itl_p50_ms", "itl_p99_ms", "itl_max_ms"),
}
QUEUE = ("running_mean", "waiting_mean")


def figures(analysis: Analysis, style: Style) -> list[Figure]:
    """Throughput, latency and queue of each series; none without a series of two concurrencies."""
    points = frame_of(analysis, "points")
    found = series_of(points, "concurrency") if points is not None else []
    if not found:
        return []
    drawn = [
        ("throughput", [_throughput(one, analysis, style, len(found)) for one in found]),
        ("latency", [_latency(one, name, style) for one in found for name in LATENCIES]),
        ("queue", [_queue(one, style, len(found)) for one in found if _has(one.points, QUEUE)]),
    ]
    return [
        Figure(
            f"{analysis.experiment or analysis.kind}-{name}",
            style.grid(panels) if len(panels) > 1 else panels[0],
            f"load_sweep_{name}",
            _values(found, analysis),
            id_of(analysis, "load_sweep") or "points",
            analysis.experiment,
        )
        for name, panels in drawn
        if panels
    ]


def _has(points: pd.DataFrame, columns: tuple[str, ...]) -> bool:
    return any(points[column].notna().any() for column in columns)


def _throughput(series: Series, analysis: Analysis, style: Style, count: int) -> Chart:
    height, width = 270 if count == 1 else 210, 0 if count == 1 else style.panel_width(2)
    x = style.x("concurrency", "axes.concurrency", log=True, values=list(series.points["concurrency"]))
    layers: list[Chart] = []
    curve = series.rows(frame_of(analysis, "knee_curve"))
    metric = THROUGHPUT
    if curve is not None:
        metric = next((m for m in (STEADY, THROUGHPUT) if m in curve and curve[m].notna().any()), THROUGHPUT)
    y = style.y(metric, "axes.throughput" if metric == THROUGHPUT else "axes.steady", zero=True)
    if curve is not None and metric in curve:
        layers.append(style.line(curve.dropna(subset=[metric]), x, y, markers=False))
    else:
        layers.append(
            style.line(means_of(sound(series.points), ["concurrency"], metric), x, y, markers=False)
        )
    layers.append(style.points(series.points, x, y, tooltip=("repeat", "start", "preemptions"), size=40))
    rules = knee_rules(series, analysis, style)
    if rules:
        layers.insert(0, style.rules(x, rules, height))
    return style.panel(*layers, height=height, width=width, title=series.title(style))


def knee_rules(series: Series, analysis: Analysis, style: Style) -> list[Rule]:
    """The fitted knee with its interval and the calculated capacity, as far as they lie near the sweep."""
    top = float(series.points["concurrency"].max())
    rules = []
    knee = series.rows(frame_of(analysis, "knee"))
    if knee is not None and "knee" in knee and pd.notna(knee["knee"].iloc[0]):
        row = knee.iloc[0]
        value = float(row["knee"])
        low, high = (_number(row.get(f"knee_{end}")) for end in ("low", "high"))
        label = style.text(
            f"figures.load_sweep_throughput.{_knee_label(low, high)}", value=value, low=low, high=high
        )
        bottom = float(series.points["concurrency"].min())
        low, high = (low or bottom, high or top) if (low or high) else (None, None)
        low, high = (None if end is None else min(max(end, bottom), top) for end in (low, high))
        if value <= top * 1.5:
            rules.append(Rule(value, label, low, high, "crimson"))
    capacity = series.points["capacity_requests"].dropna()
    if len(capacity) and 0.5 <= float(capacity.median()) <= 1.5 * top:
        value = float(capacity.median())
        label = style.text("figures.load_sweep_throughput.capacity", value=value)
        rules.append(Rule(value, label, dashed=True))
    return rules


def _knee_label(low: float | None, high: float | None) -> str:
    if low is None or high is None:
        return "knee_from" if low is not None else "knee_to" if high is not None else "knee_open"
    return "knee"


def _number(value: object) -> float | None:
    number = float(value) if isinstance(value, (int, float)) else math.nan
    return number if math.isfinite(number) else None


def _latency(series: Series, metric: str, style: Style) -> Chart:
    names = [name for name in LATENCIES[metric] if series.points[name].notna().any()]
    long = series.points.melt(
        ["concurrency", "verdict", "repeat", "start"], names, "quantile", "value_ms"
    ).dropna(subset=["value_ms"])
    long = long[long["value_ms"] > 0]
    long["quantile"] = [name.removesuffix("_ms").split("_")[-1] for name in long["quantile"]]
    settings = [name.removesuffix("_ms").split("_")[-1] for name in names]
    width, height = style.panel_width(2), 220
    x = style.x("concurrency", "axes.concurrency", log=True, values=list(series.points["concurrency"]))
    y = style.y("value_ms", f"axes.{metric}", log=True, values=list(long["value_ms"]))
    # The line runs through the middle point of each concurrency: an existing point, not a mean of
    # percentiles.
    middle = middle_points(sound(long), ["quantile", "concurrency"], "value_ms")
    layers = [
        style.line(middle, x, y, "quantile", settings, markers=False),
        style.points(long, x, y, "quantile", settings, tooltip=("repeat", "start")),
        style.end_labels(middle, x, y, "quantile", settings, height),
    ]
    return style.panel(*layers, height=height, width=width - 30, title=series.title(style))


def _queue(series: Series, style: Style, count: int) -> Chart:
    long = series.points.melt(["concurrency", "verdict"], list(QUEUE), "where", "requests").dropna(
        subset=["requests"]
    )
    names: dict[object, str] = {name: style.words.get(f"columns.{name}", name) for name in QUEUE}
    x = style.x("concurrency", "axes.concurrency", log=True, values=list(series.points["concurrency"]))
    y = style.y("requests", "axes.requests", zero=True)
    height, width = 210, 0 if count == 1 else style.panel_width(2)
    means = means_of(sound(long), ["where", "concurrency"], "requests")
    layers = [
        style.line(means, x, y, "where", QUEUE, markers=False),
        style.points(long, x, y, "where", QUEUE),
        style.end_labels(means, x, y, "where", QUEUE, height, names),
    ]
    capacity = series.points["capacity_requests"].dropna()
    if len(capacity):
        value = float(capacity.median())
        rule = Rule(value, style.text("figures.load_sweep_throughput.capacity", value=value), dashed=True)
        if value <= 1.5 * float(series.points["concurrency"].max()):
            layers.insert(0, style.rules(x, [rule], height))
    return style.panel(*layers, height=height, width=width, title=series.title(style))


def _values(found: list[Series], analysis: Analysis) -> dict[str, object]:
    """Numbers for caption and alt text, of all series together."""
    points = pd.concat([series.points for series in found])
    rows = sound(points)
    knee = frame_of(analysis, "knee")
    knees = knee["knee"].dropna() if knee is not None and "knee" in knee else pd.Series(dtype=float)
    best = rows.sort_values(THROUGHPUT).iloc[-1]
    capacity = points["capacity_requests"].dropna()
    low, high = rows["concurrency"].min(), rows["concurrency"].max()
    return {
        "points": len(points),
        "invalid": int((points["verdict"] == "invalid").sum()),
        "series": len(found),
        "low": float(low),
        "high": float(high),
        "best": float(best[THROUGHPUT]),
        "best_at": float(best["concurrency"]),
        "knee": float(knees.iloc[0]) if len(knees) else None,
        "capacity": float(capacity.median()) if len(capacity) else None,
        "ttft_low": stats.middle(rows[rows["concurrency"] == low]["ttft_p50_ms"].dropna()),
        "ttft_high": stats.middle(rows[rows["concurrency"] == high]["ttft_p50_ms"].dropna()),
        "waiting": float(rows[rows["concurrency"] == high]["waiting_mean"].astype(float).mean()),
    }
