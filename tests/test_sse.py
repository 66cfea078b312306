"""Streams as servers send them, right and wrong, cut at any byte: tokens, times, and what is wrong with them."""

import itertools
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from servelab.sse import EventStream, StreamRecord, Tally, error_words, judge
from servelab.stream_reader import read_stream, scan
from streams import DONE, HEAD, event, exchange_of, framed, usage, vllm_chunk, vllm_events

Verdict = tuple[str | None, list[float], list[int]]

TEXTS = [" he", 'a "quoted" \\ one', " \u00e9\u4f60", "tab\t", ""]


def verdict(reads: list[bytes], **asked: Any) -> Verdict:
    record, times = read_stream(exchange_of(reads, **asked))
    return record.cause, times.tolist(), record.chunk_tokens


def cut(data: bytes, cuts: list[int]) -> list[bytes]:
    edges = [0, *sorted({c % len(data) for c in cuts} - {0}), len(data)]
    return [data[a:b] for a, b in itertools.pairwise(edges)]


def chat(delta: dict[str, Any], counts: dict[str, Any] | None = None, reason: str | None = None) -> bytes:
    value: dict[str, Any] = {
        "object": "chat.completion.chunk",
        "choices": [{"index": 0, "delta": delta, "finish_reason": reason}],
    }
    return event(value | ({"usage": counts} if counts else {}))


def final(counts: dict[str, Any]) -> bytes:
    return event({"choices": [], "usage": counts})


def test_each_read_of_a_stream_is_the_time_of_its_tokens() -> None:
    """One event a read: the head is read 0, the first token comes with read 1, the second with 2."""
    whole = vllm_events(TEXTS[:3])
    reads = [HEAD, *(framed([e], end=False)[len(HEAD) :] for e in whole), b"0\r\n\r\n"]
    assert verdict(reads) == (None, [1.0, 2.0, 3.0], [1, 1, 1])


def test_several_events_in_one_read_have_its_time() -> None:
    """Events that arrive together are stamped together; none is lost."""
    assert verdict([framed(vllm_events(TEXTS))], output_tokens=5) == (None, [0.0] * 5, [1] * 5)


def test_several_tokens_in_one_event_are_counted_by_the_servers_figures() -> None:
    """A merged event is one chunk of its tokens."""
    reads = [framed(vllm_events(["a b", "c", "d e f"], per_chunk=[2, 1, 3]))]
    assert verdict(reads, output_tokens=6) == (None, [0.0] * 3, [2, 1, 3])


@given(st.lists(st.integers(0, 5000), max_size=40), st.booleans(), st.sampled_from([b"\n", b"\r\n", b"\r"]))
def test_any_cutting_of_a_stream_gives_the_same_record(cuts: list[int], comments: bool, line: bytes) -> None:
    """Cut at any bytes, with any line ends and comments: the tokens are the same, each at its last byte's read."""
    events = [e.replace(b"\n", line) for e in vllm_events(TEXTS)]
    if comments:
        events = [part for e in events for part in (b": ping" + line * 2, e)]
    wire = framed(events)
    reads = cut(wire, cuts)
    ends, at = [], 0
    for e in events:
        at = wire.index(e, at) + len(e)
        # A lone CR ends a line at once; in CR LF the LF that follows belongs to it and carries nothing.
        ends.append(at - 1 - (line == b"\r\n"))
    token_ends = [end for e, end in zip(events, ends, strict=True) if b'"index"' in e]
    edges = [sum(map(len, reads[: n + 1])) for n in range(len(reads))]
    expected = [float(next(n for n, edge in enumerate(edges) if edge > end)) for end in token_ends]
    assert verdict(reads, output_tokens=5) == (None, expected, [1] * 5)


