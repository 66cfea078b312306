"""Did the point measure one state of the server, or several?

Judged on requests, not on gaps: gaps of a healthy server have two modes (a step with and without a prefill in
it). The quantity is the time a token took (TPOT), which queueing does not touch; with one output token, TTFT
at concurrency 1. First requests of each slot are left out (ramp-up, judged apart), and so are requests that
ran after the last one was sent (drain).
"""

import math
from dataclasses import dataclass

import numpy as np
import scipy  # as a whole: scipy.stats is loaded at its first use, not each time that a config is read

from servelab.gates.evidence import SUSPECT, Evidence, Reason
from servelab.request_times import Floats, Ints, turn_of_slot
from servelab.stats import percentile

REQUESTS_NEEDED = 20
ROUNDS_NEEDED = 6  # the fewest values whose perfect order has p < 0.01
UNSETTLED_SUSPECT = 0.25
DRIFT_SUSPECT = 0.10  # change over the window, relative to the median
MODES_APART = 1.3  # ratio of the two modes
MODES_DISTANCE = 4.0  # Ashman's D; two halves of a uniform distribution have 3.5, of a normal one 2.7
SMALLER_MODE = 0.15


@dataclass(frozen=True)
class Steady:
    """Requests of the steady part [n]: when sent, seconds a token (or TTFT), round within the slot (-1: no slot)."""

    at_s: Floats
    value: Floats
    turn: Ints


def drifting(evidence: Evidence) -> Reason | None:
    """Tokens became slower or faster over the window (Kendall's tau, p < 0.01; Theil-Sen change above 10 %).

    Requests of one round of a closed loop share their fate, so the round is the unit: its median at its
    middle. Under six rounds no trend can be told from a loop that is still settling: then rounds that differ
    by 25 % are called that.
    """
    steady = steady_requests(evidence)
    if steady.value.size < REQUESTS_NEEDED or np.ptp(steady.value) == 0:
        return None
    at_s, value = _rounds(steady)
    median = percentile(value, 50)
    assert median is not None
    if value.size < ROUNDS_NEEDED:
        change = float(np.ptp(value)) / median
        if value.size < 2 or change < UNSETTLED_SUSPECT:
            return None
        return Reason("unsettled", SUSPECT, {"change": change, "rounds": int(value.size)})
    if scipy.stats.kendalltau(at_s, value).pvalue >= 0.01:
        return None
    slope = float(scipy.stats.theilslopes(value, at_s).slope)
    change = slope * float(np.ptp(at_s)) / median
    if abs(change) < DRIFT_SUSPECT:
        return None
    return Reason("drifting", SUSPECT, {"change": change, "n": int(steady.value.size)})


def _rounds(steady: Steady) -> tuple[Floats, Floats]:
    """(when, median value) of each round; without slots every request is its own."""
    if (steady.turn < 0).all():
        return steady.at_s, steady.value
    turns = [steady.turn == turn for turn in np.unique(steady.turn)]
    at_s = np.array([np.median(steady.at_s[chosen]) for chosen in turns])
    return at_s, np.array([np.median(steady.value[chosen]) for chosen in turns])


def bimodal(evidence: Evidence) -> Reason | None:
    """Requests fall into two groups well apart: the server was in two states (Ashman et al. 1994, D above 4)."""
    value = steady_requests(evidence).value
    if value.size < REQUESTS_NEEDED or (value <= 0).any():
        return None
    found = two_modes(np.log(value))
    if found is None:
        return None
    low, high, share, distance = found
    smaller = min(share, 1 - share)
    if distance < MODES_DISTANCE or math.exp(high - low) < MODES_APART or smaller < SMALLER_MODE:
        return None
    values = {"fast_ms": 1000 * math.exp(low), "slow_ms": 1000 * math.exp(high), "share_slow": share}
    return Reason("bimodal", SUSPECT, values)


def steady_requests(evidence: Evidence) -> Steady:
    """Requests of the steady part; none where the point is not judged.

    Not judged: kinds without a steady state, shared prefixes (hits and misses are two modes by design), ramps and
    traces (the batch changes by design), preemptions (their own reason), output of one token at more than one
    request at a time.
    """
    workload, times = evidence.workload, evidence.times
    none = Steady(np.empty(0), np.empty(0), np.empty(0, dtype=np.int64))
    if workload.kind not in ("closed", "open") or workload.shared_prefix_tokens or workload.same_prompt:
        return none
    if evidence.number("preemptions") or workload.arrival in ("ramp", "trace"):
        return none
    single = workload.output_tokens <= 1
    if single and not (workload.kind == "closed" and workload.concurrency == 1):
        return none
    turn = turn_of_slot(times)
    keep = turn != 0
    if times.sent_s.size and workload.concurrency > 1:
        keep &= times.last_s <= times.sent_s.max()
    if single:
        return Steady(times.sent_s[keep], times.ttft_s[keep], turn[keep])
    keep &= times.tokens > 1
    tpot = (times.last_s - times.first_s)[keep] / (times.tokens[keep] - 1)
    return Steady(times.sent_s[keep], tpot, turn[keep])


def two_modes(values: Floats) -> tuple[float, float, float, float] | None:
    """(lower mean, upper mean, share of the upper, Ashman's D) of the best split in two; None if all are equal.

    The split is the one with the smallest sum of squares within (Otsu 1979), found over all places.
    """
    ordered = np.sort(values)
    n = ordered.size
    if n < 4 or ordered[0] == ordered[-1]:
        return None
    sums, squares = np.cumsum(ordered), np.cumsum(ordered**2)
    left = np.arange(1, n)
    inside = squares[:-1] - sums[:-1] ** 2 / left
    inside += (squares[-1] - squares[:-1]) - (sums[-1] - sums[:-1]) ** 2 / (n - left)
    cut = int(np.argmin(inside)) + 1
    low, high = ordered[:cut], ordered[cut:]
    spread = math.sqrt((float(low.var()) + float(high.var())) / 2)
    apart = float(high.mean() - low.mean())
    distance = apart / spread if spread > 1e-12 * max(apart, 1e-300) else math.inf
    return float(low.mean()), float(high.mean()), (n - cut) / n, distance
