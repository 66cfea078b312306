"""A chart of layers → the Vega-Lite JSON that is drawn: fonts, colours, a light grid, titles out of the way."""

from typing import Any

from servelab.figures import palette

Chart = Any  # of Altair, whose own types tell the checker nothing
Layers = Any  # a chart, or a tuple of them
FONT = "Helvetica Neue, Helvetica, Arial, Liberation Sans, Apple SD Gothic Neo, Noto Sans CJK KR, sans-serif"
FONT_SIZE = 12


def config() -> dict[str, Any]:
    """Vega-Lite's `config` for every figure: fonts, colours, a light grid, no frame."""
    ink, muted, grid = (palette.light(token) for token in ("ink", "muted", "grid"))
    words = {"font": FONT, "fontSize": FONT_SIZE}
    sizes = {"labelFontSize": FONT_SIZE, "titleFontSize": FONT_SIZE}
    return {
        "background": None,
        "aria": False,
        "font": FONT,
        "padding": {"left": 2, "right": 4, "top": 4, "bottom": 2},
        "view": {"stroke": None},
        "axis": {
            **sizes, "labelColor": muted, "titleColor": ink, "titleFontWeight": "normal", "gridColor": grid,
            "gridWidth": 1, "domainColor": muted, "tickColor": muted, "tickSize": 4, "labelPadding": 4,
            "titlePadding": 8, "labelOverlap": "greedy",
        },
        "axisY": {"domain": False, "ticks": False},
        "axisX": {"grid": False},
        "title": {"color": ink, "fontSize": 13, "fontWeight": 600, "font": FONT},
        "text": {**words, "color": ink},
        "mark": {"color": palette.light("blue")},
        "header": {**sizes, "labelColor": ink, "titleColor": ink},
        "legend": {**sizes, "labelColor": ink, "titleColor": muted},
        "concat": {"spacing": 30},
    }  # fmt: skip


def leaves(layers: Layers) -> list[Chart]:
    """The single charts of layers of layers. Altair copies a chart each time it is layered: once is enough."""
    if isinstance(layers, (list, tuple)):
        return [leaf for layer in layers for leaf in leaves(layer)]
    return [layers]


def finished(chart: Chart) -> dict[str, Any]:
    """A chart as the Vega-Lite JSON that is drawn: with `config`, and axis titles above the rules' labels."""
    spec: dict[str, Any] = chart.to_dict(validate=False)
    _lift_titles(spec)
    return {**spec, "config": config()}


def _lift_titles(view: dict[str, Any]) -> None:
    for part in ("concat", "hconcat", "vconcat"):
        for panel in view.get(part, []):
            _lift_titles(panel)
    tops = [
        layer["encoding"]["y"]["value"]
        for layer in _leaves(view)
        if isinstance(layer.get("encoding", {}).get("y", {}).get("value"), (int, float))
    ]
    if not tops or min(tops) >= 0:
        return
    for layer in _leaves(view):
        axis = layer.get("encoding", {}).get("y", {}).get("axis")
        if axis and "titleY" in axis:
            axis["titleY"] = min(tops) - 9


def _leaves(view: dict[str, Any]) -> list[dict[str, Any]]:
    return [leaf for layer in view["layer"] for leaf in _leaves(layer)] if "layer" in view else [view]
