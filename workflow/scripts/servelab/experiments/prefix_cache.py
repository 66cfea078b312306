"""E6: what does the prefix cache save where prompts share a beginning, and cost where they do not?"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa

from servelab import stats
from servelab.claims import MEASURED, Analysis, Finding, Table
from servelab.config.schema import Experiment
from servelab.experiments import comparison, load_table, workloads
from servelab.experiments.base import ServerPlan, StudyData

KIND = "prefix_cache"


@dataclass
class Config(Experiment):
    """Three loads on a server with the cache on and on one with it off (`enable_prefix_caching`):

    shared, one request at a time, output 1: `groups` prefixes of shared_tokens, each asked for
      1 + hits_per_group times with unique_tokens of its own: the first is a miss, the others can hit. The
      groups together must fit into the KV cache.
    unshared, one at a time, output 1: as many requests of the same length that share nothing.
    cost: closed loop at cost_concurrency where nothing is shared.
    """

    repeats: int = 5
    enable_prefix_caching: list[bool] = field(default_factory=lambda: [True, False])
    shared_tokens: int = 3000
    unique_tokens: int = 32
    groups: int = 4
    hits_per_group: int = 4
    unshared_requests: int = 8
    cost_concurrency: int = 32
    cost_input_tokens: int = 2048
    cost_output_tokens: int = 16
    cost_requests: int = 96


def expand(config: Config) -> list[ServerPlan]:
    """The same loads with the cache on and off. Raises ValueError naming the key of a senseless value."""
    workloads.numbers(1, shared_tokens=config.shared_tokens, unique_tokens=config.unique_tokens)
    workloads.numbers(1, groups=config.groups, hits_per_group=config.hits_per_group)
    workloads.numbers(1, unshared_requests=config.unshared_requests, cost_requests=config.cost_requests)
    workloads.numbers(1, cost_concurrency=config.cost_concurrency)
    workloads.numbers(
        1, cost_input_tokens=config.cost_input_tokens, cost_output_tokens=config.cost_output_tokens
    )
    length = config.shared_tokens + config.unique_tokens
    loads = (
        workloads.closed(
            1, length, 1, config.groups * (1 + config.hits_per_group), config.shared_tokens, config.groups
        ),
        workloads.closed(1, length, 1, config.unshared_requests),
        workloads.closed(
            config.cost_concurrency, config.cost_input_tokens, config.cost_output_tokens, config.cost_requests
        ),
    )
    settings = workloads.settings("enable_prefix_caching", config.enable_prefix_caching)
    return [ServerPlan(loads, {"enable_prefix_caching": on}) for on in settings]


CACHE = "enable_prefix_caching"
MISS, HIT, UNSHARED = "miss", "hit", "unshared"
COLUMNS = {
    "ttft_p50_ms": ("ms", MEASURED),
    "ttft_min_ms": ("ms", MEASURED),
    "ttft_max_ms": ("ms", MEASURED),
    "cached_tokens_p50": ("tokens", MEASURED),
    "requests": ("", MEASURED),
    "points": ("", MEASURED),
    "starts": ("", MEASURED),
}
COUNTERS = {
    "prefix_queries": ("tokens", MEASURED),
    "prefix_hits": ("tokens", MEASURED),
    "points": ("", MEASURED),
}


def analyse(data: StudyData, name: str, config: Config) -> Analysis:
    """Miss and hit TTFT one by one, cache on and off; the cost where nothing is shared; the counters'
    word."""
    missing = comparison.nothing(data, KIND, name)
    if missing is not None:
        return missing
    rows = comparison.experiment_rows(data, name, (CACHE,))
    usable = data.usable(rows)
    alone = usable[_alone(usable, config)]
    single = _one_by_one(data, alone, name)
    busy = rows[~_alone(rows, config)]
    cost = load_table.load_table(data, busy, (CACHE,), name, drop=("ready_s", *load_table.CAPACITY))
    # Also of points that hits where none may be made invalid: those are what the counters are looked at for.
    counters = _counters(rows[rows["status"] == "ok"], name)
    findings = comparison.failed_settings(rows, name, lambda row: f"{CACHE}={row[CACHE]}")
    findings += _hit_findings(single, name) + _unshared_findings(data, alone, name, single.id)
    findings += _cost_findings(data, data.usable(busy), name, cost.id)
    findings += _counter_findings(counters, name)
    return Analysis(KIND, name, tables=[single, cost, counters], findings=comparison.labelled(findings))


def _alone(rows: pd.DataFrame, config: Config) -> "pd.Series[bool]":
    """Which points send one request at a time (the others are the cost under load)."""
    length = config.shared_tokens + config.unique_tokens
    alone = (rows["concurrency"] == 1) & (rows["input_tokens"] == length) & (rows["output_tokens"] == 1)
    return alone.fillna(False).astype(bool)


def _one_by_one(data: StudyData, rows: pd.DataFrame, name: str) -> Table:
    """TTFT by cache setting and kind of request: miss (first of its prefix), hit (later), unshared."""
    made = []
    for group, same in comparison.groups(rows, (comparison.MODEL, comparison.SERVER, CACHE)):
        found: dict[str, list[tuple[float, float]]] = {MISS: [], HIT: [], UNSHARED: []}
        for row in comparison.each_row(same):
            shared = bool(row["shared_prefix_tokens"])
            for kind, ttft_ms, cached in _requests(data.load(row).requests, shared):
                found[kind].append((ttft_ms, cached))
        for kind, values in found.items():
            chosen = same[(same["shared_prefix_tokens"].astype(float) > 0) == (kind != UNSHARED)]
            made.append({**group, "request": kind, **_cells(values, chosen)})
    return Table(f"{name}_requests", pd.DataFrame(made), COLUMNS, name, "prefix_cache_requests")


def _requests(requests: pa.Table, shared: bool) -> list[tuple[str, float, float]]:
    """(kind, TTFT in ms, cached tokens or NaN) of each successful measured request, in the order they were sent.

    The first successful request of a prefix group can only miss; later ones can hit, if a cache is on.
    """
    seen: set[object] = set()
    found = []
    columns = ["role", "ok", "sent_s", "chunk_s", "prefix_group", "cached_tokens"]
    for row in sorted(requests.select(columns).to_pylist(), key=lambda row: row["sent_s"] or 0.0):
        if row["role"] != "measured":
            continue
        kind = UNSHARED if not shared else HIT if row["prefix_group"] in seen else MISS
        seen.add(row["prefix_group"])
        if row["ok"] and row["chunk_s"]:
            cached = float("nan") if row["cached_tokens"] is None else float(row["cached_tokens"])
            found.append((kind, 1000 * (row["chunk_s"][0] - row["sent_s"]), cached))
    return found


def _cells(values: list[tuple[float, float]], rows: pd.DataFrame) -> dict[str, Any]:
    ttft_ms = np.array([ttft for ttft, _ in values])
    cached = np.array([tokens for _, tokens in values if tokens == tokens])
    if not ttft_ms.size:
        return dict.fromkeys(COLUMNS)
    return {
        **comparison.percentile_level(ttft_ms, 50, rows).cells("ttft_p50_ms"),
        "ttft_min_ms": float(ttft_ms.min()),
        "ttft_max_ms": float(ttft_ms.max()),
        "cached_tokens_p50": stats.percentile(cached, 50),
        "requests": int(ttft_ms.size),
        "points": len(rows),
        "starts": int(rows["session_id"].nunique()),
    }


def _hit_findings(single: Table, name: str) -> list[Finding]:
    """Miss against hit with the cache on."""
    findings = []
    for group, same in comparison.groups(single.frame, (comparison.MODEL, comparison.SERVER)):
        cells = {(row[CACHE], row["request"]): row for row in comparison.each_row(same)}
        miss, hit = _p50(cells, True, MISS), _p50(cells, True, HIT)
        if miss is not None and hit is not None:
            values = {**group, "miss": miss, "hit": hit, "ratio": miss / hit}
            values |= {"misses": cells[True, MISS]["requests"], "hits": cells[True, HIT]["requests"]}
            template = "prefix_cache_hit" if hit < miss else "prefix_cache_no_gain"
            findings.append(Finding(template, values, MEASURED, name, (single.id,), weight=50))
    return findings


def _p50(cells: Mapping[tuple[Any, Any], Mapping[str, Any]], on: bool, kind: str) -> float | None:
    value = comparison.present(cells.get((on, kind), {}).get("ttft_p50_ms"))
    return None if value is None else float(value)


def _unshared_findings(data: StudyData, alone: pd.DataFrame, name: str, table: str) -> list[Finding]:
    """TTFT of unshared prompts, one at a time, with the cache on over off."""
    unshared = alone[~(alone["shared_prefix_tokens"].astype(float) > 0)]
    findings = []
    for group, off, on in _off_and_on(unshared, (comparison.MODEL, comparison.SERVER)):
        found = comparison.compare(data, off, on, "ttft_p50_ms")
        if found is not None:
            findings.append(comparison.compared("prefix_cache_unshared", found, group, name, (table,), 20))
    return findings


def _off_and_on(
    rows: pd.DataFrame, within: Sequence[str]
) -> Iterator[tuple[comparison.Settings, pd.DataFrame, pd.DataFrame]]:
    """(group, rows with the cache off, rows with it on) of each group that has both: off is a ratio's base."""
    ordered = rows.sort_values(CACHE, kind="stable")
    for group, _, off, _, on in comparison.against_first(ordered, within, CACHE):
        yield group, off, on


