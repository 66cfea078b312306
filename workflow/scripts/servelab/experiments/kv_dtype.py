"""E5: what does an 8-bit KV cache change: capacity, speed at short context, TTFT at long input?"""

from dataclasses import dataclass, field

from servelab.config.schema import Experiment
from servelab.experiments import workloads
from servelab.experiments.base import ServerPlan
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
    """One server for each KV dtype, both loads on each. Raises ValueError naming a senseless key."""
    workloads.numbers(1, output_tokens=config.output_tokens)
    workloads.numbers(1, short_requests=config.short_requests, long_requests=config.long_requests)
    workloads.numbers(1, short_concurrency=config.short_concurrency, long_concurrency=config.long_concurrency)
    workloads.numbers(
        1, short_input_tokens=config.short_input_tokens, long_input_tokens=config.long_input_tokens
    )
    dtypes = workloads.settings("kv_cache_dtype", config.kv_cache_dtype)
    blocks = config.num_gpu_blocks_override
    if blocks and len(blocks) != len(dtypes):
        raise ValueError(f"num_gpu_blocks_override: {blocks!r} needs a value for each of {dtypes!r}, or none")
    loads = tuple(
        workloads.closed(concurrency, input_tokens, config.output_tokens, requests)
        for concurrency, input_tokens, requests in (
            (config.short_concurrency, config.short_input_tokens, config.short_requests),
            (config.long_concurrency, config.long_input_tokens, config.long_requests),
        )
    )
    if loads[0][0] == loads[1][0]:
        raise ValueError(f"long_input_tokens: the short and the long load are the same ({loads[0][0]})")
    return [ServerPlan(loads, options_of(dtype, blocks[i : i + 1])) for i, dtype in enumerate(dtypes)]


def options_of(dtype: str, blocks: list[int]) -> dict[str, Option]:
    """Server options of one dtype; blocks: none or one number of KV blocks."""
    return {"kv_cache_dtype": dtype, **({"num_gpu_blocks_override": blocks[0]} if blocks else {})}
