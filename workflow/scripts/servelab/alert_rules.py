"""Prometheus alerting rules for a server's limits, as `promtool check rules` accepts them.

Metric names are vLLM's (vllm/v1/metrics/loggers.py of 0.31.0; a prometheus Counter gets `_total`, a Histogram
`_bucket`). Percentiles come from the server's own histograms, so they are as coarse as its buckets are.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import yaml

BY = "model_name"
WINDOW = "5m"


@dataclass(frozen=True)
class Limits:
    """What the alerts are for; None or 0 leaves a rule out.

    ttft_p95_ms, itl_p99_ms: the objective. concurrency: requests in flight at most. max_num_seqs: requests
    that run at once at most; above it they wait.
    """

    ttft_p95_ms: float = 0.0
    itl_p99_ms: float = 0.0
    concurrency: int | None = None
    max_num_seqs: int | None = None

    @property
    def waiting(self) -> int:
        """Requests that may wait without the concurrency limit being broken."""
        if self.concurrency is None or self.max_num_seqs is None:
            return 0
        return max(0, self.concurrency - self.max_num_seqs)


def rules(study: str, limits: Limits) -> str:
    """The rules as a YAML file's text."""
    group = {"name": f"servelab-{study}", "rules": list(_rules(limits))}
    return yaml.safe_dump({"groups": [group]}, sort_keys=False, allow_unicode=True, width=110)


def _rules(limits: Limits) -> list[dict[str, Any]]:
    found = [
        _rule(
            "VllmPreemptions",
            f"sum by ({BY}) (increase(vllm:num_preemptions_total[{WINDOW}])) > 0",
            "0m",
            "Requests are being preempted: the KV cache is too small for this load",
        ),
        _rule(
            "VllmRequestsWaiting",
            f"sum by ({BY}) (vllm:num_requests_waiting) > {limits.waiting}",
            WINDOW,
            f"More than {limits.waiting} requests wait in the server's queue",
        ),
    ]
    if limits.concurrency is not None:
        flight = f"sum by ({BY}) (vllm:num_requests_running + vllm:num_requests_waiting)"
        text = f"More than {limits.concurrency} requests are in flight"
        found.append(_rule("VllmConcurrency", f"{flight} > {limits.concurrency}", WINDOW, text))
    if limits.ttft_p95_ms > 0:
        text = f"TTFT p95 is above {limits.ttft_p95_ms:g} ms"
        expression = _quantile(0.95, "vllm:time_to_first_token_seconds_bucket", limits.ttft_p95_ms)
        found.append(_rule("VllmTtftP95", expression, WINDOW, text))
    if limits.itl_p99_ms > 0:
        text = f"ITL p99 is above {limits.itl_p99_ms:g} ms"
        expression = _quantile(0.99, "vllm:inter_token_latency_seconds_bucket", limits.itl_p99_ms)
        found.append(_rule("VllmItlP99", expression, WINDOW, text))
    return found


def _quantile(q: float, metric: str, bound_ms: float) -> str:
    return f"histogram_quantile({q:g}, sum by (le, {BY}) (rate({metric}[{WINDOW}]))) > {bound_ms / 1000:g}"


def _rule(name: str, expression: str, hold: str, summary: str) -> dict[str, Any]:
    labels: Mapping[str, str] = {"severity": "warning"}
    annotations = {"summary": f"{summary} ({{{{ $labels.{BY} }}}})"}
    return {
        "alert": name,
        "expr": expression,
        "for": hold,
        "labels": dict(labels),
        "annotations": annotations,
    }
