"""Were prompts read in, or found in a cache where there should be nothing to find?

The field notes' trap: one prompt repeated with the prefix cache on gives a prefill rate that no machine has.
"""

from servelab.gates.evidence import INVALID, NOTE, SUSPECT, Evidence, Reason

HIT_SHARE_INVALID = (
    0.001  # of the tokens looked up; below it the figures hardly move, yet something was shared
)


def same_prompt(evidence: Evidence) -> Reason | None:
    """Every request carried one prompt while a prefix cache could be on: all but the first may be cache hits."""
    if not evidence.workload.same_prompt or _switched_off(evidence):
        return None
    return Reason("same_prompt", INVALID, {"requests": int(evidence.number("ttft_n") or 0)})


def prefix_hits(evidence: Evidence) -> Reason | None:
    """The hit counter moved although no two prompts share a beginning."""
    hits, queries = evidence.number("prefix_hits"), evidence.number("prefix_queries")
    if not hits or evidence.workload.shared_prefix_tokens > 0:
        return None
    share = hits / queries if queries else 1.0
    values = {"hits": int(hits), "queries": int(queries or 0), "share": share}
    workload, preempted = evidence.workload, evidence.number("preemptions") or 0
    if not workload.same_prompt and hits <= preempted * (workload.input_tokens + workload.output_tokens):
        return Reason("prefix_hits_resumed", NOTE, {**values, "preemptions": int(preempted)})
    return Reason("prefix_hits", INVALID if share > HIT_SHARE_INVALID else SUSPECT, values)


def _switched_off(evidence: Evidence) -> bool:
    value = evidence.row.get("enable_prefix_caching")
    return value is not None and value == value and str(value).lower() in ("false", "0")
