"""What the figures of a sweep share: its series (one server and one load shape each), names, tables by template."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import pandas as pd

from servelab.claims import Analysis
from servelab.figures.style import Style
from servelab.summary import without_bare_tails

SHAPE = ("model", "slug", "input_tokens", "output_tokens")
MOST_PANELS = 6


@dataclass(frozen=True)
class Series:
    """One server and one load shape of a sweep. key: its values of SHAPE; name: what tells it from the others."""

    key: Mapping[str, object]
    name: str
    points: pd.DataFrame
    varied: tuple[str, ...] = ()

    def title(self, style: Style) -> str:
        """What tells this series from the others in the reader's words: input 128, output 32."""
        named = {"input_tokens", "output_tokens"}
        parts = [
            f"{style.words.get(f'columns.{name}', name)} {self.key[name]:g}"
            if name in named
            else str(self.key[name])
            for name in self.varied
        ]
        return ", ".join(parts)

    def rows(self, table: pd.DataFrame | None) -> pd.DataFrame | None:
        """A table's rows of this series, by the columns of SHAPE that it has; None if there is none."""
        if table is None:
            return None
        rows = table
        for column, value in self.key.items():
            if column in rows and rows[column].notna().any():
                rows = rows[rows[column] == value]
        return rows if len(rows) else None


def frame_of(analysis: Analysis, template: str) -> pd.DataFrame | None:
    """A table's frame by template or id, None if the analysis has none."""
    for table in analysis.tables:
        if template in (table.template, table.id):
            return table.frame
    return None


def id_of(analysis: Analysis, template: str) -> str:
    """A table's id by template or id, "" if there is none."""
    return next((t.id for t in analysis.tables if template in (t.template, t.id)), "")


def series_of(points: pd.DataFrame, axis: str) -> list[Series]:
    """The series of a sweep, those with at least two values of `axis`, at most MOST_PANELS, the longest first."""
    measured = without_bare_tails(points[points[axis].notna() & points["status"].eq("ok")])
    names = [name for name in SHAPE if name in measured]
    varied = [name for name in names if measured[name].nunique(dropna=False) > 1]
    found = [
        Series(
            dict(zip(names, key, strict=True)),
            _name(dict(zip(names, key, strict=True)), varied),
            rows,
            tuple(varied),
        )
        for key, rows in _groups(measured, names)
        if rows[axis].nunique() > 1
    ]
    return sorted(found, key=lambda series: -len(series.points))[:MOST_PANELS]


def middle_points(rows: pd.DataFrame, by: Sequence[str], column: str) -> pd.DataFrame:
    """For each group the lower middle value: a value that was measured, not a mean of percentiles."""
    grouped: pd.DataFrame = rows.groupby(list(by), as_index=False)[[column]].quantile(
        0.5, interpolation="lower"
    )
    return grouped


def means_of(rows: pd.DataFrame, by: Sequence[str], column: str) -> pd.DataFrame:
    """For each group the mean of a rate or a count."""
    grouped: pd.DataFrame = rows.groupby(list(by), as_index=False)[[column]].mean()
    return grouped


def sound(rows: pd.DataFrame) -> pd.DataFrame:
    """Rows that are not invalid."""
    return rows[rows["verdict"] != "invalid"]


def _groups(rows: pd.DataFrame, names: Sequence[str]) -> Iterator[tuple[tuple[object, ...], pd.DataFrame]]:
    for key, same in rows.groupby(list(names), dropna=False, sort=True):
        yield (key if isinstance(key, tuple) else (key,)), same


def _name(key: Mapping[str, object], varied: Sequence[str]) -> str:
    return ", ".join(f"{key[name]:g}" if isinstance(key[name], float) else str(key[name]) for name in varied)
