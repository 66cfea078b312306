"""The load generator against a server whose answers the test writes: loads, hand-over, what is recorded.

Times are compared as orders and with wide bounds: the machine is shared.
"""

import asyncio
import time
from array import array
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from loads import closed, interference, measure, rows
from servelab.client_load import ClientLoad
from servelab.spec import Workload
from stub_server import Request, stream, stub


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
