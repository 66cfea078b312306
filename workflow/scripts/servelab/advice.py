"""E12's parts that every setting shares: one setting's advice, whether points meet the objective, what they show."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pandas as pd

from servelab import stats
from servelab.config.schema import Objective
from servelab.experiments import comparison
from servelab.spec import Option

THROUGHPUT = "output_throughput_tok_s"


@dataclass(frozen=True)
class Advice:
    """One setting. value None: nothing supports one. template: text id of the sentence, values its numbers.

    points: paths of the points it rests on. met: whether the objective was met at it (None: not asked).
    """

    setting: str
    template: str
    value: Option = None
    values: Mapping[str, Any] = field(default_factory=dict)
    points: tuple[str, ...] = ()
    met: bool | None = None


def meets(rows: pd.DataFrame, objective: Objective) -> bool:
    """Whether every one of the points is within the objective's bounds; a missing value is not within them.

    Where the gaps are too few for a p99, all of them must be within its bound.
    """
    gaps = rows["itl_p99_ms"].astype(float).where(quotable(rows), rows["itl_max_ms"].astype(float))
    bounds = ((rows["ttft_p95_ms"].astype(float), objective.ttft_p95_ms), (gaps, objective.itl_p99_ms))
    return len(rows) > 0 and all(bool((values <= bound).all()) for values, bound in bounds if bound > 0)


def quotable(rows: pd.DataFrame) -> "pd.Series[bool]":
    """Which points have enough gaps for the interval of an ITL p99."""
    return pd.to_numeric(rows["itl_n"]).fillna(0) >= stats.requests_needed(99)


def bounded(objective: Objective) -> bool:
    """Whether the objective asks for anything."""
    return objective.ttft_p95_ms > 0 or objective.itl_p99_ms > 0


def points_of(*parts: pd.DataFrame) -> tuple[str, ...]:
    """Paths of these points, each once."""
    return tuple(dict.fromkeys(str(path) for part in parts for path in part["path"]))


def latency(rows: pd.DataFrame, prefix: str) -> dict[str, float | None]:
    """The worst of the points: their largest TTFT p95, ITL p99 and gap."""
    return {
        f"{prefix}_{name}": comparison.present(rows[column].astype(float).max())
        for name, column in (("ttft", "ttft_p95_ms"), ("itl", "itl_p99_ms"), ("gap", "itl_max_ms"))
    }
