"""E12's advice on the server's options, each from the experiment that varied it, under its heaviest load."""

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from servelab.advice import THROUGHPUT, Advice, bounded, latency, meets, points_of
from servelab.claims import NOT_MEASURED, Analysis
from servelab.config.schema import Objective
from servelab.experiments import comparison
from servelab.experiments.base import StudyData

PERPLEXITY_COST = 0.01  # a rise of perplexity that is not taken for a gain in speed
FIRST_LOOK = (
    0.8  # a ratio from one start a setting that is taken for a gain, and said to be no more than a look
)


def on_options(data: StudyData, rows: pd.DataFrame, found: Sequence[Analysis], model: str) -> list[Advice]:
    """Advice for each option that an experiment of ours varies, from a model's points and the analyses' tables."""
    objective = data.study.objective
    return [
        _max_num_seqs(data, rows, objective),
        _kv_dtype(data, rows, [table for _, table in _tables(found, "perplexity", "perplexity", model)]),
        _chunk(data, rows, _tables(found, "chunked_prefill", "chunked_prefill", model), objective),
        _prefix(data, rows, _tables(found, "prefix_cache", "prefix_cache_requests", model)),
    ]


def _tables(
    found: Sequence[Analysis], kind: str, template: str, model: str
) -> list[tuple[str, pd.DataFrame]]:
    """(experiment, a model's rows of its table) of every measured experiment of a kind."""
    return [
        (analysis.experiment, table.frame[table.frame[comparison.MODEL] == model])
        for analysis in found
        if analysis.kind == kind and analysis.status != NOT_MEASURED
        for table in analysis.tables
        if table.template == template and comparison.MODEL in table.frame
    ]


def _own(
    data: StudyData, rows: pd.DataFrame, experiment: str, kind: str, tested: Sequence[str]
) -> pd.DataFrame:
    """The rows of an experiment, if it is of this kind, with the column `server` of comparison.experiment_rows."""
    mine = rows[(rows["experiment"] == experiment) & (rows["kind"] == kind)]
    return comparison.experiment_rows(data, experiment, tested).loc[mine.index]


def _heaviest(data: StudyData, rows: pd.DataFrame, kind: str, tested: Sequence[str]) -> list[pd.DataFrame]:
    """Points under the heaviest load of each experiment of a kind and server configuration, heaviest first.

    Settings are compared within one of these: a mean over several loads or other options says nothing of them.
    """
    own = rows[(rows["kind"] == kind) & (rows["workload_kind"] == "closed")]
    parts = []
    for experiment in dict.fromkeys(own["experiment"]):
        alike = _own(data, own, experiment, kind, tested)
        parts += [_busiest(same) for _, same in comparison.groups(alike, (comparison.SERVER,))]
    return sorted(parts, key=_demand, reverse=True)


def _busiest(rows: pd.DataFrame) -> pd.DataFrame:
    """The points of the load that wants most tokens at once."""
    return max((part for _, part in comparison.groups(rows, ("workload",))), key=_demand, default=rows)


def _demand(rows: pd.DataFrame) -> float:
    """Input tokens at once of the heaviest load, 0 without points; where no concurrency is given it is one."""
    at_once = pd.to_numeric(rows["concurrency"]).astype(float).fillna(1.0)
    tokens = pd.to_numeric(rows["input_tokens"]).astype(float).fillna(0.0) * at_once
    return float(tokens.max()) if len(rows) else 0.0


def _server(rows: pd.DataFrame) -> dict[str, Any]:
    """The other options of these points' servers, where the experiment varied them: a finding's text names them."""
    return {comparison.SERVER: comparison.present(rows[comparison.SERVER].iloc[0]) if len(rows) else None}


def _max_num_seqs(data: StudyData, rows: pd.DataFrame, objective: Objective) -> Advice:
    """Of the caps that meet the objective (of all, if none does) the one with the highest throughput."""
    for part in _heaviest(data, rows, "max_num_seqs", ("max_num_seqs",)):
        caps = {
            group["max_num_seqs"]: same
            for group, same in comparison.groups(part, ("max_num_seqs",))
            if group["max_num_seqs"] is not None
        }
        if len(caps) > 1:
            return _of_caps(data, part, caps, objective)
    return Advice("max_num_seqs", "not_measured", values={"setting": "max_num_seqs"})


