"""E4 drawn: throughput, TTFT and where requests stand, against the cap on running sequences."""

import pandas as pd

from servelab.claims import Analysis, Figure
from servelab.figures.series import id_of
from servelab.figures.settings import measured, named
from servelab.figures.style import Chart, Style

CAP = "max_num_seqs"
QUEUE = ("running_mean", "waiting_mean")


def figures(analysis: Analysis, style: Style) -> list[Figure]:
    """Three panels over the caps; none with fewer than two caps measured."""
    rows = measured(analysis, "loads", "output_throughput_tok_s")
    if not len(rows) or rows[CAP].nunique() < 2:
        return []
    rows["label"] = named(rows, ())
    panels = [
        _panel(rows, style, "output_throughput_tok_s", "axes.throughput"),
        _panel(rows, style, "ttft_p50_ms", "axes.ttft"),
    ]
    if rows[list(QUEUE)].notna().any().any():
        panels.append(_queue(rows, style))
    table = id_of(analysis, "loads")
    return [Figure(f"{analysis.experiment}-caps", style.grid(panels), CAP, {}, table, analysis.experiment)]


def _panel(rows: pd.DataFrame, style: Style, column: str, title: str) -> Chart:
    x = style.x(CAP, "columns.max_num_seqs", log=True, values=list(rows[CAP].astype(float)))
    y = style.y(column, title, zero=True)
    labels = list(dict.fromkeys(rows["label"]))
    line = style.line(rows, x, y, "label", labels, f"{column}_low", f"{column}_high")
    layers = [line] if len(labels) < 2 else [line, style.end_labels(rows, x, y, "label", labels, 200)]
    return style.panel(*layers, height=200, width=style.panel_width(2))


def _queue(rows: pd.DataFrame, style: Style) -> Chart:
    """Running and waiting requests, of the first server if there are several."""
    first = rows[rows["label"] == rows["label"].iloc[0]]
    long = first.melt([CAP], list(QUEUE), "where", "requests").dropna(subset=["requests"])
    names: dict[object, str] = {name: style.words.get(f"columns.{name}", name) for name in QUEUE}
    x = style.x(CAP, "columns.max_num_seqs", log=True, values=list(first[CAP].astype(float)))
    y = style.y("requests", "axes.requests", zero=True)
    layers = [
        style.line(long, x, y, "where", QUEUE),
        style.end_labels(long, x, y, "where", QUEUE, 200, names),
    ]
    return style.panel(
        *layers, height=200, width=style.panel_width(2) - 60, title=str(first["label"].iloc[0])
    )
