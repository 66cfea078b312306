"""Figures drawn: Altair charts → SVG in the reader's theme, files beside the report, Vega for JavaScript."""

import contextlib
import importlib.metadata
import json
import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import vl_convert

from servelab.claims import Analysis, Figure
from servelab.figures import palette
from servelab.figures.dressing import finished
from servelab.figures.style import Style
from servelab.records import write_atomically
from servelab.report.words import Words

Draw = Callable[[Analysis, Style], list[Figure]]


@dataclass
class FigureView:
    """A figure ready to be laid out: SVG for wide and narrow pages, the Vega specification of the wide one."""

    id: str
    number: int
    caption: str
    alt: str
    wide: str
    narrow: str
    vega: str
    table: str
    svg_file: str = ""
    png_file: str = ""

    @property
    def width_px(self) -> float:
        """Width of the wide drawing, px."""
        found = re.search(r'viewBox="0 0 ([\d.]+)', self.wide)
        return float(found.group(1)) if found else 0.0


def figure_views(
    analysis: Analysis, draw: Draw, words: Words, places: dict[str, int], number: int, folder: Path | None
) -> list[FigureView]:
    """Draw an analysis's figures, wide and narrow; with a folder, write <id>.svg and <id>.png there too.

    number: the first figure's number. places: see Style.
    """
    wide = draw(analysis, Style(words.language, narrow=False, places=places))
    narrow = {
        figure.id: figure for figure in draw(analysis, Style(words.language, narrow=True, places=places))
    }
    return [_view(figure, narrow[figure.id], words, number + i, folder) for i, figure in enumerate(wide)]


def _view(figure: Figure, narrow: Figure, words: Words, number: int, folder: Path | None) -> FigureView:
    spec = finished(figure.chart)
    svg = _svg(json.dumps(spec))
    view = FigureView(
        id=figure.id,
        number=number,
        caption=words(f"figures.{figure.template}.caption", figure.values),
        alt=words(f"figures.{figure.template}.alt", figure.values),
        wide=inline_svg(svg, f"{figure.id}-w"),
        narrow=inline_svg(_svg(json.dumps(finished(narrow.chart))), f"{figure.id}-n"),
        vega=palette.themed(json.dumps(_small(spec), separators=(",", ":"))),
        table=figure.table,
    )
    if folder is not None:
        paper = on_paper(svg)
        write_atomically(folder / f"{figure.id}.svg", paper.encode("utf-8"))
        write_atomically(folder / f"{figure.id}.png", vl_convert.svg_to_png(paper, scale=2))
        view.svg_file, view.png_file = f"{figure.id}.svg", f"{figure.id}.png"
    return view


@lru_cache(maxsize=64)
def _svg(spec: str) -> str:
    """A Vega-Lite specification drawn; the same one (an unchanged figure in another language) only once."""
    return str(vl_convert.vegalite_to_svg(spec))


def inline_svg(svg: str, name: str) -> str:
    """A drawing to stand inside the page: colours follow the theme, ids are its own, size follows the column."""
    svg = re.sub(r"<\?xml[^>]*\?>|<!DOCTYPE[^>]*>", "", svg)
    svg = re.sub(r'\b(id="|url\(#|href="#)', lambda m: f"{m.group(1)}{name}-", svg)
    size = re.search(r'<svg[^>]*?width="([\d.]+)"[^>]*?height="([\d.]+)"', svg)
    if size and "viewBox" not in svg.split(">", 1)[0]:
        svg = svg.replace("<svg", f'<svg viewBox="0 0 {size.group(1)} {size.group(2)}"', 1)
    # Coordinates to a hundredth; what the labels say stays as it is.
    svg = re.sub(r"<[^>]*>", lambda tag: re.sub(r"(\d+\.\d{2})\d+", r"\1", tag[0]), svg)
    svg = re.sub(r' (?:role|aria-[a-z]+|class|pointer-events|xml:space)="[^"]*"', "", svg)
    svg = re.sub(r'<path d="M0,0h0v0h0Z"/>', "", svg)
    return palette.themed(svg.replace("<svg", '<svg aria-hidden="true" focusable="false"', 1))


def on_paper(svg: str) -> str:
    """A drawing to stand alone: on white, so that it can be read anywhere."""
    head, rest = svg.split(">", 1)
    return f'{head}><rect width="100%" height="100%" fill="#ffffff"/>{rest}'


def _small(spec: dict[str, object]) -> dict[str, object]:
    return {key: value for key, value in spec.items() if key != "$schema"}


def javascript() -> str:
    """The Vega libraries as one script that asks for nothing from outside; it defines `vegaEmbed`.

    Bundling takes seconds, so the result is kept in the user's cache folder by vl-convert's version.
    """
    version = importlib.metadata.version("vl-convert-python")
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    kept = Path(home) / "servelab" / f"vega-bundle-{version}.js"
    try:
        return kept.read_text(encoding="utf-8")
    except OSError:
        script = str(vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;"))
    with contextlib.suppress(OSError):  # without a cache the next report bundles again, no more
        write_atomically(kept, script.encode("utf-8"))
    return script
