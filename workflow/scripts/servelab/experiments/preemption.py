"""E3: where does the KV cache run out so that the scheduler preempts, and what becomes of the preempted?"""

from dataclasses import dataclass, field
from itertools import product
from typing import Any

import pandas as pd

from servelab import iteration_log, server_counters
from servelab.claims import CALCULATED, MEASURED, NOT_MEASURED, Analysis, Finding, Table
from servelab.config.schema import Experiment
from servelab.experiments import comparison, workloads
from servelab.experiments.base import ServerPlan, StudyData

KIND = "preemption"
ITERATION_LOG = "enable_logging_iteration_details"


@dataclass
class Config(Experiment):
    """The map is input_tokens × output_tokens × concurrency.

    requests_per_slot: each point sends so many requests for each slot. iteration_log: let the server write a
    line for each step (vLLM: enable_logging_iteration_details), from which tokens computed twice are counted.
    """

    input_tokens: list[int] = field(default_factory=lambda: [512, 1500, 2048])
    output_tokens: list[int] = field(default_factory=lambda: [128, 256])
    concurrency: list[int] = field(default_factory=lambda: [32, 64])
    requests_per_slot: int = 2
    iteration_log: bool = True


def expand(config: Config) -> list[ServerPlan]:
    """The whole map on one server, the light points first (a preempted point leaves a full cache behind).

    Raises BadValueError for a value that makes no sense.
    """
    axes = (config.concurrency, config.input_tokens, config.output_tokens)
    workloads.numbers(1, concurrency=axes[0], input_tokens=axes[1], output_tokens=axes[2])
    workloads.numbers(1, requests_per_slot=config.requests_per_slot)
    grid = sorted(product(*map(set, axes)), key=lambda point: (point[0] * (point[1] + point[2]), point))
    # One request alone warms up: a full batch could preempt, and the log would count what it computes again.
    loads = tuple(
        workloads.closed(c, i, o, c * config.requests_per_slot, warmup_requests=1) for c, i, o in grid
    )
    return [ServerPlan(loads, {ITERATION_LOG: True} if config.iteration_log else {})]


LOAD = ("input_tokens", "output_tokens", "concurrency")
EXACT = 0.005  # share of computed tokens by which points without preemption may miss their known sum
COLUMNS = {
    "preemptions": ("", MEASURED),
    "requests": ("", MEASURED),
    "demand_tokens": ("tokens", CALCULATED),
    "kv_cache_tokens": ("tokens", MEASURED),
    "demand_ratio": ("1", CALCULATED),
    "block_ratio": ("1", CALCULATED),
    "kv_usage_max": ("1", MEASURED),
    "ttft_p50_ms": ("ms", MEASURED),
    "output_throughput_tok_s": ("tok/s", MEASURED),
    "recomputed_tokens": ("tokens", MEASURED),
    "recomputed_context_tokens": ("tokens", MEASURED),
    "recomputed_per_preemption": ("tokens", CALCULATED),
    "requests_failed": ("", MEASURED),
    "points": ("", MEASURED),
}


def analyse(data: StudyData, name: str, config: Config) -> Analysis:
    """Preemptions over the map beside the calculated boundary, and how much the preempted computed again."""
    missing = comparison.nothing(data, KIND, name, changes_server=False)
    if missing is not None:
        return missing
    rows = comparison.experiment_rows(data, name, (ITERATION_LOG,))
    by = (comparison.MODEL, comparison.SERVER, *LOAD)
    made = [{**group, **_cells(data, group, same)} for group, same in comparison.groups(rows, by)]
    table = Table(f"{name}_map", pd.DataFrame(made), COLUMNS, name, "preemption_map")
    findings: list[Finding] = []
    for group, same in comparison.groups(table.frame, (comparison.MODEL, comparison.SERVER)):
        known = same.dropna(subset=["preemptions"])
        if not len(known):
            findings.append(
                Finding("preemption_no_counter", group, NOT_MEASURED, name, (table.id,), weight=30)
            )
            continue
        findings += _boundary(group, known, name, table.id) + _resumed(group, known, name, table.id)
    return Analysis(KIND, name, tables=[table], findings=comparison.labelled(findings))


def _cells(data: StudyData, group: comparison.Settings, every: pd.DataFrame) -> dict[str, Any]:
    """One cell of the map: counts summed over its points (repeats, starts), the boundary for one point."""
    rows = data.usable(every)
    demand = _running(group, rows) * (group["input_tokens"] + group["output_tokens"])
    tokens = rows["kv_cache_tokens"].dropna()
    capacity = float(tokens.iloc[0]) if len(tokens) else None
    preemptions = rows["preemptions"].dropna()
    count = int(preemptions.sum()) if len(preemptions) else None
    again = _recomputed(data, rows)
    return {
        "preemptions": count,
        "requests": int(rows["requests_ok"].fillna(0).sum()),
        "demand_tokens": demand,
        "kv_cache_tokens": capacity,
        "demand_ratio": demand / capacity if capacity else None,
        "block_ratio": _block_ratio(data, group, rows),
        "kv_usage_max": comparison.present(rows["kv_usage_max"].astype(float).max()) if len(rows) else None,
        **comparison.ttft_level(data, rows).cells("ttft_p50_ms"),
        **comparison.level(rows, "output_throughput_tok_s").cells("output_throughput_tok_s"),
        "recomputed_tokens": again.tokens if again is not None else None,
        "recomputed_context_tokens": again.context if again is not None else None,
        "recomputed_per_preemption": again.tokens / count if again is not None and count else None,
        "requests_failed": int(every["requests_failed"].fillna(0).sum()),
        "points": len(rows),
    }


