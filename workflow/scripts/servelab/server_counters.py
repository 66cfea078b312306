"""What the server counted: counter deltas over a point and polled gauges, from /metrics.

Names are vLLM's (vllm/v1/metrics/loggers.py of 0.31.0; a prometheus Counter gets `_total`). A prefix-cache
query counts the prompt tokens of a request when it is first scheduled; a request that resumes after
preemption is counted apart by vLLM and is not in these counters (vllm/v1/metrics/stats.py: PrefixCacheStats).
"""

from collections.abc import Mapping

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from servelab import prometheus
from servelab.option_names import underscored
from servelab.records import PointMeta

PREEMPTIONS = "vllm:num_preemptions_total"
PREFIX_QUERIES = "vllm:prefix_cache_queries_total"
PREFIX_HITS = "vllm:prefix_cache_hits_total"
PROMPT_TOKENS = "vllm:prompt_tokens_total"
GENERATION_TOKENS = "vllm:generation_tokens_total"
KV_USAGE = "vllm:kv_cache_usage_perc"
RUNNING = "vllm:num_requests_running"
WAITING = "vllm:num_requests_waiting"


def delta(meta: PointMeta, name: str) -> int | None:
    """Counter after the point minus before, summed over engines; None if either is missing or it went down."""
    after = prometheus.value(meta.metrics.get("after", {}), name)
    before = prometheus.value(meta.metrics.get("before", {}), name)
    if after is None or before is None or after < before:
        return None
    return round(after - before)


def polled(series: pa.Table, name: str, window: Mapping[str, float], combine: str = "sum") -> np.ndarray:
    """A gauge's values at each poll inside the point's window [n]; engines summed, or their maximum taken.

    window: PointMeta.window; without first_send_s and last_token_s every poll counts.
    """
    matches = pc.or_(pc.equal(series["name"], name), pc.starts_with(series["name"], name + "{"))
    table = series.filter(matches)
    at = np.asarray(table["at_s"].to_numpy(), dtype=float)
    values = np.asarray(table["value"].to_numpy(), dtype=float)
    low, high = window.get("first_send_s", -np.inf), window.get("last_token_s", np.inf)
    inside = (at >= low) & (at <= high)
    at, values = at[inside], values[inside]
    polls, place = np.unique(at, return_inverse=True)
    if combine == "max":
        found = np.full(polls.size, -np.inf)
        np.maximum.at(found, place, values)
        return found
    return np.bincount(place, weights=values, minlength=polls.size)


def kv_blocks(meta: PointMeta) -> tuple[int | None, int | None]:
    """(blocks, tokens in a block) of the KV cache from vllm:cache_config_info; None where the server does not say.

    Of data-parallel engines, each of which says its own, the blocks of all together.
    """
    configs = [meta.session.get("cache_config") or {}]
    configs += [prometheus.cache_config(meta.metrics.get(moment, {})) for moment in ("before", "after")]

    def said(name: str) -> int | None:
        texts = [str(config.get(name, "")) for config in configs]
        return next((int(text) for text in texts if text.isdigit() and int(text) > 0), None)

    blocks = said("num_gpu_blocks")
    return None if blocks is None else blocks * _engines(meta), said("block_size")


def capacity_requests(tokens: int, each: int, block: int | None) -> float:
    """How many requests of `each` tokens the KV cache holds, in whole blocks where their size is known.

    (tokens ÷ block) ÷ ⌈each ÷ block⌉: vLLM gives a request whole blocks (vllm/v1/core/kv_cache_manager.py), so that
    160 tokens in blocks of 128 take the room of 256.
    """
    return tokens / each if block is None else (tokens / block) / -(-each // block)


def kv_capacity(meta: PointMeta) -> tuple[int | None, int | None]:
    """(tokens, bytes) of the KV caches of all engines as the server said: its log, or blocks × block size."""
    places = [meta.session.get("log") or {}, meta.session]
    tokens = next((p["kv_cache_tokens"] for p in places if p.get("kv_cache_tokens")), None)
    size = next((p["kv_cache_bytes"] for p in places if p.get("kv_cache_bytes")), None)
    blocks, block = kv_blocks(meta)
    engines = _engines(meta)
    if tokens is not None:
        tokens = int(tokens) * engines
    elif blocks and block:
        tokens = blocks * block
    return tokens, int(size) * engines if size is not None else None


def _engines(meta: PointMeta) -> int:
    """How many engines the server's requests are spread over (vLLM's data_parallel_size)."""
    options = meta.spec.get("server", {}).get("options", {})
    named = underscored(options)
    return int(named.get("data_parallel_size") or 1)
