"""One row per point: what a point's requests, chunks, counters and polled series come to."""

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from servelab import server_counters
from servelab.canonical import canonical_json
from servelab.config.schema import Objective
from servelab.option_names import underscored
from servelab.records import PointMeta, PointRecord
from servelab.request_times import RequestTimes, gaps_within, request_times
from servelab.spec import Workload
from servelab.stats import percentile, requests_needed

# Column → unit ("" for names, counts and settings). The order is the order in tables/points.csv.
COLUMNS: dict[str, str] = {
    # which point
    "study": "", "experiment": "", "kind": "", "slug": "", "model": "", "start": "", "repeat": "",
    "point": "", "path": "", "key": "", "status": "", "cause": "", "detail": "", "session_id": "",
    "order": "", "boot": "", "machine_id": "", "started_at": "",
    # the server's settings that studies vary (as given; null = the server's default), and all of them as JSON
    "options": "", "max_model_len": "tokens", "max_num_seqs": "", "max_num_batched_tokens": "tokens",
    "kv_cache_dtype": "", "enable_prefix_caching": "", "enforce_eager": "", "attention_backend": "",
    # the load
    "workload": "", "workload_kind": "", "concurrency": "", "rate_rps": "1/s", "input_tokens": "tokens",
    "output_tokens": "tokens", "requests_asked": "", "shared_prefix_tokens": "tokens",
    # what happened (measured requests only: warm-up rows never count)
    "requests_ok": "", "requests_failed": "", "input_tokens_total": "tokens", "output_tokens_total": "tokens",
    "duration_s": "s", "steady_s": "s",
    "output_throughput_tok_s": "tok/s", "steady_throughput_tok_s": "tok/s", "total_throughput_tok_s": "tok/s",
    "request_throughput_rps": "1/s", "per_request_tok_s": "tok/s", "goodput_rps": "1/s",
    # latency over successful requests; itl_* over gaps, itl_token_* gaps divided by their tokens
    **{f"{metric}_{stat}_ms": "ms" for metric in ("ttft", "itl", "itl_token", "tpot", "e2e")
       for stat in ("mean", "p50", "p90", "p95", "p99", "max")},
    "ttft_n": "", "itl_n": "", "tokens_per_chunk": "tokens", "send_lag_p50_ms": "ms", "send_lag_p99_ms": "ms",
    # the server's own figures: counter deltas over the point, polled series
    "preemptions": "", "prefix_queries": "tokens", "prefix_hits": "tokens", "kv_cache_tokens": "tokens",
    "kv_cache_bytes": "bytes", "kv_block_tokens": "tokens", "kv_usage_max": "1", "running_mean": "",
    "running_max": "", "waiting_mean": "", "waiting_max": "", "capacity_requests": "", "ready_s": "s",
    # the client and the power meter
    "client_cpu_s": "s", "client_us_per_token": "µs", "client_lag_p99_ms": "ms", "client_lag_max_ms": "ms",
    "energy_j": "J", "joules_per_token": "J",
    # may it be believed: valid, suspect or invalid; reasons as JSON [{"reason", "severity", "values"}]
    "verdict": "", "reasons": "",
}  # fmt: skip

_SETTINGS = (
    "max_model_len", "max_num_seqs", "max_num_batched_tokens", "kv_cache_dtype", "enable_prefix_caching",
    "enforce_eager", "attention_backend",
)  # fmt: skip
_STATISTICS = (("p50", 50), ("p90", 90), ("p95", 95), ("p99", 99))
_WITHOUT_LATENCY = ("perplexity", "boot")


def row(record: PointRecord, kind: str, path: str, objective: Objective | None) -> dict[str, Any]:
    """One point as a row: every name of COLUMNS, None where it was not measured; verdict and reasons stay None.

    kind: the experiment's kind. path: the point's file. objective: what goodput is measured against.
    A failed point keeps what can still be said of it. Definitions: docs/statistics.md.
    """
    meta = record.meta
    workload = Workload.from_json(meta.spec.get("workload", {}))
    values: dict[str, Any] = dict.fromkeys(COLUMNS)
    values.update(_identity(meta, kind, path))
    values.update(_settings(meta))
    values.update(_load(workload, record.requests))
    values.update(_server(record, workload))
    measured = record.requests.filter(pc.not_equal(record.requests["role"], "warmup"))
    values["requests_ok"] = int(pc.sum(measured["ok"]).as_py() or 0)
    values["requests_failed"] = measured.num_rows - values["requests_ok"]
    if workload.kind not in _WITHOUT_LATENCY:
        values.update(_requests(record, workload, objective))
    values.update(_client(record, values.get("output_tokens_total")))
    unknown = values.keys() - COLUMNS.keys()
    assert not unknown, f"columns without a unit: {unknown}"
    return values


def frame(rows: Iterable[Mapping[str, Any]]) -> pd.DataFrame:
    """Rows as a table with the columns of COLUMNS in order; whole numbers nullable, the rest float or object."""
    records = list(rows)
    return pd.DataFrame({name: _column(name, [row[name] for row in records]) for name in COLUMNS})


