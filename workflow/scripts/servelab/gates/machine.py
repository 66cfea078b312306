"""Is the number possible on this machine, and did the machine belong to the measurement?

Rates are lower bounds of what the server must have done (model_card.py), set against what the machine can do
(limits.py). A lower bound above the limit means that the work was not done: cached prefixes, wrong tokens.
"""

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from servelab.gates.evidence import INVALID, NOTE, SUSPECT, Evidence, Reason
from servelab.model_card import ModelCard
from servelab.request_times import RequestTimes
from servelab.spec import Workload
from servelab.stats import percentile

MARGIN = 1.10  # a measured limit may be a little low; beyond this factor the point is invalid
FOREIGN_SUSPECT, FOREIGN_INVALID = 0.10, 0.50  # share of the CPUs that others kept busy
QUOTA_SHARE = 0.01
_WINDOW_STARTS = 400
_POWER_CAP = "power cap"
_RUN_ELSEWHERE = ("docker", "podman", "nerdctl", "kubectl", "ssh", "srun")
_KINDS = ("closed", "open", "interference")


def prefill_rate(evidence: Evidence) -> Reason | None:
    """More floating-point operations a second than the machine has: prompts were not read in."""
    limit = evidence.limits.get("flops")
    if evidence.served is None or not limit or evidence.workload.kind not in _KINDS:
        return None
    rate = prefill_flops_per_s(evidence.read_in, evidence.workload, evidence.served)
    return _beyond("prefill_rate", rate, limit)


def decode_rate(evidence: Evidence) -> Reason | None:
    """More bytes a second than the memory delivers: tokens were not computed one after the other from weights."""
    limit = evidence.limits.get("bytes_per_s")
    if evidence.served is None or not limit or evidence.workload.kind not in _KINDS:
        return None
    cache = evidence.limits.get("cache_bytes", 0.0)
    dtype = evidence.row.get("kv_cache_dtype")
    kv_dtype = dtype if isinstance(dtype, str) else "auto"
    rate = decode_bytes_per_s(evidence.decoding, evidence.served, cache, kv_dtype)
    return _beyond("decode_rate", rate, limit)


def limits_unknown(evidence: Evidence) -> Reason | None:
    """Nothing says what the machine can do, so the point was not held against it."""
    if evidence.workload.kind not in _KINDS:
        return None
    missing = [name for name in ("flops", "bytes_per_s") if not evidence.limits.get(name)]
    if evidence.served is None or not isinstance(evidence.served.flops_per_prefill_token(1), float):
        missing.append("model")
    elif not isinstance(evidence.served.step_weight_bytes(), float):
        missing.append("weights")
    return Reason("limits_unknown", NOTE, {"missing": ", ".join(missing)}) if missing else None


def prefill_flops_per_s(times: RequestTimes, workload: Workload, card: ModelCard) -> float | None:
    """FLOP/s that reading the prompts in took at least; None where the card cannot say.

    times: of an interference, those of the inserted prompts; the victim's tokens beside them are not counted.

    For each request as the beginning of a window: the most FLOPs of requests sent and answered with a first
    token inside it, over its length, with at least `concurrency` of them; the median over beginnings, or the
    rate over the whole run if that is higher. Tokens shared by design are not counted; what the server says
    it had cached is not believed.
    """
    tokens = np.maximum(times.input_tokens - workload.shared_prefix_tokens, 0)
    if tokens.size == 0 or not tokens.any():
        return None
    each = card.flops_per_prefill_token((float(tokens.mean()) + 1) / 2)
    decode = card.flops_per_decode_token(float(tokens.mean()))
    if not isinstance(each, float) or not isinstance(decode, float):
        return None
    flops = tokens * each
    length = float(times.last_s.max() - times.sent_s.min())
    whole = (float(flops.sum()) + float((times.tokens - 1).sum()) * decode) / length if length > 0 else 0.0
    least = max(1, workload.concurrency if workload.kind == "closed" else 1)
    windows = [rate for i in _beginnings(times) if (rate := _window_rate(times, flops, i, least)) is not None]
    return max([whole, *([float(np.median(windows))] if windows else [])])