@given(st.lists(st.text(max_size=12), min_size=1, max_size=12), st.lists(st.integers(0, 9000), max_size=10))
def test_the_fast_reader_says_what_the_general_one_says(texts: list[str], cuts: list[int]) -> None:
    """Whatever the text: runs of vLLM events read fast give the record that reading each event as JSON gives."""
    events = vllm_events(texts)
    fast = verdict(cut(framed(events), cuts), output_tokens=len(texts))
    other = [e.replace(b'"object":"text_completion"', b'"object": "text_completion"') for e in events]
    assert scan(framed(other), len(HEAD)) is None
    assert verdict([framed(other)], output_tokens=len(texts))[::2] == fast[::2]
    assert fast[0] is None and fast[2] == [1] * len(texts)


def test_the_fast_reader_reads_all_but_the_last_events() -> None:
    """Of n token events the first n − 1 have the known shape; the one with the finish reason is left to JSON."""
    wire = framed(vllm_events([f" t{n}" for n in range(20)]))
    run = scan(wire, len(HEAD))
    assert run is not None
    assert run.counts.tolist() == list(range(1, 20)) and run.prompt_tokens == 5
    assert wire[run.end :].startswith(b"%x\r\ndata: " % len(vllm_events([f" t{n}" for n in range(20)])[19]))


def test_a_chunk_size_that_lies_stops_the_fast_reader() -> None:
    """Bytes that only look like an event are not believed: the framing must agree."""
    wire = framed([vllm_chunk(" a", usage(5, 1)), vllm_chunk(" b", usage(5, 2))], end=False)
    size = b"%x\r\n" % len(vllm_chunk(" a", usage(5, 1)))
    assert scan(wire, len(HEAD)) is not None
    assert scan(wire.replace(size, b"%x\r\n" % (int(size, 16) + 1), 1), len(HEAD)) is None


def test_an_empty_first_chunk_is_no_token() -> None:
    """A chunk before the first token, with a running count of nothing, does not count as TTFT."""
    events = [chat({"role": "assistant", "content": ""}, usage(9, 0)), chat({"content": "a"}, usage(9, 1))]
    events += [chat({"content": "b"}, usage(9, 2), "length"), final(usage(9, 2)), DONE]
    reads = [
        framed([e]).removesuffix(b"0\r\n\r\n") if n == 0 else framed([e])[len(HEAD) : -5]
        for n, e in enumerate(events)
    ]
    assert verdict([*reads, b"0\r\n\r\n"], output_tokens=2, path="/v1/chat/completions") == (
        None,
        [1.0, 2.0],
        [1, 1],
    )


@pytest.mark.parametrize("field", ["content", "reasoning", "reasoning_content"])
def test_reasoning_deltas_are_tokens_too(field: str) -> None:
    """A reasoning model's first thought is its first token, also from servers without running figures."""
    events = [
        chat({"role": "assistant"}),
        chat({field: "hm"}),
        chat({"content": "x"}),
        chat({}, reason="length"),
    ]
    got = verdict([framed([*events, final(usage(7, 2)), DONE])], output_tokens=2, path="/v1/chat/completions")
    assert got == (None, [0.0, 0.0], [1, 1])


def test_a_plain_server_counts_one_token_a_chunk_only_if_the_total_agrees() -> None:
    """Without running figures the final usage decides whether chunks are tokens."""
    events = [vllm_chunk(t, None) for t in (" a", " b")] + [vllm_chunk(" c", None, "length")]
    assert verdict([framed([*events, final(usage(5, 3)), DONE])]) == (None, [0.0] * 3, [1] * 3)
    assert verdict([framed([*events, final(usage(5, 4)), DONE])], output_tokens=4)[0] == "token_count"


def test_the_parts_of_a_split_character_are_tokens_if_the_total_says_so() -> None:
    """A chunk with empty text counts where only so the chunks add up to the server's figure."""
    events = [vllm_chunk(t, None) for t in (" a", "", " b")] + [vllm_chunk("", None, "length")]
    assert verdict([framed([*events, final(usage(5, 3)), DONE])]) == (None, [0.0] * 3, [1] * 3)
    assert verdict([framed([*events, final(usage(5, 2)), DONE])], output_tokens=2)[2] == [1, 1]


