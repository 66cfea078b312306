"""One server start: look up its points in the store, start the server for what is missing, measure, keep, show.

A failed point is data: it is kept with its cause and the rest goes on, on a new process if the server died. A
bug of ours is not a failed point: it leaves as the exception it is.
"""

import asyncio
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa

from servelab import (
    engine,
    iteration_log,
    loadgen,
    machine,
    models,
    perplexity,
    provenance,
    redact,
    server,
    vllm_log,
)
from servelab.canonical import digest, plain
from servelab.device_lock import device_lock
from servelab.prompts import PromptSource
from servelab.records import PointMeta, PointRecord, empty_requests, series_table
from servelab.spec import Point, ServerStart
from servelab.store import Store

Say = Callable[[str], None]
NO_WORDS = "the server's process ended without a word"


@dataclass
class Outcome:
    """What one job did: points measured now, taken from the store, failed (of all), and processes started."""

    measured: int = 0
    kept: int = 0
    failed: int = 0
    starts: int = 0


@dataclass
class Watcher:
    """Told what happens while a start is measured; the command line prints it, tests count it."""

    say: Say = print
    point_done: Callable[[PointRecord, float], None] = lambda record, seconds: None
    starting: Callable[[int, int], None] = lambda missing, total: None


@dataclass(frozen=True)
class Places:
    """Folders of one project: the store, the boot caches, and where the paths of results begin."""

    root: Path
    store: Store = field(default_factory=lambda: Store(Path("results/store")))

    @classmethod
    def of(cls, root: Path) -> "Places":
        """The usual places below a project's folder."""
        return cls(root, Store(root / "results/store"))

    def boot_dir(self, start: ServerStart) -> Path:
        """Compile caches and boot history of a server configuration; emptied before a first start is measured."""
        return self.root / "resources/boot" / digest(start.server_identity(), 16)


def measure_start(
    start: ServerStart,
    places: Places,
    watcher: Watcher,
    limits: Mapping[str, float],
    retry_failed: bool = False,
) -> Outcome:
    """Bring every point of a start to its place; measure those that the store does not have.

    Raises OSError when results cannot be written (disk full, no permission), ChangedInputError when a trace or text
    is not the one that a point's key names: points kept before stay whole.
    """
    outcome = Outcome()
    missing = list(_missing(start, places.store, watcher, retry_failed, outcome))
    outcome.kept = len(start.points) - len(missing)
    if missing:
        watcher.starting(len(missing), len(start.points))
        # The server sees the GPUs that the engine's own environment says, whatever the shell's says.
        variables = {**os.environ, **start.engine.environment}
        with device_lock(start.engine.device, places.root, watcher.say, variables):
            _measure(start, missing, places, watcher, limits, outcome)
    models.keep_config(start.model, places.root)
    for point in start.points:
        places.store.show(start.key(point), places.root / start.path(point))
    return outcome


def _missing(
    start: ServerStart, store: Store, watcher: Watcher, retry_failed: bool, outcome: Outcome
) -> Iterator[Point]:
    for point in start.points:
        meta, why = store.find(start.key(point))
        if why is not None:
            watcher.say(f"{point.name}: the kept file is damaged and is measured again: {why}")
        if meta is None or (meta.status == "failed" and (retry_failed or _of_another_program(meta, start))):
            yield point
        else:
            outcome.failed += meta.status == "failed"


def _of_another_program(meta: PointMeta, start: ServerStart) -> bool:
    """Whether a start failed with another interpreter than this one: its place is not in the key, its fault is."""
    was = meta.start.get("engine")
    return (
        meta.cause == "server_start"
        and isinstance(was, Mapping)
        and was.get("python", "") != start.engine.python
    )