def _of_caps(
    data: StudyData, rows: pd.DataFrame, caps: Mapping[Any, pd.DataFrame], objective: Objective
) -> Advice:
    """The best of two caps or more, and whether the study can tell it from the second best that may be chosen."""
    within = [cap for cap, part in caps.items() if meets(part, objective)]
    eligible = within or list(caps)
    speeds = {cap: comparison.level(part, THROUGHPUT).value or 0.0 for cap, part in caps.items()}
    chosen = max(eligible, key=lambda cap: speeds[cap])
    rivals = eligible if len(eligible) > 1 else list(caps)
    other = max((cap for cap in rivals if cap != chosen), key=lambda cap: speeds[cap])
    values: dict[str, Any] = {"throughput": speeds[chosen], "other": other, "other_throughput": speeds[other]}
    values |= {**latency(caps[chosen], "at"), **latency(caps[other], "other"), **_server(rows)}
    values |= {"concurrency": comparison.present(rows["concurrency"].max()), "caps": len(rivals)}
    met = bool(within) if bounded(objective) else None
    template = "max_num_seqs_unmet" if met is False else "max_num_seqs"
    if len(eligible) == 1:
        template = "max_num_seqs_only"
    else:
        found = comparison.compare(data, caps[other], caps[chosen], THROUGHPUT)
        outcome = comparison.UNKNOWN if found is None else found.outcome
        template += "" if outcome == comparison.DIFFERENT else f"_{outcome}"
        if found is not None:
            values |= {name: found.values()[name] for name in ("ratio", "low", "high", "visible")}
    return Advice("max_num_seqs", template, int(chosen), values, points_of(*caps.values()), met)


def _kv_dtype(data: StudyData, rows: pd.DataFrame, perplexity: Sequence[pd.DataFrame]) -> Advice:
    """Another KV dtype only if it is faster at long input and its perplexity was measured and is not worse.

    A better perplexity under quantisation is unexplained and supports nothing. Of several dtypes one with a gain
    goes before one whose gain is not to be had, and that before one without; of equals the fastest.
    """
    for part in _heaviest(data, rows, "kv_dtype", ("kv_cache_dtype", "num_gpu_blocks_override")):
        verdicts = _dtypes(data, part, perplexity)
        if verdicts:
            ranks = {"kv_dtype_gain": 0, "kv_dtype_look": 1, "kv_dtype_no_gain": 3}
            return min(verdicts, key=lambda one: (ranks.get(one.template, 2), one.values["ratio"]))
    return Advice("kv_cache_dtype", "not_measured", values={"setting": "kv_cache_dtype"})


def _dtypes(data: StudyData, rows: pd.DataFrame, perplexity: Sequence[pd.DataFrame]) -> list[Advice]:
    """What each further dtype of one load supports, against the first."""
    verdicts = []
    within = (comparison.MODEL, comparison.SERVER)
    for group, first, base, dtype, other in comparison.against_first(rows, within, "kv_cache_dtype"):
        found = comparison.compare(data, base, other, "ttft_p50_ms")
        if found is None:
            continue
        change = _perplexity_change(perplexity, first, dtype)
        values = {**found.values(), **group, "first": first, "dtype": dtype, "perplexity": change}
        values |= {"concurrency": comparison.present(base["concurrency"].iloc[0])}
        values |= {"input_tokens": comparison.present(base["input_tokens"].iloc[0])}
        template, value = _dtype_verdict(found, change, str(first), str(dtype))
        verdicts.append(Advice("kv_cache_dtype", template, value, values, points_of(base, other)))
    return verdicts


def _dtype_verdict(
    found: comparison.Comparison, change: float | None, first: str, dtype: str
) -> tuple[str, str]:
    gain = found.outcome == comparison.DIFFERENT and found.ratio.ratio < 1
    look = found.outcome == comparison.UNKNOWN and found.ratio.ratio < FIRST_LOOK
    if not gain and not look:
        return "kv_dtype_no_gain", first
    if change is None:
        return "kv_dtype_quality_unknown", first
    if change < 0:
        return "kv_dtype_quality_unexplained", first
    if change > PERPLEXITY_COST:
        return "kv_dtype_quality_worse", first
    return ("kv_dtype_gain" if gain else "kv_dtype_look"), dtype


def _perplexity_change(tables: Sequence[pd.DataFrame], first: object, dtype: object) -> float | None:
    """Change of a dtype against the first one on the same backend, as a ratio - 1; None where it was not measured.

    Of several (repeats, backends, texts) the worst; but one that is better, and so unexplained, goes before all.
    """
    changes = [
        _no_better_than(row)
        for table in tables
        if {"perplexity_change", "change_against"} <= set(table)
        for row in comparison.each_row(table)
        if row["kv_cache_dtype"] == dtype
        and row["change_against"] == first
        and comparison.present(row["perplexity_change"]) is not None
    ]
    unexplained = [change for change in changes if change < 0]
    return min(unexplained) if unexplained else max(changes, default=None)


def _no_better_than(row: Mapping[str, Any]) -> float:
    """A change of perplexity as a ratio - 1: its interval's upper end, or if that is below 0 the change."""
    change, high = (comparison.present(row[f"perplexity_change{end}"]) for end in ("", "_high"))
    if high is not None and high < 0:
        return float(change) / 100
    return max(float(change if high is None else high), 0.0) / 100


