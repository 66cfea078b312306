"""The load generator: puts one workload on one server that answers, and returns what was seen.

    run(target, workload, prompts, limits, alive)     inside an event loop
    measure(...)                                      the same, on an event loop of its own (uvloop)

The way of a point: connections are made, requests built; garbage collection is frozen; warm-up requests go
over into measured ones (drivers.py), the server's counters being read between them; while the load runs only
bytes are stamped and kept (client.py); afterwards they are read into rows (stream_reader.py,
request_rows.py). docs/load-generator.md has why.
"""

import asyncio
import gc
import resource
import time
from array import array
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pyarrow as pa
import uvloop

from servelab.client import RawWire, beyond_raw
from servelab.drivers import ClosedLoop, Gate, Interference, OpenLoop
from servelab.metrics_poll import MetricsPoll, Parse
from servelab.prompts import PromptSource
from servelab.request_rows import (
    Measurement,
    requests_table,
    send_lags_s,
    series_table,
    tokens_received,
    window,
)
from servelab.sender import RunLimits, Sender
from servelab.spec import Workload

if TYPE_CHECKING:
    from servelab.sender import Wire

__all__ = ["Measurement", "PromptSource", "RunLimits", "Target", "measure", "run"]

KINDS = ("closed", "open", "interference")
# So long after the point's time is over a run ends that has not ended by itself.
OVERDUE_S = 10.0


@dataclass(frozen=True)
class Target:
    """A server that answers. base_url: with or without `/v1` at its end. model: the name it is served under."""

    base_url: str
    model: str
    api_key: str = field(default="", repr=False)
    headers: dict[str, str] = field(default_factory=dict, repr=False)

    @property
    def root(self) -> str:
        """The address without `/v1`."""
        return self.base_url.rstrip("/").removesuffix("/v1")

    def request_headers(self) -> dict[str, str]:
        """Header fields of every request."""
        own = {"Accept": "*/*", "User-Agent": "servelab", **self.headers}
        return {**own, "Authorization": f"Bearer {self.api_key}"} if self.api_key else own


def measure(
    target: Target,
    workload: Workload,
    prompts: PromptSource,
    limits: RunLimits | None = None,
    alive: Callable[[], bool] = lambda: True,
    parse: Parse | None = None,
) -> Measurement:
    """Measure a workload from synchronous code. See `run`. Ctrl-C closes every connection and raises
    KeyboardInterrupt.
    """
    return uvloop.run(run(target, workload, prompts, limits or RunLimits(), alive, parse))


async def run(
    target: Target,
    workload: Workload,
    prompts: PromptSource,
    limits: RunLimits,
    alive: Callable[[], bool],
    parse: Parse | None = None,
) -> Measurement:
    """Put a workload on a server. Every request that was asked for is a row of the result, failed ones with a cause.

    alive: whether the server process still lives; asked four times a second. parse: text of /metrics → {name:
    value}; servelab.prometheus.parse if left out. Raises ValueError for a workload that cannot be run,
    ChangedInputError for a trace that is not the one of its digest; cancelling closes every connection.
    """
    check(workload)
    _raise_file_limit()
    headers = target.request_headers()
    wires = await _wires(target, headers, limits)
    sender = Sender(wires[0], target.model, workload, prompts, limits, alive)
    poll = MetricsPoll(wires[1])
    zero, clock_zero = time.perf_counter(), time.time()
    try:
        driver = await _drive(sender, poll, limits)
        await poll.fetch("after")
    except asyncio.CancelledError:
        sender.stop("cancelled", "the run was stopped")
        raise
    finally:
        sender.end()
        await poll.stop()
        for wire in wires:
            await wire.close()
    table = requests_table(sender.finished, zero, target.api_key)
    return _result(sender, poll, driver, table, parse or _prometheus_parse(), zero, clock_zero)