def _beginnings(times: RequestTimes) -> np.ndarray:
    order = np.argsort(times.sent_s, kind="stable")
    return order[:: max(1, order.size // _WINDOW_STARTS)]


def _window_rate(times: RequestTimes, flops: np.ndarray, begin: int, least: int) -> float | None:
    start_s = times.sent_s[begin]
    inside = times.sent_s >= start_s
    order = np.argsort(times.first_s[inside], kind="stable")
    lengths = times.first_s[inside][order] - start_s
    work = np.cumsum(flops[inside][order])
    if lengths.size < least or (lengths[least - 1 :] <= 0).any():
        return None
    return float((work[least - 1 :] / lengths[least - 1 :]).max())


def decode_bytes_per_s(
    times: RequestTimes, card: ModelCard, cache_bytes: float = 0.0, kv_dtype: str = "auto"
) -> float | None:
    """Bytes a second that decoding moved from memory at least; None where the card cannot say.

    A chunk takes a step at least, the chunks of a slot one after the other; a step reads the weights, and the
    KV cache of its requests where the formula holds, less what the processor's cache may hold. The larger of
    the mean over the run and the median request's own pace.
    """
    weights = card.step_weight_bytes()
    if not isinstance(weights, float) or times.start_s.size == 0:
        return None
    kv = card.kv_bytes_per_token(kv_dtype)
    per_token = kv if isinstance(kv, float) else 0.0
    slots = times.slot if (times.slot >= 0).all() else np.arange(times.slot.size)
    steps = float(np.bincount(slots, weights=times.chunks).max())
    read = float((times.chunks * (times.input_tokens + times.tokens / 2)).sum()) * per_token
    length = float(times.last_s.max() - times.sent_s.min())
    whole = steps * max(0.0, weights + read / steps - cache_bytes) / length if length > 0 else 0.0
    several = (times.chunks > 2) & (times.last_s > times.first_s)
    paces = (times.chunks[several] - 1) / (times.last_s - times.first_s)[several]
    pace = percentile(paces, 50) or 0.0
    return max(whole, pace * max(0.0, weights - cache_bytes))


def _beyond(reason: str, rate: float | None, limit: float) -> Reason | None:
    if rate is None or rate <= limit:
        return None
    severity = INVALID if rate > MARGIN * limit else SUSPECT
    return Reason(reason, severity, {"rate": rate, "limit": limit, "ratio": rate / limit})


def slowed_down(evidence: Evidence) -> Reason | None:
    """Clocks were lowered or the CPU quota ran out during the point. A GPU at its power cap is only noted."""
    found = evidence.during.get("throttled")
    if not isinstance(found, Mapping) or not found:
        return None
    wall_s = float(evidence.during.get("wall_s") or 0.0)
    kept = {
        name: value
        for name, value in found.items()
        if not name.endswith("throttled_s") or (wall_s > 0 and value / wall_s >= QUOTA_SHARE)
    }
    if not kept:
        return None
    only_capped = all(name.endswith(_POWER_CAP) for name in kept)
    return Reason("slowed_down", NOTE if only_capped else SUSPECT, {"what": ", ".join(sorted(kept))})


def shared_machine(evidence: Evidence) -> Reason | None:
    """Other processes, or the hypervisor, took a part of the CPUs during the point.

    Not asked of an attached server, nor of one that a container's daemon or another machine runs for us: its own
    work would count as somebody else's.
    """
    command = (evidence.record.meta.start.get("engine") or {}).get("command") or [""]
    elsewhere = Path(str(command[0])).name in _RUN_ELSEWHERE
    if elsewhere or evidence.record.meta.session.get("boot") == "attached":
        return None
    cpus = float(
        evidence.record.meta.machine.get("threads_usable") or evidence.record.meta.machine.get("cores") or 0
    )
    here = float(evidence.during.get("foreign_cpus") or 0)
    stolen = float(evidence.during.get("steal_cpus") or 0)
    taken = here + stolen
    if cpus <= 0 or taken / cpus < FOREIGN_SUSPECT:
        return None
    top = evidence.during.get("foreign_top") or []
    who = ", ".join(str(entry[0]) for entry in top) or "–"
    severity = INVALID if taken / cpus >= FOREIGN_INVALID else SUSPECT
    values = {"cpus": taken, "of": cpus, "here": here, "who": who, "stolen": stolen}
    return Reason("shared_machine", severity, values)


def other_machine(evidence: Evidence) -> Reason | None:
    """The point comes from another machine than most of the study."""
    here = evidence.record.meta.machine.get("id")
    if not here or not evidence.main_machine or here == evidence.main_machine:
        return None
    return Reason("other_machine", SUSPECT, {"machine": str(here)[:8], "main": evidence.main_machine[:8]})
