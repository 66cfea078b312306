"""One way to write a value down: equal values give equal text, and a default added later changes nothing."""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from servelab.canonical import canonical_json, digest, path_number, plain

json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**60), 2**60)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)


@dataclass
class Inner:
    size: int = 4
    on: bool = False


@dataclass
class Outer:
    name: str
    number: float = 1.0
    inner: Inner = field(default_factory=Inner)
    items: list[int] = field(default_factory=list)


@given(json_values)
def test_reading_back_and_writing_again_gives_the_same_text(value: Any) -> None:
    """Canonical JSON is a fixed point: what was written once is written so for ever."""
    text = canonical_json(value)
    assert canonical_json(json.loads(text)) == text


@given(st.dictionaries(st.text(max_size=6), st.integers(), max_size=6))
def test_order_of_keys_says_nothing(value: dict[str, int]) -> None:
    """Two mappings with the same items have the same digest."""
    assert digest(dict(reversed(value.items()))) == digest(value)


def test_numbers_that_are_equal_are_written_the_same() -> None:
    """1 and 1.0 are one number; true is not 1, and a text is not a number."""
    assert canonical_json({"a": 1.0, "b": 1}) == '{"a":1,"b":1}'
    assert len({canonical_json(value) for value in (1, True, "1", [1])}) == 4


def test_fields_at_their_default_are_left_out() -> None:
    """A dataclass loses what holds its default, at every depth; a bool that equals a number does not count as it."""
    assert plain(Outer("x")) == {"name": "x"}
    assert plain(Outer("x", inner=Inner(on=True), items=[1])) == {
        "name": "x",
        "inner": {"on": True},
        "items": [1],
    }
    assert plain(Inner(on=0)) == {"on": 0}  # type: ignore[arg-type]


@pytest.mark.parametrize("value", [{1, 2}, Path("/x"), object(), {"a": b"bytes"}])
def test_value_without_a_canonical_form_is_refused(value: Any) -> None:
    """A set, a path or bytes raise TypeError instead of becoming some text."""
    with pytest.raises(TypeError, match="has no canonical form"):
        canonical_json(value)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_number_that_json_does_not_have_is_refused(value: float) -> None:
    """NaN and infinity raise ValueError."""
    with pytest.raises(ValueError, match="not JSON compliant"):
        canonical_json(value)


@pytest.mark.parametrize(
    ("value", "text"),
    [(1, "1"), (1.0, "1"), (0.5, "0.5"), (2048, "2048"), (1e-3, "0.001"), (1e9, "1000000000")],
)
def test_number_in_a_file_name(value: float, text: str) -> None:
    """File names hold plain decimals: no exponent, no trailing zero, and 1 and 1.0 are one path."""
    assert path_number(value) == text