def _measured(
    data: StudyData, rows: pd.DataFrame, kind: str, tested: str, tables: Sequence[tuple[str, pd.DataFrame]]
) -> list[tuple[pd.DataFrame, pd.DataFrame]]:
    """(points, table rows) of each experiment and server configuration that the tables have, heaviest load first."""
    pairs = []
    for experiment, table in tables:
        own = _own(data, rows, experiment, kind, (tested,))
        for group, part in comparison.groups(table, (comparison.SERVER,)):
            servers = zip(own.index, own[comparison.SERVER], strict=True)
            mine = own.loc[[i for i, name in servers if comparison.present(name) == group[comparison.SERVER]]]
            pairs.append((mine, part))
    return sorted(pairs, key=lambda pair: _demand(pair[0]), reverse=True)


def _chunk(
    data: StudyData, rows: pd.DataFrame, tables: Sequence[tuple[str, pd.DataFrame]], objective: Objective
) -> Advice:
    """Of the experiment with two chunks or more and the heaviest load; not measured without one."""
    setting = "max_num_batched_tokens"
    for own, runs in _measured(data, rows, "chunked_prefill", setting, tables):
        known = runs.dropna(subset=["itl_max_ms"])
        if known[setting].nunique() > 1:
            return _of_chunks(known, own[own["workload_kind"] == "interference"], objective.itl_p99_ms)
    return Advice(setting, "not_measured", values={"setting": setting})


def _of_chunks(known: pd.DataFrame, own: pd.DataFrame, bound: float) -> Advice:
    """The largest chunk whose longest gap meets the ITL bound; without a bound the one with the fastest prompts."""
    setting = "max_num_batched_tokens"
    gaps = known.groupby(setting)["itl_max_ms"].max().astype(float)
    ttft = known.groupby(setting)["long_ttft_max_ms"].max().astype(float)
    values: dict[str, Any] = {"smallest": int(gaps.index.min()), "largest": int(gaps.index.max())}
    met: bool | None = None
    if bound > 0:
        within = [chunk for chunk in gaps.index if gaps[chunk] <= bound]
        met, chosen = bool(within), max(within) if within else min(gaps.index)
        template = "chunk" if within else "chunk_unmet"
    else:
        chosen, template = min(ttft.index, key=lambda chunk: (ttft[chunk], chunk)), "chunk_prompts"
    other = max(gaps.index) if chosen != max(gaps.index) else min(gaps.index)
    values |= {"gap": float(gaps[chosen]), "ttft": float(ttft[chosen]), "bound": bound, "other": int(other)}
    values |= {"other_gap": float(gaps[other]), "other_ttft": float(ttft[other]), **_server(known)}
    return Advice(setting, template, int(chosen), values, points_of(own), met)


def _prefix(data: StudyData, rows: pd.DataFrame, tables: Sequence[tuple[str, pd.DataFrame]]) -> Advice:
    """Of the experiment with misses and hits and the heaviest load; not measured without one."""
    setting = "enable_prefix_caching"
    for own, requests in _measured(data, rows, "prefix_cache", setting, tables):
        cells = {
            (row[setting], row["request"]): comparison.present(row["ttft_p50_ms"])
            for row in comparison.each_row(requests)
        }
        miss, hit = cells.get((True, "miss")), cells.get((True, "hit"))
        if miss is not None and hit is not None:
            return _of_hits(data, own, miss, hit)
    return Advice(setting, "not_measured", values={"setting": setting})


def _of_hits(data: StudyData, own: pd.DataFrame, miss: float, hit: float) -> Advice:
    """On where hits are faster than misses, with what it costs where nothing is shared; off where they are
    not."""
    setting = "enable_prefix_caching"
    values: dict[str, Any] = {"miss": miss, "hit": hit, "ratio": miss / hit, "share": None, **_server(own)}
    unshared = own[own["shared_prefix_tokens"].fillna(0) == 0]
    # What the cache costs shows under load: of the unshared loads those with the most requests at once.
    busy = _busiest(unshared[unshared["concurrency"] == unshared["concurrency"].max()])
    sides = {group[setting]: part for group, part in comparison.groups(busy, (setting,))}
    if {True, False} <= set(sides):
        found = comparison.compare(data, sides[False], sides[True], THROUGHPUT)
        values["share"] = None if found is None else found.ratio.ratio
        values["concurrency"] = comparison.present(busy["concurrency"].iloc[0])
    template = "prefix_on" if hit < miss else "prefix_no_gain"
    if template == "prefix_on" and values["share"] is None:
        template = "prefix_on_cost_unknown"
    return Advice(setting, template, hit < miss, values, points_of(own))
