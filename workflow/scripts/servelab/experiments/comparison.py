"""What experiments need to compare settings: groups of points, values with intervals, ratios, and why nothing is there.

A setting is a server option under test; a group of points with the same settings on the same servers is
compared with another one, the server start being the unit (see variance.py). Percentiles are of requests
pooled over a group's points, never averaged.
"""

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd

from servelab import pooled, stats, variance
from servelab.claims import NOT_MEASURED, Analysis, Finding
from servelab.experiments.base import StudyData
from servelab.option_names import underscored
from servelab.records import PointRecord

Settings = dict[str, Any]
DIFFERENT, SAME, UNKNOWN = "different", "same", "unknown"
MODEL, SERVER = "model", "server"


@dataclass(frozen=True)
class Level:
    """A group's value with its interval, None where there is none. points, starts: what it rests on."""

    value: float | None = None
    low: float | None = None
    high: float | None = None
    points: int = 0
    starts: int = 0

    def cells(self, column: str) -> dict[str, float | None]:
        """As columns of a table: the value, its low and high end."""
        return {column: self.value, f"{column}_low": self.low, f"{column}_high": self.high}


@dataclass(frozen=True)
class Comparison:
    """Another group over a base group. ratio: other ÷ base with its interval and what that rests on."""

    base: float
    other: float
    ratio: variance.Ratio

    @property
    def outcome(self) -> str:
        """different: the interval excludes 1. same: it does not. unknown: it covers no server starts."""
        return {True: DIFFERENT, False: SAME, None: UNKNOWN}[self.ratio.different]

    def values(self) -> dict[str, Any]:
        """Numbers for a finding's text; change is ratio - 1."""
        ratio = self.ratio
        return {
            "base": self.base,
            "other": self.other,
            "ratio": ratio.ratio,
            "change": ratio.ratio - 1,
            "low": ratio.low,
            "high": ratio.high,
            "visible": ratio.visible,
            "basis": ratio.basis,
        }

    def cells(self, column: str = "ratio") -> dict[str, float | None]:
        """As columns of a table."""
        return {column: self.ratio.ratio, f"{column}_low": self.ratio.low, f"{column}_high": self.ratio.high}


def experiment_rows(data: StudyData, name: str, tested: Sequence[str]) -> pd.DataFrame:
    """All points of an experiment, with a column `server` that names the other options that vary, None if none.

    tested: option names whose values are the settings under test.
    """
    rows = data.rows_of(name).copy()
    options = [json.loads(text) if isinstance(text, str) else {} for text in rows["options"]]
    plain = [underscored(one) for one in options]
    names = sorted({key for one in plain for key in one} - set(tested))
    varied = [key for key in names if len({json.dumps(one.get(key)) for one in plain}) > 1]
    rows[SERVER] = [" ".join(f"{key}={one.get(key)}" for key in varied) or None for one in plain]
    return rows


def groups(rows: pd.DataFrame, by: Sequence[str]) -> Iterator[tuple[Settings, pd.DataFrame]]:
    """Rows by equal values of the columns, in order of appearance; a missing value is a value (None)."""
    keys = [tuple(_plain(row[name]) for name in by) for row in each_row(rows)]
    for key in dict.fromkeys(keys):
        yield dict(zip(by, key, strict=True)), rows[[other == key for other in keys]]


def each_row(rows: pd.DataFrame) -> list[dict[str, Any]]:
    """The rows as mappings from column to value."""
    return [{str(key): value for key, value in row.items()} for row in rows.to_dict("records")]


def session_fact(record: PointRecord, fact: str) -> Any:  # noqa: ANN401
    """What a server said of itself while it started, None if it did not."""
    session = record.meta.session
    said = session.get("log") or {}
    return session.get(fact, said.get(fact))


def by_start(rows: pd.DataFrame, column: str) -> dict[object, list[float]]:
    """Values of a column by server start, missing ones left out."""
    found: dict[object, list[float]] = {}
    for session, value in zip(rows["session_id"], rows[column], strict=True):
        if not _missing(value):
            found.setdefault(session, []).append(float(value))
    return found


def level(rows: pd.DataFrame, column: str) -> Level:
    """Mean over server starts with a t-interval; on one start the mean over repeats and their t-interval.

    For rates, counts and times of whole points; not for percentiles.
    """
    values = by_start(rows, column)
    count = sum(len(each) for each in values.values())
    if not count:
        return Level()
    if len(values) > 1:
        return Level(*variance.mean_over_starts(values), points=count, starts=len(values))
    repeats = stats.mean_interval(next(iter(values.values())))
    if repeats is None:
        return Level(next(iter(values.values()))[0], points=1, starts=1)
    return Level(repeats.value, repeats.low, repeats.high, count, 1)


def percentile_level(values_ms: np.ndarray, q: float, rows: pd.DataFrame) -> Level:
    """A percentile of pooled requests with its order-statistic interval (None where there are too few)."""
    points, starts = len(rows), int(rows["session_id"].nunique())
    interval = stats.percentile_interval(values_ms, q)
    if interval is None:
        return Level(stats.percentile(values_ms, q), points=points, starts=starts)
    return Level(interval.value, interval.low, interval.high, points, starts)


def ttft_level(data: StudyData, rows: pd.DataFrame, q: float = 50) -> Level:
    """TTFT percentile in ms over all successful requests of the points."""
    if not len(rows):
        return Level()
    times = [times.ttft_s for _, times in pooled.points_times(data, rows)]
    return percentile_level(1000 * np.concatenate(times), q, rows)


