"""What the drivers of all workloads share: building requests ahead, sending, watching over those in flight.

One timer every 10 ms does everything that is neither sending nor stamping, in slices so small that they delay
no stamp that matters: it samples the loop's lag, packs finished exchanges, builds requests ahead, and every 250
ms looks for stalled streams, the end of the point's time and a dead server.
"""

import asyncio
import json
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter
from typing import TYPE_CHECKING, Any

from servelab.client import RawWire
from servelab.client_load import ClientLoad
from servelab.exchange import Exchange
from servelab.prompts import Ids, PromptSource, prefix_group, words
from servelab.spec import Workload

if TYPE_CHECKING:
    from servelab.aiohttp_wire import AiohttpWire

    Wire = RawWire | AiohttpWire

TICK_S = 0.010
CHECK_S = 0.25
SLICE_S = 0.0003
AHEAD_BYTES = 64 << 20
AHEAD_BUILD_S = 1.0
PATHS = {"completions": "/v1/completions", "chat": "/v1/chat/completions"}


@dataclass(frozen=True)
class RunLimits:
    """When to stop waiting.

    timeout_s: the whole point. stall_s: no byte on a stream that has begun; before its first token a request
    may wait in the server's queue, so there it is no byte on any stream. poll_s: between two readings of
    /metrics, 0 for none.
    max_concurrency: most requests in flight in an open loop, 0 for no limit; what waits is late by its
    intended start.
    """

    timeout_s: float = 900.0
    stall_s: float = 120.0
    poll_s: float = 1.0
    connect_timeout_s: float = 10.0
    max_concurrency: int = 0


def payload(model: str, workload: Workload, ids: Ids, output_tokens: int) -> bytes:
    """The JSON body of one request.

    `ignore_eos` alone fixes the output's length; `min_tokens` would make vLLM mask the end token's logits at
    every step, work that users' requests do not have.
    """
    body: dict[str, Any] = {"model": model}
    if workload.api == "chat":
        body["messages"] = [{"role": "user", "content": words(ids)}]
    else:
        body["prompt"] = ids.tolist()
    body |= {
        "max_tokens": output_tokens,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True, "continuous_usage_stats": True},
    }
    return json.dumps(body, separators=(",", ":")).encode()


