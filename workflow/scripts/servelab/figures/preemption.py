"""E3 drawn: a heat map of preemptions, loads above the calculated boundary in a frame."""

import altair as alt
import pandas as pd

from servelab.claims import Analysis, Figure
from servelab.figures import palette
from servelab.figures.series import id_of
from servelab.figures.settings import framed, measured, named
from servelab.figures.style import Chart, Style


def figures(analysis: Analysis, style: Style) -> list[Figure]:
    """A map a model and server; none without a counter."""
    rows = measured(analysis, "preemption_map", "preemptions")
    if not len(rows):
        return []
    rows["label"] = named(rows, ())
    labels = list(dict.fromkeys(rows["label"]))
    panels = [_map(rows[rows["label"] == label], style, label, len(labels)) for label in labels]
    chart = style.grid(panels) if len(panels) > 1 else panels[0]
    table = id_of(analysis, "preemption_map")
    return [Figure(f"{analysis.experiment}-map", chart, "preemption", {}, table, analysis.experiment)]


def _map(rows: pd.DataFrame, style: Style, label: str, count: int) -> Chart:
    rows = rows.sort_values(["input_tokens", "output_tokens", "concurrency"])
    lengths = [f"{i:g} + {o:g}" for i, o in zip(rows["input_tokens"], rows["output_tokens"], strict=True)]
    rows = rows.assign(length=lengths, slots=[f"{c:g}" for c in rows["concurrency"]])
    lengths_title = f"{style.text('axes.input_tokens')} + {style.text('axes.output_tokens')}"
    titles = ("axes.concurrency", "")
    ordered = rows.assign(preemptions=rows["preemptions"].astype(float))
    slots = list(dict.fromkeys(ordered.sort_values("concurrency")["slots"]))
    ordered = ordered.sort_values("concurrency", kind="stable")
    layers = [style.heat(ordered, "slots", "length", "preemptions", titles)]
    above = ordered[ordered["demand_ratio"].astype(float) > 1]
    if len(above):
        x = alt.X(**style.category("slots", titles[0], slots))
        y = alt.Y(**style.category("length", titles[1], list(dict.fromkeys(ordered["length"]))))
        layers.append(framed(above[["slots", "length"]], x, y, palette.light("crimson")))
    width = 0 if count == 1 else style.panel_width(2)
    title = ": ".join(part for part in (label, lengths_title) if part)
    return style.panel(*layers, height=36 * rows["length"].nunique(), width=width, title=title)
