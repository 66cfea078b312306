"""What the server itself says about the point: preemptions, compilation, errors, its version."""

import numpy as np

from servelab.gates.evidence import INVALID, NOTE, SUSPECT, Evidence, Reason
from servelab.request_times import turn_of_slot
from servelab.stats import percentile

FIRST_WAVE_RATIO = 1.5  # first requests of the slots against the later ones
FIRST_WAVE_LATER = 4  # later requests that the comparison needs


def preempted(evidence: Evidence) -> Reason | None:
    """The KV cache ran out and requests were put back: a fact about this load, no fault of the measurement."""
    count = evidence.number("preemptions")
    return Reason("preempted", NOTE, {"preemptions": int(count)}) if count else None


def compiled(evidence: Evidence) -> Reason | None:
    """The server compiled while the point ran: invalid if its first requests were slow as well.

    The log's events carry no time, and a warm-up is the right place for compilation: a log line alone is a
    note.
    """
    events = [e for e in evidence.record.meta.log_events if e.get("kind") in ("jit", "compile")]
    ratio = first_wave_ratio(evidence)
    slow = ratio is not None and ratio >= FIRST_WAVE_RATIO
    if not events:
        return Reason("slow_first_wave", SUSPECT, {"ratio": ratio}) if slow else None
    times = sum(int(event.get("count", 1)) for event in events)
    values = {"events": times, "text": str(events[0].get("text", ""))[:200], "ratio": ratio}
    return Reason("compiled_measured", INVALID, values) if slow else Reason("compiled_logged", NOTE, values)


def first_wave_ratio(evidence: Evidence) -> float | None:
    """How much slower each slot's first request was than its later ones: median time to the last token.

    At concurrency 1 the first TTFT over the slowest later TTFT as well (more requests at once queue in the
    first wave by themselves); the larger of the two. None where there is no such comparison: open loop, too
    few later requests, prompts that share a prefix (their first is a miss), or preemptions, which make later
    requests slow.
    """
    workload, times = evidence.workload, evidence.times
    if workload.kind != "closed" or workload.shared_prefix_tokens or workload.same_prompt:
        return None
    if evidence.number("preemptions"):
        return None
    turn = turn_of_slot(times)
    first, later = turn == 0, turn > 0
    if np.count_nonzero(later) < FIRST_WAVE_LATER or not first.any():
        return None
    early, late = percentile(times.e2e_s[first], 50), percentile(times.e2e_s[later], 50)
    if early is None or not late:
        return None
    slowest = float(times.ttft_s[later].max())
    if workload.concurrency == 1 and slowest > 0:
        return max(early / late, float(times.ttft_s[first].max()) / slowest)
    return early / late


def other_version(evidence: Evidence) -> Reason | None:
    """The server that answered is not of the version the config names (a local part such as +cpu is ignored)."""
    engine = evidence.record.meta.spec.get("server", {}).get("engine", {})
    named, found = str(engine.get("version", "unknown")), evidence.record.meta.session.get("version")
    if named in ("", "unknown") or not found:
        return None
    if named.split("+")[0].lstrip("v") == str(found).split("+")[0].lstrip("v"):
        return None
    return Reason("other_version", INVALID, {"named": named, "found": str(found)})


def errors_logged(evidence: Evidence) -> Reason | None:
    """The server wrote errors while the point ran."""
    events = [e for e in evidence.record.meta.log_events if e.get("kind") == "error"]
    if not events:
        return None
    return Reason(
        "errors_logged", NOTE, {"events": len(events), "text": str(events[0].get("text", ""))[:200]}
    )
