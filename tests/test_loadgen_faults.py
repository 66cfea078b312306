"""The load generator against bad servers and lost connections: a cause for every request, an end for every run."""

import asyncio
import json
import signal
import subprocess
import sys
import threading
import time
from typing import Any

import pytest

from loads import PROMPTS, closed, interference, measure, parse, rows
from servelab import drivers, loadgen, redact
from servelab.client import Connection, RawWire
from servelab.exchange import Exchange
from servelab.loadgen import RunLimits, Target
from servelab.sender import Sender
from servelab.spec import Workload
from streams import DONE, framed, usage, vllm_chunk, vllm_events
from stub_server import Request, Stub, plain, stream, stub


async def refuse(request: Request, writer: asyncio.StreamWriter) -> bool:
    writer.write(plain("503 Service Unavailable", b'{"error": {"message": "engine dead"}}'))
    return True


async def reset(request: Request, writer: asyncio.StreamWriter) -> bool:
    writer.write(framed(vllm_events([" a"] * 4, prompt=20))[:300])
    await writer.drain()
    writer.transport.abort()
    return False


async def hang_up(request: Request, writer: asyncio.StreamWriter) -> bool:
    writer.write(framed(vllm_events([" a"] * 4, prompt=20)[:1], end=False))
    return False


async def half(request: Request, writer: asyncio.StreamWriter) -> bool:
    writer.write(framed(vllm_events([" a"] * 4, prompt=20)[:2]))
    return True


async def stall(request: Request, writer: asyncio.StreamWriter) -> bool:
    for part in (framed([vllm_chunk(" a", usage(20, 1))], end=False), b"", framed([], end=False)):
        writer.write(part[:-1] if part else b"")
        await writer.drain()
        await asyncio.sleep(0.02)
    await asyncio.sleep(60)
    return False


async def nonsense(request: Request, writer: asyncio.StreamWriter) -> bool:
    writer.write(b"SSH-2.0-OpenSSH_9.9\r\n")
    return True


async def strange_status(request: Request, writer: asyncio.StreamWriter) -> bool:
    writer.write(b"HTTP/1.1 99999999999 OK\r\nContent-Length: 0\r\n\r\n")
    return True


async def vast_counts(request: Request, writer: asyncio.StreamWriter) -> bool:
    writer.write(framed([vllm_chunk(" a", usage(20, 3_000_000_000), "length"), DONE]))
    return True


async def deep(request: Request, writer: asyncio.StreamWriter) -> bool:
    writer.write(framed([b"data: " + b'{"error":' * 100_000 + b"\n\n", DONE]))
    return True


@pytest.mark.parametrize(
    ("answer", "causes"),
    [
        (refuse, {"http_error"}),
        (reset, {"reset", "closed_early"}),
        (hang_up, {"closed_early"}),
        (half, {"closed_early"}),
        (nonsense, {"bad_stream"}),
        (strange_status, {"bad_stream"}),
        (vast_counts, {"bad_stream"}),
        (deep, {"bad_stream"}),
    ],
)
def test_each_failure_is_a_row_with_its_cause(answer: Any, causes: set[str]) -> None:
    """One bad answer among good ones fails its own request and no other; the point goes on."""

    async def sometimes(request: Request, writer: asyncio.StreamWriter) -> bool:
        return await (answer if request.number == 3 else stream)(request, writer)

    with stub(sometimes) as server:
        got = measure(server, closed(2, 8))
    failed = [row for row in rows(got) if not row["ok"]]
    assert len(rows(got)) == 8 and len(failed) == 1
    assert failed[0]["cause"] in causes and failed[0]["end_s"] is not None


def test_a_stalled_stream_ends_after_the_stall_limit() -> None:
    """No byte for stall_s: the request is stalled, the slot goes on, nothing waits for ever."""

    async def sometimes(request: Request, writer: asyncio.StreamWriter) -> bool:
        return await (stall if request.number == 2 else stream)(request, writer)

    with stub(sometimes) as server:
        began = time.monotonic()
        got = measure(server, closed(1, 4), stall_s=0.4)
    failed = [row for row in rows(got) if not row["ok"]]
    assert [row["cause"] for row in failed] == ["stalled"] and len(rows(got)) == 4
    assert failed[0]["end_s"] - failed[0]["sent_s"] >= 0.4 and time.monotonic() - began < 15


