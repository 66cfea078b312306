"""Reads the server's /metrics before, during and after a point, on a connection of its own.

What comes back is kept packed and parsed after the point. A server without /metrics gives no figures, not an
error.
"""

import asyncio
import math
import re
from collections.abc import Callable, Mapping
from time import perf_counter
from typing import TYPE_CHECKING

from servelab.exchange import Exchange
from servelab.http_framing import Body, FramingError

if TYPE_CHECKING:
    from servelab.sender import Wire

Parse = Callable[[str], Mapping[str, float]]

FETCH_LIMIT_S = 10.0
# What the polled series keep, in the spelling of vLLM and of engines near to it.
_KEPT = re.compile(
    r"(requests?_(running|waiting|swapped)|running_re|queue_re|usage|preempt|(prompt|generation)_tokens(_total)?\b|prefix_cache)"
)
_LEFT_OUT = re.compile(r"(_bucket|_created|_sum|_count)(\{|$)")


class MetricsPoll:
    """Fetches and keeps readings; `readings` parses them."""

    def __init__(self, wire: "Wire", path: str = "/metrics") -> None:
        self._wire, self._path = wire, path
        self._kept: list[tuple[str, Exchange]] = []
        self._absent = False
        self._task: asyncio.Task[None] | None = None

    async def fetch(self, mark: str = "") -> None:
        """Take one reading, if the server gives one. `mark` names it ("before", "after")."""
        if self._absent:
            return
        ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        exchange = Exchange("metrics", len(self._kept), self._path)
        exchange.on_end = lambda _: ended.set_result(None) if not ended.done() else None
        self._wire.submit(exchange)
        try:
            # Not wait_for: Python 3.11's forgets a cancellation that comes with the answer, and stop() waits for ever.
            async with asyncio.timeout(FETCH_LIMIT_S):
                await ended
        except TimeoutError:
            self._wire.abort(exchange, "timeout")
        except asyncio.CancelledError:
            self._wire.abort(exchange, "cancelled")
            raise
        exchange.on_end = None
        if exchange.cause is not None or exchange.head is None:
            return
        if exchange.head.status != 200:
            self._absent = True
            return
        exchange.pack()
        self._kept.append((mark, exchange))

    def start(self, every_s: float) -> None:
        """Fetch again and again, at equal distances."""
        if every_s > 0 and not self._absent:
            self._task = asyncio.get_running_loop().create_task(self._poll(every_s))

    async def stop(self) -> None:
        """No more polling."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None

    def readings(self, parse: Parse) -> list[tuple[float, str, dict[str, float]]]:
        """(time, mark, {name: value}) of every reading; time is the middle between asking and the first byte,
        perf_counter seconds. Values that are no finite number are left out.
        """
        out = []
        for mark, exchange in self._kept:
            times, _, raw = exchange.unpack()
            at = (times[0] + (exchange.sent_s or times[0])) / 2 if times else exchange.end_s or 0.0
            values = parse(_body(exchange, raw))
            out.append((at, mark, {name: value for name, value in values.items() if math.isfinite(value)}))
        return out

    async def _poll(self, every_s: float) -> None:
        due = perf_counter()
        while not self._absent:
            due = max(due + every_s, perf_counter())
            await asyncio.sleep(due - perf_counter())
            await self.fetch()


def kept_in_series(name: str) -> bool:
    """Whether a metric is worth a place in the series: load, cache, preemptions, tokens; no histograms."""
    return bool(_KEPT.search(name)) and not _LEFT_OUT.search(name)


def _body(exchange: Exchange, raw: bytes) -> str:
    assert exchange.head is not None
    if exchange.framed:
        try:
            raw = Body(exchange.head).feed(raw[exchange.head.size :])
        except FramingError:
            return ""
    return raw.decode("utf-8", "replace")
