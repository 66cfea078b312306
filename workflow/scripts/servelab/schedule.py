"""When requests are sent: arrival times of open loops, sizes of warm-ups. Pure and seeded; no clock here."""

import hashlib
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import numpy as np

from servelab.spec import ChangedInputError, Workload

ARRIVALS = ("poisson", "constant", "gamma", "ramp", "trace")


def arrivals(workload: Workload, random: np.random.Generator) -> Iterator[float]:
    """Times of arrival in seconds from the first possible one (0), ascending; without end unless ramp or trace.

    poisson: exponential gaps. constant: equal gaps, the first arrival at 0. gamma: gaps of shape `burstiness`
    and mean 1/rate (burstiness 1 is poisson, smaller is burstier; as `vllm bench serve`). ramp: a Poisson
    process whose rate goes linearly from rate_rps to rate_end_rps over `duration_s`, or over the time that
    `requests` arrivals take on average.
    trace: the file's times, from its first. Raises ValueError for a rate, shape or file that makes no sense,
    ChangedInputError for a file that is not (any more) the one of `trace_digest`.
    """
    kind = workload.arrival
    if kind not in ARRIVALS:
        raise ValueError(f"arrival {kind!r} is not one of {', '.join(ARRIVALS)}")
    if kind == "trace":
        return iter(read_trace(Path(workload.trace), workload.trace_digest))
    if workload.rate_rps <= 0 and not (kind == "ramp" and workload.rate_end_rps > 0):
        raise ValueError(f"rate_rps {workload.rate_rps} is not above 0")
    if kind == "constant":
        return _constant(workload.rate_rps)
    if kind == "ramp":
        return _ramp(workload, random)
    shape = workload.burstiness if kind == "gamma" else 1.0
    if shape <= 0:
        raise ValueError(f"burstiness {shape} is not above 0")
    return _gamma(workload.rate_rps, shape, random)


def measured_arrivals(
    workload: Workload, random: np.random.Generator, warmup: int
) -> tuple[list[float], list[float]]:
    """(warm-up arrivals, measured arrivals) on one time axis: the schedule's first `warmup` are warm-up.

    Measured ones end after `requests`, or `duration_s` after the last warm-up arrival. Raises ValueError (see
    arrivals).
    """
    times = arrivals(workload, random)
    before = list(islice(times, warmup))
    start = before[-1] if before else 0.0
    measured: list[float] = []
    for time in times:
        if workload.requests and len(measured) >= workload.requests:
            break
        if workload.duration_s and time - start >= workload.duration_s:
            break
        measured.append(time)
    return before, measured


def read_trace(path: Path, expected_digest: str = "") -> list[float]:
    """Arrival times in seconds, one a line, from the first; empty lines and `#` comments are skipped.

    expected_digest: Workload.trace_digest, "" to take the file as it is. Raises ChangedInputError where that is
    another (or the file is gone), ValueError for a line that is no number or earlier than the one before it,
    OSError if there is no file.
    """
    times: list[float] = []
    content = _unchanged(path, expected_digest) if expected_digest else path.read_bytes()
    for number, line in enumerate(content.decode("utf-8").splitlines(), 1):
        text = line.partition("#")[0].strip()
        if not text:
            continue
        try:
            time = float(text)
        except ValueError:
            raise ValueError(f"{path}, line {number}: {text[:40]!r} is no time in seconds") from None
        if not np.isfinite(time) or (times and time < times[-1]):
            raise ValueError(
                f"{path}, line {number}: {text[:40]} is before the line above it, or no finite time"
            )
        times.append(time)
    if not times:
        raise ValueError(f"{path}: no arrival times")
    return [time - times[0] for time in times]


def _unchanged(path: Path, digest: str) -> bytes:
    try:
        content = path.read_bytes()
    except OSError as error:
        raise ChangedInputError(f"{path} cannot be read any more: {error.strerror or error}") from error
    if hashlib.sha256(content).hexdigest()[:32] != digest:
        raise ChangedInputError(f"{path} has changed since the config was read")
    return content


def warmup_count(workload: Workload) -> int:
    """Requests sent before the measured ones, of their shape.

    Closed loop: one a slot, so that the batch is as full as it will be and each slot goes from its last
    warm-up request straight to its first measured one; two at least where prompts share a prefix, for a miss
    and a hit are two shapes. Open loop: the schedule's first tenth (4 to 32), after one request alone; none
    for ramps and traces, whose beginning is part of them. Interference: one small run of the same shapes.
    """
    if workload.warmup_requests >= 0:
        return workload.warmup_requests
    if workload.kind == "closed":
        shares = workload.shared_prefix_tokens > 0 or workload.same_prompt
        return max(slots(workload), 2 if shares else 1)
    if workload.kind == "open":
        return 0 if workload.arrival in ("ramp", "trace") else min(max(workload.requests // 10, 4), 32)
    return 2


def slots(workload: Workload) -> int:
    """Closed-loop slots that can be busy at once."""
    return min(workload.concurrency, workload.requests) if workload.requests else workload.concurrency


def _constant(rate_rps: float) -> Iterator[float]:
    number = 0
    while True:
        yield number / rate_rps
        number += 1


def _gamma(rate_rps: float, shape: float, random: np.random.Generator) -> Iterator[float]:
    time = 0.0
    while True:
        for gap in random.gamma(shape, 1.0 / (rate_rps * shape), 256).tolist():
            time += gap
            yield time


def _ramp(workload: Workload, random: np.random.Generator) -> Iterator[float]:
    """A Poisson process of unit rate, its time mapped through the inverse of the rate's integral."""
    low, high = workload.rate_rps, workload.rate_end_rps
    if low < 0 or high < 0:
        raise ValueError(f"rates of a ramp must not be below 0 ({low} to {high})")
    horizon = workload.duration_s or 2.0 * workload.requests / (low + high)
    if horizon <= 0:
        raise ValueError("a ramp needs requests or duration_s")
    slope = (high - low) / horizon
    total, mass = (low + high) / 2 * horizon, 0.0
    while True:
        mass += float(random.exponential())
        if workload.duration_s and mass >= total:
            return
        if mass >= total:
            yield horizon + (mass - total) / max(high, low)
        elif abs(slope) * horizon < 1e-9 * (low + high):
            yield mass / ((low + high) / 2)
        else:
            yield float((-low + np.sqrt(low * low + 2 * slope * mass)) / slope)