def _measure(
    start: ServerStart,
    missing: list[Point],
    places: Places,
    watcher: Watcher,
    limits: Mapping[str, float],
    outcome: Outcome,
) -> None:
    remaining = list(missing)
    while remaining:
        try:
            with _launched(start, places, watcher, outcome) as live:
                ready = replace(start, model=models.with_dimensions(start.model, places.root))
                origin = models.origin(start.model, places.root)
                watcher.say(
                    f"ready after {live.ready_s:.1f} s ({live.boot}); {len(remaining)} points to measure"
                )
                order = 0
                while remaining and live.alive():
                    point = remaining.pop(0)
                    began = time.monotonic()
                    record = _measure_point(ready, point, live, order, limits)
                    record.meta.provenance["model"] = origin
                    order += 1
                    _keep(record, places.store, watcher, outcome, time.monotonic() - began)
                if order == 0:
                    # It answered and died: were no point to pay for that, servers would be started for ever.
                    words = live.last_words() or NO_WORDS
                    record = _failed(ready, remaining.pop(0), "server_died", words, limits)
                    record.meta.session = {**live.facts(), "order": order}
                    _keep(record, places.store, watcher, outcome, 0.0)
        except server.ServerStartError as error:
            watcher.say(f"the server did not start ({error.cause}): {error.detail}")
            for point in remaining:
                places.store.put(
                    _failed(start, point, "server_start", f"{error.cause}: {error.detail}", limits)
                )
            outcome.measured += len(remaining)
            outcome.failed += len(remaining)
            names = ", ".join(point.name for point in remaining[:8]) + (", …" if len(remaining) > 8 else "")
            log = "" if start.engine.kind == "attach" else f"; its log: {start.log_directory()}/server.log"
            watcher.say(f"{len(remaining)} points recorded as failed: {names}{log}")
            return
        if remaining:
            watcher.say(f"the server is gone; a new one for the remaining {len(remaining)} points")


@contextmanager
def _launched(
    start: ServerStart, places: Places, watcher: Watcher, outcome: Outcome
) -> Iterator[server.Server]:
    log = places.root / start.log_directory() / "server.log"
    boot_dir = places.boot_dir(start)
    if start.boot == "restart" and not engine.boots(boot_dir):
        watcher.say("a start that fills the compile cache comes first: a restart is to be measured")
        outcome.starts += 1
        with server.launch(start, log.with_name("server-first.log"), boot_dir):
            pass
    outcome.starts += 1
    with server.launch(start, log, boot_dir) as live:
        yield live


def _measure_point(
    start: ServerStart, point: Point, live: server.Server, order: int, limits: Mapping[str, float]
) -> PointRecord:
    meta = _meta(start, point, limits)
    mark = live.log_mark()
    watch = machine.Watch(live.processes).start()
    record = _loaded(start, point, live, meta)
    meta.machine["during"] = watch.stop()
    energy = meta.machine["during"].get("energy_j")
    if energy:
        meta.extra["energy_j"] = sum(energy.values())
    lines = list(live.log_since(mark))
    meta.log_events = vllm_log.events(lines)
    if steps := iteration_log.totals(lines):
        meta.extra["scheduler"] = steps
    meta.session = {**live.facts(), "order": order}
    meta.provenance["ended_at"] = _now()
    failed = meta.status != "ok" or not all(record.requests["ok"].to_pylist())
    if start.engine.kind != "attach" and not (live.survived() if failed else live.alive()):
        meta.status, meta.cause = "failed", "server_died"
        meta.detail = live.last_words() or NO_WORDS
    if meta.detail:
        meta.detail = redact.line(meta.detail, live.target.api_key)
    return record


