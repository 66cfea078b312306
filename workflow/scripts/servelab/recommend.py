"""E12: what to set for the study's objective, from what was measured, with the points it rests on and its price.

A setting is recommended only where the study's own points support it; otherwise it is «not measured» and the
server's default stays. What a recommendation costs is said with it.
"""

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Any

import pandas as pd

from servelab import alert_rules, engine
from servelab.claims import MEASURED, NOT_MEASURED, Analysis, Finding, Table
from servelab.config.schema import Objective
from servelab.experiments import comparison
from servelab.experiments.base import StudyData
from servelab.spec import Option

KIND = "what_to_set"
SETTINGS = (
    "concurrency",
    "max_num_seqs",
    "kv_cache_dtype",
    "max_num_batched_tokens",
    "enable_prefix_caching",
)
NEAR_BEST = 0.95  # the smallest load within 5 % of the best throughput: more only waits longer
PERPLEXITY_COST = 0.01  # a rise of perplexity that is not taken for a gain in speed
FIRST_LOOK = (
    0.8  # a ratio from one start a setting that is taken for a gain, and said to be no more than a look
)
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


def analyse(data: StudyData, found: Sequence[Analysis]) -> Analysis:
    """Advice for every model of the study: a table of settings, a command line, the limits for alerting
    rules."""
    usable = data.usable(data.rows)
    rows, commands, findings = [], [], []
    for model in dict.fromkeys(data.rows["model"].dropna()):
        mine = usable[usable["model"] == model]
        advice = [_concurrency(mine, data.study.objective), *_options(data, mine, found, model)]
        rows += [_row(model, each, data.study.objective) for each in advice]
        commands.append(_command(data, mine, model, advice))
        findings += [_finding(model, each, data.study.objective) for each in advice]
    if not any(row["value"] is not None for row in rows):
        return Analysis(KIND, "", NOT_MEASURED, "nothing_supports_a_setting")
    columns = {"value": ("", MEASURED), "points": ("", MEASURED)}
    settings = Table("what_to_set", pd.DataFrame(rows), columns, "", "what_to_set")
    command = Table("what_to_set_command", pd.DataFrame(commands), {}, "", "what_to_set_command")
    return Analysis(KIND, "", tables=[settings, command], findings=findings)


def artefacts(study: str, objective: Objective, analysis: Analysis) -> dict[str, str]:
    """Files beside the tables: serve.sh (command lines to paste) and alerts.yaml (Prometheus rules); {}
    without advice."""
    tables = {table.id: table.frame for table in analysis.tables}
    if "what_to_set" not in tables:
        return {}
    lines = [
        "#!/bin/sh",
        f"# What servelab's study «{study}» supports; see its report for the points behind it.",
    ]
    for row in comparison.each_row(tables["what_to_set_command"]):
        lines += ["", f"# {row['model']}", str(row["command"])]
    settings = tables["what_to_set"].set_index(["model", "setting"])["value"]
    model = tables["what_to_set"]["model"].iloc[0]
    limits = alert_rules.Limits(
        objective.ttft_p95_ms,
        objective.itl_p99_ms,
        _whole(settings.get((model, "concurrency"))),
        _whole(settings.get((model, "max_num_seqs"))),
    )
    return {"serve.sh": "\n".join(lines) + "\n", "alerts.yaml": alert_rules.rules(study, limits)}


def _whole(value: object) -> int | None:
    text = str(value)
    return int(text) if text.isdigit() else None


def _row(model: str, advice: Advice, objective: Objective) -> dict[str, Any]:
    return {
        "model": model,
        "setting": advice.setting,
        "value": None if advice.value is None else str(advice.value),
        "objective": _words(objective),
        "met": advice.met,
        "points": len(advice.points),
        "rests_on": ", ".join(advice.points),
    }


def _words(objective: Objective) -> str:
    bounds = (("TTFT p95", objective.ttft_p95_ms), ("ITL p99", objective.itl_p99_ms))
    return ", ".join(f"{name} ≤ {bound:g} ms" for name, bound in bounds if bound > 0)


def _finding(model: str, advice: Advice, objective: Objective) -> Finding:
    status = NOT_MEASURED if advice.value is None else MEASURED
    values = {"model": model, "objective": _words(objective), "value": advice.value, **advice.values}
    weight = 55 if advice.setting == "concurrency" else 40
    if advice.value is None:
        weight = 5
    tables = ("what_to_set",)
    return Finding(
        f"set_{advice.template}", values, status, "", tables, weight, f"what_to_set {advice.setting}"
    )


