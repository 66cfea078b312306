"""Where one HTTP/1.1 response begins and ends in a stream of bytes. Pure; no sockets, no clock.

RFC 9112: a status line and header fields, then a body that is chunked, of a known length, or ends with the
connection.
"""

from dataclasses import dataclass, field

MAX_HEAD_BYTES = 64 << 10
MAX_CHUNK_LINE_BYTES = 4 << 10
MAX_LENGTH_DIGITS = 18  # a number of thousands of digits int() refuses in a way of its own


class FramingError(ValueError):
    """Bytes that HTTP/1.1 does not allow here; the message says what was seen."""


@dataclass(frozen=True)
class Head:
    """Status and the header fields that decide how the body is read. `length` is None if not given."""

    status: int
    chunked: bool
    length: int | None
    keep_alive: bool
    content_type: str
    size: int


def parse_head(data: bytes) -> Head | None:
    """The response head at the beginning of `data`, or None while it is incomplete. Raises FramingError.

    `size` counts the bytes up to and with the empty line. Informational answers (1xx) are skipped by the
    caller.
    """
    end = data.find(b"\r\n\r\n")
    if end < 0:
        if len(data) > MAX_HEAD_BYTES:
            raise FramingError(f"no end of the response head within {MAX_HEAD_BYTES} bytes")
        if data and not b"HTTP/1.".startswith(data[:7]) and not data.startswith(b"HTTP/1."):
            raise FramingError(f"no HTTP/1.1 response: {data[:60]!r}")
        return None
    status_line, *lines = data[:end].split(b"\r\n")
    words = status_line.split(None, 2)
    known = len(words) > 1 and words[0].startswith(b"HTTP/1.")
    if not known or not words[1].isdigit() or len(words[1]) != 3:
        raise FramingError(f"no HTTP/1.1 status line: {status_line[:60]!r}")
    fields = {
        name.strip().lower(): value.strip() for name, _, value in (line.partition(b":") for line in lines)
    }
    status = int(words[1])
    connection = fields.get(b"connection", b"").lower()
    keep_alive = connection != b"close" and (words[0] != b"HTTP/1.0" or connection == b"keep-alive")
    chunked = fields.get(b"transfer-encoding", b"").lower().endswith(b"chunked")
    return Head(
        status=status,
        chunked=chunked,
        length=_length(fields, status, chunked),
        keep_alive=keep_alive,
        content_type=fields.get(b"content-type", b"").decode("latin-1").lower(),
        size=end + 4,
    )


def _length(fields: dict[bytes, bytes], status: int, chunked: bool) -> int | None:
    if status in (204, 304) or status < 200:
        return 0
    given = fields.get(b"content-length")
    if given is None or chunked:
        return None
    if not given.isdigit() or len(given) > MAX_LENGTH_DIGITS:
        raise FramingError(f"content-length {given[:40]!r} is not a number")
    return int(given)


@dataclass
class Body:
    """Takes the framing off a body, whatever the boundaries at which its bytes arrive.

    `done` is true once the body is complete. A body without length or chunks ends with the connection
    (`finish`).
    """

    head: Head
    done: bool = False
    excess: int = 0
    _left: int = 0
    _state: str = "size"
    _line: bytearray = field(default_factory=bytearray)

    def __post_init__(self) -> None:
        if self.head.length is not None:
            self._left = self.head.length
            self.done = self._left == 0

    def feed(self, data: bytes) -> bytes:
        """The body's own bytes in `data`. Bytes after the end are counted in `excess`. Raises FramingError."""
        if self.done:
            self.excess += len(data)
            return b""
        if self.head.chunked:
            return self._chunked(data)
        if self.head.length is None:
            return data
        part = data[: self._left]
        self._left -= len(part)
        self.excess += len(data) - len(part)
        self.done = self._left == 0
        return part

    def finish(self) -> bool:
        """The connection has ended: whether the body is complete."""
        if not self.head.chunked and self.head.length is None:
            self.done = True
        return self.done

    def _chunked(self, data: bytes) -> bytes:
        out: list[bytes] = []
        at = 0
        while at < len(data):
            if self.done:
                self.excess += len(data) - at
                break
            if self._state == "data":
                part = data[at : at + self._left]
                out.append(part)
                at += len(part)
                self._left -= len(part)
                if self._left == 0:
                    self._state = "after"
                continue
            at = self._take_line(data, at)
        return b"".join(out)

    def _take_line(self, data: bytes, at: int) -> int:
        """Collect a line of framing (chunk size, the line end after a chunk, a trailer) and act on its end."""
        stop = data.find(b"\n", at)
        self._line += data[at : stop + 1] if stop >= 0 else data[at:]
        if len(self._line) > MAX_CHUNK_LINE_BYTES:
            raise FramingError("a line of chunked framing is too long")
        if stop < 0:
            return len(data)
        line = bytes(self._line).rstrip(b"\r\n")
        self._line.clear()
        if self._state == "after":
            if line:
                raise FramingError(f"{line[:20]!r} where a chunk should have ended")
            self._state = "size"
        elif self._state == "size":
            self._left = _chunk_size(line)
            self._state = "data" if self._left else "trailer"
        elif not line:
            self.done = True
        return stop + 1


def _chunk_size(line: bytes) -> int:
    digits = line.partition(b";")[0].strip()
    try:
        if not digits.isalnum():
            raise ValueError
        return int(digits, 16)
    except ValueError:
        raise FramingError(f"{line[:40]!r} is no chunk size") from None
