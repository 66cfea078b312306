"""Percentiles over the requests, or gaps, of several points together.

A percentile is never averaged over points or repeats. Where settings or studies are compared by one, a server
start's is that of all its requests, and the start is the unit of the comparison (variance.py).
"""

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd

from servelab import stats
from servelab.experiments.base import StudyData
from servelab.records import PointRecord
from servelab.request_times import RequestTimes, request_times

LOAD = ("kind", "model", "options", "workload")  # what two points of one load have in common
# Column of the points table → what it is a percentile of, and which.
PERCENTILES: Mapping[str, tuple[str, int]] = {
    f"{metric}_p{q}_ms": (metric, q) for metric, q in (("ttft", 50), ("ttft", 95), ("itl", 50), ("itl", 99))
}


def points_times(
    data: StudyData, rows: pd.DataFrame, roles: tuple[str, ...] = ("measured",)
) -> list[tuple[PointRecord, RequestTimes]]:
    """Each point's record with the times of its successful requests of these roles."""
    records = [data.load({"path": path}) for path in rows["path"]]
    return [
        (record, request_times(record.requests, roles, record.meta.spec["workload"].get("kind") == "open"))
        for record in records
    ]


def percentile(times: Sequence[RequestTimes], column: str) -> float | None:
    """A column of PERCENTILES over all requests (gaps) of the points together, in ms.

    None without a value, and for p99 where they are too few for its interval (stats.requests_needed).
    """
    metric, q = PERCENTILES[column]
    parts = [one.ttft_s if metric == "ttft" else one.gaps_s for one in times]
    values = np.concatenate(parts) if parts else np.empty(0)
    if q >= 99 and values.size < stats.requests_needed(q):
        return None
    found = stats.percentile(values, q)
    return None if found is None else 1000 * found


def of_starts(data: StudyData, rows: pd.DataFrame, column: str) -> dict[object, float] | None:
    """A column of PERCENTILES for each server start, over all its requests; None if one start has none."""
    found: dict[object, float] = {}
    for session, same in rows.groupby("session_id", sort=False):
        value = percentile([times for _, times in points_times(data, same)], column)
        if value is None:
            return None
        found[session] = value
    return found


def loads(data: StudyData) -> pd.DataFrame:
    """One row for each server start of each load that two studies can be compared by: percentiles of its usable points.

    Columns: LOAD, session_id, points (how many), and those of PERCENTILES in ms, NaN where there is none.
    """
    rows = data.usable(data.rows)
    rows = rows[rows["workload_kind"].isin(["closed", "open"])]
    keys = [*LOAD, "session_id"]
    made = []
    for key, same in rows.groupby(keys, sort=False):
        times = [found for _, found in points_times(data, same)]
        cells = {column: percentile(times, column) for column in PERCENTILES}
        made.append({**dict(zip(keys, key, strict=True)), "points": len(same), **cells})
    frame = pd.DataFrame(made, columns=[*keys, "points", *PERCENTILES])
    return frame.astype(dict.fromkeys(PERCENTILES, float))
