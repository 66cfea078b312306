"""E2: does KV-cache capacity match the formula, on the first start and on restarts, for each KV dtype?"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pandas as pd

from servelab import server_counters
from servelab.claims import CALCULATED, MEASURED, NOT_MEASURED, Analysis, Finding, Table
from servelab.config.schema import Experiment
from servelab.experiments import comparison, workloads
from servelab.experiments.base import ServerPlan, StudyData
from servelab.model_card import ModelCard, NotCalculated
from servelab.option_names import underscored
from servelab.records import PointRecord

KIND = "kv_capacity"


@dataclass
class Config(Experiment):
    """kv_cache_dtype: each gets its own servers. restarts: starts after the first, with its compile cache.

    input_tokens, output_tokens: request lengths for which «how many fit» is calculated.
    """

    kv_cache_dtype: list[str] = field(default_factory=lambda: ["auto", "fp8"])
    restarts: int = 3
    input_tokens: list[int] = field(default_factory=lambda: [512, 2048])
    output_tokens: int = 128


def expand(config: Config) -> list[ServerPlan]:
    """A first start and the restarts for each KV dtype; the starts are the measurement.

    Raises BadValueError for a value that makes no sense.
    """
    workloads.numbers(1, input_tokens=config.input_tokens, output_tokens=config.output_tokens)
    dtypes = workloads.settings("kv_cache_dtype", config.kv_cache_dtype)
    return [
        plan
        for dtype in dtypes
        for plan in workloads.boots({"kv_cache_dtype": dtype}, config.starts, config.restarts)
    ]


DTYPE = "kv_cache_dtype"
GIVEN = ("num_gpu_blocks_override", "kv_cache_memory_bytes")
AGREEMENT = 0.005  # bytes per token of the log against the formula
LOG_STEP_BYTES = 0.01 * (1 << 30)  # the log writes memory in GiB with two decimals
COLUMNS = {
    "kv_cache_tokens": ("tokens", MEASURED),
    "metrics_tokens": ("tokens", MEASURED),
    "kv_block_tokens": ("tokens", MEASURED),
    "kv_cache_bytes": ("bytes", MEASURED),
    "bytes_per_token": ("bytes", MEASURED),
    "formula_bytes_per_token": ("bytes", CALCULATED),
    "relative_error_pct": ("%", CALCULATED),
    "log_resolution_pct": ("%", CALCULATED),
}


def analyse(data: StudyData, name: str, config: Config) -> Analysis:
    """Capacity of every start, its bytes per token beside the formula; first start against restarts; what
    fits."""
    missing = comparison.nothing(data, KIND, name)
    if missing is not None:
        return missing
    rows = comparison.experiment_rows(data, name, (DTYPE, "num_gpu_blocks_override"))
    usable = data.usable(rows)
    made = [_start(data, row) for row in comparison.each_row(usable)]
    starts = Table(f"{name}_starts", pd.DataFrame(made), COLUMNS, name, "kv_capacity")
    fits = _fits(starts.frame, config, name)
    findings = comparison.failed_settings(rows, name, lambda row: f"{DTYPE}={row[DTYPE]} {row['point']}")
    for group, same in comparison.groups(starts.frame, (comparison.MODEL, comparison.SERVER, DTYPE)):
        findings += _formula(group, same, name, starts.id) + _boots(group, same, name, starts.id)
    findings += _dtypes(starts.frame, name, starts.id)
    return Analysis(KIND, name, tables=[starts, fits], findings=comparison.labelled(findings))


def _start(data: StudyData, row: Mapping[str, Any]) -> dict[str, Any]:
    """One start: what its log and /metrics say, and the formula where it holds."""
    record = data.load(row)
    tokens, size = server_counters.kv_capacity(record.meta)
    blocks, block = server_counters.kv_blocks(record.meta)
    options = underscored(data.options(row))
    formula = _bytes_per_token(data, row, options, comparison.session_fact(record, "dtype"))
    known = None if isinstance(formula, NotCalculated) else formula
    per_token = size / tokens if size and tokens else None
    return {
        comparison.MODEL: row[comparison.MODEL],
        comparison.SERVER: row[comparison.SERVER],
        DTYPE: row[DTYPE],
        "boot": row["boot"],
        "start": int(row["start"]),
        "kv_cache_tokens": tokens,
        "kv_block_tokens": block,
        "metrics_tokens": blocks * block if blocks and block else None,
        "kv_cache_bytes": size,
        "bytes_per_token": per_token,
        "formula_bytes_per_token": known,
        "relative_error_pct": 100 * (per_token / known - 1) if per_token and known else None,
        "log_resolution_pct": _resolution_pct(record.meta.session, size),
        "given": any(options.get(option) is not None for option in GIVEN) or _given_space(record),
        "reason": formula.reason if isinstance(formula, NotCalculated) else None,
    }


def _bytes_per_token(
    data: StudyData, row: Mapping[str, Any], options: Mapping[str, Any], dtype: str | None
) -> float | NotCalculated:
    """Bytes of a token in the cache of one device; a cache without a dtype of its own has the served model's."""
    card: ModelCard | None = data.model_cards.get(row[comparison.MODEL])
    if card is None:
        return NotCalculated("kv_no_config")
    return card.as_served(options, dtype).kv_bytes_per_token(
        options.get(DTYPE),
        tensor_parallel=int(options.get("tensor_parallel_size") or 1),
        pipeline_parallel=int(options.get("pipeline_parallel_size") or 1),
    )


