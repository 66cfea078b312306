"""Was the load generator itself the limit?"""

from servelab.gates.evidence import INVALID, SUSPECT, Evidence, Reason

BUSY_SUSPECT, BUSY_INVALID = 0.80, 0.95  # share of one core: the event loop has one
LAG_FLOOR_MS = 10.0  # below it, lateness is the timer's own resolution and the kernel's
LAG_SUSPECT, LAG_INVALID = 0.10, 0.50  # of the gap or the first-token time that it would be mistaken for
SEND_LAG_SUSPECT = 0.10


def client_busy(evidence: Evidence) -> Reason | None:
    """The client's event loop had hardly a free moment: tokens waited for it, not for the server."""
    client = evidence.record.meta.client
    cpu_s, wall_s = client.get("cpu_s"), client.get("wall_s")
    if cpu_s is None or not wall_s:
        return None
    share = cpu_s / wall_s
    if share < BUSY_SUSPECT:
        return None
    return Reason("client_busy", INVALID if share >= BUSY_INVALID else SUSPECT, {"share": share})


def client_late(evidence: Evidence) -> Reason | None:
    """The client saw bytes late, by a part of the latency it reports that matters."""
    lag_ms = evidence.record.meta.client.get("lag_p99_ms")
    scales = [evidence.number(name) for name in ("itl_p50_ms", "ttft_p50_ms")]
    known = [scale for scale in scales if scale]
    if lag_ms is None or lag_ms < LAG_FLOOR_MS or not known:
        return None
    share = lag_ms / min(known)
    if share < LAG_SUSPECT:
        return None
    severity = INVALID if share >= LAG_INVALID else SUSPECT
    return Reason("client_late", severity, {"lag_ms": lag_ms, "scale_ms": min(known), "share": share})


def sent_late(evidence: Evidence) -> Reason | None:
    """Open loop: requests left later than the schedule said, so the load was not the one asked for."""
    lag_ms, ttft_ms = evidence.number("send_lag_p99_ms"), evidence.number("ttft_p50_ms")
    if evidence.workload.kind != "open" or lag_ms is None or not ttft_ms:
        return None
    if lag_ms < LAG_FLOOR_MS or lag_ms < SEND_LAG_SUSPECT * ttft_ms:
        return None
    return Reason("sent_late", SUSPECT, {"lag_ms": lag_ms, "ttft_ms": ttft_ms})