def meets(rows: pd.DataFrame, objective: Objective) -> bool:
    """Whether every one of the points is within the objective's bounds; a missing value is not within
    them."""
    for column, bound in (("ttft_p95_ms", objective.ttft_p95_ms), ("itl_p99_ms", objective.itl_p99_ms)):
        values = rows[column].astype(float)
        if bound > 0 and not bool((values <= bound).all()):
            return False
    return len(rows) > 0


def _bounded(objective: Objective) -> bool:
    return objective.ttft_p95_ms > 0 or objective.itl_p99_ms > 0


def _paths(*parts: pd.DataFrame) -> tuple[str, ...]:
    return tuple(dict.fromkeys(str(path) for part in parts for path in part["path"]))


def _concurrency(rows: pd.DataFrame, objective: Objective) -> Advice:
    """The largest measured concurrency at which it and all below meet the objective, on the best server of a sweep.

    Without an objective: the smallest concurrency within 5 % of the best throughput.
    """
    best: Advice | None = None
    reached = -1.0
    sweep = rows[rows["kind"] == "load_sweep"]
    for shape, same in comparison.groups(sweep, ("slug", "input_tokens", "output_tokens")):
        known = same[same["concurrency"].notna()]
        levels = [
            (int(group["concurrency"]), part) for group, part in comparison.groups(known, ("concurrency",))
        ]
        levels.sort(key=lambda level: level[0])
        if not levels:
            continue
        speeds = {c: comparison.level(part, THROUGHPUT).value or 0.0 for c, part in levels}
        advice = _of_sweep(shape, levels, speeds, objective)
        speed = speeds.get(int(advice.value), 0.0) if advice.value is not None else 0.0
        if speed > reached or best is None:
            best, reached = advice, speed
    return best or Advice("concurrency", "not_measured", values={"setting": "concurrency"})


def _of_sweep(
    shape: Mapping[str, Any],
    levels: list[tuple[int, pd.DataFrame]],
    speeds: Mapping[int, float],
    objective: Objective,
) -> Advice:
    values: dict[str, Any] = {**shape, "lowest": levels[0][0], "highest": levels[-1][0]}
    allowed = list(levels)
    if _bounded(objective):
        allowed = list(takewhile(lambda level: meets(level[1], objective), levels))
        if not allowed:
            values |= _latency(levels[0][1], "first")
            return Advice("concurrency", "concurrency_unmet", None, values, _paths(levels[0][1]), False)
    most = max(speeds[concurrency] for concurrency, _ in allowed)
    chosen = next(concurrency for concurrency, _ in allowed if speeds[concurrency] >= NEAR_BEST * most)
    place = [concurrency for concurrency, _ in levels].index(chosen)
    values |= {"concurrency": chosen, "throughput": speeds[chosen], **_latency(levels[place][1], "at")}
    parts = [levels[place][1]]
    template = "concurrency" if _bounded(objective) else "concurrency_throughput"
    if place + 1 < len(levels):
        following = levels[place + 1]
        parts.append(following[1])
        values |= {
            "next": following[0],
            "next_throughput": speeds[following[0]],
            **_latency(following[1], "next"),
        }
    else:
        template += "_open"
    return Advice(
        "concurrency", template, chosen, values, _paths(*parts), True if _bounded(objective) else None
    )


def _latency(rows: pd.DataFrame, prefix: str) -> dict[str, float | None]:
    """The worst of the points: their largest TTFT p95 and ITL p99."""
    return {
        f"{prefix}_{name}": comparison.present(rows[column].astype(float).max())
        for name, column in (("ttft", "ttft_p95_ms"), ("itl", "itl_p99_ms"))
    }


def _options(data: StudyData, rows: pd.DataFrame, found: Sequence[Analysis], model: str) -> list[Advice]:
    tables = {
        (analysis.kind, table.template): table.frame[table.frame["model"] == model]
        for analysis in found
        if analysis.status != NOT_MEASURED
        for table in analysis.tables
        if "model" in table.frame
    }
    objective = data.study.objective
    return [
        _max_num_seqs(rows, objective),
        _kv_dtype(data, rows, tables.get(("perplexity", "perplexity"))),
        _chunk(rows, tables.get(("chunked_prefill", "chunked_prefill")), objective),
        _prefix(data, rows, tables.get(("prefix_cache", "prefix_cache_requests"))),
    ]


