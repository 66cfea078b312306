"""The hot path: send a request, stamp the bytes that come back, notice the end. Nothing else happens here.

A protocol of our own on the event loop's transports, because no HTTP client that interprets each read reaches
the fidelity asked for (benchmarks/README.md has the figures). Per read: one clock call, two list appends, one
comparison of the last bytes. The end of a chunked answer is recognised from its last bytes where that is
beyond doubt (the protocol's `[DONE]` event followed by the empty chunk), else by taking the framing apart,
read by read.

What needs TLS, a proxy or redirects goes through aiohttp (aiohttp_wire.py); both carry `Exchange`s.
"""

import asyncio
import urllib.request
from collections.abc import Mapping
from time import perf_counter
from typing import cast
from urllib.parse import urlsplit

from servelab.exchange import Exchange
from servelab.http_framing import Body, FramingError, Head, parse_head

# Uvicorn closes an idle connection after 5 s; a request must not run into that.
MAX_IDLE_S = 2.0
HEADS_KEPT = 64
_DONE_TAIL = b"[DONE]\n\n\r\n0\r\n\r\n"


class Connection(asyncio.Protocol):
    """One keep-alive connection; carries one exchange at a time."""

    def __init__(self, wire: "RawWire") -> None:
        self.wire = wire
        self.exchange: Exchange | None = None
        self.idle_since = 0.0
        self.lost = False
        self._transport: asyncio.Transport | None = None
        self._careful = True
        self._body: Body | None = None
        self._scanned = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The event loop's word that the connection stands."""
        self._transport = cast(asyncio.Transport, transport)

    def start(self, exchange: Exchange, request: bytes) -> None:
        """Hand a request to the socket; on a connection that is gone it soon ends as reset, not before we return."""
        assert self._transport is not None
        if self.lost:
            words = "the connection broke before the request was sent"
            asyncio.get_running_loop().call_soon(lambda: exchange.finish(perf_counter(), "reset", words))
            return
        self.exchange = exchange
        exchange.carrier = self
        self._careful, self._body, self._scanned = True, None, 0
        exchange.sent_s = perf_counter()
        self._transport.write(request)

    def data_received(self, data: bytes) -> None:
        """Stamp and keep what has arrived."""
        now = perf_counter()
        exchange = self.exchange
        if exchange is None:
            self.wire.forget(self)
            self.drop()
            return
        exchange.times.append(now)
        exchange.reads.append(data)
        if self._careful or len(data) < 5 or data.endswith(b"\r\n\r\n"):
            try:
                self._look(exchange, data, now)
            except FramingError as error:
                self._end(exchange, now, "bad_stream", str(error))

    def connection_lost(self, exc: Exception | None) -> None:
        """The peer closed, the connection broke, or we dropped it."""
        self.lost = True
        self.wire.forget(self)
        exchange, self.exchange = self.exchange, None
        if exchange is None:
            return
        now = perf_counter()
        if exc is None and self._ended_with_connection(exchange):
            exchange.finish(now)
        elif exc is None and exchange.times:
            exchange.finish(
                now, "closed_early", "the server closed the connection before the answer was complete"
            )
        else:
            exchange.finish(now, "reset", str(exc or "the server closed the connection without an answer"))

    def drop(self) -> None:
        """Close at once, whatever is under way."""
        if self._transport is not None:
            self._transport.abort()

    def _look(self, exchange: Exchange, data: bytes, now: float) -> None:
        """Beyond the cheap test: read the head, take framing apart, see whether the answer is complete."""
        if self._body is None:
            if not self._read_head(exchange):
                return
            if not self._careful and not data.endswith(b"\r\n\r\n"):
                return  # a chunked answer's head and first chunks: it ends with an empty line, so not here
        body = self._body
        assert body is not None and exchange.head is not None
        if not self._careful and (b"".join(exchange.reads[-2:])).endswith(_DONE_TAIL):
            self._end(exchange, now)
            return
        if exchange.watch is not None:
            exchange.watch(exchange, data)
        if self._catch_up(exchange, body):
            self._end(exchange, now, keep=body.excess == 0)

    def _read_head(self, exchange: Exchange) -> bool:
        raw = exchange.reads[0] if len(exchange.reads) == 1 else b"".join(exchange.reads)
        head = self.wire.parsed(raw)
        while head is not None and head.status < 200:
            exchange.reads[:] = [raw := raw[head.size :]]
            del exchange.times[:-1]
            head = parse_head(raw)
        if head is None:
            return False
        exchange.head = head
        self._body = Body(head)
        self._careful = not head.chunked or exchange.watch is not None
        return True

    def _ended_with_connection(self, exchange: Exchange) -> bool:
        """Whether the answer is one that the end of the connection completes."""
        if self._body is None:
            return False
        try:
            self._catch_up(exchange, self._body)
        except FramingError:
            return False
        return self._body.finish()

    def _catch_up(self, exchange: Exchange, body: Body) -> bool:
        """Take the framing off the reads not looked at yet; whether the body is complete."""
        assert exchange.head is not None
        reads = exchange.reads
        if self._scanned == 0:
            body.feed(b"".join(reads)[exchange.head.size :])
        else:
            for data in reads[self._scanned :]:
                body.feed(data)
        self._scanned = len(reads)
        return body.done

    def _end(
        self, exchange: Exchange, now: float, cause: str | None = None, detail: str = "", keep: bool = True
    ) -> None:
        self.exchange = None
        if keep and cause is None and exchange.head is not None and exchange.head.keep_alive:
            self.idle_since = now
            self.wire.give_back(self)
        else:
            self.drop()
        exchange.finish(now, cause, detail or None)