def test_a_stream_that_stalls_after_its_first_read_is_seen_beside_busy_ones() -> None:
    """Bytes on other streams do not hide a stream that has begun and stopped."""

    async def one_read(request: Request, writer: asyncio.StreamWriter) -> bool:
        if request.number != 2:
            return await stream(request, writer)
        writer.write(framed([vllm_chunk(" a", usage(20, 1))], end=False))
        await asyncio.sleep(60)
        return False

    with stub(one_read) as server:
        got = measure(server, closed(2, 0, duration_s=1.5), stall_s=0.5)
    failed = [row for row in rows(got) if not row["ok"]]
    assert [row["cause"] for row in failed] == ["stalled"]
    assert 0.5 <= failed[0]["end_s"] - failed[0]["sent_s"] < 2.0


def test_a_dead_server_ends_everything_at_once() -> None:
    """When the process is gone, requests in flight and requests never sent are rows that say server_died."""
    dead = threading.Event()

    async def then_die(request: Request, writer: asyncio.StreamWriter) -> bool:
        if request.number >= 3:
            dead.set()
            await asyncio.sleep(60)
        return await stream(request, writer)

    with stub(then_die) as server:
        began = time.monotonic()
        got = measure(server, closed(2, 10), alive=lambda: not dead.is_set())
    assert time.monotonic() - began < 15
    causes = [row["cause"] for row in rows(got)]
    assert len(causes) == 10 and causes.count("server_died") >= 7 and got.stopped is not None
    assert all(row["sent_s"] is None and row["detail"].startswith("never sent") for row in rows(got)[5:])


@pytest.mark.parametrize("kind", ["closed", "open", "interference"])
def test_the_points_time_is_a_limit_for_every_kind(kind: str) -> None:
    """A server that never answers: every request asked for is a row, timeout, soon after the limit."""

    async def never(request: Request, writer: asyncio.StreamWriter) -> bool:
        await asyncio.sleep(60)
        return False

    workloads = {
        "closed": closed(2, 5),
        "open": Workload(
            kind="open", input_tokens=8, output_tokens=2, rate_rps=20.0, requests=30, warmup_requests=0
        ),
        "interference": interference(warmup_requests=0),
    }
    expected = {"closed": 5, "open": 30, "interference": 4}
    with stub(never) as server:
        got = measure(server, workloads[kind], timeout_s=0.7)
    table = [row for row in got.requests.to_pylist() if row["role"] != "warmup"]
    assert len(table) == expected[kind] and {row["cause"] for row in table} == {"timeout"}
    assert not any(row["ok"] for row in table)


