"""The load generator against a server whose answers the test writes: loads, hand-over, failures, limits.

Times are compared as orders and with wide bounds: the machine is shared.
"""

import asyncio
import json
import signal
import subprocess
import sys
import threading
import time
from array import array
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from servelab import drivers, loadgen, redact
from servelab.client import Connection, RawWire
from servelab.client_load import ClientLoad
from servelab.exchange import Exchange
from servelab.loadgen import Measurement, PromptSource, RunLimits, Target
from servelab.records import REQUESTS, SERIES
from servelab.sender import Sender
from servelab.spec import Workload
from streams import DONE, framed, usage, vllm_chunk, vllm_events
from stub_server import Request, Stub, plain, stream, stub

PROMPTS = PromptSource(1, "point", 1000)


def closed(concurrency: int = 2, requests: int = 6, **changes: Any) -> Workload:
    values: dict[str, Any] = {"input_tokens": 20, "output_tokens": 4, "warmup_requests": 0}
    return Workload(concurrency=concurrency, requests=requests, **{**values, **changes})


def parse(text: str) -> dict[str, float]:
    return {name: float(value) for name, value in (line.split() for line in text.splitlines())}


def measure(server: Stub, workload: Workload, alive: Any = lambda: True, **limits: Any) -> Measurement:
    values = {"timeout_s": 30.0, "stall_s": 10.0, "poll_s": 0.0, **limits}
    target = Target(server.url, "m")
    got = loadgen.measure(target, workload, PROMPTS, RunLimits(**values), alive, parse)
    assert got.requests.schema == REQUESTS and got.series.schema == SERIES
    return got


def rows(got: Measurement, role: str = "measured") -> list[dict[str, Any]]:
    return [row for row in got.requests.to_pylist() if row["role"] == role]


def test_every_request_is_a_row_with_its_times_in_order() -> None:
    """Intended, sent, first byte, chunks and end come in this order; tokens are the server's."""
    with stub() as server:
        got = measure(server, closed())
    assert [row["index"] for row in rows(got)] == list(range(6))
    for row in rows(got):
        assert (
            row["ok"]
            and row["cause"] is None
            and row["finish_reason"] == "length"
            and row["http_status"] == 200
        )
        times = [row["intended_s"], row["sent_s"], row["first_byte_s"], *row["chunk_s"], row["end_s"]]
        assert times == sorted(times) and len(row["chunk_s"]) == 4
        assert (row["input_tokens"], row["output_tokens"], row["chunk_tokens"]) == (20, 4, [1] * 4)


def test_the_request_asks_for_exactly_what_the_workload_says() -> None:
    """Prompt ids, output length, no early end, running usage figures, greedy."""
    with stub() as server:
        measure(server, closed(1, 1))
    [request] = server.completions
    assert request.path == "/v1/completions"
    assert len(request.body["prompt"]) == 20 and all(
        isinstance(token, int) for token in request.body["prompt"]
    )
    wanted = {"model": "m", "max_tokens": 4, "ignore_eos": True, "temperature": 0, "stream": True}
    assert wanted.items() <= request.body.items()
    assert request.body["stream_options"] == {"include_usage": True, "continuous_usage_stats": True}


def test_slots_hand_over_on_their_connections() -> None:
    """Never more in flight than slots, every slot busy to the end, one connection a slot."""
    with stub() as server:
        got = measure(server, closed(3, 12))
    spans = sorted([(row["sent_s"], 1) for row in rows(got)] + [(row["end_s"], -1) for row in rows(got)])
    in_flight = np.cumsum([step for _, step in spans])
    assert in_flight.max() == 3
    assert {row["slot"] for row in rows(got)} == {0, 1, 2}
    assert len({request.connection for request in server.completions}) == 3
    assert got.window["first_send_s"] <= got.window["steady_start_s"] < got.window["steady_end_s"]
    assert got.window["steady_end_s"] <= got.window["last_token_s"] + 1.0
    steady = (got.window["steady_start_s"], got.window["steady_end_s"])
    busy = [
        sum(row["sent_s"] <= at < row["end_s"] for row in rows(got)) for at in np.linspace(*steady, 50)[1:-1]
    ]
    assert np.mean(np.array(busy) >= 2) > 0.9