def test_a_usage_figure_in_the_last_chunk_is_the_total_not_a_chunk_of_all_tokens() -> None:
    """Servers that put the final usage beside the finish reason are not taken for merging everything into one chunk."""
    events = [vllm_chunk(" a", None), vllm_chunk(" b", None), vllm_chunk(" c", usage(5, 3), "length"), DONE]
    assert verdict([framed(events)]) == (None, [0.0] * 3, [1] * 3)


def wrong_streams() -> list[Any]:
    good = vllm_events([" a", " b", " c"])
    late = event({"error": {"message": "engine dead", "code": 500}})
    return [
        pytest.param([*good[:2], late, DONE], {}, "error_event", id="error event"),
        pytest.param(
            [b"event: error\n" + event({"message": "no"}), DONE], {}, "error_event", id="named error event"
        ),
        pytest.param([*good[:2], late, *good[2:]], {}, "error_event", id="error event before a good end"),
        pytest.param(good[:2], {}, "closed_early", id="no finish reason"),
        pytest.param(
            [vllm_chunk(" a", None, "length"), DONE], {"output_tokens": 1}, "usage_missing", id="no usage"
        ),
        pytest.param(good, {"input_tokens": 6}, "input_tokens", id="other prompt length"),
        pytest.param(good, {"output_tokens": 4}, "output_tokens", id="early finish"),
        pytest.param(
            [*good[:3], final(usage(5, 4)), DONE],
            {"output_tokens": 4},
            "token_count",
            id="chunks miss a token",
        ),
        pytest.param([good[0], b"data: {broken\n\n", *good[1:]], {}, "bad_stream", id="broken JSON"),
        pytest.param([good[1], good[0], *good[2:]], {}, "bad_stream", id="count that falls"),
        pytest.param([b"data: [1]\n\n", *good], {}, "bad_stream", id="no object"),
        pytest.param([event({"choices": [None]}), *good], {}, "bad_stream", id="a choice that is none"),
        pytest.param([event({"choices": {"a": 1}}), *good], {}, "bad_stream", id="choices that are no list"),
        *[
            pytest.param(
                [*good[:3], final(usage(5, 3) | {name: value}), DONE], {}, "bad_stream", id=f"{name} {value}"
            )
            for name in ("completion_tokens", "prompt_tokens")
            for value in (3_000_000_000, float("inf"), -1, 1.5, "3", True)
        ],
        pytest.param(
            [vllm_chunk(" a", usage(5, 3_000_000_000), "length"), DONE],
            {"output_tokens": 3_000_000_000},
            "bad_stream",
            id="a running count that no point can hold",
        ),
        pytest.param(
            [vllm_chunk(" a", usage(3_000_000_000, n)) for n in (1, 2)],
            {},
            "bad_stream",
            id="a prompt that no point can hold",
        ),
        pytest.param([b"data: " + b"[" * 100_000 + b"\n\n", *good], {}, "bad_stream", id="deep nesting"),
    ]


@pytest.mark.parametrize(("events", "asked", "cause"), wrong_streams())
def test_what_is_wrong_with_a_stream_is_named(events: list[bytes], asked: dict[str, int], cause: str) -> None:
    """Each kind of wrong stream is a failed request with its cause, never a success and never an exception."""
    assert verdict([framed(events)], **asked)[0] == cause


def test_an_http_error_keeps_the_servers_words() -> None:
    """An error status is http_error with the message of the body."""
    body = json.dumps({"error": {"message": "too long: 5000 > 4096"}}).encode()
    wire = b"HTTP/1.1 400 Bad Request\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%s" % (
        len(body),
        body,
    )
    record, _ = read_stream(exchange_of([wire]))
    assert (record.cause, record.detail) == ("http_error", "400: too long: 5000 > 4096")