def without_bare_tails(points: pd.DataFrame) -> pd.DataFrame:
    """The points with p99 missing where the requests (gaps) are too few for its interval: it is not quoted then."""
    shown = points.copy()
    for metric in ("ttft", "itl"):
        if {f"{metric}_p99_ms", f"{metric}_n"} <= set(shown):
            few = pd.to_numeric(shown[f"{metric}_n"]).fillna(0) < requests_needed(99)
            shown[f"{metric}_p99_ms"] = shown[f"{metric}_p99_ms"].mask(few)
    return shown


def _column(name: str, values: list[Any]) -> "pd.Series[Any]":
    present = [value for value in values if value is not None and value == value]
    if present and all(isinstance(value, bool) for value in present):
        return pd.Series(values, dtype="boolean")
    if present and all(isinstance(value, int) and not isinstance(value, bool) for value in present):
        return pd.Series(values, dtype="Int64")
    if COLUMNS[name] and not any(isinstance(value, str) for value in present):
        return pd.Series(values, dtype=float)
    return pd.Series(values, dtype=object)


def _identity(meta: PointMeta, kind: str, path: str) -> dict[str, Any]:
    model = meta.start.get("model")
    return {
        "study": meta.study,
        "experiment": meta.experiment,
        "kind": kind,
        "slug": meta.slug,
        "model": model.get("name") if isinstance(model, Mapping) else model,
        "start": meta.spec.get("start", 1),
        "repeat": meta.spec.get("repeat", 1),
        "point": meta.name,
        "path": path,
        "key": meta.key,
        "status": meta.status,
        "cause": meta.cause,
        "detail": meta.detail,
        "session_id": meta.session.get("id"),
        "order": meta.session.get("order"),
        "boot": meta.session.get("boot"),
        "ready_s": meta.session.get("ready_s"),
        "machine_id": meta.machine.get("id"),
        "started_at": meta.provenance.get("started_at"),
    }


def _settings(meta: PointMeta) -> dict[str, Any]:
    server = meta.spec.get("server", {})
    options = server.get("options", {})
    named = underscored(options)
    return {"options": canonical_json(options), **{name: named.get(name) for name in _SETTINGS}}


def _load(workload: Workload, requests: pa.Table) -> dict[str, Any]:
    values: dict[str, Any] = {
        "workload": canonical_json(workload.to_json()),
        "workload_kind": workload.kind,
        "shared_prefix_tokens": workload.shared_prefix_tokens,
    }
    if workload.kind == "closed":
        values["concurrency"] = workload.concurrency
    if workload.kind == "open" and workload.arrival != "trace":
        values["rate_rps"] = workload.rate_rps
    if workload.kind in ("closed", "open", "interference"):
        values["input_tokens"] = workload.input_tokens
    if workload.kind in ("closed", "open"):
        values["output_tokens"] = workload.output_tokens
        intended = int(pc.sum(pc.equal(requests["role"], "measured")).as_py() or 0)
        values["requests_asked"] = workload.requests or intended
    return values


def _requests(record: PointRecord, workload: Workload, objective: Objective | None) -> dict[str, Any]:
    if workload.kind == "interference":
        return _interference(record)
    times = request_times(record.requests, ("measured",), workload.kind == "open")
    if times.start_s.size == 0:
        return {}
    gaps_ms, gap_tokens = 1000 * times.gaps_s, times.gap_tokens
    values = {
        **_rates(record, times, objective),
        **_statistics("ttft", 1000 * times.ttft_s),
        **_statistics("itl", gaps_ms),
        **_statistics("itl_token", gaps_ms / np.maximum(gap_tokens, 1)),
        **_statistics("tpot", 1000 * times.tpot_s),
        **_statistics("e2e", 1000 * times.e2e_s),
        "ttft_n": int(times.start_s.size),
        "itl_n": int(gaps_ms.size),
        "tokens_per_chunk": float(times.chunk_tokens.mean()),
    }
    intended = np.asarray(record.requests["intended_s"].to_numpy(), dtype=float)
    sent = np.asarray(record.requests["sent_s"].to_numpy(), dtype=float)
    measured = np.asarray(pc.equal(record.requests["role"], "measured").to_numpy(), dtype=bool)
    lag_ms = 1000 * (sent - intended)[measured & ~np.isnan(sent)]
    values["send_lag_p50_ms"], values["send_lag_p99_ms"] = percentile(lag_ms, 50), percentile(lag_ms, 99)
    return values