class Sender:
    """Sends a workload's requests over a wire and keeps what comes back."""

    def __init__(
        self,
        wire: "Wire",
        model: str,
        workload: Workload,
        prompts: PromptSource,
        limits: RunLimits,
        alive: Callable[[], bool],
    ) -> None:
        if workload.api not in PATHS:
            raise ValueError(f"api {workload.api!r} is not one of {', '.join(PATHS)}")
        self.wire, self.model, self.workload, self.prompts = wire, model, workload, prompts
        self.limits, self.alive = limits, alive
        self.load = ClientLoad()
        self.in_flight: set[Exchange] = set()
        self.finished: list[Exchange] = []
        self.stopped: tuple[str, str] | None = None
        self.built_late = 0
        self._ahead: deque[Exchange] = deque()
        self._next_index = 0
        self._to_pack: deque[Exchange] = deque()
        self._failed_in_row = 0
        self._due = 0.0
        self._next_check = 0.0
        self._deadline = 0.0
        self._last_byte = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._on_stop: list[Callable[[], None]] = []

    def build(self, role: str, index: int, input_tokens: int = 0, output_tokens: int = 0) -> Exchange:
        """A request ready to send; tokens default to the workload's."""
        workload = self.workload
        n_in, n_out = input_tokens or workload.input_tokens, output_tokens or workload.output_tokens
        ids = self.prompts.prompt(role, index, n_in, workload)
        exchange = Exchange(role, index, PATHS[workload.api], payload(self.model, workload, ids, n_out))
        exchange.input_tokens, exchange.output_tokens = n_in, n_out
        exchange.group = prefix_group(workload, index, role)
        return exchange

    def build_ahead(self, count: int) -> None:
        """Build measured requests before the clock runs: all `count`, or as many as 64 MB or a second allow."""
        began, size = perf_counter(), 0
        while len(self._ahead) < count and size < AHEAD_BYTES and perf_counter() - began < AHEAD_BUILD_S:
            exchange = self._build_next()
            size += len(exchange.payload or b"")
            self._ahead.append(exchange)
        self._keep_ahead = min(len(self._ahead), 64)

    def next_measured(self) -> Exchange:
        """The next measured request in order of index."""
        if self._ahead:
            return self._ahead.popleft()
        self.built_late += 1
        return self._build_next()

    def send(self, exchange: Exchange, intended_s: float, on_end: Callable[[Exchange], None]) -> None:
        """Send a request now; `on_end` is called when its answer is complete or has failed."""
        exchange.intended_s = intended_s
        exchange.on_end = lambda ended: self._ended(ended, on_end)
        self.in_flight.add(exchange)
        self.wire.submit(exchange)

    def not_sent(self, exchange: Exchange, intended_s: float) -> None:
        """Keep a request that was asked for but never sent as a failed one, with the reason for stopping."""
        cause, detail = self.stopped or ("cancelled", "never sent")
        exchange.intended_s = intended_s
        exchange.finish(perf_counter(), cause, f"never sent: {detail}")
        self.finished.append(exchange)

    def placeholder(self, role: str, index: int) -> Exchange:
        """A request without its prompt, for `not_sent`."""
        exchange = Exchange(role, index, PATHS[self.workload.api])
        exchange.input_tokens, exchange.output_tokens = (
            self.workload.input_tokens,
            self.workload.output_tokens,
        )
        return exchange

    def stop(self, cause: str, detail: str) -> None:
        """No further request is sent; those in flight end now with this cause."""
        first = self.stopped is None
        self.stopped = self.stopped or (cause, detail)
        for exchange in list(self.in_flight):
            self.wire.abort(exchange, cause, detail)
        if first:
            for callback in self._on_stop:
                callback()

    def give_up(self, detail: str) -> None:
        """Stop as `timeout`, and keep requests as finished whose end was never seen."""
        self.stop("timeout", detail)
        self.finished += self.in_flight
        self.in_flight.clear()

    def when_stopped(self, callback: Callable[[], None]) -> None:
        """Call this when the run is stopped before its end."""
        self._on_stop.append(callback)

    def begin(self) -> None:
        """Start the timer and the clock of `timeout_s`."""
        now = perf_counter()
        self._deadline, self._last_byte = now + self.limits.timeout_s, now
        self._next_check = now
        self.load.start()
        self._arm()

    def end(self) -> None:
        """Stop the timer."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self.load.stop()

    def _build_next(self) -> Exchange:
        exchange = self.build("measured", self._next_index)
        self._next_index += 1
        return exchange

    def _ended(self, exchange: Exchange, on_end: Callable[[Exchange], None]) -> None:
        self.in_flight.discard(exchange)
        self.finished.append(exchange)
        self._to_pack.append(exchange)
        if exchange.cause is None and exchange.head is not None and exchange.head.status == 200:
            self._failed_in_row = 0
        else:
            self._failed_in_row += 1
            self._give_up_if_hopeless(exchange)
        exchange.on_end = exchange.watch = None
        on_end(exchange)

    def _give_up_if_hopeless(self, exchange: Exchange) -> None:
        """A server that answers nothing but errors is not asked thousands of times."""
        if self.stopped is None and self._failed_in_row >= max(50, 3 * self.workload.concurrency):
            cause = exchange.cause or "http_error"
            self.stopped = (cause, f"{self._failed_in_row} requests in a row had failed")
            for callback in self._on_stop:
                callback()

    def _arm(self) -> None:
        self._due = perf_counter() + TICK_S
        self._timer = asyncio.get_running_loop().call_later(TICK_S, self._tick)

    def _tick(self) -> None:
        now = perf_counter()
        self.load.lag(max(now - self._due, 0.0))
        until = now + SLICE_S
        while self._to_pack and perf_counter() < until:
            self._to_pack.popleft().pack()
        while len(self._ahead) < self._wanted_ahead() and perf_counter() < until:
            self._ahead.append(self._build_next())
        if now >= self._next_check:
            self._check(now)
            self._next_check = now + CHECK_S
        self._arm()

    _keep_ahead = 0

    def _wanted_ahead(self) -> int:
        if self.workload.requests:
            return min(self._keep_ahead, self.workload.requests - self._next_index + len(self._ahead))
        return self._keep_ahead

    def _check(self, now: float) -> None:
        if not self.alive():
            self.stop("server_died", "the server process has ended")
            return
        if now >= self._deadline:
            self.stop("timeout", f"the point's {self.limits.timeout_s:g} s are over")
            return
        for exchange in self.in_flight:
            self._last_byte = max(self._last_byte, exchange.last_byte_s or exchange.sent_s or 0.0)
        for exchange in list(self.in_flight):
            begun = len(exchange.times) > 1 or (bool(exchange.reads) and b"data:" in exchange.reads[0])
            quiet_since = exchange.times[-1] if begun else max(self._last_byte, exchange.sent_s or now)
            if now - quiet_since >= self.limits.stall_s:
                self.wire.abort(exchange, "stalled", f"no byte for {self.limits.stall_s:g} s")
