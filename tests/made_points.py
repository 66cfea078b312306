"""Points whose truth is known, made by hand for tests: every request's times are chosen, nothing is measured."""

from dataclasses import replace
from typing import Any

from servelab import records
from servelab.records import PointMeta, PointRecord
from servelab.spec import Workload


def request(
    index: int,
    sent_s: float,
    ttft_s: float = 0.05,
    gap_s: float = 0.01,
    input_tokens: int = 64,
    output_tokens: int = 16,
    **other: Any,
) -> dict[str, Any]:
    """One successful request: first token after ttft_s, then a token each gap_s."""
    chunk_s = [sent_s + ttft_s + i * gap_s for i in range(output_tokens)]
    row: dict[str, Any] = {
        "index": index,
        "role": "measured",
        "slot": 0,
        "intended_s": sent_s,
        "sent_s": sent_s,
        "first_byte_s": chunk_s[0],
        "end_s": chunk_s[-1],
        "chunk_s": chunk_s,
        "chunk_tokens": [1] * output_tokens,
        "input_tokens_asked": input_tokens,
        "output_tokens_asked": output_tokens,
        "input_tokens": input_tokens,
        "output_tokens": output_tokens,
        "finish_reason": "length",
        "http_status": 200,
        "ok": True,
    }
    return {**row, **other}


def failed(index: int, sent_s: float, cause: str = "stalled", **other: Any) -> dict[str, Any]:
    """One failed request without a token."""
    row = request(index, sent_s, **other)
    return {**row, "chunk_s": [], "chunk_tokens": [], "ok": False, "cause": cause, "output_tokens": None}


def closed_rows(concurrency: int = 2, each: int = 10, **other: Any) -> list[dict[str, Any]]:
    """A closed loop of `concurrency` slots, `each` requests after one another in each."""
    rows = []
    for turn in range(each):
        for slot in range(concurrency):
            one = request(len(rows), 0.0, **other)
            length = one["end_s"]
            rows.append(request(len(rows), turn * length, slot=slot, **other))
    return rows


def point(rows: list[dict[str, Any]], workload: Workload | None = None, **meta: Any) -> PointRecord:
    """A point of these rows: 2 slots, 64 tokens in and 16 out unless a workload is given; `meta` overrides."""
    workload = workload or Workload(
        kind="closed", input_tokens=64, output_tokens=16, concurrency=2, requests=len(rows)
    )
    sent = [row["sent_s"] for row in rows if row.get("sent_s") is not None]
    last = [row["chunk_s"][-1] for row in rows if row["chunk_s"]]
    base = PointMeta(
        key="0" * 32,
        spec={
            "measurement_version": 1,
            "server": {"engine": {"version": "0.31.0"}, "model": {}, "options": {"max-num-seqs": 64}},
            "experiment": "load",
            "seed": 1,
            "start": 1,
            "repeat": 1,
            "workload": workload.to_json(),
        },
        name="c2-i64-o16",
        study="test",
        experiment="load",
        slug="server",
        start={"model": {"name": "tiny", "path": "tiny", "fingerprint": "f"}},
        session={"id": "s1", "order": 0, "boot": "restart", "ready_s": 5.0, "version": "0.31.0"},
        metrics={"before": {}, "after": {}},
        client={"cpu_s": 0.1, "wall_s": 10.0, "lag_p50_ms": 0.1, "lag_p99_ms": 0.5, "lag_max_ms": 1.0},
        window={"first_send_s": min(sent, default=0.0), "last_token_s": max(last, default=0.0)},
        machine={"id": "m1", "cores": 2},
        provenance={"started_at": "2026-11-29T12:00:00Z"},
    )
    return PointRecord(replace(base, **meta), records.requests_table(rows), records.series_table([]))


def counters(before: dict[str, float], after: dict[str, float]) -> dict[str, dict[str, float]]:
    """Counters of vLLM with its labels, for PointMeta.metrics."""
    label = '{engine="0",model_name="tiny"}'
    return {
        "before": {f"vllm:{name}_total{label}": value for name, value in before.items()},
        "after": {f"vllm:{name}_total{label}": value for name, value in after.items()},
    }