def test_warm_up_goes_over_into_measuring_without_a_drain() -> None:
    """Warm-up requests are other prompts and other rows, one a slot; the counters are read before the first
    measured.
    """
    counter = [0]

    def metrics() -> str:
        counter[0] += 1
        return f"seen {len(server.completions)}\nreadings {counter[0]}"

    with stub(metrics=metrics) as server:
        got = measure(server, closed(4, 8, warmup_requests=-1))
    assert len(rows(got, "warmup")) == 4 and len(rows(got)) == 8
    assert got.metrics["before"]["seen"] == 4 and got.metrics["after"]["seen"] == 12
    prompts = {tuple(request.body["prompt"][:16]) for request in server.completions}
    assert len(prompts) == 12


def test_fewer_warm_up_requests_than_slots_still_fill_every_slot_after() -> None:
    """One warm-up request, then all slots begin to measure."""
    with stub() as server:
        got = measure(server, closed(4, 8, warmup_requests=1))
    assert len(rows(got, "warmup")) == 1 and len(rows(got)) == 8
    assert {row["slot"] for row in rows(got)} == {0, 1, 2, 3}
    assert max(row["end_s"] for row in rows(got, "warmup")) <= min(row["sent_s"] for row in rows(got))


def test_a_duration_ends_the_sending_and_lets_the_rest_finish() -> None:
    """No request is sent after the time is over, none is cut off."""
    with stub() as server:
        got = measure(server, closed(2, 0, duration_s=0.4))
    assert len(rows(got)) >= 2 and all(row["ok"] for row in rows(got))
    assert max(row["sent_s"] for row in rows(got)) - got.window["first_send_s"] < 0.5


def test_metrics_are_polled_and_only_what_matters_is_kept() -> None:
    """The series holds load and cache figures, no histograms; a server without /metrics gives an empty one."""
    text = 'vllm:num_requests_running{a="b"} 3\nvllm:e2e_bucket{le="1"} 4\nprocess_open_fds 9'
    with stub(metrics=lambda: text) as server:
        got = measure(server, closed(2, 0, duration_s=0.5), poll_s=0.05)
    names = set(got.series["name"].to_pylist())
    assert names == {'vllm:num_requests_running{a="b"}'} and got.series.num_rows >= 4
    assert got.metrics["after"]["process_open_fds"] == 9
    with stub() as server:
        bare = measure(server, closed(), poll_s=0.05)
    assert bare.series.num_rows == 0 and bare.metrics == {} and all(row["ok"] for row in rows(bare))


def test_open_loop_sends_by_its_schedule_whatever_the_server_does() -> None:
    """A server that answers slowly does not slow the sending: intended starts are the schedule's, none is
    sent early.
    """

    async def slow(request: Request, writer: asyncio.StreamWriter) -> bool:
        return await stream(request, writer, 0.1)

    workload = Workload(
        kind="open",
        input_tokens=8,
        output_tokens=3,
        arrival="constant",
        rate_rps=50.0,
        requests=20,
        warmup_requests=0,
    )
    with stub(slow) as server:
        got = measure(server, workload)
    intended = np.array([row["intended_s"] for row in rows(got)])
    assert np.allclose(np.diff(intended), 0.02) and all(row["ok"] for row in rows(got))
    assert all(row["sent_s"] >= row["intended_s"] and row["slot"] is None for row in rows(got))
    assert rows(got)[9]["sent_s"] < rows(got)[0]["end_s"]
    assert got.client["send_lag_max_ms"] >= got.client["send_lag_p50_ms"] >= 0


def test_open_loop_warm_up_is_the_beginning_of_the_schedule() -> None:
    """One request alone, then the schedule's first arrivals, then the measured ones on the same axis."""
    workload = Workload(
        kind="open", input_tokens=8, output_tokens=2, arrival="constant", rate_rps=100.0, requests=10
    )
    with stub() as server:
        got = measure(server, workload)
    warm, measured = rows(got, "warmup"), rows(got)
    assert (len(warm), len(measured)) == (4, 10)
    assert warm[0]["end_s"] <= warm[1]["intended_s"]
    axis = [row["intended_s"] for row in warm[1:] + measured]
    assert np.allclose(np.diff(axis), 0.01)