def _given_space(record: PointRecord) -> bool:
    """Whether the engine's environment says how much memory the CPU engine's cache takes (0: vLLM decides)."""
    engine = record.meta.start.get("engine") or {}
    return str((engine.get("environment") or {}).get("VLLM_CPU_KVCACHE_SPACE") or "0") != "0"


def _resolution_pct(session: Mapping[str, Any], size: float | None) -> float | None:
    """Half a step of the log's GiB figure, in % of it: nearer than that the log cannot be compared."""
    whole = (session.get("log") or {}).get("kv_available_bytes") or size
    return 100 * LOG_STEP_BYTES / 2 / whole if whole else None


def _fits(starts: pd.DataFrame, config: Config, name: str) -> Table:
    """Requests that fit at once (server_counters.capacity_requests), for each length, dtype and boot."""
    made = []
    for group, same in comparison.groups(starts, (comparison.MODEL, comparison.SERVER, DTYPE, "boot")):
        tokens, blocks = same["kv_cache_tokens"].dropna(), same["kv_block_tokens"].dropna()
        block = int(blocks.iloc[0]) if len(blocks) else None
        for input_tokens in config.input_tokens:
            length = input_tokens + config.output_tokens
            lowest = int(tokens.min()) if len(tokens) else None
            fitting = server_counters.capacity_requests(lowest, length, block) if lowest is not None else None
            made.append({
                **group, "input_tokens": input_tokens, "output_tokens": config.output_tokens,
                "kv_cache_tokens": lowest, "requests_that_fit": fitting,
            })  # fmt: skip
    columns = {"kv_cache_tokens": ("tokens", MEASURED), "requests_that_fit": ("", CALCULATED)}
    return Table(f"{name}_fits", pd.DataFrame(made), columns, name, "kv_fits")


def _formula(group: comparison.Settings, same: pd.DataFrame, name: str, table: str) -> list[Finding]:
    """Whether log bytes ÷ log tokens agree with the formula, to what the log's two decimals allow."""
    errors = same["relative_error_pct"].dropna().astype(float)
    if not len(errors):
        reasons = [reason for reason in same["reason"] if reason is not None]
        template = "kv_capacity_not_calculated" if reasons else "kv_capacity_no_bytes"
        values = {**group, "reason": reasons[0] if reasons else ""}
        return [Finding(template, values, NOT_MEASURED, name, (table,), weight=25)]
    worst = float(errors.iloc[errors.abs().to_numpy().argmax()]) / 100
    resolution = float(same["log_resolution_pct"].dropna().astype(float).max()) / 100
    values = {
        **group,
        "formula": float(same["formula_bytes_per_token"].iloc[0]),
        "error": abs(worst),
        "starts": len(errors),
    }
    values |= {"resolution": resolution, "measured": float(same["bytes_per_token"].dropna().iloc[0])}
    agrees = abs(worst) <= max(AGREEMENT, resolution)
    template = "kv_capacity_formula_agrees" if agrees else "kv_capacity_formula_differs"
    stance = "supports" if agrees else "contradicts"
    return [Finding(template, values, MEASURED, name, (table,), weight=35, stance=stance)]


def _boots(group: comparison.Settings, same: pd.DataFrame, name: str, table: str) -> list[Finding]:
    """Capacity of restarts against the first start; where it was given in the config it says nothing."""
    tokens = {boot: part["kv_cache_tokens"].dropna().astype(float) for boot, part in same.groupby("boot")}
    first, restart = tokens.get("first"), tokens.get("restart")
    if first is None or restart is None or not len(first) or not len(restart):
        return []
    values = {
        **group,
        "first": float(first.iloc[0]),
        "low": float(restart.min()),
        "high": float(restart.max()),
    }
    values |= {"firsts": len(first), "restarts": len(restart), "ratio": float(restart.mean() / first.mean())}
    if bool(same["given"].any()):
        outcome = "given"
    elif float(restart.min()) == float(restart.max()) == float(first.min()) == float(first.max()):
        outcome = "equal"
    else:
        apart = float(restart.min()) > float(first.max()) or float(restart.max()) < float(first.min())
        outcome = "overlap" if not apart else "differ_each" if values["low"] == values["high"] else "differ"
    template = f"kv_capacity_restart_{outcome}"
    return [
        Finding(template, values, MEASURED, name, (table,), weight=40 if outcome.startswith("differ") else 15)
    ]


def _dtypes(starts: pd.DataFrame, name: str, table: str) -> list[Finding]:
    """Tokens of each KV dtype over the first one's, on the first start."""
    findings = []
    for group, same in comparison.groups(starts[~starts["given"]], (comparison.MODEL, comparison.SERVER)):
        firsts = same[same["boot"] == "first"].dropna(subset=["kv_cache_tokens"])
        by_dtype = list(comparison.groups(firsts, (DTYPE,)))
        for setting, rows in by_dtype[1:]:
            base, other = (float(part["kv_cache_tokens"].iloc[0]) for part in (by_dtype[0][1], rows))
            values = {**group, "first": by_dtype[0][0][DTYPE], "dtype": setting[DTYPE]}
            values |= {"base": base, "other": other, "ratio": other / base}
            findings.append(Finding("kv_capacity_dtype", values, MEASURED, name, (table,), weight=30))
    return findings