def _max_num_seqs(rows: pd.DataFrame, objective: Objective) -> Advice:
    """Of the caps that meet the objective (of all, if none does) the one with the highest throughput."""
    own = rows[rows["kind"] == "max_num_seqs"]
    caps = {
        group["max_num_seqs"]: part
        for group, part in comparison.groups(own, ("max_num_seqs",))
        if group["max_num_seqs"] is not None
    }
    if len(caps) < 2:
        return Advice("max_num_seqs", "not_measured", values={"setting": "max_num_seqs"})
    within = {cap: part for cap, part in caps.items() if meets(part, objective)}
    speeds = {cap: comparison.level(part, THROUGHPUT).value or 0.0 for cap, part in caps.items()}
    chosen = max(within or caps, key=lambda cap: speeds[cap])
    other = max((cap for cap in caps if cap != chosen), key=lambda cap: speeds[cap])
    values: dict[str, Any] = {"throughput": speeds[chosen], "other": other, "other_throughput": speeds[other]}
    values |= {**_latency(caps[chosen], "at"), **_latency(caps[other], "other")}
    values |= {"concurrency": comparison.present(own["concurrency"].max()), "caps": len(caps)}
    met = bool(within) if _bounded(objective) else None
    template = "max_num_seqs_unmet" if met is False else "max_num_seqs"
    return Advice("max_num_seqs", template, int(chosen), values, _paths(*caps.values()), met)


def _kv_dtype(data: StudyData, rows: pd.DataFrame, perplexity: pd.DataFrame | None) -> Advice:
    """Another KV dtype only if it is faster at long input and its perplexity was measured and is not worse.

    A better perplexity under quantisation is unexplained and supports nothing.
    """
    own = rows[(rows["kind"] == "kv_dtype") & (rows["workload_kind"] == "closed")]
    dtypes = list(comparison.groups(own, ("kv_cache_dtype",)))
    if len(dtypes) < 2:
        return Advice("kv_cache_dtype", "not_measured", values={"setting": "kv_cache_dtype"})
    first, base = dtypes[0][0]["kv_cache_dtype"], dtypes[0][1]
    longest = _heaviest(own)
    for group, other in dtypes[1:]:
        dtype = group["kv_cache_dtype"]
        parts = (base[base["workload"] == longest], other[other["workload"] == longest])
        if not len(parts[0]) or not len(parts[1]):
            continue
        found = comparison.compare(data, *parts, "ttft_p50_ms")
        if found is None:
            continue
        change = _perplexity_change(perplexity, dtype)
        values = {**found.values(), "first": first, "dtype": dtype, "perplexity": change}
        values |= {"concurrency": comparison.present(parts[0]["concurrency"].iloc[0])}
        values |= {"input_tokens": comparison.present(parts[0]["input_tokens"].iloc[0])}
        template, value = _dtype_verdict(found, change, str(first), str(dtype))
        return Advice("kv_cache_dtype", template, value, values, _paths(*parts))
    return Advice("kv_cache_dtype", "not_measured", values={"setting": "kv_cache_dtype"})


def _heaviest(rows: pd.DataFrame) -> str:
    """The load that wants most tokens at once."""
    demand = (rows["input_tokens"] * rows["concurrency"]).astype(float).to_numpy()
    return str(rows["workload"].to_numpy()[demand.argmax()])


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
    return ("kv_dtype_gain", dtype) if change <= PERPLEXITY_COST else ("kv_dtype_quality_worse", first)


def _perplexity_change(perplexity: pd.DataFrame | None, dtype: object) -> float | None:
    """Change against the first setting, as a ratio - 1: its interval's upper end, or if that is below 0 the
    change."""
    if perplexity is None or "perplexity_change" not in perplexity:
        return None
    rows = perplexity[(perplexity["kv_cache_dtype"] == dtype) & perplexity["perplexity_change"].notna()]
    if not len(rows):
        return None
    row = comparison.each_row(rows)[0]
    change, high = (comparison.present(row[f"perplexity_change{end}"]) for end in ("", "_high"))
    if high is not None and high < 0:
        return float(change) / 100
    return max(float(change if high is None else high), 0.0) / 100