def _rates(record: PointRecord, times: RequestTimes, objective: Objective | None) -> dict[str, Any]:
    """Throughput over the whole run (output tokens of successes / (last token - first send)) and what goes with it."""
    sent = record.requests.filter(pc.equal(record.requests["role"], "measured"))["sent_s"]
    first_send = pc.min(sent).as_py()
    duration = float(times.last_s.max()) - float(first_send)
    inputs, outputs = int(times.input_tokens.sum()), int(times.tokens.sum())
    values: dict[str, Any] = {
        "input_tokens_total": inputs,
        "output_tokens_total": outputs,
        "duration_s": duration,
        "per_request_tok_s": percentile(times.tokens / times.e2e_s, 50) if (times.e2e_s > 0).all() else None,
    }
    if duration > 0:
        values["output_throughput_tok_s"] = outputs / duration
        values["total_throughput_tok_s"] = (inputs + outputs) / duration
        values["request_throughput_rps"] = times.start_s.size / duration
        good = good_requests(times, objective)
        values["goodput_rps"] = None if good is None else int(good.sum()) / duration
    window = record.meta.window
    start, end = window.get("steady_start_s"), window.get("steady_end_s")
    if start is not None and end is not None and end > start:
        values["steady_s"] = end - start
        values["steady_throughput_tok_s"] = times.tokens_between(start, end) / (end - start)
    return values


def good_requests(times: RequestTimes, objective: Objective | None) -> np.ndarray | None:
    """Which requests [n] meet the objective: own TTFT within ttft_p95_ms, own ITL p99 within itl_p99_ms.

    None where the objective sets no bound. Failed requests are never good: they are not in `times`.
    """
    if objective is None or not (objective.ttft_p95_ms > 0 or objective.itl_p99_ms > 0):
        return None
    good = np.ones(times.start_s.size, dtype=bool)
    if objective.ttft_p95_ms > 0:
        good &= 1000 * times.ttft_s <= objective.ttft_p95_ms
    if objective.itl_p99_ms > 0:
        tails = [percentile(1000 * gaps, 99) for gaps in times.gaps_by_request()]
        good &= np.array([tail is None or tail <= objective.itl_p99_ms for tail in tails], dtype=bool)
    return good


def _interference(record: PointRecord) -> dict[str, Any]:
    """TTFT of the inserted prompts; ITL of the victim while they are being read in (send to first token)."""
    inserted = request_times(record.requests, ("inserted",), open_loop=False)
    victim = request_times(record.requests, ("victim",), open_loop=False)
    values = {**_statistics("ttft", 1000 * inserted.ttft_s), "ttft_n": int(inserted.start_s.size)}
    if victim.start_s.size and inserted.start_s.size:
        gaps, tokens = gaps_within(victim, float(inserted.sent_s.min()), float(inserted.first_s.max()))
        values |= _statistics("itl", 1000 * gaps)
        values |= _statistics("itl_token", 1000 * gaps / np.maximum(tokens, 1))
        values |= {"itl_n": int(gaps.size), "tokens_per_chunk": float(victim.chunk_tokens.mean())}
    return values


def _statistics(metric: str, values_ms: np.ndarray) -> dict[str, float | None]:
    if values_ms.size == 0:
        return {}
    found: dict[str, float | None] = {
        f"{metric}_mean_ms": float(values_ms.mean()),
        f"{metric}_max_ms": float(values_ms.max()),
    }
    return found | {f"{metric}_{name}_ms": percentile(values_ms, q) for name, q in _STATISTICS}


def _server(record: PointRecord, workload: Workload) -> dict[str, Any]:
    meta = record.meta
    tokens, size = server_counters.kv_capacity(meta)
    _, block = server_counters.kv_blocks(meta)
    per_request = workload.input_tokens + workload.output_tokens
    values: dict[str, Any] = {
        "preemptions": server_counters.delta(meta, server_counters.PREEMPTIONS),
        "prefix_queries": server_counters.delta(meta, server_counters.PREFIX_QUERIES),
        "prefix_hits": server_counters.delta(meta, server_counters.PREFIX_HITS),
        "kv_cache_tokens": tokens,
        "kv_cache_bytes": size,
        "kv_block_tokens": block,
    }
    if tokens is not None and workload.kind in ("closed", "open") and per_request > 0:
        values["capacity_requests"] = server_counters.capacity_requests(tokens, per_request, block)
    usage = server_counters.polled(record.series, server_counters.KV_USAGE, meta.window, combine="max")
    values["kv_usage_max"] = float(usage.max()) if usage.size else None
    for name, metric in (("running", server_counters.RUNNING), ("waiting", server_counters.WAITING)):
        polled = server_counters.polled(record.series, metric, meta.window)
        if polled.size:
            values[f"{name}_mean"], values[f"{name}_max"] = float(polled.mean()), float(polled.max())
    return values


def _client(record: PointRecord, tokens: int | None) -> dict[str, Any]:
    """The client's own figures, and energy: metered over the whole point, so over the warm-up's tokens as well."""
    client, energy_j = record.meta.client, record.meta.extra.get("energy_j")
    cpu_s = client.get("cpu_s")
    everything = pc.sum(pc.list_flatten(record.requests["chunk_tokens"])).as_py()
    return {
        "client_cpu_s": cpu_s,
        "client_us_per_token": 1e6 * cpu_s / tokens if cpu_s is not None and tokens else None,
        "client_lag_p99_ms": client.get("lag_p99_ms"),
        "client_lag_max_ms": client.get("lag_max_ms"),
        "energy_j": energy_j,
        "joules_per_token": energy_j / everything if energy_j is not None and everything else None,
    }
