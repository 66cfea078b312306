"""E12: what to set for the study's objective, from what was measured, with the points it rests on and its price.

A setting is recommended only where the study's own points support it; otherwise it is «not measured» and what the
study sets, or the server's default, stays. What a recommendation costs is said with it.
"""

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import takewhile
from typing import Any

import pandas as pd

from servelab import alert_rules, engine
from servelab.advice import THROUGHPUT, Advice, bounded, latency, meets, points_of, quotable
from servelab.claims import MEASURED, NOT_MEASURED, Analysis, Finding, Table
from servelab.config.schema import Objective
from servelab.experiments import comparison
from servelab.experiments.base import StudyData
from servelab.option_names import underscored
from servelab.recommend_options import on_options
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
# Options that a study sets for measuring and a server in use has no need of.
_MEASURING = ("enable_logging_iteration_details", "num_gpu_blocks_override", "load_format")


def analyse(data: StudyData, found: Sequence[Analysis]) -> Analysis:
    """Advice for every model of the study: a table of settings, a command line, the limits for alerting
    rules."""
    usable = data.usable(data.rows)
    rows, commands, findings = [], [], []
    for model in dict.fromkeys(data.rows["model"].dropna()):
        mine = usable[usable["model"] == model]
        shared = _shared(data, mine)
        # A value that failed was tried too.
        everywhere = _shared(data, data.rows[data.rows["model"] == model])
        advice = [_concurrency(mine, data.study.objective), *on_options(data, mine, found, model)]
        advice = [_as_it_is(each, everywhere) for each in advice]
        rows += [_row(model, each, data.study.objective) for each in advice]
        commands.append(_command(data, mine, model, shared, advice))
        findings += comparison.labelled([_finding(model, each, data.study.objective) for each in advice])
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
    return ", ".join(f"{name} ≤ {bound:,g} ms" for name, bound in bounds if bound > 0)


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
    if bounded(objective):
        allowed = list(takewhile(lambda level: meets(level[1], objective), levels))
        if not allowed:
            values |= latency(levels[0][1], "first")
            template = _worded("concurrency_unmet", levels[0][1])
            return Advice("concurrency", template, None, values, points_of(levels[0][1]), False)
    most = max(speeds[concurrency] for concurrency, _ in allowed)
    chosen = next(concurrency for concurrency, _ in allowed if speeds[concurrency] >= NEAR_BEST * most)
    place = [concurrency for concurrency, _ in levels].index(chosen)
    values |= {"concurrency": chosen, "throughput": speeds[chosen], **latency(levels[place][1], "at")}
    parts = [levels[place][1]]
    template = "concurrency" if bounded(objective) else "concurrency_throughput"
    if place + 1 < len(levels):
        following = levels[place + 1]
        parts.append(following[1])
        values |= {
            "next": following[0],
            "next_throughput": speeds[following[0]],
            **latency(following[1], "next"),
        }
    else:
        template += "_open"
    if bounded(objective):
        template = _worded(template, *parts)
    return Advice(
        "concurrency", template, chosen, values, points_of(*parts), True if bounded(objective) else None
    )


def _worded(template: str, *parts: pd.DataFrame) -> str:
    """The template that quotes ITL p99, or where a point has too few gaps for one, that of the longest gap."""
    return template if all(bool(quotable(rows).all()) for rows in parts) else f"{template}_few"


def _shared(data: StudyData, rows: pd.DataFrame) -> dict[str, Option]:
    """The options, with underscores, that all servers of these points were given with one value."""
    each = [underscored(data.options(row)) for row in comparison.each_row(rows)]
    return {k: v for k, v in each[0].items() if all(one.get(k) == v for one in each)} if each else {}


def _as_it_is(advice: Advice, shared: Mapping[str, Option]) -> Advice:
    """For a setting without a recommendation: what every server of the study had is what stays."""
    if advice.template != "not_measured" or shared.get(advice.setting) is None:
        return advice
    kept = " ".join(engine.flag_words(advice.setting, shared[advice.setting]))
    return replace(advice, template="not_varied", values={**advice.values, "kept": kept})


def _command(
    data: StudyData, rows: pd.DataFrame, model: str, shared: Mapping[str, Option], advice: Sequence[Advice]
) -> dict[str, str]:
    """`vllm serve` with the options that all the study's servers share and the recommended ones."""
    path = model
    if len(rows):
        path = str(
            data.load(comparison.each_row(rows.head(1))[0]).meta.start.get("model", {}).get("path", model)
        )
    options = {name: value for name, value in shared.items() if name not in _MEASURING}
    options |= {
        one.setting: one.value for one in advice if one.value is not None and one.setting != "concurrency"
    }
    words = [word for name, value in sorted(options.items()) for word in engine.flag_words(name, value)]
    return {"model": model, "command": shlex.join(["vllm", "serve", path, *words])}
