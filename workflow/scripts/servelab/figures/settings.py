"""What the figures that compare settings share: a row's name from the settings that vary, dots with
intervals."""

from collections.abc import Mapping, Sequence

import altair as alt
import pandas as pd

from servelab.claims import Analysis
from servelab.figures.geometry import log_ticks
from servelab.figures.series import frame_of
from servelab.figures.style import Chart, Style


def measured(analysis: Analysis, template: str, column: str) -> pd.DataFrame:
    """A table's rows that have a value in this column; none if the analysis has no such table."""
    frame = frame_of(analysis, template)
    return frame.dropna(subset=[column]).reset_index(drop=True) if frame is not None else pd.DataFrame()


def named(rows: pd.DataFrame, columns: Sequence[str], words: Mapping[object, str] | None = None) -> list[str]:
    """A name for each row: the values of the columns, model and server only where they vary."""
    known = [
        name
        for name in ("model", "server", *columns)
        if name in rows and (name in columns or rows[name].nunique() > 1)
    ]
    texts = words or {}
    return [
        ", ".join(texts.get(row[name], _text(row[name])) for name in known if _text(row[name]))
        for row in rows.to_dict("records")
    ]


def dots(
    rows: pd.DataFrame, style: Style, column: str, title: str, log: bool = False, zero: bool = True
) -> Chart:
    """A row a setting (column `label`): a dot with its interval where it has one. title: the axis, a text
    id."""
    frame = rows.assign(**{name: rows.get(name) for name in (f"{column}_low", f"{column}_high")})
    for end in ("low", "high"):
        frame[f"{column}_{end}"] = pd.to_numeric(frame[f"{column}_{end}"]).fillna(frame[column])
    values = log_ticks(list(frame[column].astype(float))) if log else []
    x = style.x(column, title, log=log, zero=zero and not log, values=values)
    return style.forest(frame, "label", x, f"{column}_low", f"{column}_high")


def framed(rows: pd.DataFrame, x: alt.X, y: alt.Y, colour: str) -> Chart:
    """Cells of a heat map in a frame."""
    mark = alt.Chart(rows).mark_rect(filled=False, stroke=colour, strokeWidth=2)
    return mark.encode(x=x, y=y)


def _text(value: object) -> str:
    if value is None or (isinstance(value, float) and value != value):
        return ""
    return f"{value:g}" if isinstance(value, float) else str(value)
