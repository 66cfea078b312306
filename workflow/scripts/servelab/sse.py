"""A streamed answer as it arrived (bytes and stamps) → which tokens came when, and whether the answer is right.

Runs after the point, or on the side for the few streams whose tokens steer a workload. Events are parsed as
the WHATWG HTML standard says (section 9.2.6 «Interpreting an event stream»); what a token-carrying chunk is,
is said at `Tally`.
"""

import codecs
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from servelab import redact

# Several times what a row keeps of them; they are cleaned and cut where the row is made (redact.line).
WORDS_CHARS = 4 * redact.LINE_CHARS
REASON_CHARS = 40
MAX_COUNT = 2**31 - 1  # what a point's file can hold (records.REQUESTS)
# What is raised over a JSON value of another shape, size or depth than an event has.
_OTHER_SHAPE = (TypeError, ValueError, AttributeError, LookupError, OverflowError, RecursionError)


class EventStream:
    """Splits an event stream into the data of its events, whatever the boundaries at which its bytes arrive."""

    def __init__(self) -> None:
        self._rest = b""
        self._after_cr = False
        self._lines: list[bytes] = []
        self._name = b""
        self._first = True

    def feed(self, data: bytes) -> list[tuple[bytes, bytes]]:
        """(event name, data) of every event that these bytes complete. Comments and other fields are skipped."""
        if self._after_cr and data.startswith(b"\n"):
            data = data[1:]
            self._after_cr = False
        if not data:
            return []
        self._after_cr = data.endswith(b"\r")
        if b"\r" in data:
            data = data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        *lines, self._rest = (self._rest + data).split(b"\n")
        return [event for line in lines if (event := self._line(line)) is not None]

    def finish(self) -> list[tuple[bytes, bytes]]:
        """What a stream that ended without an empty line still holds (some servers leave it out)."""
        events = [self._line(self._rest), self._line(b"")] if self._rest else [self._line(b"")]
        self._rest = b""
        return [event for event in events if event is not None]

    def _line(self, line: bytes) -> tuple[bytes, bytes] | None:
        if self._first:
            self._first = False
            line = line.removeprefix(codecs.BOM_UTF8)
        if not line:
            event = (self._name, b"\n".join(self._lines)) if self._lines else None
            self._lines, self._name = [], b""
            return event
        name, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if name == b"data":
            self._lines.append(value)
        elif name == b"event":
            self._name = value
        return None


@dataclass
class StreamRecord:
    """What one stream said. `cause`/`detail` say what is wrong with it (records.CAUSES), None if nothing is.

    chunk_at: for each token-carrying chunk the number of the read that completed it; chunk_tokens: its
    tokens.
    """

    chunk_at: list[int] = field(default_factory=list)
    chunk_tokens: list[int] = field(default_factory=list)
    input_tokens: int | None = None
    output_tokens: int | None = None
    cached_tokens: int | None = None
    finish_reason: str | None = None
    cause: str | None = None
    detail: str | None = None

    def take_usage(self, usage: dict[str, Any]) -> None:
        """Take a usage object's figures; one that it leaves out stays as it was.

        Raises ValueError for a figure that is no count, AttributeError for what is no object.
        """
        self.input_tokens = _given(usage.get("prompt_tokens"), self.input_tokens)
        self.output_tokens = _given(usage.get("completion_tokens"), self.output_tokens)
        details = usage.get("prompt_tokens_details") or {}
        self.cached_tokens = _given(details.get("cached_tokens"), self.cached_tokens)

    def take_finish_reason(self, reason: object) -> None:
        """Take a choice's finish reason; null says nothing."""
        if reason is not None:
            self.finish_reason = redact.line(str(reason), limit=REASON_CHARS)


