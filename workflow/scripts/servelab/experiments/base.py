"""What the experiments' modules share: the plan they return and the data they analyse."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import pandas as pd

from servelab.config.schema import Study
from servelab.records import PointRecord
from servelab.spec import Option, Workload


@dataclass(frozen=True)
class ServerPlan:
    """Workloads to measure on servers with these options (on top of the study's and the experiment's).

    workloads: (point name without repeat, workload) in the order of measuring. boot: see ServerStart.
    starts: overrides the experiment's `starts` if above 0.
    """

    workloads: tuple[tuple[str, Workload], ...]
    options: Mapping[str, Option] = field(default_factory=dict)
    boot: str = "any"
    starts: int = 0


@dataclass(frozen=True)
class StudyData:
    """A study's points as an analysis sees them.

    rows: one a point, summary.COLUMNS, verdicts included; failed and invalid points too.
    load: from a row (a mapping with `path`) to the whole record, for chunk-level questions.
    model_cards: model name → model_card.ModelCard (or None where no config.json is known).
    """

    study: Study
    rows: pd.DataFrame
    load: Callable[[Mapping[str, Any]], PointRecord]
    model_cards: Mapping[str, Any] = field(default_factory=dict)

    def rows_of(self, experiment: str) -> pd.DataFrame:
        """All rows of one experiment, in order of session and measuring."""
        return self.rows[self.rows["experiment"] == experiment]

    @staticmethod
    def usable(rows: pd.DataFrame) -> pd.DataFrame:
        """Rows that may enter a fit or a comparison: measured and not invalid."""
        return rows[(rows["status"] == "ok") & (rows["verdict"] != "invalid")]

    @staticmethod
    def options(row: Mapping[str, Any]) -> dict[str, Any]:
        """A row's server options as they were given."""
        value = json.loads(row["options"])
        assert isinstance(value, dict)
        return value
