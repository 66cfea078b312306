"""E5: what does an 8-bit KV cache change: capacity, speed at short context, TTFT at long input?"""

from dataclasses import dataclass, field

import pandas as pd

from servelab.claims import Analysis, Finding
from servelab.config.errors import BadValueError
from servelab.config.schema import Experiment
from servelab.experiments import comparison, load_table, workloads
from servelab.experiments.base import ServerPlan, StudyData
from servelab.spec import Option

KIND = "kv_dtype"


@dataclass
class Config(Experiment):
    """kv_cache_dtype: the first is what the others are compared with. Two loads on each server:

    short_*: one request after the other at short context; long_*: inputs and a concurrency at which capacity
      tells.
    num_gpu_blocks_override: KV blocks for the dtype at the same place in kv_cache_dtype; left out, the server
      decides. Needed where the study bounds the cache by blocks: the same memory holds more of a small dtype.
    """

    kv_cache_dtype: list[str] = field(default_factory=lambda: ["auto", "fp8"])
    num_gpu_blocks_override: list[int] = field(default_factory=list)
    output_tokens: int = 128
    short_concurrency: int = 1
    short_input_tokens: int = 512
    short_requests: int = 8
    long_concurrency: int = 16
    long_input_tokens: int = 2048
    long_requests: int = 48


def expand(config: Config) -> list[ServerPlan]:
    """One server for each KV dtype, both loads on each. Raises BadValueError."""
    workloads.numbers(1, output_tokens=config.output_tokens)
    workloads.numbers(1, short_requests=config.short_requests, long_requests=config.long_requests)
    workloads.numbers(1, short_concurrency=config.short_concurrency, long_concurrency=config.long_concurrency)
    workloads.numbers(
        1, short_input_tokens=config.short_input_tokens, long_input_tokens=config.long_input_tokens
    )
    dtypes = workloads.settings("kv_cache_dtype", config.kv_cache_dtype)
    blocks = config.num_gpu_blocks_override
    if blocks and len(blocks) != len(dtypes):
        allowed = f"a value for each of {', '.join(dtypes)}, or none"
        raise BadValueError("num_gpu_blocks_override", blocks, allowed)
    loads = tuple(
        workloads.closed(concurrency, input_tokens, config.output_tokens, requests)
        for concurrency, input_tokens, requests in (
            (config.short_concurrency, config.short_input_tokens, config.short_requests),
            (config.long_concurrency, config.long_input_tokens, config.long_requests),
        )
    )
    if loads[0][0] == loads[1][0]:
        allowed = f"a load that is not the short one ({loads[0][0]})"
        raise BadValueError("long_input_tokens", config.long_input_tokens, allowed)
    return [ServerPlan(loads, options_of(dtype, blocks[i : i + 1])) for i, dtype in enumerate(dtypes)]


def options_of(dtype: str, blocks: list[int]) -> dict[str, Option]:
    """Server options of one dtype; blocks: none or one number of KV blocks."""
    return {"kv_cache_dtype": dtype, **({"num_gpu_blocks_override": blocks[0]} if blocks else {})}


DTYPE = "kv_cache_dtype"


def analyse(data: StudyData, name: str, config: Config) -> Analysis:
    """Capacity, speed at short context and TTFT at long input for each KV dtype, against the first one."""
    missing = comparison.nothing(data, KIND, name)
    if missing is not None:
        return missing
    tested = (DTYPE, "num_gpu_blocks_override")
    rows = comparison.experiment_rows(data, name, tested)
    table = load_table.load_table(data, rows, (DTYPE,), name, drop=("ready_s", "itl_p50_ms", "running_mean"))
    findings = comparison.failed_settings(rows, name, lambda row: f"kv_cache_dtype={row[DTYPE]}")
    within = (comparison.MODEL, comparison.SERVER, *load_table.LOAD)
    for group, first, base, dtype, other in comparison.against_first(data.usable(rows), within, DTYPE):
        values = {**group, "dtype": dtype, "first": first}
        findings += _compared(data, config, values, base, other, name, table.id)
    return Analysis(KIND, name, tables=[table], findings=comparison.labelled(findings))


def _compared(
    data: StudyData,
    config: Config,
    values: comparison.Settings,
    base: pd.DataFrame,
    other: pd.DataFrame,
    name: str,
    table: str,
) -> list[Finding]:
    """The short load is judged by throughput, the long one by TTFT and by whether it fits into the KV
    cache."""
    long = (
        values["input_tokens"] == config.long_input_tokens
        and values["concurrency"] == config.long_concurrency
    )
    column, template = (
        ("ttft_p50_ms", "kv_dtype_long_ttft")
        if long
        else ("output_throughput_tok_s", "kv_dtype_short_throughput")
    )
    findings = []
    found = comparison.compare(data, base, other, column)
    if found is not None:
        findings.append(comparison.compared(template, found, values, name, (table,), 50 if long else 35))
    capacity = [comparison.level(rows, "kv_cache_tokens").value for rows in (base, other)]
    if long and capacity[0] and capacity[1]:
        needed = config.long_concurrency * (config.long_input_tokens + config.output_tokens)
        given = any("num_gpu_blocks_override" in text for text in other["options"])
        more = {
            "base": capacity[0],
            "other": capacity[1],
            "ratio": capacity[1] / capacity[0],
            "needed": needed,
        }
        template = "kv_dtype_capacity_given" if given else "kv_dtype_capacity"
        findings.append(Finding(template, {**values, **more}, experiment=name, tables=(table,), weight=30))
    return findings