@dataclass
class Tally:
    """Counts tokens over the events of one stream.

    A chunk carries tokens if the server's running usage figure grew with it (`continuous_usage_stats`); its
    tokens are the growth. A server without running figures gives only text: then a chunk counts as one token,
    provisionally, and `judge` accepts that only if the sum equals the server's final figure (over the chunks
    with text, or over all chunks with a choice, for servers that send the tokens of a split character as
    empty text). A usage figure that first comes with a later chunk is the final one, not a running one.
    """

    record_: StreamRecord = field(default_factory=StreamRecord)
    done: bool = False
    _running: bool = False
    _seen: int = 0
    _bare_at: list[int] = field(default_factory=list)
    _bare_text: list[bool] = field(default_factory=list)

    @property
    def tokens(self) -> int:
        """Tokens counted so far."""
        return self._seen if self._running else sum(self._bare_text)

    def event(self, at: int, name: bytes, data: bytes) -> None:
        """Take one event that read number `at` completed."""
        if self.done or self.record_.cause == "error_event":
            return
        if data.strip() == b"[DONE]":
            self.done = True
            return
        try:
            value = json.loads(data)
        except (ValueError, RecursionError):
            self._wrong("bad_stream", f"an event is no JSON: {_shorten(data)}")
            return
        if not isinstance(value, dict):
            self._wrong("bad_stream", f"an event is no JSON object: {_shorten(data)}")
        elif name == b"error" or value.get("error") or value.get("object") == "error":
            self.record_.cause = None
            self._wrong("error_event", error_words(value) or _shorten(data))
        else:
            try:
                self._chunk(at, value)
            except _OTHER_SHAPE as error:
                self._wrong("bad_stream", f"{error!r} in {_shorten(data)}")

    def counts(self, at: npt.NDArray[np.int64], prompt_tokens: int, totals: npt.NDArray[np.int64]) -> None:
        """Take a run of chunks with one choice and running usage figures at once; the stream's first events.

        at: the read that completed each chunk [n]; totals: the running figure in it [n].
        """
        self._running = True
        self.record_.input_tokens = prompt_tokens
        grown = np.diff(totals, prepend=0)
        if (grown < 0).any():
            for number, total in zip(at.tolist(), totals.tolist(), strict=True):
                self._grow(number, total)
            return
        self.record_.chunk_at = at[grown > 0].tolist()
        self.record_.chunk_tokens = grown[grown > 0].tolist()
        self._seen = self.record_.output_tokens = int(totals[-1])

    def record(self) -> StreamRecord:
        """The stream's record; to be called once, after its last event."""
        record = self.record_
        if not self._running:
            self._bare_chunks(record)
        return record

    def _chunk(self, at: int, value: dict[str, Any]) -> None:
        usage, choices = value.get("usage"), value.get("choices") or []
        if usage:
            self.record_.take_usage(usage)
        for choice in choices:
            self.record_.take_finish_reason(choice.get("finish_reason"))
        if not choices:
            return
        if usage and (self._running or not self._bare_at):
            self._running = True
            self._grow(at, count(usage.get("completion_tokens") or 0))
        else:
            text = any(_carries_text(choice) for choice in choices)
            only_role = any(
                "delta" in choice and not text and "role" in choice["delta"] for choice in choices
            )
            only_end = not text and any(choice.get("finish_reason") is not None for choice in choices)
            if not only_role and not only_end:
                self._bare_at.append(at)
                self._bare_text.append(text)

    def _grow(self, at: int, total: int) -> None:
        record = self.record_
        if total < self._seen:
            self._wrong("bad_stream", f"the running token count fell from {self._seen} to {total}")
        elif total > self._seen:
            record.chunk_at.append(at)
            record.chunk_tokens.append(total - self._seen)
        self._seen = total
        record.output_tokens = total

    def _bare_chunks(self, record: StreamRecord) -> None:
        with_text = [at for at, text in zip(self._bare_at, self._bare_text, strict=True) if text]
        every = self._bare_at
        fits = (
            every
            if len(with_text) != record.output_tokens and len(every) == record.output_tokens
            else with_text
        )
        record.chunk_at = list(fits)
        record.chunk_tokens = [1] * len(fits)

    def _wrong(self, cause: str, detail: str) -> None:
        if self.record_.cause is None:
            self.record_.cause, self.record_.detail = cause, detail[:WORDS_CHARS]


def judge(record: StreamRecord, input_asked: int | None, output_asked: int) -> tuple[str | None, str | None]:
    """(cause, detail) of a stream whose transport ended well; (None, None) if it is a success.

    What a success is: docs/load-generator.md, «Token counts and verdicts». input_asked None: the prompt's
    length in tokens is not ours to know (chat templates), so it is not compared.
    """
    if record.cause is not None:
        return record.cause, record.detail
    if record.finish_reason is None:
        return "closed_early", "no finish reason"
    if record.output_tokens is None or record.input_tokens is None:
        return "usage_missing", None
    if input_asked is not None and record.input_tokens != input_asked:
        return "input_tokens", f"asked {input_asked}, the server counted {record.input_tokens}"
    if record.output_tokens != output_asked:
        words = f"asked {output_asked}, the server counted {record.output_tokens} ({record.finish_reason})"
        return "output_tokens", words
    counted = sum(record.chunk_tokens)
    if counted != record.output_tokens:
        return "token_count", f"{counted} over the chunks, {record.output_tokens} in the usage"
    return None, None


def tally_reads(bodies: Iterable[tuple[int, bytes]], tally: Tally, stream: EventStream) -> Iterator[int]:
    """Feed body bytes as (read number, bytes) to a tally; yields after each read the tokens counted so far."""
    for at, body in bodies:
        for name, data in stream.feed(body):
            tally.event(at, name, data)
        yield tally.tokens


def count(value: object) -> int:
    """A server's figure as a number of tokens. Raises ValueError for what is no integer in 0 … MAX_COUNT."""
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= MAX_COUNT:
        raise ValueError(f"{str(value)[:40]!r} is no count of tokens")
    return value


def error_words(value: object) -> str:
    """The words of an error object as servers write them: {"error": {"message": …}}, {"message": …}, {"detail": …}."""
    while isinstance(value, dict):
        value = next((value[name] for name in ("error", "message", "detail") if value.get(name)), "")
    try:
        return (value if isinstance(value, str) else json.dumps(value))[:WORDS_CHARS]
    except RecursionError:
        return ""  # nested as deep as the parser allows: no words


def _carries_text(choice: dict[str, Any]) -> bool:
    delta = choice.get("delta") or {}
    names = ("content", "reasoning", "reasoning_content", "tool_calls", "function_call", "refusal")
    return bool(choice.get("text") or any(delta.get(name) for name in names))


def _given(value: object, otherwise: int | None) -> int | None:
    return otherwise if value is None else count(value)


def _shorten(data: bytes) -> str:
    return data[:WORDS_CHARS].decode("utf-8", "replace")
