"""What an analysis hands to the report: tables, findings, figures. No text in any language, only ids and values.

An experiment's module makes an `Analysis`; the report looks texts up by id in texts/<language>/ and draws.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pandas as pd

MEASURED = "measured"
CALCULATED = "calculated"
NOT_MEASURED = "not_measured"
STATUSES = (MEASURED, CALCULATED, NOT_MEASURED)


@dataclass(frozen=True)
class Finding:
    """One sentence with its numbers: `texts: findings.<template>` filled with `values`.

    experiment: name in the config ("" for the whole study). status: one of STATUSES. tables: ids it rests on.
    weight: 0 to 100, how much it matters to a reader; the abstract takes the heaviest three of different groups.
    group: findings of one group say the same thing of different settings (abstract takes one).
    stance: what it means for the notes' conclusion: "supports", "contradicts", "cannot_tell" or "".
    """

    template: str
    values: Mapping[str, Any]
    status: str = MEASURED
    experiment: str = ""
    tables: tuple[str, ...] = ()
    weight: int = 10
    group: str = ""
    stance: str = ""


@dataclass(frozen=True)
class Table:
    """A table of the report: `frame` with plain columns; `columns` says what each is.

    id: file name and text id (`texts: tables.<template or id>`). columns: name → (unit, status); a column not
    named there is an identity column (a setting, a name). A cell that is missing is shown as «not measured».
    A column `<x>_low`/`<x>_high` is shown with `<x>` as its interval.
    """

    id: str
    frame: pd.DataFrame
    columns: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    experiment: str = ""
    template: str = ""


@dataclass
class Analysis:
    """What one experiment (or the study as a whole) yields. `status`/`reason` say if it was measured at all.

    reason: text id under `reasons.` with its values, for «not measured» (engine cannot, option absent, all failed).
    """

    kind: str
    experiment: str = ""
    status: str = MEASURED
    reason: str = ""
    reason_values: Mapping[str, Any] = field(default_factory=dict)
    tables: list[Table] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)


@dataclass(frozen=True)
class Figure:
    """A figure: an Altair chart and the ids of its texts.

    id: file name; texts `figures.<template>.caption` and `.alt` are filled with `values`. table: id of the table
    that holds the drawn numbers (its CSV is offered beside the figure).
    """

    id: str
    chart: Any
    template: str
    values: Mapping[str, Any] = field(default_factory=dict)
    table: str = ""
    experiment: str = ""
