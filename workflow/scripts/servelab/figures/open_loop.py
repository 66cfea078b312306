"""Open loop drawn: first-token latency, throughput and send lag against the rate at which requests arrive."""

import pandas as pd

from servelab import stats
from servelab.claims import Analysis, Figure
from servelab.figures.series import Series, frame_of, id_of, middle_points, series_of, sound
from servelab.figures.style import Chart, Style

QUANTILES = ("ttft_p50_ms", "ttft_p95_ms", "ttft_p99_ms")


def figures(analysis: Analysis, style: Style) -> list[Figure]:
    """Latency and served rate against the rate of arrivals for each series with two rates or more."""
    points = frame_of(analysis, "points")
    found = series_of(points, "rate_rps") if points is not None else []
    if not found:
        return []
    panels = [panel for one in found for panel in (_latency(one, style), _served(one, style))]
    rows = pd.concat([one.points for one in found])
    good = sound(rows)
    low, high = good["rate_rps"].min(), good["rate_rps"].max()
    values = {
        "points": len(rows),
        "low": float(low),
        "high": float(high),
        "ttft_low": stats.middle(good[good["rate_rps"] == low]["ttft_p95_ms"].dropna()),
        "ttft_high": stats.middle(good[good["rate_rps"] == high]["ttft_p95_ms"].dropna()),
    }
    table = id_of(analysis, "open_loop") or "points"
    name = f"{analysis.experiment or analysis.kind}-rates"
    return [Figure(name, style.grid(panels), "open_loop", values, table, analysis.experiment)]


def _latency(series: Series, style: Style) -> Chart:
    names = [name for name in QUANTILES if series.points[name].notna().any()]
    long = series.points.melt(["rate_rps", "verdict", "repeat", "start"], names, "quantile", "value_ms")
    long = long.dropna(subset=["value_ms"])
    long["quantile"] = [name.removesuffix("_ms").split("_")[-1] for name in long["quantile"]]
    settings = list(dict.fromkeys(long["quantile"]))
    x = style.x("rate_rps", "axes.rate", values=list(series.points["rate_rps"]))
    y = style.y("value_ms", "axes.ttft", log=True, values=list(long["value_ms"]))
    middle = middle_points(sound(long), ["quantile", "rate_rps"], "value_ms")
    layers = [
        style.line(middle, x, y, "quantile", settings, markers=False),
        style.points(long, x, y, "quantile", settings, tooltip=("repeat", "start")),
        style.end_labels(middle, x, y, "quantile", settings, 220),
    ]
    return style.panel(*layers, height=220, width=style.panel_width(2) - 30, title=series.title(style))


def _served(series: Series, style: Style) -> Chart:
    x = style.x("rate_rps", "axes.rate", values=list(series.points["rate_rps"]))
    y = style.y("request_throughput_rps", "axes.served", zero=True)
    points = series.points
    rates = sorted({float(rate) for rate in points["rate_rps"].dropna()})
    asked = pd.DataFrame(
        {"rate_rps": rates, "request_throughput_rps": rates, "what": style.text("axes.asked")}
    )
    layers = [
        style.line(asked, x, y, "what", markers=False),
        style.points(points, x, y, tooltip=("repeat", "start", "send_lag_p99_ms"), size=40),
        style.end_labels(asked, x, y, "what", height=220),
    ]
    return style.panel(*layers, height=220, width=style.panel_width(2) - 60, title=series.title(style))