def _block_ratio(data: StudyData, group: comparison.Settings, rows: pd.DataFrame) -> float | None:
    """Whole blocks that the load's requests want at their longest ÷ blocks; vLLM never hands one of them out.

    The last output token is never stored, so a request holds input + output - 1 tokens. None where the
    server does not say its blocks (vllm:cache_config_info).
    """
    if not len(rows):
        return None
    blocks, size = server_counters.kv_blocks(data.load(comparison.each_row(rows)[0]).meta)
    if size is None or blocks is None or blocks < 2:
        return None
    each = -(-(group["input_tokens"] + group["output_tokens"] - 1) // size)
    return float(_running(group, rows) * each / (blocks - 1))


def _running(group: comparison.Settings, rows: pd.DataFrame) -> int:
    """How many of the load's requests can run at once: no more than max_num_seqs, where the study gives it."""
    caps = pd.to_numeric(rows["max_num_seqs"]).dropna()
    return int(min([group["concurrency"], *caps]))


def _recomputed(data: StudyData, rows: pd.DataFrame) -> iteration_log.Recomputed | None:
    """What was computed again over all points of a cell; None where one point cannot tell."""
    records = [data.load(row) for row in comparison.each_row(rows)]
    found = [iteration_log.recomputed(one.meta.extra.get("scheduler") or {}, one.requests) for one in records]
    known = [value for value in found if value is not None]
    if not known or len(known) < len(found):
        return None
    return iteration_log.Recomputed(sum(each.tokens for each in known), sum(each.context for each in known))


def _boundary(group: comparison.Settings, cells: pd.DataFrame, name: str, table: str) -> list[Finding]:
    """Whether preemptions lie where concurrency × (input + output) exceeds the KV tokens, and only there."""
    placed = cells.dropna(subset=["demand_ratio"])
    above, hit = placed["demand_ratio"].astype(float) > 1, placed["preemptions"].astype(float) > 0
    values: dict[str, Any] = {
        **group,
        "cells": len(placed),
        "above": int(above.sum()),
        "above_with": int((above & hit).sum()),
        "above_without": int((above & ~hit).sum()),
        "below_with": int((~above & hit).sum()),
        "below_without": int((~above & ~hit).sum()),
        "total": int(cells["preemptions"].sum()),
        "lowest": comparison.present(placed.loc[hit, "demand_ratio"].min()),
        "highest": comparison.present(placed.loc[~hit, "demand_ratio"].max()),
    }
    if not len(placed):
        template, stance = "preemption_no_capacity", ""
    elif not above.any() and not hit.any():
        template, stance = "preemption_never_above", "cannot_tell"
    elif values["below_with"] and bool((placed.loc[~above & hit, "block_ratio"].astype(float) > 1).all()):
        template, stance = "preemption_boundary_blocks", "supports"
    elif values["below_with"]:
        template, stance = "preemption_below_boundary", "contradicts"
    elif not hit.any():
        template, stance = "preemption_none", "contradicts"
    else:
        template, stance = "preemption_boundary", "supports"
    findings = [Finding(template, values, MEASURED, name, (table,), weight=45, stance=stance)]
    return findings + _worst(group, cells, name, table)


def _worst(group: comparison.Settings, cells: pd.DataFrame, name: str, table: str) -> list[Finding]:
    most = max(comparison.each_row(cells), key=lambda row: float(row["preemptions"]))
    if not most["preemptions"]:
        return []
    shown = (*LOAD, "preemptions", "requests", "ttft_p50_ms")
    values = {**group, **{key: comparison.present(most[key]) for key in shown}}
    return [Finding("preemption_most", values, MEASURED, name, (table,), weight=25)]


def _resumed(group: comparison.Settings, cells: pd.DataFrame, name: str, table: str) -> list[Finding]:
    """Whether preempted requests find their prefix in the cache when they resume: what they computed again tells.

    A request has at most input + output - 1 tokens to lose, so of what was lost at most 1 - again ÷ (that ×
    preemptions) was found. At least its input is lost by one preempted while it decodes; only where nothing was
    computed again as context were all of them decoding, and at least 1 - again ÷ (input × preemptions) was found.
    """
    counted = cells.dropna(subset=["recomputed_tokens"])
    preempted = counted[counted["preemptions"].astype(float) > 0]
    calm = counted[counted["preemptions"].astype(float) == 0]
    off = calm["recomputed_tokens"].astype(float).abs().sum()
    computed = (calm["requests"] * (calm["input_tokens"] + calm["output_tokens"])).astype(float).sum()
    if not len(preempted):
        if not cells["preemptions"].astype(float).gt(0).any():
            return []
        return [Finding("preemption_resume_unknown", group, NOT_MEASURED, name, (table,), weight=20)]
    if computed and off / computed > EXACT:
        values = {**group, "off": off / computed}
        return [Finding("preemption_resume_inexact", values, NOT_MEASURED, name, (table,), weight=20)]
    count, again = float(preempted["preemptions"].sum()), float(preempted["recomputed_tokens"].sum())
    least = float((preempted["preemptions"] * preempted["input_tokens"]).sum())
    length = preempted["input_tokens"] + preempted["output_tokens"] - 1
    most = float((preempted["preemptions"] * length).sum())
    decoding = float(preempted["recomputed_context_tokens"].abs().sum()) == 0
    values = {
        **group,
        "preemptions": count,
        "again": again,
        "per_preemption": again / count,
        "least": least / count,
    }
    values |= {
        "low": max(0.0, 1 - again / least) if decoding else 0.0,
        "high": max(0.0, 1 - again / most),
        "calm": len(calm),
    }
    template = "preemption_resume_hits" if values["low"] > 0 else "preemption_resume_misses"
    if values["low"] == 0 and values["high"] > 0:
        template = "preemption_resume_either"
    return [Finding(template, values, MEASURED, name, (table,), weight=35)]
