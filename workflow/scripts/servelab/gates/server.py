"""What the server itself says about the point: preemptions, compilation, errors, its version."""

from typing import Any

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
    """The server compiled while the point ran, and not only in the warm-up, which is the right place for it.

    Invalid if the first requests were slow as well. Where they cannot be compared with later ones (open loop,
    interference, few requests) the time that the log gives the event decides; where they can and were not slow, an
    event inside the window is suspect. An event without a time, or outside the window, is a note.
    """
    events = [e for e in evidence.record.meta.log_events if e.get("kind") in ("jit", "compile")]
    ratio = first_wave_ratio(evidence)
    slow = ratio is not None and ratio >= FIRST_WAVE_RATIO
    if not events:
        return Reason("slow_first_wave", SUSPECT, {"ratio": ratio}) if slow else None
    times = sum(int(event.get("count", 1)) for event in events)
    values = {"events": times, "text": str(events[0].get("text", ""))[:200], "ratio": ratio}
    if slow:
        return Reason("compiled_measured", INVALID, values)
    within = _compiled_within(evidence, events)
    if (
        ratio is not None and within is not None
    ):  # the first requests were no slower: not sure that it reached any
        within = Reason(within.reason, SUSPECT, within.values)
    return within or Reason("compiled_logged", NOTE, values)


def _compiled_within(evidence: Evidence, events: list[dict[str, Any]]) -> Reason | None:
    """Whether a stamp lies in the measured window; None if none does, or the stamps or the window are not known.

    A stamp is a whole second: the event came within the second that follows. The second in which the window
    begins may still be the warm-up's, so that an event in it is suspect only; after the last token nothing is
    computed, so that one in the second in which it ends was in the window.
    """
    meta = evidence.record.meta
    zero = meta.extra.get("clock_zero")
    begin_s, end_s = meta.window.get("first_send_s"), meta.window.get("last_token_s")
    if zero is None or begin_s is None or end_s is None:
        return None
    begin_s, end_s = zero + begin_s, zero + end_s
    texts = {second: str(event.get("text", "")) for event in events for second in event.get("utc_s") or ()}
    within = sorted(second for second in texts if begin_s - 1 < second <= end_s)
    certain = [second for second in within if second >= begin_s]
    if certain:
        values = {"seconds": len(certain), "after_s": certain[0] - begin_s, "text": texts[certain[0]][:200]}
        return Reason("compiled_within", INVALID, values)
    return Reason("compiled_at_begin", SUSPECT, {"text": texts[within[0]][:200]}) if within else None


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
