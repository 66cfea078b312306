"""HTTP/1.1 on an asyncio protocol: keep-alive, bodies with a length, answers whole or chunked. What tests
need, fast.
"""

import asyncio
import json
import socket
import struct
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

REASONS = {200: "OK", 400: "Bad Request", 401: "Unauthorized", 404: "Not Found", 429: "Too Many Requests",
           500: "Internal Server Error", 503: "Service Unavailable"}  # fmt: skip


@dataclass
class Call:
    """A request as it came. on_close is called when the client leaves before its answer is complete."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes
    connection: "Connection"
    on_close: Callable[[], None] = field(default=lambda: None)


Handler = Callable[[Call], Awaitable[None]]


class Connection(asyncio.Protocol):
    """One client's connection; requests on it are answered one after the other."""

    def __init__(self, handler: Handler) -> None:
        self.handler = handler
        self.buffer = b""
        self.call: Call | None = None
        self.transport: asyncio.Transport | None = None
        self.task: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        plug = transport.get_extra_info("socket")
        plug.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def data_received(self, data: bytes) -> None:
        self.buffer += data
        if self.call is None:
            self._next()

    def connection_lost(self, exc: Exception | None) -> None:
        if self.call is not None:
            self.call.on_close()
        self.transport = None

    def _next(self) -> None:
        head, found, rest = self.buffer.partition(b"\r\n\r\n")
        if not found:
            return
        lines = head.decode("latin-1").split("\r\n")
        headers = {
            name.strip().lower(): value.strip()
            for name, _, value in (line.partition(":") for line in lines[1:])
        }
        length = int(headers.get("content-length", "0"))
        if len(rest) < length:
            return
        self.buffer = rest[length:]
        method, path, _ = lines[0].split(" ", 2)
        self.call = Call(method, path.split("?", 1)[0], headers, rest[:length], self)
        self.task = asyncio.get_running_loop().create_task(self._handle(self.call))

    async def _handle(self, call: Call) -> None:
        await self.handler(call)

    def done(self) -> None:
        """The answer is complete: the next request, if one has come already."""
        self.call = None
        if self.transport is not None and self.buffer:
            self._next()

    def answer(self, status: int, value: Any, kind: str = "application/json") -> None:
        """A whole answer: text, or a value as JSON."""
        body = value.encode() if isinstance(value, str) else json.dumps(value).encode()
        self._write(_head(status, kind, f"content-length: {len(body)}") + body)
        self.done()

    def open_stream(self) -> None:
        """Begin a chunked event stream."""
        self._write(_head(200, "text/event-stream; charset=utf-8", "transfer-encoding: chunked"))

    def event(self, data: str, pieces: int = 1) -> None:
        """One event, as one chunk; in several writes if wanted."""
        body = f"data: {data}\n\n".encode()
        raw = b"%x\r\n%s\r\n" % (len(body), body)
        size = max(len(raw) // pieces, 1)
        for at in range(0, len(raw), size):
            self._write(raw[at : at + size])

    def end_stream(self) -> None:
        """The last chunk."""
        self._write(b"0\r\n\r\n")
        self.done()

    def close(self) -> None:
        """Close in good order, in the middle of an answer or not."""
        if self.transport is not None:
            self.transport.close()

    def reset(self) -> None:
        """Break the connection: the client sees a reset."""
        if self.transport is not None:
            plug = self.transport.get_extra_info("socket")
            plug.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.transport.abort()

    def _write(self, data: bytes) -> None:
        if self.transport is not None and not self.transport.is_closing():
            self.transport.write(data)


def _head(status: int, kind: str, length: str) -> bytes:
    reason = REASONS.get(status, "Status")
    return (
        f"HTTP/1.1 {status} {reason}\r\nserver: uvicorn\r\ncontent-type: {kind}\r\n{length}\r\n\r\n".encode()
    )
