"""The table that compares closed loads under different settings: a row a setting and load, intervals over
starts."""

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd

from servelab import pooled
from servelab.claims import CALCULATED, MEASURED, Table
from servelab.experiments import comparison
from servelab.experiments.base import StudyData
from servelab.experiments.comparison import MODEL, SERVER, Level
from servelab.sweep_table import itl_cells, rate_cells

LOAD = ("concurrency", "input_tokens", "output_tokens")
COLUMNS: Mapping[str, tuple[str, str]] = {
    "output_throughput_tok_s": ("tok/s", MEASURED),
    "ttft_p50_ms": ("ms", MEASURED),
    "ttft_p95_ms": ("ms", MEASURED),
    "itl_p50_ms": ("ms", MEASURED),
    "itl_p99_ms": ("ms", MEASURED),
    "itl_max_ms": ("ms", MEASURED),
    "running_mean": ("", MEASURED),
    "waiting_mean": ("", MEASURED),
    "waiting_max": ("", MEASURED),
    "preemptions": ("", MEASURED),
    "kv_cache_tokens": ("tokens", MEASURED),
    "capacity_requests": ("", CALCULATED),
    "capacity_by_tokens": ("", CALCULATED),
    "ready_s": ("s", MEASURED),
    "requests_failed": ("", MEASURED),
    "points": ("", MEASURED),
    "starts": ("", MEASURED),
}
# In whole blocks, and KV tokens ÷ (input + output) as it is.
CAPACITY = ("capacity_requests", "capacity_by_tokens")
_WITH_ENDS = (
    "output_throughput_tok_s", "ttft_p50_ms", "ttft_p95_ms", "itl_p50_ms", "itl_p99_ms", "ready_s",
)  # fmt: skip
_ENDS = tuple(f"{name}{end}" for name in _WITH_ENDS for end in ("_low", "_high"))


def load_table(
    data: StudyData, rows: pd.DataFrame, tested: Sequence[str], name: str, drop: Sequence[str] = ()
) -> Table:
    """Every setting and load of an experiment, those without a usable point included (their cells are missing).

    rows: comparison.experiment_rows. tested: columns with the settings. drop: columns that say nothing here.
    Throughput, ready, running, waiting and preemptions are means over points (ready: over server starts);
    latency percentiles are of all requests (gaps for ITL) of the points together, maxima the largest of all;
    ITL p99 is missing where the gaps are too few for its interval.
    """
    by = (MODEL, SERVER, *tested, *LOAD)
    made = [{**group, **_row(data, data.usable(same), same)} for group, same in comparison.groups(rows, by)]
    frame = pd.DataFrame(made, columns=list(dict.fromkeys((*by, *COLUMNS, *_ENDS))))
    frame = frame.drop(
        columns=[column for column in frame if str(column).removesuffix("_low").removesuffix("_high") in drop]
    )
    columns = {column: about for column, about in COLUMNS.items() if column in frame}
    return Table(f"{name}_loads", frame, columns, name, "loads")


def _row(data: StudyData, usable: pd.DataFrame, every: pd.DataFrame) -> dict[str, object]:
    throughput = comparison.level(usable, "output_throughput_tok_s")
    cells: dict[str, object] = dict(rate_cells(usable, "output_throughput_tok_s"))
    cells |= {"points": throughput.points, "starts": throughput.starts, **_ready(usable).cells("ready_s")}
    cells |= {column: _mean(usable, column) for column in ("running_mean", "waiting_mean", "preemptions")}
    cells |= {column: _first(usable, column) for column in ("kv_cache_tokens", "capacity_requests")}
    cells["capacity_by_tokens"] = _capacity_by_tokens(usable)
    cells["waiting_max"] = _largest(usable, "waiting_max")
    cells["requests_failed"] = int(pd.to_numeric(every["requests_failed"]).fillna(0).sum())
    return cells | _latencies(data, usable)


def _latencies(data: StudyData, usable: pd.DataFrame) -> dict[str, object]:
    if not len(usable):
        return {}
    times = [times for _, times in pooled.points_times(data, usable)]
    ttft_ms = 1000 * np.concatenate([each.ttft_s for each in times])
    cells: dict[str, object] = {}
    for q in (50, 95):
        cells |= comparison.percentile_level(ttft_ms, q, usable).cells(f"ttft_p{q}_ms")
    return cells | itl_cells(times)


def _capacity_by_tokens(usable: pd.DataFrame) -> float | None:
    """KV-cache tokens ÷ (input + output tokens) of the rows' one load, whatever the size of a block."""
    tokens = _first(usable, "kv_cache_tokens")
    lengths = [_first(usable, column) for column in ("input_tokens", "output_tokens")]
    each = sum(length for length in lengths if length is not None)
    return tokens / each if tokens is not None and each > 0 else None


def _ready(usable: pd.DataFrame) -> Level:
    return comparison.level(usable.drop_duplicates("session_id"), "ready_s")


def _numbers(rows: pd.DataFrame, column: str) -> "pd.Series[float]":
    return pd.to_numeric(rows[column]).dropna().astype(float)


def _mean(rows: pd.DataFrame, column: str) -> float | None:
    values = _numbers(rows, column)
    return float(values.mean()) if len(values) else None


def _first(rows: pd.DataFrame, column: str) -> float | None:
    values = _numbers(rows, column)
    return float(values.iloc[0]) if len(values) else None


def _largest(rows: pd.DataFrame, column: str) -> float | None:
    values = _numbers(rows, column)
    return float(values.max()) if len(values) else None
