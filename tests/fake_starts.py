"""Starts of the fake server for tests: an engine spec that runs it, and what is left of it."""

import json
import os
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from fake_server import truth
from servelab import engine, processes
from servelab.spec import EngineSpec, ModelSpec, Option, Point, ServerStart, Workload

PROGRAM = Path(__file__).parent / "fake_server" / "__main__.py"
VOCAB = 1000


def fake_engine(knobs: Mapping[str, Any] | None = None, **changes: Any) -> EngineSpec:
    """The fake server as an engine. Knobs given here are part of the engine's environment, so of a point's key."""
    environment = {"SERVELAB_FAKE": json.dumps(knobs)} if knobs is not None else {}
    values: dict[str, Any] = {
        "name": "fake",
        "version": "fake",
        "command": (sys.executable, str(PROGRAM)),
        "environment": environment,
        "startup_timeout_s": 20.0,
        "stop_timeout_s": 5.0,
    }
    return EngineSpec(**{**values, **changes})


def fake_start(
    *workloads: Workload,
    knobs: Mapping[str, Any] | None = None,
    options: Mapping[str, Option] | None = None,
    engine_changes: Mapping[str, Any] | None = None,
    **changes: Any,
) -> ServerStart:
    """A server start of the fake server with a point for each workload."""
    values: dict[str, Any] = {
        "study": "test",
        "experiment": "load",
        "slug": "fake",
        "engine": fake_engine(knobs, **(engine_changes or {})),
        "model": ModelSpec("fake", "fake-model", "0" * 32, vocab_size=VOCAB, max_tokens=4096),
        "options": dict(options or {}),
        "points": tuple(Point(f"p{n}", workload) for n, workload in enumerate(workloads, 1)),
        "measurement_version": 1,
        "timeout_s": 30.0,
        "stall_s": 5.0,
        "poll_s": 0.2,
    }
    return ServerStart(**{**values, **changes})


def closed(concurrency: int = 2, requests: int = 4, **changes: Any) -> Workload:
    """A small closed-loop load."""
    values: dict[str, Any] = {"input_tokens": 32, "output_tokens": 8, "warmup_requests": 0}
    return Workload(concurrency=concurrency, requests=requests, **{**values, **changes})


def running(pids: Iterable[int]) -> list[int]:
    """Those of these processes that still run; a zombie does not."""
    found = [processes.process(pid) for pid in pids]
    return [each.pid for each in found if each is not None and each.state not in ("Z", "X")]


def survivors(truth_file: Path) -> list[int]:
    """Servers named in a truth file that still run, and whatever bears the mark of a start of this test."""
    alive = []
    for line in truth.read(truth_file, "start"):
        each = processes.process(line["pid"])
        if each is not None and each.state not in ("Z", "X") and _is_fake(each.pid):
            alive.append(each.pid)
    return alive


def marked_by(session_id: str) -> list[int]:
    """Processes that bear the mark of this server start."""
    mark = f"{engine.SESSION_VARIABLE}={session_id}"
    return [each.pid for each in processes.marked(mark) if each.pid != os.getpid()]


def _is_fake(pid: int) -> bool:
    try:
        return b"fake_server" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False
