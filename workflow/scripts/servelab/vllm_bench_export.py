"""A point as the JSON that `vllm bench serve --save-result --save-detailed` writes, for plots that read it.

Keys, units and definitions are those of vLLM 0.31 (vllm/benchmarks/serve.py, `calculate_metrics`): seconds in
the detailed lists, milliseconds in the summaries, percentiles linear over successful requests, ITL over gaps
between chunks, a failed request as a zero with its error. What its file does not know goes under keys of
ours, `servelab_*`.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import numpy as np
import numpy.typing as npt

from servelab.records import PointRecord
from servelab.stats import percentile

PERCENTILES = (50, 90, 95, 99)
Row = dict[str, Any]
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class _Request:
    """One measured request in vLLM's terms; start is the sent time, as there."""

    row: Row

    @property
    def ok(self) -> bool:
        return bool(self.row["ok"] and self.row["chunk_s"])

    @property
    def start_s(self) -> float:
        return float(self.row["intended_s"] if self.row["sent_s"] is None else self.row["sent_s"])

    @property
    def ttft_s(self) -> float:
        return float(self.row["chunk_s"][0]) - self.start_s if self.ok else 0.0

    @property
    def latency_s(self) -> float:
        return float(self.row["chunk_s"][-1]) - self.start_s if self.ok else 0.0

    @property
    def itl_s(self) -> list[float]:
        return [float(gap) for gap in np.diff(self.row["chunk_s"])] if self.ok else []

    @property
    def queue_s(self) -> float:
        return max(self.start_s - float(self.row["intended_s"]), 0.0)


def export(record: PointRecord) -> dict[str, Any]:
    """The JSON object. The lists hold one entry a measured request, in order of index; warm-up is left out.

    Generated texts are not kept by servelab: that list holds empty texts.
    """
    rows = [row for row in record.requests.to_pylist() if row["role"] != "warmup"]
    requests = [_Request(row) for row in rows]
    ok = [request for request in requests if request.ok]
    duration = _duration_s(record)
    out = _head(record, len(rows))
    output = [int(request.row["output_tokens"]) if request.ok else 0 for request in requests]
    total_in, total_out = sum(int(request.row["input_tokens"]) for request in ok), sum(output)
    out |= {
        "duration": duration,
        "completed": len(ok),
        "failed": len(rows) - len(ok),
        "total_input_tokens": total_in,
        "total_output_tokens": total_out,
        "request_throughput": _rate(len(ok), duration),
        "request_goodput": None,
        "output_throughput": _rate(total_out, duration),
        "total_token_throughput": _rate(total_in + total_out, duration),
        "input_lens": [
            int(request.row["input_tokens"] or request.row["input_tokens_asked"]) for request in requests
        ],
        "output_lens": output,
        "ttfts": [request.ttft_s for request in requests],
        "itls": [request.itl_s for request in requests],
        "latencies": [request.latency_s for request in requests],
        "start_times": [request.start_s for request in requests],
        "queue_times": [request.queue_s for request in requests],
        "generated_texts": [""] * len(rows),
        "errors": ["" if request.ok else _error(request.row) for request in requests],
        "max_output_tokens_per_s": _peak_tokens(ok),
        "max_concurrent_requests": _peak_requests(ok),
        "rtfx": 0.0,
    }
    for name, values in _metrics(ok).items():
        out |= _summary(name, values)
    return out


def _head(record: PointRecord, requests: int) -> dict[str, Any]:
    meta, workload = record.meta, record.meta.spec.get("workload", {})
    model = (meta.start.get("model") or {}).get("name") or meta.slug
    started = str(meta.provenance.get("started_at") or "1970-01-01T00:00:00+00:00")
    kind = workload.get("kind", "closed")
    chat = workload.get("api") == "chat"
    return {
        "date": datetime.fromisoformat(started).strftime("%Y%m%d-%H%M%S"),
        "endpoint_type": "openai-chat" if chat else "openai",
        "backend": "openai-chat" if chat else "openai",
        "label": f"{meta.study}/{meta.experiment}/{meta.slug}/{meta.name}",
        "model_id": model,
        "tokenizer_id": model,
        "num_prompts": requests,
        "request_rate": workload.get("rate_rps", "inf") if kind == "open" else "inf",
        "burstiness": workload.get("burstiness", 1.0),
        "max_concurrency": workload.get("concurrency", 1) if kind == "closed" else None,
        "servelab_key": meta.key,
        "servelab_workload": workload,
    }


def _duration_s(record: PointRecord) -> float:
    window = record.meta.window
    return float(window.get("last_token_s", 0.0) - window.get("first_send_s", 0.0))


def _rate(count: float, duration_s: float) -> float:
    return count / duration_s if duration_s > 0 else 0.0


def _error(row: Row) -> str:
    return f"{row['cause'] or 'no token'}: {row['detail'] or ''}".rstrip(": ")


def _metrics(ok: Sequence[_Request]) -> dict[str, list[float]]:
    """Values in seconds for each of vLLM's four metrics."""
    several = [request for request in ok if request.row["output_tokens"] > 1]
    return {
        "ttft": [request.ttft_s for request in ok],
        "tpot": [(r.latency_s - r.ttft_s) / (r.row["output_tokens"] - 1) for r in several],
        "itl": [gap for request in ok for gap in request.itl_s],
        "e2el": [request.latency_s for request in ok],
    }


def _summary(name: str, values_s: list[float]) -> dict[str, float]:
    ms = np.asarray(values_s or [0.0]) * 1e3
    out = {
        f"mean_{name}_ms": float(ms.mean()),
        f"median_{name}_ms": float(percentile(ms, 50) or 0.0),
        f"std_{name}_ms": float(ms.std()),
    }
    return out | {f"p{q}_{name}_ms": float(percentile(ms, q) or 0.0) for q in PERCENTILES}


def _peak_tokens(ok: Sequence[_Request]) -> float:
    """Most tokens in one second from the first send; tokens, where vLLM counts chunks."""
    if not ok:
        return 0.0
    zero = min(request.start_s for request in ok)
    seconds = np.concatenate([np.asarray(request.row["chunk_s"]) - zero for request in ok]).astype(np.int64)
    tokens = np.concatenate([np.asarray(request.row["chunk_tokens"]) for request in ok])
    return float(np.bincount(seconds, weights=tokens).max())


def _peak_requests(ok: Sequence[_Request]) -> int:
    """Most requests under way in the course of one second, as vLLM counts them."""
    if not ok:
        return 0
    zero = min(request.start_s for request in ok)
    counts = np.zeros(
        math.ceil(max(request.start_s + request.latency_s for request in ok) - zero) + 2, dtype=np.int64
    )
    for request in ok:
        counts[int(request.start_s - zero) : int(request.start_s + request.latency_s - zero) + 1] += 1
    return int(counts.max())
