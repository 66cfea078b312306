"""The report's words: one catalogue per language, texts/<language>/*.yaml, looked up by dotted id.

Every file of a language is merged into one tree (an id may stand in one file only). A text may hold fields,
`{value:spec}`; besides Python's own format specifications these are known:

    int    1,234          rounded to a whole number, thousands separated
    sig2   sig3  sig4     so many significant digits, thousands separated, no exponent
    pct0   pct1  pct2     a ratio as percent with so many decimals: 0.125:pct1 → 12.5 %; from 100 % on three significant
                          digits: 10.326:pct1 → 1,030 %
    x2                    a ratio with two decimals and ×: 1.37 ×

A negative number has a minus sign, not a hyphen. A value that is None or NaN is written as the language's
«not measured».
"""

import math
import numbers
import re
import string
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

import yaml

LANGUAGES = ("en", "ko")
# libyaml's where PyYAML has it: a language's texts in a tenth of the time.
_SAFE_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class _Formatter(string.Formatter):
    def __init__(self, missing: str) -> None:
        self.missing = missing

    def format_field(self, value: Any, format_spec: str) -> str:
        return number(value, format_spec, self.missing)


@dataclass(frozen=True)
class Catalogue:
    """All texts of one language. `text(id)` raises KeyError for an id that is not there."""

    language: str
    texts: Mapping[str, str]

    def text(self, key: str, values: Mapping[str, Any] | None = None) -> str:
        """The text with this id, its fields filled. Raises KeyError for a missing id or value."""
        if key not in self.texts:
            raise KeyError(f"no text «{key}» in texts/{self.language}/")
        formatter = _Formatter(self.texts.get("status.not_measured", "not measured"))
        return formatter.vformat(self.texts[key], (), dict(values or {}))

    def get(self, key: str, default: str = "", values: Mapping[str, Any] | None = None) -> str:
        """Like text, with a default where the id is not there (for optional texts)."""
        return self.text(key, values) if key in self.texts else default


@cache
def catalogue(language: str) -> Catalogue:
    """Load a language's texts. Raises ValueError for an unknown language or an id that stands in two files."""
    if language not in LANGUAGES:
        raise ValueError(f"report.language: {language!r} is not one of {', '.join(LANGUAGES)}")
    texts: dict[str, str] = {}
    folder = resources.files(__package__) / language
    for file in sorted(folder.iterdir(), key=lambda entry: entry.name):
        if not file.name.endswith(".yaml"):
            continue
        tree = yaml.load(file.read_text(encoding="utf-8"), _SAFE_LOADER)  # noqa: S506
        for key, value in _flatten("", tree or {}):
            if key in texts:
                raise ValueError(f"text «{key}» stands twice in texts/{language}/ (again in {file.name})")
            texts[key] = value
    return Catalogue(language, texts)


def number(value: Any, spec: str = "", missing: str = "not measured") -> str:
    """Write a value by one of the specifications above (or Python's)."""
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return missing
    text = _written(value, spec)
    if not isinstance(value, numbers.Real) or not text.startswith("-"):
        return text
    return text.replace("-", "−" if re.search(r"[1-9]", text) else "", 1)


def _written(value: Any, spec: str) -> str:
    if spec == "int":
        return f"{round(value):,}"
    if spec.startswith("sig") and spec[3:].isdigit():
        return significant(float(value), int(spec[3:]))
    if spec.startswith("pct") and spec[3:].isdigit():
        decimals = int(spec[3:])
        percent = round(100 * float(value), decimals)
        return f"{significant(percent, 3) if abs(percent) >= 100 else f'{percent:,.{decimals}f}'} %"
    if spec == "x2":
        return f"{value:,.2f} ×"
    return format(value, spec)


def significant(value: float, digits: int) -> str:
    """`digits` significant digits, thousands separated, never an exponent."""
    if value == 0 or not math.isfinite(value):
        return f"{value:g}"
    decimals = digits - 1 - math.floor(math.log10(abs(value)))
    rounded = round(value, decimals)
    return f"{rounded:,.{max(decimals, 0)}f}"


def _flatten(prefix: str, node: Any) -> list[tuple[str, str]]:
    if isinstance(node, Mapping):
        return [
            pair
            for key, item in node.items()
            for pair in _flatten(f"{prefix}.{key}" if prefix else str(key), item)
        ]
    if isinstance(node, list):
        return [pair for i, item in enumerate(node) for pair in _flatten(f"{prefix}.{i}", item)]
    return [(prefix, str(node).strip())]
