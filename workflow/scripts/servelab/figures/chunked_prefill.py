"""E7 drawn: the victim's longest gap against the chunk, the calculated time of a chunk as a dashed line."""

import pandas as pd

from servelab.claims import Analysis, Figure
from servelab.figures.series import id_of
from servelab.figures.settings import measured, named
from servelab.figures.style import Chart, Style

CALCULATED, MEASURED = "calculated", "measured"


def figures(analysis: Analysis, style: Style) -> list[Figure]:
    """A panel a model and server; none without a run."""
    rows = measured(analysis, "chunked_prefill", "itl_max_ms")
    if not len(rows):
        return []
    rows["label"] = named(rows, ())
    labels = list(dict.fromkeys(rows["label"]))
    panels = [_panel(rows[rows["label"] == label], style, label, len(labels)) for label in labels]
    chart = style.grid(panels) if len(panels) > 1 else panels[0]
    table = id_of(analysis, "chunked_prefill")
    return [Figure(f"{analysis.experiment}-gaps", chart, "chunked_prefill", {}, table, analysis.experiment)]


def _panel(rows: pd.DataFrame, style: Style, label: str, count: int) -> Chart:
    height = 260
    runs = rows.assign(kind=MEASURED, verdict="valid", gap_ms=rows["itl_max_ms"].astype(float))
    chunks = (
        rows.dropna(subset=["chunk_time_ms"])
        .groupby("chunk_tokens", as_index=False)["chunk_time_ms"]
        .median()
    )
    lines = chunks.assign(kind=CALCULATED, gap_ms=chunks["chunk_time_ms"].astype(float))
    settings = (MEASURED, CALCULATED)
    x = style.x("chunk_tokens", "tables.chunked_prefill.columns.chunk_tokens", zero=True,
                values=list(rows["chunk_tokens"].astype(float)))  # fmt: skip
    y = style.y("gap_ms", "axes.itl", zero=True)
    layers: list[Chart] = [style.points(runs, x, y, "kind", settings, tooltip=("repeat", "start"), size=50)]
    if len(lines):
        names: dict[object, str] = {
            CALCULATED: style.text("status.calculated"),
            MEASURED: style.text("status.measured"),
        }
        layers.insert(0, style.line(lines, x, y, "kind", settings, markers=False))
        ends = pd.concat([lines, runs[["chunk_tokens", "kind", "gap_ms"]]])
        layers.append(style.end_labels(ends, x, y, "kind", settings, height, names))
    width = 0 if count == 1 else style.panel_width(2) - 60
    return style.panel(*layers, height=height, width=width, title=label)
