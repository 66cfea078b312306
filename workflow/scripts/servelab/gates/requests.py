"""Did the requests do what was asked, and are there enough of them?"""

import pyarrow as pa
import pyarrow.compute as pc

from servelab.gates.evidence import INVALID, NOTE, SUSPECT, Evidence, Reason
from servelab.stats import requests_needed

FAILED_SHARE_INVALID = 0.01  # above it, percentiles of the successes say little about the load
_TOKEN_CAUSE_SET = pa.array(["input_tokens", "output_tokens", "usage_missing", "token_count"])
_QUOTED = (95, 99)


def point_failed(evidence: Evidence) -> Reason | None:
    """The point as a whole failed: nothing of it may be used."""
    meta = evidence.record.meta
    if meta.status == "ok":
        return None
    return Reason("point_failed", INVALID, {"why": meta.cause or "unknown", "detail": meta.detail or ""})


def tokens_not_as_asked(evidence: Evidence) -> Reason | None:
    """The server read or wrote other token counts than asked: the load is not the one the row names."""
    table = evidence.record.requests.filter(pc.not_equal(evidence.record.requests["role"], "warmup"))
    other = pc.fill_null(pc.is_in(table["cause"], value_set=_TOKEN_CAUSE_SET), False)
    for side in ("input_tokens", "output_tokens"):
        differs = pc.fill_null(pc.not_equal(table[side], table[f"{side}_asked"]), False)
        other = pc.or_(other, pc.and_(table["ok"], differs))
    count = int(pc.sum(other).as_py() or 0)
    if count == 0:
        return None
    return Reason("tokens_not_as_asked", INVALID, {"requests": count, "of": table.num_rows})


def requests_failed(evidence: Evidence) -> Reason | None:
    """Some requests failed: figures are those of the survivors. Above 1 % that is no measurement of the load."""
    bad, good = evidence.number("requests_failed") or 0, evidence.number("requests_ok") or 0
    if bad == 0:
        return None
    table = evidence.record.requests
    failures = table.filter(pc.and_(pc.invert(table["ok"]), pc.not_equal(table["role"], "warmup")))
    causes = failures["cause"].to_pylist()
    most = max(set(causes), key=causes.count) if causes else "unknown"
    severity = INVALID if bad / (bad + good) > FAILED_SHARE_INVALID else SUSPECT
    return Reason("requests_failed", severity, {"requests": int(bad), "of": int(bad + good), "most": most})


def fewer_requests_than_asked(evidence: Evidence) -> Reason | None:
    """The point ended before all its requests were sent."""
    asked = evidence.workload.requests
    seen = (evidence.number("requests_failed") or 0) + (evidence.number("requests_ok") or 0)
    if evidence.workload.kind not in ("closed", "open") or asked == 0 or seen >= asked:
        return None
    return Reason("fewer_requests_than_asked", SUSPECT, {"requests": int(seen), "asked": asked})


def too_few_requests(evidence: Evidence) -> Reason | None:
    """Not enough requests for an interval of TTFT p95 or p99: such a percentile is not quoted without one."""
    return _too_few(evidence, "ttft_n", "too_few_requests")


def too_few_gaps(evidence: Evidence) -> Reason | None:
    """The same for ITL, where the sample is gaps."""
    return _too_few(evidence, "itl_n", "too_few_gaps")


def _too_few(evidence: Evidence, column: str, reason: str) -> Reason | None:
    n = evidence.number(column)
    if not n or evidence.workload.kind not in ("closed", "open"):
        return None
    unsupported = [q for q in _QUOTED if n < requests_needed(q)]
    if not unsupported:
        return None
    values = {"n": int(n), "percentile": unsupported[0], "needed": requests_needed(unsupported[0])}
    return Reason(reason, NOTE, values)
