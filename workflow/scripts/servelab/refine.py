"""Which concurrencies are worth measuring next: those that would narrow the knee's interval, within a budget.

found, wide    the widest gaps between measured concurrencies inside the interval, cut in the (geometric) middle
rising         twice the highest concurrency
saturated      below the lowest, if that is above 1
too few        concurrencies between the ones that are there
"""

import itertools
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache, partial
from typing import Any

import pandas as pd

from servelab import knee
from servelab.config.schema import Refine, Study
from servelab.experiments import comparison
from servelab.knee import FOUND, RISING, SATURATED, KneeResult

GROUP = ("experiment", "model", "slug", "input_tokens", "output_tokens")
WIDE = 1.3  # an interval whose ends are nearer than that is as narrow as points can make it
KIND = "load_sweep"


@dataclass(frozen=True)
class Proposal:
    """One concurrency to add to one experiment of the study.

    model, slug, options (the server's, as given), input_tokens, output_tokens: the series whose knee asks for it.
    seconds: what it is likely to take on all servers and load shapes of the experiment, which it is added to.
    reason: wide, rising, saturated or too_few.
    """

    experiment: str
    model: str
    slug: str
    input_tokens: int
    output_tokens: int
    concurrency: int
    reason: str
    seconds: float
    options: Mapping[str, Any] = field(default_factory=dict)


def propose(rows: pd.DataFrame, study: Study) -> list[Proposal]:
    """Concurrencies worth measuring, the most useful first, at most study.refine.max_points and .max_minutes.

    rows: the study's points with verdicts. Series take turns, the widest interval first; what one asked for is
    there for all series of the experiment, and counts once. [] when nothing would help: every interval is narrow,
    or no whole number lies between measured concurrencies.
    """
    sweeps = rows[(rows["kind"] == KIND) & (rows["workload_kind"] == "closed")]
    queues = []
    for _, experiment in comparison.groups(sweeps, ("experiment",)):
        seconds = cache(partial(_seconds, experiment))
        for _, same in comparison.groups(experiment, GROUP):
            found = knee.fit(same)
            wanted, reason = _wanted(found, same)
            proposals = [_proposal(same, at, reason, seconds(at)) for at in wanted]
            queues.append((_width(found), proposals))
    queues.sort(key=lambda queue: -queue[0])
    return _within_budget([proposals for _, proposals in queues], study.refine)


def _within_budget(queues: list[list[Proposal]], budget: Refine) -> list[Proposal]:
    """The first of each queue, then the second …, as long as points and minutes last."""
    chosen: list[Proposal] = []
    left_s = 60 * budget.max_minutes
    for turn in itertools.zip_longest(*queues):
        for one in turn:
            if one is None or len(chosen) >= budget.max_points or one.seconds > left_s:
                continue
            if (one.experiment, one.concurrency) not in {(c.experiment, c.concurrency) for c in chosen}:
                chosen.append(one)
                left_s -= one.seconds
    return chosen


def _width(found: KneeResult) -> float:
    """How wide the interval is, as a ratio; what has no end counts as widest."""
    if found.status != FOUND or found.low is None or found.high is None:
        return math.inf
    return found.high / found.low


def _wanted(found: KneeResult, same: pd.DataFrame) -> tuple[list[int], str]:
    """(concurrencies in order of use, reason) for one series."""
    at = list(found.concurrencies)
    if not at:
        return [], ""
    tried = {int(c) for c in same["concurrency"].dropna()}  # a failed concurrency is not proposed again
    if found.status == RISING:
        return [c for c in (2 * int(at[-1]),) if c not in tried], "rising"
    if found.status == SATURATED:
        return [c for c in (int(at[0]) // 2,) if c >= 1 and c not in tried], "saturated"
    if found.status == FOUND and _width(found) < WIDE:
        return [], ""
    low = found.low if found.low is not None else at[0]
    high = found.high if found.high is not None else at[-1]
    if found.status != FOUND:
        low, high = at[0], at[-1]
    reason = "wide" if found.status == FOUND else "too_few"
    wanted = _middles(at, low, high, tried)
    if found.status == FOUND and found.high is None and 2 * int(at[-1]) not in tried:
        wanted = [2 * int(at[-1]), *wanted]
    return wanted, reason


def _middles(at: list[float], low: float, high: float, tried: set[int]) -> list[int]:
    """Geometric middles of the gaps that overlap the interval, the widest overlap first."""
    gaps = []
    for left, right in itertools.pairwise(at):
        begin, end = max(left, low), min(right, high)
        middle = round(math.sqrt(left * right))
        if begin < end and left < middle < right and middle not in tried:
            gaps.append((math.log(end / begin), middle))
    return [middle for _, middle in sorted(gaps, key=lambda gap: (-gap[0], gap[1]))]


def _proposal(same: pd.DataFrame, concurrency: int, reason: str, seconds: float) -> Proposal:
    first = {str(key): comparison.present(value) for key, value in same.iloc[0].to_dict().items()}
    options = first["options"]
    return Proposal(
        experiment=str(first["experiment"]),
        model=str(first["model"]),
        slug=str(first["slug"]),
        input_tokens=int(first["input_tokens"]),
        output_tokens=int(first["output_tokens"]),
        concurrency=concurrency,
        reason=reason,
        seconds=seconds,
        options=json.loads(options) if isinstance(options, str) else {},
    )


def _seconds(experiment: pd.DataFrame, concurrency: int) -> float:
    """Every start's time to ready and, of every server and load shape, the points at one more concurrency.

    A series without a point to go by counts like the longest of the others.
    """
    ready_s = 0.0
    for _, server in comparison.groups(experiment, ("model", "slug")):
        known = server["ready_s"].dropna()
        ready_s += server["start"].nunique() * (float(known.median()) if len(known) else 0.0)
    lasting = [_points_s(same, concurrency) for _, same in comparison.groups(experiment, GROUP)]
    measured = [seconds for seconds in lasting if seconds is not None]
    return ready_s + sum(measured) + (len(lasting) - len(measured)) * max(measured, default=0.0)


def _points_s(same: pd.DataFrame, concurrency: int) -> float | None:
    """Starts × repeats × duration at the nearest concurrency, scaled by the requests; None if none was measured."""
    known = same[same["status"] == "ok"].dropna(subset=["duration_s", "concurrency"])
    if not len(known):
        return None
    known = known.sort_values(
        "concurrency", key=lambda at: abs((at.astype(float) / concurrency).map(math.log)), kind="stable"
    )
    nearest = known.iloc[0]
    ratio = max(1.0, concurrency / float(nearest["concurrency"]))
    return float(same["start"].nunique() * same["repeat"].nunique() * ratio * float(nearest["duration_s"]))