def beyond_raw(base_url: str) -> bool:
    """Whether an address needs more than RawWire: https, credentials in it, or a proxy between us and it."""
    parts = urlsplit(base_url)
    if parts.scheme != "http" or parts.username is not None:
        return True
    proxies = urllib.request.getproxies()
    return ("http" in proxies or "all" in proxies) and not urllib.request.proxy_bypass(parts.netloc)


class RawWire:
    """Carries exchanges to one plain-http origin over connections of its own, kept alive between requests.

    Must be used inside a running event loop. Connections are made when needed; `warm` makes them beforehand.
    """

    def __init__(self, base_url: str, headers: Mapping[str, str], connect_timeout_s: float) -> None:
        parts = urlsplit(base_url)
        if parts.scheme != "http" or not parts.hostname:
            raise ValueError(f"{base_url!r} is no plain http address")
        self._host, self._port = parts.hostname, parts.port or 80
        self._prefix = parts.path.rstrip("/")
        self._connect_timeout_s = connect_timeout_s
        self._idle: list[Connection] = []
        self._open: set[Connection] = set()
        self._connecting: set[asyncio.Task[None]] = set()
        lines = [f"Host: {parts.netloc.rpartition('@')[2]}", *(f"{k}: {v}" for k, v in headers.items())]
        if any("\r" in line or "\n" in line for line in lines):
            raise ValueError("a header field may not hold a line end")
        self._lines = "\r\n".join(lines)
        self._posts: dict[str, bytes] = {}
        self._heads: dict[bytes, Head] = {}

    async def redirects(self, path: str, timeout_s: float) -> bool:
        """Whether the server sends a request for this path elsewhere. No answer is no redirect."""
        probe = Exchange("probe", 0, path)
        ended = asyncio.Event()
        probe.on_end = lambda _: ended.set()
        self.submit(probe)
        try:
            await asyncio.wait_for(ended.wait(), timeout_s)
        except TimeoutError:
            self.abort(probe, "timeout")
        return probe.head is not None and probe.head.status in (301, 302, 303, 307, 308)

    async def warm(self, connections: int) -> None:
        """Make so many connections; one that fails is left to the request that will need it."""
        results = await asyncio.gather(*(self._connect() for _ in range(connections)), return_exceptions=True)
        now = perf_counter()
        for connection in results:
            if isinstance(connection, Connection) and not connection.lost:
                connection.idle_since = now
                self._idle.append(connection)

    def submit(self, exchange: Exchange) -> None:
        """Send now if a connection is idle, else as soon as a new one stands."""
        request = self._request(exchange)
        now = perf_counter()
        while self._idle:
            connection = self._idle.pop()
            if now - connection.idle_since < MAX_IDLE_S:
                connection.start(exchange, request)
                return
            connection.drop()
        task = asyncio.get_running_loop().create_task(self._connect_and_start(exchange, request))
        exchange.carrier = task
        self._connecting.add(task)
        task.add_done_callback(self._connecting.discard)

    def abort(self, exchange: Exchange, cause: str, detail: str | None = None) -> None:
        """End an exchange from our side: its connection is closed."""
        carrier = exchange.carrier
        exchange.finish(perf_counter(), cause, detail)
        if isinstance(carrier, Connection):
            carrier.exchange = None
            carrier.drop()
        elif isinstance(carrier, asyncio.Task):
            carrier.cancel()

    async def close(self) -> None:
        """Close every connection; exchanges still under way must have been aborted."""
        for task in list(self._connecting):
            task.cancel()
        for connection in list(self._open):
            connection.drop()
        await asyncio.sleep(0)

    def parsed(self, raw: bytes) -> Head | None:
        """parse_head, remembering heads already seen: answers that begin together mostly have the same one."""
        key = raw[: raw.find(b"\r\n\r\n") + 4]
        head = self._heads.get(key)
        if head is None:
            head = parse_head(raw)
            if head is not None:
                if len(self._heads) >= HEADS_KEPT:
                    self._heads.clear()
                self._heads[key] = head
        return head

    def give_back(self, connection: Connection) -> None:
        """A connection whose exchange is over may carry the next."""
        self._idle.append(connection)

    def forget(self, connection: Connection) -> None:
        """A connection that is gone."""
        self._open.discard(connection)
        if connection in self._idle:
            self._idle.remove(connection)

    def _request(self, exchange: Exchange) -> bytes:
        path = self._prefix + exchange.path
        if exchange.payload is None:
            return f"GET {path} HTTP/1.1\r\n{self._lines}\r\n\r\n".encode("latin-1")
        begin = self._posts.get(path)
        if begin is None:
            kind = "Content-Type: application/json"
            text = f"POST {path} HTTP/1.1\r\n{self._lines}\r\n{kind}\r\nContent-Length: "
            begin = self._posts[path] = text.encode("latin-1")
        return b"%b%d\r\n\r\n%b" % (begin, len(exchange.payload), exchange.payload)

    async def _connect(self) -> Connection:
        loop = asyncio.get_running_loop()
        making = loop.create_connection(lambda: Connection(self), self._host, self._port)
        _, connection = await asyncio.wait_for(making, self._connect_timeout_s)
        if connection.lost:  # before we heard that it stands
            raise ConnectionResetError("the server closed the connection at once")
        self._open.add(connection)
        return connection

    async def _connect_and_start(self, exchange: Exchange, request: bytes) -> None:
        try:
            connection = await self._connect()
        except TimeoutError:
            exchange.finish(perf_counter(), "connect", f"no connection within {self._connect_timeout_s:g} s")
        except OSError as error:
            exchange.finish(perf_counter(), "connect", str(error))
        else:
            if exchange.end_s is None:
                connection.start(exchange, request)
            else:
                connection.drop()