@pytest.mark.parametrize("body", [b"[" * 100_000, b'{"error": ' * 100_000])
def test_an_http_error_nested_without_end_is_no_crash(body: bytes) -> None:
    """A body too deep to be read as JSON is quoted as it is."""
    head = b"HTTP/1.1 500 Oh\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(body)
    record, _ = read_stream(exchange_of([head + body]))
    assert record.cause == "http_error" and (record.detail or "").startswith("500: " + body[:20].decode())


def test_an_answer_that_is_no_stream_is_a_bad_stream() -> None:
    """A server that ignores `stream` and sends one JSON object is not measured."""
    body = b'{"choices": []}'
    wire = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%s" % (
        len(body),
        body,
    )
    assert verdict([wire])[0] == "bad_stream"


def test_a_transports_cause_stands_unless_the_stream_said_why() -> None:
    """A stalled stream is stalled whatever came before; an error event explains the reset after it."""
    good, late = vllm_events([" a", " b"]), event({"error": "dead"})
    for events, cause, expected in (
        ([good[0]], "stalled", "stalled"),
        ([good[0], late], "reset", "error_event"),
    ):
        made = exchange_of([framed(events, end=False)], output_tokens=2)
        made.cause = cause
        record, times = read_stream(made)
        assert record.cause == expected and len(times) == 1


def test_a_body_without_framing_is_read_too() -> None:
    """What aiohttp hands over, the body alone, gives the same record."""
    body = b"".join(vllm_events([" a", " b", " c"]))
    assert verdict([body[:100], body[100:]], framing=False)[::2] == (None, [1, 1, 1])


def test_the_end_of_a_stream_may_lack_its_empty_line() -> None:
    """A last event that is whole counts without its empty line; one cut in its middle does not."""
    body = b"".join(vllm_events([" a", " b", " c"])[:3]).rstrip(b"\n")
    assert verdict([body], framing=False) == (None, [0.0] * 3, [1] * 3)
    assert verdict([body[:-40]], framing=False) == ("closed_early", [0.0] * 2, [1] * 2)


def test_cached_tokens_are_kept() -> None:
    """The prompt tokens that the server says it had cached are part of the record."""
    events = [*vllm_events([" a"])[:1], final(usage(5, 1, cached=4)), DONE]
    record, _ = read_stream(exchange_of([framed(events)], output_tokens=1))
    assert (record.cause, record.cached_tokens, record.finish_reason) == (None, 4, "length")


def test_data_over_several_lines_is_one_event() -> None:
    """Data lines of one event are joined; other fields and a byte order mark are skipped."""
    stream = EventStream()
    assert stream.feed(b"\xef\xbb\xbfid: 1\ndata: a\ndata:b\nretry: 5\n\n") == [(b"", b"a\nb")]


def test_tokens_after_the_end_do_not_count() -> None:
    """What comes after [DONE] is not part of the answer."""
    tally = Tally()
    for data in (
        b'{"choices":[{"text":"a","finish_reason":"length"}],"usage":{"prompt_tokens":1,"completion_tokens":1}}',
    ):
        tally.event(0, b"", data)
    tally.event(0, b"", b"[DONE]")
    tally.event(1, b"", b'{"choices":[{"text":"b"}],"usage":{"completion_tokens":2}}')
    assert judge(tally.record(), 1, 1) == (None, None)


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ({"error": {"message": "m"}}, "m"),
        ({"detail": "d"}, "d"),
        ({"error": "e"}, "e"),
        ({"detail": [{"a": 1}]}, '[{"a": 1}]'),
    ],
)
def test_error_objects_of_different_servers(value: Any, words: str) -> None:
    """The server's words are found in the shapes that servers use."""
    assert error_words(value) == words


def test_words_are_found_however_deep_they_lie() -> None:
    """An error in an error in an error … is read without a stack for it."""
    value: Any = "m"
    for _ in range(100_000):
        value = {"error": value}
    assert error_words(value) == "m"


def test_an_empty_record_is_closed_early() -> None:
    """Nothing at all is not a success."""
    assert judge(StreamRecord(), 1, 1)[0] == "closed_early"
