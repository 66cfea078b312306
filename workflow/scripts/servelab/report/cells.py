"""A table as the report shows it: one cell a value with its interval, units and statuses in the head."""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import pandas as pd

from servelab.claims import CALCULATED, Table
from servelab.report.words import Words
from servelab.texts import significant

SHOWN_ROWS = 28
_NAMES = ("model", "slug", "server", "experiment")
TRANSLATED = {
    "status": "status",
    "verdict": "verdict",
    "boot": "boot",
    "cause": "causes",
    "reason": "reasons",
    "phase": "phases",
    "request": "request_kinds",
    "metric": "columns",
    "quantity": "columns",
    "outcome": "outcomes",
    "seen": "compare.seen_words",
    "basis": "compare.basis",
}


@dataclass(frozen=True)
class Cell:
    """text: the value; interval: «low–high» or empty; missing: shown as «not measured»."""

    text: str
    interval: str = ""
    missing: bool = False
    title: str = ""


@dataclass(frozen=True)
class Head:
    """A column's head. status: set apart only where it is «calculated» (the note says the rest is measured)."""

    name: str
    unit: str = ""
    calculated: bool = False
    numeric: bool = False


@dataclass
class TableView:
    """A table ready to be laid out.

    left_out: number of columns that only the CSV has (texts: tables.<template>.shown names those of the page).
    constant: (column, value) that is the same in every row; empty: columns without any value. Both are said
    below the table and not shown as columns.
    """

    id: str
    number: int
    title: str
    note: str
    heads: list[Head]
    rows: list[list[Cell]]
    constant: list[tuple[str, str]] = field(default_factory=list)
    empty: list[str] = field(default_factory=list)
    left_out: int = 0
    folded: bool = False
    struck: list[bool] = field(default_factory=list)
    csv: str = ""
    csv_data: str = ""
    experiment: str = ""

    @property
    def long(self) -> bool:
        """Whether the table is folded away at first."""
        return self.folded or len(self.rows) > SHOWN_ROWS

    @property
    def constant_text(self) -> str:
        """What is the same in every row, as one line."""
        return ", ".join(f"{name} {value}" for name, value in self.constant)

    @property
    def has_units(self) -> bool:
        """Whether any head has a second line."""
        return any(head.unit or head.calculated for head in self.heads)

    @property
    def has_calculated(self) -> bool:
        """Whether any shown column is calculated."""
        return any(head.calculated for head in self.heads)


def table_view(table: Table, words: Words, number: int) -> TableView:
    """Lay a table out in a language."""
    template = table.template or table.id
    frame = table.frame
    hidden = {
        f"{name}{end}" for name in frame.columns for end in ("_low", "_high") if f"{name}{end}" in frame
    }
    names = [str(name) for name in frame.columns if name not in hidden]
    identities = [name for name in names if name not in table.columns]
    chosen = words.optional(f"tables.{template}.shown").split()
    left_out = len([name for name in names if chosen and name not in chosen])
    names = [name for name in chosen if name in names] if chosen else names
    identities = [name for name in identities if name in names]
    constant, empty = [], []
    for name in list(names):
        shown = [_missing(value) for value in frame[name]]
        if name not in identities and len(frame) and all(shown):
            empty.append(column_name(template, name, words))
            names.remove(name)
        elif name in identities and len(frame) and all(shown):
            names.remove(name)
        elif _is_fact(table, name, len(frame)) and frame[name].nunique(dropna=False) == 1:
            unit = table.columns.get(name, ("", ""))[0]
            value = _value(frame[name].iloc[0], name, unit, words, figure_digits([], unit))
            constant.append(
                (column_name(template, name, words), f"{value} {unit if unit != '1' else ''}".strip())
            )
            names.remove(name)
    if not names:
        names, constant = identities, []
    heads = [_head(table, template, name, words) for name in names]
    columns = [_cells(table, name, words) for name in names]
    return TableView(
        id=table.id,
        number=number,
        title=words(f"tables.{template}.title"),
        note=words.optional(f"tables.{template}.note"),
        heads=heads,
        rows=[list(row) for row in zip(*columns, strict=True)],
        constant=constant,
        empty=empty,
        left_out=left_out,
        folded=words.has(f"tables.{template}.folded"),
        struck=[value == "invalid" for value in frame["verdict"]]
        if "verdict" in frame
        else [False] * len(frame),
        experiment=table.experiment,
    )