def _cost_findings(data: StudyData, usable: pd.DataFrame, name: str, table: str) -> list[Finding]:
    """Throughput and TTFT with the cache on over off, where nothing is shared."""
    findings = []
    within = (comparison.MODEL, comparison.SERVER, *load_table.LOAD)
    for group, off, on in _off_and_on(usable, within):
        for column, template in (
            ("output_throughput_tok_s", "prefix_cache_cost_throughput"),
            ("ttft_p50_ms", "prefix_cache_cost_ttft"),
        ):
            found = comparison.compare(data, off, on, column)
            if found is not None:
                findings.append(comparison.compared(template, found, group, name, (table,), 30))
    return findings


def _counters(measured: pd.DataFrame, name: str) -> Table:
    """The server's own counters over each load: tokens queried and found, summed over its points."""
    made = []
    by = (comparison.MODEL, comparison.SERVER, CACHE, *load_table.LOAD, "shared_prefix_tokens")
    for group, same in comparison.groups(measured, by):
        sums = {
            column: same[column].astype(float).sum(min_count=1)
            for column in ("prefix_queries", "prefix_hits")
        }
        made.append({**group, **sums, "points": len(same)})
    return Table(f"{name}_counters", pd.DataFrame(made), COUNTERS, name, "prefix_cache_counters")