def _loaded(start: ServerStart, point: Point, live: server.Server, meta: PointMeta) -> PointRecord:
    workload = point.workload
    if (why := engine.refusal(start, workload)) is not None:
        meta.status, meta.cause, meta.detail = "failed", "not_supported", why
        return PointRecord(meta, empty_requests(), series_table([]))
    if workload.kind == "boot":
        meta.metrics = {"after": server.metrics(live.target)}
        return PointRecord(meta, empty_requests(), series_table([]))
    if workload.kind == "perplexity":
        return _perplexity(start, point, live, meta)
    prompts = PromptSource(start.seed, start.key(point), start.model.vocab_size)
    run_limits = loadgen.RunLimits(
        timeout_s=start.timeout_s,
        stall_s=start.stall_s,
        poll_s=start.poll_s,
        max_concurrency=start.engine.max_concurrency,
    )
    seen = live.target
    target = loadgen.Target(seen.base_url, seen.model, seen.api_key, dict(seen.headers))
    measurement = loadgen.measure(target, workload, prompts, run_limits, live.alive)
    meta.metrics = measurement.metrics
    meta.client = measurement.client
    meta.window = measurement.window
    meta.extra["clock_zero"] = measurement.clock_zero
    _judge_requests(meta, measurement.requests, measurement.stopped)
    return PointRecord(meta, measurement.requests, measurement.series)


def _perplexity(start: ServerStart, point: Point, live: server.Server, meta: PointMeta) -> PointRecord:
    try:
        limits = perplexity.Limits(timeout_s=start.timeout_s, request_timeout_s=start.stall_s)
        scored = asyncio.run(perplexity.run(live.target, point.workload, limits, live.alive))
    except perplexity.PerplexityError as error:
        meta.status, meta.cause, meta.detail = "failed", error.cause, error.detail
        return PointRecord(meta, empty_requests(), series_table([]))
    meta.extra.update(scored.facts)
    meta.extra["clock_zero"] = scored.clock_zero
    meta.metrics = {"after": server.metrics(live.target)}
    _judge_requests(meta, scored.requests)
    return PointRecord(meta, scored.requests, series_table([]))


def _judge_requests(meta: PointMeta, requests: pa.Table, stopped: tuple[str, str] | None = None) -> None:
    """A point of which no measured request succeeded, or that ran out of time, is a failed point.

    stopped: (cause, detail) if the run ended before the workload did; it may have had no request in flight.
    """
    rows = [
        row
        for row in requests.select(["role", "ok", "cause", "detail"]).to_pylist()
        if row["role"] != "warmup"
    ]
    causes = [row["cause"] for row in rows if not row["ok"]]
    if "timeout" in causes or (stopped is not None and stopped[0] == "timeout"):
        meta.status, meta.cause = "failed", "timeout"
        meta.detail = (
            f"{causes.count('timeout')} of {len(rows)} requests were in flight when the time ran out"
        )
    elif rows and len(causes) == len(rows):
        first = next(row for row in rows if not row["ok"])
        meta.status, meta.cause = "failed", "all_failed"
        meta.detail = f"{len(rows)} requests: {first['cause']}: {first['detail'] or ''}".rstrip(": ")
    elif not rows:
        meta.status, meta.cause, meta.detail = "failed", "all_failed", "no request was sent"


def _failed(
    start: ServerStart, point: Point, cause: str, detail: str, limits: Mapping[str, float]
) -> PointRecord:
    meta = _meta(start, point, limits)
    meta.status, meta.cause, meta.detail = "failed", cause, redact.line(detail, limit=server.DETAIL_CHARS)
    meta.provenance["ended_at"] = _now()
    return PointRecord(meta, empty_requests(), series_table([]))


def _meta(start: ServerStart, point: Point, limits: Mapping[str, float]) -> PointMeta:
    about: dict[str, Any] = plain(replace(start, points=()))
    about["engine"]["environment"] = redact.environment(start.engine.environment)
    return PointMeta(
        key=start.key(point),
        spec=start.point_spec(point),
        name=point.name,
        study=start.study,
        experiment=point.experiment or start.experiment,
        slug=start.slug,
        start=about,
        machine={**machine.facts()},
        limits=dict(limits),
        provenance={**provenance.facts(), "started_at": _now()},
    )


def _keep(record: PointRecord, store: Store, watcher: Watcher, outcome: Outcome, seconds: float) -> None:
    store.put(record)
    outcome.measured += 1
    outcome.failed += record.meta.status == "failed"
    watcher.point_done(record, seconds)


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