def _chunk(rows: pd.DataFrame, runs: pd.DataFrame | None, objective: Objective) -> Advice:
    """The largest chunk whose longest gap meets the ITL bound; without a bound the one with the fastest
    prompts."""
    setting = "max_num_batched_tokens"
    known = runs.dropna(subset=["itl_max_ms"]) if runs is not None else pd.DataFrame()
    if not len(known) or known[setting].nunique() < 2:
        return Advice(setting, "not_measured", values={"setting": setting})
    gaps = known.groupby(setting)["itl_max_ms"].max().astype(float)
    ttft = known.groupby(setting)["long_ttft_max_ms"].max().astype(float)
    own = rows[(rows["kind"] == "chunked_prefill") & (rows["workload_kind"] == "interference")]
    values: dict[str, Any] = {"smallest": int(gaps.index.min()), "largest": int(gaps.index.max())}
    bound = objective.itl_p99_ms
    met: bool | None = None
    if bound > 0:
        within = [chunk for chunk in gaps.index if gaps[chunk] <= bound]
        met, chosen = bool(within), max(within) if within else min(gaps.index)
        template = "chunk" if within else "chunk_unmet"
    else:
        chosen, template = min(ttft.index, key=lambda chunk: (ttft[chunk], chunk)), "chunk_prompts"
    other = max(gaps.index) if chosen != max(gaps.index) else min(gaps.index)
    values |= {"gap": float(gaps[chosen]), "ttft": float(ttft[chosen]), "bound": bound, "other": int(other)}
    values |= {"other_gap": float(gaps[other]), "other_ttft": float(ttft[other])}
    return Advice(setting, template, int(chosen), values, _paths(own), met)


def _prefix(data: StudyData, rows: pd.DataFrame, requests: pd.DataFrame | None) -> Advice:
    """On where hits are faster than misses, with what it costs where nothing is shared; off where they are
    not."""
    setting = "enable_prefix_caching"
    cells = (
        {}
        if requests is None
        else {
            (row[setting], row["request"]): comparison.present(row["ttft_p50_ms"])
            for row in comparison.each_row(requests)
        }
    )
    miss, hit = cells.get((True, "miss")), cells.get((True, "hit"))
    if miss is None or hit is None:
        return Advice(setting, "not_measured", values={"setting": setting})
    own = rows[rows["kind"] == "prefix_cache"]
    values: dict[str, Any] = {"miss": miss, "hit": hit, "ratio": miss / hit, "share": None}
    busy = own[
        (own["shared_prefix_tokens"].fillna(0) == 0) & (own["concurrency"] == own["concurrency"].max())
    ]
    sides = {group[setting]: part for group, part in comparison.groups(busy, (setting,))}
    if {True, False} <= set(sides):
        found = comparison.compare(data, sides[False], sides[True], THROUGHPUT)
        values["share"] = None if found is None else found.ratio.ratio
        values["concurrency"] = comparison.present(busy["concurrency"].iloc[0])
    template = "prefix_on" if hit < miss else "prefix_no_gain"
    if template == "prefix_on" and values["share"] is None:
        template = "prefix_on_cost_unknown"
    return Advice(setting, template, hit < miss, values, _paths(own))


def _command(data: StudyData, rows: pd.DataFrame, model: str, advice: Sequence[Advice]) -> dict[str, str]:
    """`vllm serve` with the options that all the study's servers share and the recommended ones."""
    path, shared = model, dict[str, Option]()
    if len(rows):
        path = str(
            data.load(comparison.each_row(rows.head(1))[0]).meta.start.get("model", {}).get("path", model)
        )
        each = [data.options(row) for row in comparison.each_row(rows)]
        plain = [{name.replace("-", "_"): value for name, value in one.items()} for one in each]
        shared = {k: v for k, v in plain[0].items() if all(one.get(k) == v for one in plain)}
    options = {name: value for name, value in shared.items() if name not in _MEASURING}
    options |= {
        one.setting: one.value for one in advice if one.value is not None and one.setting != "concurrency"
    }
    words = [word for name, value in sorted(options.items()) for word in engine.flag_words(name, value)]
    return {"model": model, "command": shlex.join(["vllm", "serve", path, *words])}


# Options that a study sets for measuring and a server in use has no need of.
_MEASURING = ("enable_logging_iteration_details", "num_gpu_blocks_override", "load_format")