def _is_fact(table: Table, name: str, rows: int) -> bool:
    """Whether a column holds settings or calculated values: if all are the same, one mention is enough.

    Of a single row only long names are taken out; its numbers are what it is there for.
    """
    if rows < 2:
        return rows == 1 and name in _NAMES and len(table.frame.columns) > 4
    return name not in table.columns or table.columns[name][1] == CALCULATED


def column_name(template: str, column: str, words: Words) -> str:
    """A column's name: the table's own text, the common one, or the column's name as it is."""
    for key in (f"tables.{template}.columns.{column}", f"columns.{column}"):
        if words.has(key):
            return words(key)
    return column.replace("_", " ")


def figure_digits(values: Sequence[object], unit: str) -> int:
    """How many significant digits a column is written with: 3, more where its values lie close together."""
    numbers = [abs(float(v)) for v in values if isinstance(v, (int, float)) and math.isfinite(v) and v != 0]
    if unit == "bytes" or (unit == "tokens" and all(number.is_integer() for number in numbers)):
        return 6
    if len(numbers) < 2 or min(numbers) == max(numbers):
        return 3
    apart = (max(numbers) - min(numbers)) / max(numbers)
    return 5 if apart < 0.005 else 4 if apart < 0.05 else 3


def _head(table: Table, template: str, name: str, words: Words) -> Head:
    unit, status = table.columns.get(name, ("", ""))
    number = pd.api.types.is_numeric_dtype(table.frame[name]) and table.frame[name].dtype != bool
    numeric = number and name in table.columns  # settings stand at the left like names
    shown = words.optional(f"units.{unit}", unit) if unit not in ("", "1") else ""
    return Head(column_name(template, name, words), shown, status == CALCULATED, bool(numeric))


def _cells(table: Table, name: str, words: Words) -> list[Cell]:
    frame = table.frame
    unit = table.columns.get(name, ("", ""))[0]
    digits = figure_digits(list(frame[name]), unit)
    bounds = [frame.get(f"{name}{end}") for end in ("_low", "_high")]
    out = []
    for i, value in enumerate(frame[name]):
        if _missing(value):
            identity = name not in table.columns
            out.append(Cell("–" if identity else words("status.not_measured"), missing=not identity))
            continue
        low, high = (None if end is None else end.iloc[i] for end in bounds)
        ends = ["" if _missing(end) else figure(end, unit, digits) for end in (low, high)]
        interval = (
            f"{ends[0]}–{ends[1]}"
            if all(ends)
            else f"≥ {ends[0]}"
            if ends[0]
            else f"≤ {ends[1]}"
            if ends[1]
            else ""
        )
        out.append(Cell(_value(value, name, unit, words, digits), interval))
    return out


def _value(value: object, name: str, unit: str, words: Words, digits: int = 4) -> str:
    if _missing(value):
        return "–"
    if isinstance(value, str):
        group = TRANSLATED.get(name)
        return words.optional(f"{group}.{value}", value) if group else shortened(_list_text(value))
    if isinstance(value, bool) or type(value).__name__ == "bool":
        return words("yes") if value else words("no")
    return figure(value, unit, digits)


def _list_text(value: str) -> str:
    """JSON lists of plain values are shown without brackets; any other text as it is."""
    if value.startswith("[") and value.endswith("]"):
        try:
            items = json.loads(value)
        except ValueError:
            return value
        if isinstance(items, list) and all(isinstance(item, (str, int, float)) for item in items):
            return " ".join(figure(item, "", 4) if not isinstance(item, str) else item for item in items)
    return value


def shortened(text: str, most: int = 240) -> str:
    """A long text cut at a word, with an ellipsis: the CSV has it whole."""
    return text if len(text) <= most else text[:most].rsplit(" ", 1)[0] + " …"


def figure(value: object, unit: str, digits: int = 4) -> str:
    """A number for people: whole numbers whole, others with so many significant digits."""
    number = float(value)  # type: ignore[arg-type]
    if math.isinf(number):
        return "∞" if number > 0 else "−∞"
    if number.is_integer() and abs(number) < 1e15:
        text = f"{int(number):,}"
    else:
        whole = len(str(int(abs(number))))
        digits = max(digits, whole if abs(number) >= 1 else 0)
        text = significant(float(f"{number:.{digits}g}"), digits)
    return text.replace("-", "−")


def _missing(value: object) -> bool:
    return (
        value is None or value is pd.NA or value is pd.NaT or (isinstance(value, float) and math.isnan(value))
    )