@pytest.mark.parametrize("kind", ["closed", "open", "interference"])
def test_a_run_whose_answers_get_lost_is_over_soon_after_its_time(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Were the ends of requests lost on their way to the driver, the run would still end, with a row a request."""

    async def never(request: Request, writer: asyncio.StreamWriter) -> bool:
        await asyncio.sleep(60)
        return False

    monkeypatch.setattr(loadgen, "OVERDUE_S", 0.3)
    monkeypatch.setattr(Sender, "_ended", lambda sender, exchange, on_end: None)
    workloads = {
        "closed": closed(2, 5),
        "open": Workload(
            kind="open", input_tokens=8, output_tokens=2, rate_rps=20.0, requests=30, warmup_requests=0
        ),
        "interference": interference(warmup_requests=0),
    }
    with stub(never) as server:
        got = measure(server, workloads[kind], timeout_s=0.7)
    table = [row for row in got.requests.to_pylist() if row["role"] != "warmup"]
    assert len(table) == {"closed": 5, "open": 30, "interference": 4}[kind]
    assert {row["cause"] for row in table} == {"timeout"}
    assert got.stopped is not None and got.stopped[0] == "timeout"


def test_a_run_whose_gate_never_opens_is_over_soon_after_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Slots that wait for the counters' reading for ever do not hold the night up."""
    monkeypatch.setattr(loadgen, "OVERDUE_S", 0.3)
    monkeypatch.setattr(drivers.Gate, "ask", lambda gate, then: None)
    with stub() as server:
        got = measure(server, closed(2, 5), timeout_s=0.5)
    assert [row["cause"] for row in rows(got)] == ["timeout"] * 5


def test_nobody_there_is_connect_and_not_a_thousand_tries() -> None:
    """A port without a server: every request fails as connect, and the run gives up instead of trying them all."""
    with stub() as server:
        pass
    got = measure(server, closed(16, 500))
    assert len(rows(got)) == 500 and {row["cause"] for row in rows(got)} == {"connect"}
    assert sum(row["detail"].startswith("never sent") for row in rows(got)) > 400


def test_a_server_that_closes_every_connection_is_measured_too() -> None:
    """Connection: close costs a connection a request and nothing else."""

    async def close(request: Request, writer: asyncio.StreamWriter) -> bool:
        whole = framed(vllm_events([" a"] * 4, prompt=20))
        writer.write(whole.replace(b"\r\n\r\n", b"\r\nconnection: close\r\n\r\n", 1))
        return False

    with stub(close) as server:
        got = measure(server, closed(2, 6))
    assert all(row["ok"] for row in rows(got)) and len({r.connection for r in server.completions}) == 6


def test_an_answer_that_ends_with_the_connection_is_whole() -> None:
    """HTTP/1.0 style: no length, no chunks, the end of the connection is the end of the answer."""

    async def old(request: Request, writer: asyncio.StreamWriter) -> bool:
        writer.write(b"HTTP/1.0 200 OK\r\nContent-Type: text/event-stream\r\n\r\n")
        writer.write(b"".join(vllm_events([" a"] * 4, prompt=20)))
        return False

    with stub(old) as server:
        got = measure(server, closed(1, 3))
    assert all(row["ok"] for row in rows(got)) and len(rows(got)) == 3


def test_a_stream_with_crlf_events_and_late_ends_is_recognised() -> None:
    """The end of an answer is found where the cheap test cannot tell: CR LF events, the end in pieces."""

    async def crlf(request: Request, writer: asyncio.StreamWriter) -> bool:
        wire = framed(
            [e.replace(b"\n", b"\r\n") for e in [*vllm_events([" a"] * 4, prompt=20)[:-1], b": 0\n\n", DONE]]
        )
        for part in (wire[:-9], wire[-9:-4], wire[-4:-1], wire[-1:]):
            writer.write(part)
            await writer.drain()
            await asyncio.sleep(0.005)
        return True

    with stub(crlf) as server:
        got = measure(server, closed(1, 3))
    assert all(row["ok"] for row in rows(got)) and len({r.connection for r in server.completions}) == 1


def test_redirects_headers_and_keys_work() -> None:
    """A server that redirects is reached through aiohttp; the key and own header fields come with every request."""

    def moved(request: Request) -> bytes:
        return plain("307 Temporary Redirect", b"", f"Location: {inner.url}{request.path}\r\n")

    async def redirect(request: Request, writer: asyncio.StreamWriter) -> bool:
        writer.write(moved(request))
        return True

    with stub() as inner, stub(redirect, get=moved) as outer:
        target = Target(outer.url + "/v1/", "m", "secret", {"X-Team": "a"})
        got = loadgen.measure(target, closed(2, 4), PROMPTS, RunLimits(poll_s=0), parse=parse)
    assert all(row["ok"] for row in rows(got)) and len(inner.completions) == 4
    assert {request.headers["x-team"] for request in inner.completions} == {"a"}
    assert "secret" not in repr(target)


def test_the_key_is_sent() -> None:
    """An API key travels as a bearer token, on the plain path too."""
    with stub() as server:
        target = Target(server.url, "m", "sesame")
        loadgen.measure(target, closed(1, 1), PROMPTS, RunLimits(poll_s=0), parse=parse)
    assert {request.headers["authorization"] for request in server.completions} == {"Bearer sesame"}


def test_a_servers_words_are_kept_without_the_key_and_control_characters() -> None:
    """A server that repeats the key it was sent, in colour, leaves a plain line without it; a stream's words too."""
    key = "sesame-street-12"

    async def echo(request: Request, writer: asyncio.StreamWriter) -> bool:
        said = "\x1b[31mkey " + request.headers["authorization"].split()[1] + " is wrong\r\n" + "x" * 3000
        body = json.dumps({"error": {"message": said}}).encode()
        broken = b"data: " + said.replace("\r\n", "").encode() + b"\n\n"
        writer.write(framed([broken, DONE]) if request.number == 2 else plain("401 Unauthorized", body))
        return True

    with stub(echo) as server:
        target = Target(server.url, "m", key)
        got = loadgen.measure(target, closed(1, 3), PROMPTS, RunLimits(poll_s=0), parse=parse)
    assert [row["cause"] for row in rows(got)] == ["http_error", "bad_stream", "http_error"]
    for row in rows(got):
        assert row["detail"].isprintable() and len(row["detail"]) <= redact.LINE_CHARS
        assert key not in row["detail"] and f"key {redact.HIDDEN} is wrong" in row["detail"]


class GoneTransport:
    """A transport after its end: uvloop's raises for whoever writes to it."""

    def write(self, data: bytes) -> None:
        raise RuntimeError("unable to perform operation; the handler is closed")

    def abort(self) -> None:
        pass


def gone(wire: RawWire) -> Connection:
    connection = Connection(wire)
    connection.connection_made(GoneTransport())
    connection.connection_lost(None)
    return connection


def test_a_request_on_a_connection_that_is_gone_is_a_reset() -> None:
    """It ends as reset instead of raising, and not before the sender has heard that it was sent."""

    async def start() -> tuple[float | None, Exchange]:
        exchange = Exchange("measured", 0, "/v1/completions", b"{}")
        gone(RawWire("http://127.0.0.1:9", {}, 1.0)).start(exchange, b"GET / HTTP/1.1\r\n\r\n")
        at_once = exchange.end_s
        await asyncio.sleep(0.01)
        return at_once, exchange

    at_once, exchange = asyncio.run(start())
    assert at_once is None and exchange.cause == "reset" and exchange.sent_s is None


def test_a_connection_lost_while_it_was_made_is_no_connection() -> None:
    """A server that accepts and closes at once: nothing is kept for later, and a request fails as connect."""

    async def submit() -> tuple[list[Connection], Exchange]:
        wire = RawWire("http://127.0.0.1:9", {}, 1.0)

        async def accepted_and_closed(factory: Any, *address: Any) -> Any:
            return None, gone(wire)

        asyncio.get_running_loop().create_connection = accepted_and_closed
        await wire.warm(2)
        kept = [*wire._idle, *wire._open]
        exchange = Exchange("measured", 0, "/v1/completions", b"{}")
        wire.submit(exchange)
        await asyncio.sleep(0.05)
        return kept, exchange

    kept, exchange = asyncio.run(submit())
    assert kept == [] and exchange.cause == "connect"


def test_a_connection_lost_while_others_are_made_is_not_used() -> None:
    """Warming up keeps only those that still stand when all are made."""

    async def warm() -> tuple[list[Connection], list[Connection]]:
        wire = RawWire("http://127.0.0.1:9", {}, 1.0)
        made: list[Connection] = []

        async def one_after_the_other(factory: Any, *address: Any) -> Any:
            connection = factory()
            connection.connection_made(GoneTransport())
            made.append(connection)
            if len(made) == 2:
                await asyncio.sleep(0.02)
                made[0].connection_lost(None)
            return None, connection

        asyncio.get_running_loop().create_connection = one_after_the_other
        await wire.warm(2)
        return made, wire._idle

    made, idle = asyncio.run(warm())
    assert idle == [made[1]]


def test_an_idle_connection_that_speaks_is_not_used_again() -> None:
    """Bytes that nobody asked for: the connection is dropped, and is not there for the next request."""

    async def speak() -> list[Connection]:
        wire = RawWire("http://127.0.0.1:9", {}, 1.0)
        connection = Connection(wire)
        connection.connection_made(GoneTransport())
        wire.give_back(connection)
        connection.data_received(b"HTTP/1.1 408 Request Timeout\r\n\r\n")
        return wire._idle

    assert asyncio.run(speak()) == []


def test_cancelling_closes_every_connection() -> None:
    """A cancelled run raises CancelledError at once and leaves no connection open."""
    closed_by_client = threading.Event()

    async def endless(request: Request, writer: asyncio.StreamWriter) -> bool:
        writer.write(framed([vllm_chunk(" a", usage(20, 1))], end=False))
        try:
            while True:
                await asyncio.sleep(0.02)
                writer.write(b"9\r\n: ping\n\n\n\r\n")
                await writer.drain()
        except ConnectionError:
            closed_by_client.set()
            raise

    async def cancelled(server: Stub) -> None:
        run = loadgen.run(
            Target(server.url, "m"), closed(2, 4), PROMPTS, RunLimits(poll_s=0), lambda: True, parse
        )
        task = asyncio.get_running_loop().create_task(run)
        while len(server.completions) < 2:
            await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    with stub(endless) as server:
        asyncio.run(cancelled(server))
        assert closed_by_client.wait(10)


def test_ctrl_c_ends_a_measurement_at_once() -> None:
    """SIGINT while a server does not answer: the process ends as KeyboardInterrupt, it does not wait for the server."""

    async def never(request: Request, writer: asyncio.StreamWriter) -> bool:
        await asyncio.sleep(60)
        return False

    # A job in a shell's background starts with SIGINT ignored; a person's terminal does not.
    code = (
        "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); "
        "import sys; from servelab.loadgen import *; from servelab.spec import Workload; "
        "w = Workload(concurrency=2, requests=4, input_tokens=20, output_tokens=4, warmup_requests=0); "
        "measure(Target(sys.argv[1], 'm'), w, PromptSource(1, 'p', 1000), RunLimits(poll_s=0), parse=lambda t: {})"
    )
    with stub(never) as server:
        process = subprocess.Popen(
            [sys.executable, "-c", code, server.url], stderr=subprocess.PIPE, text=True
        )
        while len(server.completions) < 2:
            assert process.poll() is None
            time.sleep(0.02)
        process.send_signal(signal.SIGINT)
        _, words = process.communicate(timeout=30)
    assert process.returncode != 0 and "KeyboardInterrupt" in words