def check(workload: Workload) -> None:
    """Raise ValueError, naming the field, if a workload cannot be run by the load generator."""
    if workload.kind not in KINDS:
        raise ValueError(f"kind {workload.kind!r} is not one of {', '.join(KINDS)}")
    if workload.input_tokens < 1 or workload.output_tokens < 1:
        raise ValueError(
            f"input_tokens {workload.input_tokens} and output_tokens {workload.output_tokens} must be above 0"
        )
    if workload.kind == "closed" and workload.concurrency < 1:
        raise ValueError(f"concurrency {workload.concurrency} is not above 0")
    if workload.kind == "interference":
        if workload.victim_input_tokens < 1 or workload.victim_output_tokens < 1:
            raise ValueError("victim_input_tokens and victim_output_tokens must be above 0")
    elif workload.requests < 1 and workload.duration_s <= 0 and workload.arrival != "trace":
        raise ValueError("neither requests nor duration_s says when to stop")


async def _wires(target: Target, headers: dict[str, str], limits: RunLimits) -> "tuple[Wire, Wire]":
    """One wire for the load, one for /metrics."""
    root, timeout_s = target.root, limits.connect_timeout_s
    if not beyond_raw(root):
        load, metrics = RawWire(root, headers, timeout_s), RawWire(root, headers, timeout_s)
        if not await metrics.redirects("/v1/models", timeout_s):
            return load, metrics
        await metrics.close()
    # Not before it is needed: importing aiohttp takes as long as preparing a point.
    from servelab.aiohttp_wire import AiohttpWire

    return AiohttpWire(root, headers, timeout_s), AiohttpWire(root, headers, timeout_s)


async def _drive(
    sender: Sender, poll: MetricsPoll, limits: RunLimits
) -> ClosedLoop | OpenLoop | Interference:
    async def before() -> None:
        await poll.fetch("before")
        poll.start(limits.poll_s)

    gate = Gate(before)
    makers: dict[str, type[ClosedLoop] | type[OpenLoop] | type[Interference]]
    makers = {"closed": ClosedLoop, "open": OpenLoop, "interference": Interference}
    driver: ClosedLoop | OpenLoop | Interference = makers[sender.workload.kind](sender, gate)
    await sender.wire.warm(sender.workload.concurrency if sender.workload.kind == "closed" else 2)
    with _collector_frozen():
        driver.prepare()
        sender.begin()
        driver.start()
        await _over(driver, sender)
        await gate.settled()
    sender.end()
    await poll.stop()
    return driver


async def _over(driver: ClosedLoop | OpenLoop | Interference, sender: Sender) -> None:
    """Wait for the driver's end, which the sender brings about when the point's time is over.

    Where the end of a request was lost between them it would never come: then both are told to give up.
    """
    await asyncio.wait([driver.done], timeout=sender.limits.timeout_s + OVERDUE_S)
    if not driver.done.done():
        sender.give_up(f"still not over {OVERDUE_S:g} s after the point's {sender.limits.timeout_s:g} s")
        driver.give_up()


def _result(
    sender: Sender,
    poll: MetricsPoll,
    driver: ClosedLoop | OpenLoop | Interference,
    table: pa.Table,
    parse: Parse,
    zero: float,
    clock_zero: float,
) -> Measurement:
    readings = poll.readings(parse)
    lags = send_lags_s(table) if sender.workload.kind == "open" else array("d")
    client = sender.load.figures(tokens_received(table), lags)
    client["built_late"] = float(sender.built_late)
    return Measurement(
        requests=table,
        series=series_table([(at, values) for at, _, values in readings], zero),
        client=client,
        window=window(table, driver.steady_s, zero),
        clock_zero=clock_zero,
        metrics={mark: values for _, mark, values in readings if mark},
        stopped=sender.stopped,
    )


@contextmanager
def _collector_frozen() -> Iterator[None]:
    """No garbage collection while the load runs: a pass over a point's objects takes tens of milliseconds."""
    was_enabled = gc.isenabled()
    gc.collect()
    gc.freeze()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
        gc.unfreeze()


def _raise_file_limit() -> None:
    """A connection is a file: use all that the system allows us."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _prometheus_parse() -> Parse:
    from servelab import prometheus

    return prometheus.parse