def repeatability(data: StudyData, model: object, column: str) -> variance.Components | None:
    """Variance of a quantity within and between starts as the study's repeatability experiment has it.

    None from fewer than three starts: one degree of freedom makes every interval so wide that it says nothing.
    None for the time to ready: of those starts one found the compile cache empty and the others did not.
    """
    if column == "ready_s":
        return None
    rows = data.usable(data.rows[(data.rows["kind"] == "repeatability") & (data.rows[MODEL] == model)])
    for _, same in groups(rows, ("options", "workload")):
        values = {start: each for start, each in by_start(same, column).items() if min(each) > 0}
        if len(values) > 2:
            return variance.log_components(values)
    return None


def compare(data: StudyData, base: pd.DataFrame, other: pd.DataFrame, column: str) -> Comparison | None:
    """Ratio other ÷ base of a positive quantity; None where one side has no value above zero.

    By geometric means over starts; a start's percentile is that of all its requests together.
    """
    sides = [by_start(rows, column) for rows in (base, other)]
    if not all(sides) or any(value <= 0 for side in sides for each in side.values() for value in each):
        return None
    if len({*base["machine_id"].dropna(), *other["machine_id"].dropna()}) > 1:
        return None  # a difference between machines is none between settings
    known = repeatability(data, base[MODEL].iloc[0], column)
    of_starts = None
    if column in pooled.PERCENTILES:
        found = [pooled.of_starts(data, rows, column) for rows in (base, other)]
        if found[0] is None or found[1] is None:
            return None
        of_starts = (found[0], found[1])
    means = [variance.geometric_mean(side, of_starts and of_starts[i]) for i, side in enumerate(sides)]
    return Comparison(
        means[0], means[1], variance.ratio_interval(sides[0], sides[1], known, of_starts=of_starts)
    )


def against_first(
    rows: pd.DataFrame, within: Sequence[str], tested: str
) -> Iterator[tuple[Settings, Any, pd.DataFrame, Any, pd.DataFrame]]:
    """For each group by `within`: (group, first setting, its rows, another setting, its rows) of `tested`."""
    for group, same in groups(rows, within):
        settings = list(groups(same, (tested,)))
        for other, other_rows in settings[1:]:
            yield group, settings[0][0][tested], settings[0][1], other[tested], other_rows


def labelled(findings: Sequence[Finding]) -> list[Finding]:
    """Findings whose `model` names the server's varied options too: one sentence a server, told apart."""
    return [
        replace(found, values={**found.values, MODEL: f"{found.values[MODEL]} ({found.values[SERVER]})"})
        if found.values.get(SERVER) and MODEL in found.values
        else found
        for found in findings
    ]


def compared(
    template: str,
    comparison: Comparison,
    values: Mapping[str, Any],
    name: str,
    tables: tuple[str, ...],
    weight: int,
    group: str = "",
) -> Finding:
    """A comparison as a finding; its text goes by the outcome: <template>_different, _same or _unknown."""
    return Finding(
        f"{template}_{comparison.outcome}",
        {**comparison.values(), **values},
        experiment=name,
        tables=tables,
        weight=weight if comparison.outcome == DIFFERENT else weight // 2,
        group=group or template,
    )


def nothing(data: StudyData, kind: str, name: str, changes_server: bool = True) -> Analysis | None:
    """«Not measured» with its reason if an experiment has no point that can be used; None if it has one.

    changes_server: the experiment varies server options or starts, which an attached server does not allow.
    """
    rows = data.rows_of(name)
    if not len(rows):
        return not_measured(kind, name, "experiment_no_points")
    if changes_server and set(rows["boot"]) == {"attached"}:
        return not_measured(kind, name, "experiment_attached")
    if len(data.usable(rows)):
        return None
    failed = rows[rows["status"] != "ok"]
    if not len(failed):
        return not_measured(kind, name, "experiment_all_invalid", points=len(rows), reasons=_reasons(rows))
    cause, detail = Counter(zip(failed["cause"], failed["detail"], strict=True)).most_common(1)[0][0]
    reason = "experiment_not_supported" if cause == "not_supported" else "experiment_all_failed"
    return not_measured(kind, name, reason, points=len(rows), detail=_words(detail) or str(cause))


def not_measured(kind: str, name: str, reason: str, **values: object) -> Analysis:
    """An analysis that has nothing to say, and why."""
    return Analysis(kind, name, NOT_MEASURED, reason, values)


def failed_settings(
    rows: pd.DataFrame, name: str, describe: Callable[[Mapping[str, Any]], str]
) -> list[Finding]:
    """One finding for each setting of which no point succeeded, with the server's own words."""
    found: dict[str, Finding] = {}
    seen: dict[str, bool] = {}
    for row in each_row(rows):
        setting = describe(row)
        seen[setting] = seen.get(setting, False) or row["status"] == "ok"
        if row["status"] != "ok":
            values = {"setting": setting, "detail": _words(row["detail"]) or str(row["cause"])}
            found[setting] = Finding(
                "setting_not_measured", values, NOT_MEASURED, name, weight=15, group=setting
            )
    return [finding for setting, finding in found.items() if not seen[setting]]


def _reasons(rows: pd.DataFrame) -> str:
    names = [each["reason"] for text in rows["reasons"] if isinstance(text, str) for each in json.loads(text)]
    return ", ".join(dict.fromkeys(names))


def _words(detail: object) -> str:
    return "" if _missing(detail) else " ".join(str(detail).split())[:300]


def present(value: Any) -> Any:  # noqa: ANN401
    """The value of a cell as plain Python has it, None where it is missing."""
    return _plain(value)


def _missing(value: object) -> bool:
    return value is None or value is pd.NA or (isinstance(value, float) and value != value)


def _plain(value: object) -> object:
    if _missing(value):
        return None
    return value.item() if isinstance(value, np.generic) else value