def test_a_limit_of_requests_in_flight_delays_but_keeps_the_intended_start() -> None:
    """What waits for the limit is late by its intended start, and the lag is reported."""

    async def slow(request: Request, writer: asyncio.StreamWriter) -> bool:
        return await stream(request, writer, 0.05)

    workload = Workload(
        kind="open",
        input_tokens=8,
        output_tokens=2,
        arrival="constant",
        rate_rps=200.0,
        requests=6,
        warmup_requests=0,
    )
    with stub(slow) as server:
        got = measure(server, workload, max_concurrency=2)
    lags = [row["sent_s"] - row["intended_s"] for row in rows(got)]
    assert all(row["ok"] for row in rows(got)) and lags[5] > 0.1 > lags[0]
    assert got.client["send_lag_max_ms"] > 100


def test_a_trace_is_followed(tmp_path: Path) -> None:
    """Arrivals of a file, all of them if no number is given."""
    trace = tmp_path / "t.txt"
    trace.write_text("5.0\n5.1\n5.1\n5.15\n", encoding="utf-8")
    workload = Workload(kind="open", input_tokens=8, output_tokens=2, arrival="trace", trace=str(trace))
    with stub() as server:
        got = measure(server, workload)
    intended = [row["intended_s"] for row in rows(got)]
    assert np.allclose(np.array(intended) - intended[0], [0, 0.1, 0.1, 0.15])
    assert len(rows(got, "warmup")) == 1


def interference(**changes: Any) -> Workload:
    values: dict[str, Any] = {"input_tokens": 60, "output_tokens": 2, "inserted": 3, "insert_after_tokens": 5}
    values |= {"victim_input_tokens": 10, "victim_output_tokens": 80}
    return Workload(kind="interference", **{**values, **changes})


def test_prompts_are_inserted_into_a_decoding_victim_one_after_the_other() -> None:
    """The first after the victim's fifth token, each further one after the first token of the one before."""
    with stub() as server:
        got = measure(server, interference())
    [victim], inserted = rows(got, "victim"), rows(got, "inserted")
    assert (
        len(inserted) == 3 and all(row["ok"] for row in [victim, *inserted]) and len(rows(got, "warmup")) == 2
    )
    assert inserted[0]["sent_s"] >= victim["chunk_s"][4]
    assert inserted[1]["sent_s"] >= inserted[0]["chunk_s"][0]
    assert inserted[2]["sent_s"] >= inserted[1]["chunk_s"][0]
    assert inserted[2]["chunk_s"][0] <= victim["end_s"]


def test_prompts_that_the_victim_did_not_live_to_see_are_failed_rows() -> None:
    """A victim that ends too early leaves rows that say so, not fewer rows."""
    with stub() as server:
        got = measure(server, interference(victim_output_tokens=4, insert_after_tokens=10))
    assert [row["cause"] for row in rows(got, "inserted")] == ["cancelled"] * 3
    assert rows(got, "victim")[0]["ok"]


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


@pytest.mark.parametrize(
    ("workload", "words"),
    [
        (closed(0, 5), "concurrency 0"),
        (closed(1, 0), "neither requests nor duration_s"),
        (closed(1, 1, input_tokens=0), "input_tokens 0"),
        (Workload(kind="perplexity", input_tokens=1, output_tokens=1), "perplexity"),
        (closed(1, 1, api="embeddings"), "embeddings"),
        (interference(victim_output_tokens=0), "victim"),
    ],
)
def test_a_workload_that_cannot_be_is_refused_before_anything_is_sent(workload: Workload, words: str) -> None:
    """The error names the field and its value."""
    with stub() as server:
        with pytest.raises(ValueError, match=words):
            measure(server, workload)
        assert server.completions == []


def test_the_clients_clock_stops_once() -> None:
    """What comes after the load (reading the counters, closing) is no part of the client's time."""
    load = ClientLoad()
    load.start()
    load.stop()
    first = load.figures(8, array("d"))
    time.sleep(0.05)
    load.stop()
    assert load.figures(8, array("d")) == first


def test_the_client_knows_itself() -> None:
    """Every point carries the client's CPU, lag and cost per token."""
    with stub() as server:
        got = measure(server, closed(2, 20))
    assert {
        "cpu_s",
        "wall_s",
        "busy_share",
        "lag_p50_ms",
        "lag_p99_ms",
        "lag_max_ms",
        "us_per_token",
        "limited",
    } <= set(got.client)
    assert got.client["tokens"] == 80 and 0 < got.client["cpu_s"] <= got.client["wall_s"] * 2
    assert abs(got.clock_zero - time.time()) < 60
    assert isinstance(got.requests, pa.Table)
