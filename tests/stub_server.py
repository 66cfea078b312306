"""A small HTTP server for tests of the client: what it sends, and how, is a function of the test.

It runs in a thread with its own event loop, so that the load generator under test has its loop for itself.
"""

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from streams import framed, vllm_events


@dataclass
class Request:
    """One request as it came."""

    method: str
    path: str
    headers: dict[str, str]
    body: dict[str, Any]
    connection: int
    number: int


Answer = Callable[[Request, asyncio.StreamWriter], Awaitable[bool]]


@dataclass
class Stub:
    """Requests seen so far and the address."""

    url: str = ""
    requests: list[Request] = field(default_factory=list)
    connections: int = 0

    @property
    def completions(self) -> list[Request]:
        return [request for request in self.requests if request.method == "POST"]


async def stream(request: Request, writer: asyncio.StreamWriter, pause_s: float = 0.001) -> bool:
    """A right answer in vLLM's words, an event every millisecond; the connection stays."""
    events = vllm_events([" x"] * request.body["max_tokens"], prompt=len(request.body["prompt"]))
    whole = framed(events)
    head, rest = whole[: whole.index(b"\r\n\r\n") + 4], whole[whole.index(b"\r\n\r\n") + 4 :]
    writer.write(head)
    size = len(rest) // len(events) + 1
    for at in range(0, len(rest), size):
        await writer.drain()
        await asyncio.sleep(pause_s)
        writer.write(rest[at : at + size])
    return True


def plain(status: str, body: bytes = b"", fields: str = "") -> bytes:
    return f"HTTP/1.1 {status}\r\n{fields}Content-Length: {len(body)}\r\n\r\n".encode() + body


@contextmanager
def stub(
    answer: Answer = stream,
    metrics: Callable[[], str] | None = None,
    get: Callable[[Request], bytes] = lambda _: plain("200 OK", b"{}"),
) -> Iterator[Stub]:
    """A server on a free port; gone, with its thread, at the end."""
    state = Stub()
    loop = asyncio.new_event_loop()
    started = threading.Event()
    stop = asyncio.Event()

    async def serve() -> None:
        async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            state.connections += 1
            connection = state.connections
            try:
                async for request in _requests(reader, connection, state):
                    if request.path.endswith("/metrics"):
                        body = metrics().encode() if metrics is not None else b""
                        writer.write(plain("200 OK" if metrics is not None else "404 Not Found", body))
                    elif request.method == "GET":
                        writer.write(get(request))
                    elif not await answer(request, writer):
                        break
                    await writer.drain()
            except (ConnectionError, asyncio.IncompleteReadError):
                return
            finally:
                writer.close()

        server = await asyncio.start_server(handle, "127.0.0.1", 0, backlog=1024)
        state.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        started.set()
        await stop.wait()
        server.close()
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            task.cancel()

    thread = threading.Thread(target=lambda: loop.run_until_complete(serve()), daemon=True)
    thread.start()
    assert started.wait(10)
    try:
        yield state
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join(10)
        assert not thread.is_alive()
        loop.close()


async def _requests(reader: asyncio.StreamReader, connection: int, state: Stub) -> AsyncIterator[Request]:
    while True:
        try:
            head = await reader.readuntil(b"\r\n\r\n")
        except asyncio.IncompleteReadError:
            return
        first, *lines = head.decode().strip().split("\r\n")
        method, path, _ = first.split(" ")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        raw = await reader.readexactly(int(headers.get("content-length", "0")))
        body = json.loads(raw) if raw else {}
        number = len(state.completions) + (method == "POST")
        request = Request(method, path, headers, body, connection, number)
        state.requests.append(request)
        yield request
