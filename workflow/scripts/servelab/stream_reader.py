"""A finished exchange → its StreamRecord with times: takes framing, events and JSON apart, after the point.

Answers of vLLM's completions differ from event to event in four places only (text, two counts, chunk size).
`scan` shortens what stays the same and checks all the rest at once, several times as fast as JSON; it stops
at the first event that is anything else, and the general reader goes on from there.
"""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from servelab.exchange import Exchange
from servelab.http_framing import Body, FramingError, Head
from servelab.sse import WORDS_CHARS, EventStream, StreamRecord, Tally, error_words, judge

_STRING = rb'[^"\\\x00-\x1f]*(?:\\.[^"\\\x00-\x1f]*)*'
# Counts of ten digits or more are left to the general reader, which refuses what no point can hold.
_EVENT = re.compile(
    rb"([0-9a-fA-F]{1,8})\r\n"
    rb'(data: \{"id":"[^"\\]*","object":"text_completion","created":\d+,"model":"[^"\\]*",'
    rb'"choices":\[\{"index":0,"text":")'
    rb"(" + _STRING + rb")"
    rb'("(?:,"[a-z_]+":null)*\}\],"usage":\{"prompt_tokens":(\d{1,9}),"total_tokens":)'
)
_SHORT = rb'([0-9a-fA-F]{1,8})\r\n\x00([^\x00\x01]*)\x01(\d{1,9}),"completion_tokens":(\d{1,9})\}\}\n\n\r\n'
_RUN = re.compile(rb"(?:" + _SHORT.replace(b"(", b"(?:") + rb")*")
_ONE = re.compile(_SHORT)
_TEXTS = re.compile(rb"(?:" + _STRING + rb"\n)*")
_FIXED = len(b',"completion_tokens":}}\n\n')


@dataclass(frozen=True)
class Scan:
    """A run of events of the known shape: byte offset of each event's last byte [n], running token counts [n].

    end: offset of the first byte that does not belong to the run, a chunk's beginning.
    """

    ends: npt.NDArray[np.int64]
    counts: npt.NDArray[np.int64]
    prompt_tokens: int
    end: int


def scan(raw: bytes, start: int) -> Scan | None:
    """The run of vLLM completion events that begins at a chunk's beginning; None if there is none.

    An event belongs to it only if its bytes are the first one's but for text and counts, its text is a JSON
    string and the chunk has the size it says.
    """
    first = _EVENT.match(raw, start)
    if first is None or b"\x00" in raw or b"\x01" in raw:
        return None
    prefix, suffix = first[2], first[4]
    short = raw[start:].replace(prefix, b"\x00").replace(suffix, b"\x01")
    run = _RUN.match(short)
    events = _ONE.findall(short, 0, run.end() if run is not None else 0)
    if not events:
        return None
    hexes, texts, totals, counts = zip(*events, strict=True)
    sizes = np.array([int(digits, 16) for digits in hexes])
    lengths = np.array(
        [len(t) + len(total) + len(n) for t, total, n in zip(texts, totals, counts, strict=True)]
    )
    good = sizes == lengths + len(prefix) + len(suffix) + _FIXED
    if not good.all() or not _TEXTS.fullmatch(b"\n".join(texts) + b"\n"):
        return None
    wire = np.cumsum(sizes + np.array([len(digits) for digits in hexes]) + 4)
    return Scan(start + wire - 3, np.array([int(n) for n in counts]), int(first[5]), start + int(wire[-1]))


def read_stream(exchange: Exchange) -> tuple[StreamRecord, npt.NDArray[np.float64]]:
    """The exchange's record, its verdict in `cause`/`detail`, and the arrival of each token-carrying chunk in
    seconds.
    """
    times, sizes, raw = exchange.unpack()
    ends = (
        np.cumsum(np.frombuffer(sizes, dtype=np.uint32), dtype=np.int64) if sizes else np.zeros(0, np.int64)
    )
    head = exchange.head
    if head is None or head.status != 200:
        record = StreamRecord(cause=exchange.cause, detail=exchange.detail)
        if exchange.cause is None or head is not None:
            _http_error(record, head, raw)
        return record, np.zeros(0)
    tally = Tally()
    try:
        _tally(raw, ends, head, exchange.framed, tally)
    except FramingError as error:
        tally.record_.cause = tally.record_.cause or "bad_stream"
        tally.record_.detail = tally.record_.detail or str(error)
    record = tally.record()
    _verdict(exchange, record, raw)
    return record, np.frombuffer(times, dtype=np.float64)[record.chunk_at] if record.chunk_at else np.zeros(0)


def _tally(raw: bytes, ends: npt.NDArray[np.int64], head: Head, framed: bool, tally: Tally) -> None:
    start = head.size
    run = scan(raw, start) if framed and head.chunked else None
    if run is not None:
        tally.counts(np.searchsorted(ends, run.ends, side="right"), run.prompt_tokens, run.counts)
        start = run.end
    stream = EventStream()
    body = Body(head) if framed else None
    last = len(ends) - 1
    for at, data in _reads_from(raw, ends, start):
        for name, event in stream.feed(body.feed(data) if body is not None else data):
            tally.event(at, name, event)
    if not tally.done:
        for name, event in stream.finish():
            if _complete(event):
                tally.event(last, name, event)


def _reads_from(raw: bytes, ends: npt.NDArray[np.int64], start: int) -> Iterator[tuple[int, bytes]]:
    first = int(np.searchsorted(ends, start, side="right"))
    at = start
    for number in range(first, len(ends)):
        stop = int(ends[number])
        yield number, raw[at:stop]
        at = stop


def _complete(event: bytes) -> bool:
    """Whether the rest of a broken stream is a whole event, not one cut in its middle."""
    return event.strip() == b"[DONE]" or event.rstrip().endswith(b"}")


def _verdict(exchange: Exchange, record: StreamRecord, raw: bytes) -> None:
    if exchange.cause is not None and record.cause != "error_event":
        record.cause, record.detail = exchange.cause, exchange.detail
        return
    if record.cause is None and record.finish_reason is None and record.output_tokens is None:
        assert exchange.head is not None
        if "json" in exchange.head.content_type:
            record.cause, record.detail = "bad_stream", f"no event stream: {_words(raw, exchange.head)}"
            return
    asked = exchange.input_tokens if exchange.path.endswith("/v1/completions") else None
    record.cause, record.detail = judge(record, asked, exchange.output_tokens)


def _http_error(record: StreamRecord, head: Head | None, raw: bytes) -> None:
    if head is None:
        record.cause, record.detail = "bad_stream", "no HTTP answer"
    else:
        record.cause, record.detail = "http_error", f"{head.status}: {_words(raw, head)}"


def _words(raw: bytes, head: Head) -> str:
    body = raw[head.size :]
    try:
        body = Body(head).feed(body)
        return error_words(json.loads(body))
    except (FramingError, ValueError, RecursionError):
        return body.decode("utf-8", "replace").strip()[:WORDS_CHARS]
