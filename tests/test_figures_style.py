"""The style of figures: colours that can be read and told apart, labels that do not collide, small drawings."""

import itertools
import json
import math

import pandas as pd
import pytest
import vl_convert
from hypothesis import given
from hypothesis import strategies as st

from servelab.figures import palette
from servelab.figures.dressing import finished
from servelab.figures.geometry import apart, log_ticks, thin, tidy
from servelab.figures.style import Rule, Style
from servelab.report import drawing


def luminance(colour: str) -> float:
    """Relative luminance (WCAG 2.2, definition)."""
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(a: str, b: str) -> float:
    bright, dark = sorted((luminance(a), luminance(b)), reverse=True)
    return (bright + 0.05) / (dark + 0.05)


@pytest.mark.parametrize("theme", [0, 1])
@pytest.mark.parametrize("token", ["ink", "muted", *palette.SERIES])
def test_colours_can_be_read_as_words(token: str, theme: int) -> None:
    """Every colour that writes has a contrast of 4.5 to its paper, in light and dark (WCAG AA)."""
    assert contrast(palette.TOKENS[token][theme], palette.TOKENS["paper"][theme]) >= 4.5


def test_light_colours_are_unique() -> None:
    """The theme is recognised by its colours, so no two tokens share one."""
    lights = [light for light, _ in palette.TOKENS.values()]
    assert len(set(lights)) == len(lights)


def test_a_setting_has_one_colour_everywhere() -> None:
    """The same setting has the same colour in every figure of a report; others have others while there are enough."""
    places: dict[str, int] = {}
    first, second = Style("en", places=places), Style("en", narrow=True, places=places)
    colours = [first.colour_of(f"setting {i}") for i in range(len(palette.SERIES))]
    assert len(set(colours)) == len(palette.SERIES)
    assert [second.colour_of(f"setting {i}") for i in range(len(palette.SERIES))] == colours
    assert Style("en").colour_of("fp8") == Style("ko").colour_of("fp8")


def test_series_differ_by_more_than_colour() -> None:
    """Each place of the palette has its own shape and its own dash."""
    assert len(set(palette.SHAPES)) == len(palette.SERIES)
    assert len({tuple(dash) for dash in palette.DASHES}) == len(palette.SERIES)


@given(st.lists(st.floats(1, 1e4), min_size=1, max_size=6), st.booleans())
def test_labels_stand_apart(ends: list[float], log: bool) -> None:
    """End labels keep their order and at least the gap between them."""
    values = [1.0, 1e4]
    placed = apart(ends, values, 260, log=log)
    scale = math.log if log else float
    span = scale(1e4) - scale(1.0)
    pixels = sorted(260 * scale(place) / span if place > 0 or not log else 0.0 for place in placed)
    assert all(b - a >= 14.9 for a, b in itertools.pairwise(pixels))


def test_ticks_are_few_and_where_the_data_are() -> None:
    """Thinned ticks keep first and last; logarithmic ones are round and lie over the data."""
    assert thin([1, 2, 4, 8, 12, 16, 24, 32, 48, 64], log=True, most=6) == [1, 2, 4, 8, 16, 32, 64]
    assert thin([5], log=False, most=6) == [5]
    assert log_ticks([180, 1500]) == [200, 300, 500, 700, 1000, 1500]
    assert log_ticks([95, 130]) == [100, 110, 120, 130]
    assert log_ticks([]) == []
    assert len(log_ticks([0.01, 1e9])) <= 8


def test_only_what_is_drawn_is_kept() -> None:
    """A figure's data hold no other column and no digit that nobody can see."""
    frame = tidy(pd.DataFrame({"x": [1.23456789], "secret": ["s"]}), ["x", "absent", ""])
    assert list(frame.columns) == ["x"]
    assert frame["x"].iloc[0] == 1.23457


def chart(style: Style) -> dict:
    raw = pd.DataFrame(
        {"c": [1.0, 2.0, 4.0], "v": [1.0, 2.0, 3.0], "verdict": ["valid", "suspect", "invalid"]}
    )
    x, y = (
        style.x("c", "axes.concurrency", log=True, values=[1, 2, 4]),
        style.y("v", "axes.throughput", zero=True),
    )
    rules = [Rule(2.0, "first", 1.5, 2.5, "crimson"), Rule(2.1, "second", dashed=True)]
    return finished(style.panel(style.line(raw, x, y), style.points(raw, x, y), style.rules(x, rules)))


def test_labels_keep_their_digits() -> None:
    """Coordinates are cut to a hundredth, what stands between the tags is not."""
    svg = '<svg width="10" height="10"><text x="1.23456">14.5882</text></svg>'
    drawn = drawing.inline_svg(svg, "a")
    assert ">14.5882<" in drawn and 'x="1.23"' in drawn


def test_a_drawing_follows_the_theme() -> None:
    """Every colour of a drawing is a token: as CSS variables none of the light colours is left."""
    svg = palette.themed(vl_convert.vegalite_to_svg(chart(Style("en"))))
    assert "var(--crimson)" in svg
    assert not any(light in svg for light, _ in palette.TOKENS.values())


def test_rules_are_labelled_in_rows_below_the_axis_title() -> None:
    """Two rules close to each other have their labels in rows of their own, and the axis title stands above them."""
    spec = chart(Style("en"))
    text = json.dumps(spec)
    written = [layer["encoding"] for layer in _leaves(spec) if layer["mark"]["type"] == "text"]
    rows = sorted({each["y"]["value"] for each in written if "value" in each.get("y", {})})
    assert len(rows) == 2
    titles = {layer["encoding"]["y"]["axis"]["titleY"] for layer in _leaves(spec)
              if layer.get("encoding", {}).get("y", {}).get("axis")}  # fmt: skip
    assert max(titles) < min(rows)
    assert "first" in text
    assert "second" in text


def _leaves(view: dict) -> list[dict]:
    return [leaf for layer in view["layer"] for leaf in _leaves(layer)] if "layer" in view else [view]


def test_invalid_points_are_drawn_and_struck() -> None:
    """An invalid point stays visible, with a mark of its own."""
    marks = [layer["mark"] for layer in _leaves(chart(Style("en"))) if layer["mark"]["type"] == "point"]
    assert any(str(mark.get("shape", "")).startswith("M") for mark in marks)
    assert any(mark.get("filled") is False and "strokeWidth" in mark for mark in marks)