def _counter_findings(counters: Table, name: str) -> list[Finding]:
    """Hits must be 0 where nothing is shared or the cache is off, and above 0 where prompts share a
    prefix."""
    wrong, checked, missing = [], 0, 0
    for row in comparison.each_row(counters.frame):
        hits, queries = comparison.present(row["prefix_hits"]), comparison.present(row["prefix_queries"])
        if hits is None:
            missing += 1
            continue
        checked += 1
        expected = bool(row[CACHE]) and bool(row["shared_prefix_tokens"])
        if (hits > 0) != expected or (bool(row[CACHE]) and not queries):
            wrong.append(row)
    values: dict[str, Any] = {"checked": checked, "missing": missing, "wrong": len(wrong)}
    if not checked:
        return [Finding("prefix_cache_no_counters", values, MEASURED, name, (counters.id,), weight=20)]
    if wrong:
        values |= {"hits": float(wrong[0]["prefix_hits"]), "queries": float(wrong[0]["prefix_queries"] or 0)}
        values |= {key: wrong[0][key] for key in (CACHE, "input_tokens", "shared_prefix_tokens")}
        return [Finding("prefix_cache_counters_wrong", values, MEASURED, name, (counters.id,), weight=60)]
    return [Finding("prefix_cache_counters_right", values, MEASURED, name, (counters.id,), weight=15)]
