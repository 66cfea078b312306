"""How long will it take? From what was measured before where there is something, else from plain assumptions.

An estimate is for people and for order; no result rests on it.
"""

import json
import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from statistics import median
from typing import Any

from servelab.spec import Point, ServerStart, Workload

# Assumed until something was measured here: prefill tok/s, decode tok/s of one stream, most decode tok/s; seconds
# until a server is ready, eager and compiled.
_ASSUMED = {"cpu": (400.0, 17.0, 60.0, 35.0, 65.0)}
_ASSUMED_ELSEWHERE = (20_000.0, 100.0, 4_000.0, 60.0, 90.0)
_MOST_LINES = 20_000


@dataclass
class Timings:
    """Past durations: engine, model and workload → seconds a point; engine, eager or compiled → until ready."""

    points: dict[str, list[float]] = field(default_factory=dict)
    speed: dict[str, list[float]] = field(default_factory=dict)
    ready: dict[str, list[float]] = field(default_factory=dict)


def record(path: Path, start: ServerStart, point: Point, seconds: float, ready_s: float) -> None:
    """Add one measured point's duration to the file of timings (JSON lines)."""
    line = {
        "device": start.engine.device,
        "engine": start.engine.kind,
        "model": start.model.name,
        "workload": point.workload.to_json(),
        "seconds": round(seconds, 3),
        "ready_s": round(ready_s, 3),
        "compiled": _compiled(start),
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    try:
        os.write(handle, (json.dumps(line, sort_keys=True) + "\n").encode())
    finally:
        os.close(handle)


def read(path: Path) -> Timings:
    """What was measured before; nothing if there is no file. A line that cannot be read is passed over."""
    timings = Timings()
    if not path.is_file():
        return timings
    for text in path.read_text(encoding="utf-8").splitlines()[-_MOST_LINES:]:
        try:
            line: dict[str, Any] = json.loads(text)
            workload = Workload.from_json(line["workload"])
            kind = f"{line['device']} {line['engine']} {line['model']}"
            timings.points.setdefault(kind + _name(workload), []).append(float(line["seconds"]))
            assumed = _assumed_seconds(workload, line["device"])
            if assumed > 0:
                timings.speed.setdefault(kind, []).append(float(line["seconds"]) / assumed)
            ready = _ready(line["device"], line["engine"], bool(line.get("compiled", False)))
            timings.ready.setdefault(ready, []).append(float(line["ready_s"]))
        except (ValueError, KeyError, TypeError):
            continue
    return timings


def point_seconds(timings: Timings, start: ServerStart, point: Point) -> float:
    """Seconds a point may take: the median of the same load measured before, or an assumption scaled by the past.

    An open loop takes at least as long as it sends, however fast the server is.
    """
    kind = f"{start.engine.device} {start.engine.kind} {start.model.name}"
    before = timings.points.get(kind + _name(point.workload))
    if before:
        return median(before)
    speed = timings.speed.get(kind)
    scaled = _assumed_seconds(point.workload, start.engine.device) * (median(speed) if speed else 1.0)
    return max(scaled, _sending_seconds(point.workload))


def start_seconds(timings: Timings, start: ServerStart) -> float:
    """Seconds until a server is ready and, later, gone; twice that for a restart, whose cache a start fills first.

    Compiled starts of which none was measured: assumed, scaled by how long eager ones took.
    """
    if start.engine.kind == "attach":
        return 1.0
    device, kind, compiled = start.engine.device, start.engine.kind, _compiled(start)
    assumed = _ASSUMED.get(device, _ASSUMED_ELSEWHERE)[3:]
    before = timings.ready.get(_ready(device, kind, compiled))
    eager = timings.ready.get(_ready(device, kind, False))
    guess = assumed[compiled] * (median(eager) / assumed[0] if eager else 1.0)
    ready = median(before) if before else guess
    return (ready + 5.0) * (2 if start.boot == "restart" else 1)


def seconds(timings: Timings, start: ServerStart, points: Iterable[Point]) -> float:
    """Seconds for these points of one server start; 0 if there are none."""
    times = [point_seconds(timings, start, point) for point in points]
    return start_seconds(timings, start) + sum(times) if times else 0.0


def clock(value: float) -> str:
    """Seconds as people say them: 45 s, 12 min, 3 h 05 min."""
    if value < 90:
        return f"{value:.0f} s"
    if value < 90 * 60:
        return f"{value / 60:.0f} min"
    return f"{int(value // 3600)} h {int(value % 3600 // 60):02d} min"


def _compiled(start: ServerStart) -> bool:
    return not start.options.get("enforce_eager", start.options.get("enforce-eager", False))


def _ready(device: str, kind: str, compiled: bool) -> str:
    return f"{device} {kind} {'compiled' if compiled else 'eager'}"


def _name(workload: Workload) -> str:
    return json.dumps(workload.to_json(), sort_keys=True)


def _sending_seconds(workload: Workload) -> float:
    """How long an open loop sends by its schedule; 0 for other loads, and for a trace that cannot be read."""
    if workload.kind != "open":
        return 0.0
    if workload.arrival == "trace":
        end = _trace_seconds(workload.trace)
        return min(end, workload.duration_s) if workload.duration_s > 0 else end
    rates = [workload.rate_rps, *([workload.rate_end_rps] if workload.arrival == "ramp" else [])]
    mean = sum(rates) / len(rates)
    return workload.duration_s or (workload.requests / mean if mean > 0 else 0.0)


@cache
def _trace_seconds(path: str) -> float:
    from servelab.schedule import read_trace  # numpy: not at every run

    try:
        return read_trace(Path(path))[-1]
    except (OSError, ValueError):
        return 0.0


def _assumed_seconds(workload: Workload, device: str) -> float:
    prefill, single, most = _ASSUMED.get(device, _ASSUMED_ELSEWHERE)[:3]
    if workload.kind == "boot":
        return 0.1
    if workload.kind == "perplexity":
        return workload.segments * workload.segment_tokens / prefill
    if workload.kind == "interference":
        return workload.victim_output_tokens / single + workload.inserted * workload.input_tokens / prefill
    if (sending := _sending_seconds(workload) or workload.duration_s) > 0:
        return sending + 2 * (workload.output_tokens / single)
    warmup = max(workload.warmup_requests, 0) or min(workload.concurrency, max(workload.requests, 1))
    requests = workload.requests + warmup
    decode = min(single * workload.concurrency, most) if workload.kind == "closed" else most
    return requests * (workload.input_tokens / prefill + workload.output_tokens / decode)
