"""How every figure is drawn: sizes, axes, raw points under summaries, intervals, rules labelled in place.

A kind's module composes the layers that `Style` makes and hands a chart over undressed; the report asks for
each figure twice (a wide and a narrow Style) and dresses it (dressing.py). In short:

    x = style.x("concurrency", "axes.concurrency", log=True, values=[1, 2, 4])
    y = style.y("output_throughput_tok_s", "axes.throughput")
    style.panel(style.band(summary, x, y, "low", "high"), style.line(summary, x, y), style.points(raw, x, y),
                style.rules(x, [Rule(12.5, "capacity 12.5")]), height=260)
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import altair
import pandas as pd

from servelab.figures import palette
from servelab.figures.dressing import FONT_SIZE, Layers, leaves
from servelab.figures.dressing import Chart as Chart
from servelab.figures.geometry import apart, log_ticks, thin, tidy
from servelab.texts import Catalogue, catalogue

WIDE, NARROW = 680, 340
STRIKE = "M-1,-1L1,1M-1,1L1,-1"

# Altair's own types are so wide that the checker learns nothing from them: axes are Any here.
alt: Any = altair
Channel = Any
alt.data_transformers.disable_max_rows()


@dataclass(frozen=True)
class Rule:
    """A line across a figure that says in place what it is: a capacity, a knee, a tolerance, a target.

    low, high: its interval, drawn as a band. token: its colour (palette.TOKENS). dash: solid lines are fitted
    or measured values, dashed ones calculated.
    """

    value: float
    label: str
    low: float | None = None
    high: float | None = None
    token: str = "ink"  # noqa: S105 - a colour's name
    dashed: bool = False


@dataclass
class Style:
    """One way of drawing: a language, and wide (desk, print) or narrow (phone).

    width: of the whole figure in pixels. The settings that were given a colour are remembered in `places`,
    shared by the styles of one report: the same setting has the same colour, shape and dash in every figure.
    """

    language: str = "en"
    narrow: bool = False
    places: dict[str, int] = field(default_factory=dict)
    texts: Catalogue | None = None

    @property
    def width(self) -> int:
        """Width of the figure, px, axis labels included."""
        return NARROW if self.narrow else WIDE

    @property
    def words(self) -> Catalogue:
        """The language's texts."""
        return self.texts or catalogue(self.language)

    def text(self, key: str, **values: object) -> str:
        """A text of the catalogue. Raises KeyError if it is not there."""
        return self.words.text(key, values)

    # --- settings -------------------------------------------------------------------------------------------

    def place_of(self, setting: object) -> int:
        """A setting's place in the palette: the usual one, or the next that no other one has."""
        name = str(setting)
        if name not in self.places:
            usual, taken = palette.usual_place(name), set(self.places.values())
            if usual is None:
                free = [place for place in range(len(palette.SERIES)) if place not in taken]
                usual = free[0] if free else len(self.places) % len(palette.SERIES)
            self.places[name] = usual
        return self.places[name]

    def token_of(self, setting: object) -> str:
        """A setting's colour as a token (palette.TOKENS)."""
        return palette.SERIES[self.place_of(setting)]

    def colour_of(self, setting: object) -> str:
        """A setting's colour, the same in every figure of a report."""
        return palette.light(self.token_of(setting))

    def colour(self, by: str, settings: Sequence[object]) -> Channel:
        """Encoding: the colour of each setting in column `by`, without a legend (label in place instead)."""
        scale = alt.Scale(domain=list(settings), range=[self.colour_of(setting) for setting in settings])
        return alt.Color(field=by, type="nominal", scale=scale, legend=None)

    def shape(self, by: str, settings: Sequence[object]) -> Channel:
        """Encoding: the marker of each setting in column `by`."""
        scale = alt.Scale(
            domain=list(settings), range=[palette.SHAPES[self.place_of(setting)] for setting in settings]
        )
        return alt.Shape(field=by, type="nominal", scale=scale, legend=None)

    def dash(self, by: str, settings: Sequence[object]) -> Channel:
        """Encoding: the dash of each setting in column `by`."""
        scale = alt.Scale(
            domain=list(settings), range=[palette.DASHES[self.place_of(setting)] for setting in settings]
        )
        return alt.StrokeDash(field=by, type="nominal", scale=scale, legend=None)

    # --- axes -----------------------------------------------------------------------------------------------

    def x(self, column: str, title: str, **options: Any) -> Channel:  # noqa: ANN401 - passed on
        """A quantitative x axis. `title`: a text id (axes.concurrency) or the words; options: `_axis`."""
        return alt.X(**self._axis(column, title, **options))

    def y(self, column: str, title: str, **options: Any) -> Channel:  # noqa: ANN401 - passed on
        """A quantitative y axis; options: `_axis`. Its title stands above it, read without turning."""
        return alt.Y(**self._axis(column, title, above=True, **options))

    def _axis(
        self,
        column: str,
        title: str,
        *,
        log: bool = False,
        zero: bool = False,
        values: Sequence[float] = (),
        domain: Sequence[float] | None = None,
        form: str = ",~r",
        above: bool = False,
    ) -> dict[str, Any]:
        """log: logarithmic scale. values: the data; x ticks stand there (thinned), log y ticks near them."""
        words = self.words.get(title, title)
        axis: dict[str, Any] = {"title": words, "format": form, "labelFlush": False}
        if len(values) > 0:
            known = sorted({float(v) for v in values if v > 0 or not log})
            axis["values"] = (
                log_ticks(known) if log and above else thin(known, log=log, most=6 if self.narrow else 10)
            )
        else:
            axis["tickCount"] = 4 if above or self.narrow else 7
        if above:
            axis |= {"titleAngle": 0, "titleAlign": "left", "titleAnchor": "end", "titleX": 0, "titleY": -14}
        scale: dict[str, Any] = {"nice": not log and domain is None and above}
        scale |= {"type": "log", "base": 10} if log else {"zero": zero}
        if domain is not None:
            scale["domain"] = list(domain)
        elif not above:
            scale["padding"] = 8
        return {
            "field": column,
            "type": "quantitative",
            "axis": alt.Axis(**axis),
            "scale": alt.Scale(**scale),
            "title": words,
        }

    def category(
        self, column: str, title: str = "", sort: Sequence[object] | None = None, **more: object
    ) -> dict[str, Any]:
        """Keywords for alt.X or alt.Y of a discrete axis: `alt.Y(**style.category("server", "Server"))`.

        more: further keywords of alt.Axis.
        """
        words = self.words.get(title, title) or None
        axis = alt.Axis(
            title=words,
            grid=False,
            ticks=False,
            domain=False,
            labelLimit=150 if self.narrow else 240,
            **more,
        )
        return {
            "field": column,
            "type": "nominal",
            "axis": axis,
            "sort": list(sort) if sort is not None else None,
        }

    # --- marks ----------------------------------------------------------------------------------------------

    def points(
        self,
        data: pd.DataFrame,
        x: Channel,
        y: Channel,
        by: str = "",
        settings: Sequence[object] = (),
        verdict: str = "verdict",
        tooltip: Sequence[str] = (),
        size: int = 28,
    ) -> Layers:
        """Raw points, one mark a row: filled if valid, hollow if suspect, struck through and grey if invalid.

        verdict: column with valid/suspect/invalid; without it all rows count as valid.
        """
        frame = tidy(data, [name_of(x), name_of(y), by, verdict, *tooltip])
        if verdict not in frame:
            frame[verdict] = "valid"
        settings = settings or (list(dict.fromkeys(frame[by])) if by else ())
        tips = [
            alt.Tooltip(field=name, title=name) for name in dict.fromkeys((name_of(x), name_of(y), *tooltip))
        ]
        marks: dict[str, Any] = {"x": x, "y": y, "tooltip": tips}
        if by:
            marks |= {"color": self.colour(by, settings), "shape": self.shape(by, settings)}
        base = alt.Chart(frame)
        plain = {} if by else {"color": self.colour_of(DEFAULT)}
        layers = [
            base.transform_filter(alt.FieldEqualPredicate(field=verdict, equal="valid"))
            .mark_point(filled=True, size=size, fillOpacity=0.55, **plain)
            .encode(**marks),
            base.transform_filter(alt.FieldEqualPredicate(field=verdict, equal="suspect"))
            .mark_point(filled=False, size=size, strokeWidth=1.4, **plain)
            .encode(**marks),
            base.transform_filter(alt.FieldEqualPredicate(field=verdict, equal="invalid"))
            .mark_point(
                shape=STRIKE, size=size * 2, stroke=palette.light("faint"), strokeWidth=1.6, filled=False
            )
            .encode(x=x, y=y, tooltip=tips),
        ]
        return tuple(layers)

    def line(
        self,
        data: pd.DataFrame,
        x: Channel,
        y: Channel,
        by: str = "",
        settings: Sequence[object] = (),
        low: str = "",
        high: str = "",
        markers: bool = True,
    ) -> Layers:
        """A summary: a line through the rows in order of x, a marker a row, interval bars `low` to `high`."""
        frame = tidy(data, [name_of(x), name_of(y), by, low, high])
        settings = settings or (list(dict.fromkeys(frame[by])) if by else ())
        colour = {"color": self.colour(by, settings)} if by else {}
        plain = {} if by else {"color": self.colour_of(DEFAULT)}
        base = alt.Chart(frame)
        dash = {"strokeDash": self.dash(by, settings)} if by else {}
        layers = [base.mark_line(strokeWidth=1.8, **plain).encode(x=x, y=y, **colour, **dash)]
        if low and high:
            layers.append(
                base.mark_rule(strokeWidth=1.6, **plain).encode(
                    x=x, y=moved(y, low), y2=alt.Y2(high), **colour
                )
            )
        if markers:
            shape = {"shape": self.shape(by, settings)} if by else {}
            layers.append(
                base.mark_point(filled=True, size=52, opacity=1, **plain).encode(x=x, y=y, **colour, **shape)
            )
        return tuple(layers)

    def band(
        self,
        data: pd.DataFrame,
        x: Channel,
        y: Channel,
        low: str,
        high: str,
        by: str = "",
        settings: Sequence[object] = (),
    ) -> Layers:
        """An interval as a band from column `low` to column `high` along x."""
        frame = tidy(data, [name_of(x), low, high, by])
        settings = settings or (list(dict.fromkeys(frame[by])) if by else ())
        colour = {"color": self.colour(by, settings)} if by else {}
        plain = {} if by else {"color": self.colour_of(DEFAULT)}
        return (
            alt.Chart(frame)
            .mark_area(fillOpacity=0.16, **plain)
            .encode(x=x, y=moved(y, low), y2=alt.Y2(high), **colour)
        )

    def rules(self, axis: Channel, rules: Sequence[Rule], height: int = 260) -> Layers:
        """Labelled lines: across x (label above the panel, a row each) or across y (label at the right)."""
        vertical = axis.__class__.__name__ == "X"
        column = name_of(axis)
        layers: list[Chart] = []
        for row, rule in enumerate(sorted(rules, key=lambda r: r.value)):
            colour = palette.light(rule.token)
            one = alt.Chart(pd.DataFrame({column: [rule.value], "label": [rule.label]}))
            if rule.low is not None and rule.high is not None:
                span = pd.DataFrame({column: [rule.low], "to": [rule.high]})
                ends = {"x": axis, "x2": alt.X2("to")} if vertical else {"y": axis, "y2": alt.Y2("to")}
                layers.append(alt.Chart(span).mark_rect(color=colour, fillOpacity=0.12).encode(**ends))
            dash = [5, 3] if rule.dashed else [1, 0]
            mark = one.mark_rule(color=colour, strokeWidth=1.3, strokeDash=dash)
            if vertical:
                top = -12 - 15 * (len(rules) - 1 - row)
                layers.append(mark.encode(x=axis, y=alt.value(top), y2=alt.value(height)))
                words = one.mark_text(color=colour, align="left", baseline="middle", dx=4, fontSize=FONT_SIZE)
                layers.append(words.encode(x=axis, y=alt.value(top + 1), text="label"))
            else:
                layers.append(mark.encode(y=axis))
                words = one.mark_text(
                    color=colour, align="right", baseline="bottom", dy=-3, fontSize=FONT_SIZE
                )
                layers.append(words.encode(y=axis, x=alt.value("width"), text="label"))
        return tuple(layers)

    def end_labels(
        self,
        data: pd.DataFrame,
        x: Channel,
        y: Channel,
        by: str,
        settings: Sequence[object] = (),
        height: int = 260,
        names: Mapping[object, str] | None = None,
    ) -> Layers:
        """Each line's name at its right end, in its colour, moved apart where two would overlap."""
        frame = tidy(data, [name_of(x), name_of(y), by]).dropna()
        settings = settings or list(dict.fromkeys(frame[by]))
        last = frame.sort_values(name_of(x)).groupby(by, sort=False, observed=True).tail(1).copy()
        scale = y["scale"].to_dict() if hasattr(y["scale"], "to_dict") else {}
        last["at"] = apart(
            list(last[name_of(y)]), list(frame[name_of(y)]), height, log=scale.get("type") == "log"
        )
        last["name"] = [(names or {}).get(setting, str(setting)) for setting in last[by]]
        return (
            alt.Chart(last)
            .mark_text(align="left", dx=8, fontSize=FONT_SIZE, baseline="middle")
            .encode(x=x, y=moved(y, "at"), text="name", color=self.colour(by, settings))
        )

    def heat(
        self, data: pd.DataFrame, x: str, y: str, value: str, titles: tuple[str, str], form: str = ",~r"
    ) -> Layers:
        """A heat map, its numbers in the cells; a missing cell stays empty. x, y: discrete columns."""
        frame = tidy(data, [x, y, value])
        top = float(frame[value].max()) if len(frame) else 1.0
        places = {
            "x": alt.X(**self.category(x, titles[0], list(dict.fromkeys(frame[x])), labelAngle=0)),
            "y": alt.Y(**self.category(y, titles[1], list(dict.fromkeys(frame[y])))),
        }
        base = alt.Chart(frame).encode(**places)
        colour = alt.Color(
            field=value,
            type="quantitative",
            legend=None,
            scale=alt.Scale(range=list(palette.HEAT), domain=[0, max(top, 1e-9)], interpolate="lab"),
        )
        writing = alt.condition(
            alt.FieldGTPredicate(field=value, gt=top * 0.5),
            alt.value(palette.ON_DARK),
            alt.value(palette.ON_LIGHT),
        )
        written = base.mark_text(fontSize=FONT_SIZE).encode(
            text=alt.Text(field=value, type="quantitative", format=form), color=writing
        )
        return (base.mark_rect().encode(color=colour), written)

    def forest(
        self,
        data: pd.DataFrame,
        label: str,
        x: Channel,
        low: str,
        high: str,
        verdict: str = "verdict",
        row_px: int = 26,
    ) -> Layers:
        """A row a comparison: a dot with its interval along x. Add `style.rules(x, [Rule(1, "same")])`."""
        frame = tidy(data, [label, name_of(x), low, high, verdict])
        rows = alt.Y(**self.category(label, "", list(dict.fromkeys(frame[label]))))
        base = alt.Chart(frame, height=row_px * max(frame[label].nunique(), 1))
        colour = self.colour_of(DEFAULT)
        bars = base.mark_rule(color=colour, strokeWidth=1.8).encode(y=rows, x=moved(x, low), x2=alt.X2(high))
        dots = base.mark_point(filled=True, color=colour, size=60, opacity=1).encode(y=rows, x=x)
        return (bars, dots)

    def panel(self, *layers: Layers, height: int = 260, width: int = 0, title: str = "") -> Chart:
        """Layers in one frame of the figure's width; `title` says what this panel of several shows."""
        options: dict[str, Any] = {
            "height": height,
            "width": width or self.width - (60 if self.narrow else 130),
        }
        if title:
            options["title"] = alt.TitleParams(title, anchor="start", offset=20)
        return alt.layer(*leaves(layers), **options)

    def panel_width(self, columns: int) -> int:
        """Width of a panel when `columns` stand side by side (a narrow figure always has one)."""
        columns = 1 if self.narrow else columns
        return (self.width - 70 * columns) // columns

    def grid(self, panels: Sequence[Any], columns: int = 2) -> Chart:
        """Small multiples: panels in rows of `columns`, one below the other on a phone."""
        own = dict.fromkeys(("color", "shape", "strokeDash"), "independent")
        return alt.ConcatChart(
            concat=list(panels),
            columns=1 if self.narrow else columns,
            spacing={"row": 34, "column": 30},
            resolve=alt.Resolve(scale=own),
        )


DEFAULT = "default"


def name_of(channel: Channel) -> str:
    """The column that an axis of Style.x or Style.y shows."""
    return str(channel["field"])


def moved(channel: Channel, column: str) -> Channel:
    """The same axis for another column (interval ends share the axis of their value)."""
    other = channel.copy()
    other["field"] = column
    return other
