"""A measured point in one line for a person who watches."""

from servelab import stats
from servelab.records import PointRecord


def summary_line(record: PointRecord) -> str:
    """Name and the figures that matter at a glance; a failed point gives its cause."""
    meta = record.meta
    if meta.status == "failed":
        return f"{meta.name} FAILED: {meta.cause}: {(meta.detail or '').splitlines()[0][:200] if meta.detail else ''}"
    rows = [row for row in record.requests.to_pylist() if row["role"] != "warmup"]
    good = [row for row in rows if row["ok"]]
    if not rows:
        tokens = meta.session.get("log", {}).get("kv_cache_tokens")
        return f"{meta.name} ready after {meta.session.get('ready_s', 0):.1f} s, KV cache {tokens} tokens"
    if good and good[0]["nll"] is not None:
        return f"{meta.name} {len(good)} of {len(rows)} segments scored"
    firsts = [1e3 * (row["chunk_s"][0] - row["sent_s"]) for row in good if row["chunk_s"]]
    tokens = sum(sum(row["chunk_tokens"]) for row in good)
    ends = [row["chunk_s"][-1] for row in good if row["chunk_s"]]
    sent = [row["sent_s"] for row in rows if row["sent_s"] is not None]
    span = max(ends) - min(sent) if ends and sent else 0.0
    rate = f"{tokens / span:,.1f} tok/s, " if span > 0 else ""
    ttft = f"TTFT p50 {stats.percentile(firsts, 50):,.0f} ms" if firsts else "no token"
    failed = f", {len(rows) - len(good)} failed" if len(good) < len(rows) else ""
    return f"{meta.name} {rate}{ttft}{failed}"
