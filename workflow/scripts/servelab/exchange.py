"""One request and everything that was seen of its answer: stamps and bytes, nothing interpreted.

While a request is in flight its reads are kept as they came; `pack` makes a finished one small (compressed
bytes, flat arrays), so that memory does not grow with the length of a point. Interpreting waits until the
point is over.
"""

from array import array
from collections.abc import Callable
from dataclasses import dataclass

import pyarrow as pa

from servelab.http_framing import Head

CODEC = "lz4"
WORTH_PACKING_BYTES = 2048


class Exchange:
    """A request on its way. All times are seconds of `time.perf_counter`.

    times[i] is the arrival of reads[i]. framed: reads hold HTTP heads and chunk sizes as they were on the
    wire; else they are the body alone. on_end is called once, when the answer is complete or has failed
    (`cause`, `detail`). watch is called for every read of the few exchanges whose tokens steer the workload.
    """

    __slots__ = (
        "carrier", "cause", "detail", "end_s", "framed", "group", "head", "index", "input_tokens",
        "intended_s", "on_end", "output_tokens", "packed", "path", "payload", "reads", "role",
        "sent_s", "slot", "times", "watch",
    )  # fmt: skip

    def __init__(self, role: str, index: int, path: str, payload: bytes | None = None) -> None:
        self.role = role
        self.index = index
        self.path = path
        self.payload = payload
        self.slot: int | None = None
        self.group: int | None = None
        self.input_tokens = 0
        self.output_tokens = 0
        self.intended_s = 0.0
        self.sent_s: float | None = None
        self.end_s: float | None = None
        self.times: list[float] = []
        self.reads: list[bytes] = []
        self.head: Head | None = None
        self.framed = True
        self.cause: str | None = None
        self.detail: str | None = None
        self.on_end: Callable[[Exchange], None] | None = None
        self.watch: Callable[[Exchange, bytes], None] | None = None
        self.carrier: object = None
        self.packed: Packed | None = None

    def finish(self, now: float, cause: str | None = None, detail: str | None = None) -> None:
        """End the exchange, once; a second end is ignored (an abort that meets the last byte)."""
        if self.end_s is not None:
            return
        self.end_s, self.cause, self.detail = now, cause, detail
        self.payload = None
        self.carrier = None
        if self.on_end is not None:
            self.on_end(self)

    def pack(self) -> None:
        """Make a finished exchange small. About 30 µs for an answer of 128 tokens."""
        if self.packed is None:
            self.packed = Packed.of(self.times, self.reads)
            self.times, self.reads = [], []

    def unpack(self) -> tuple["array[float]", "array[int]", bytes]:
        """(arrival of each read, size of each read, all bytes)."""
        self.pack()
        assert self.packed is not None
        return self.packed.times, self.packed.sizes, self.packed.data()

    def forget(self) -> None:
        """Let go of the bytes; times of sending and ending stay."""
        self.packed, self.times, self.reads = None, [], []

    @property
    def first_byte_s(self) -> float | None:
        """Arrival of the first read, None if there was none."""
        times = self.packed.times if self.packed is not None else self.times
        return times[0] if times else None

    @property
    def last_byte_s(self) -> float | None:
        """Arrival of the latest read, None before the first."""
        if self.packed is not None:
            return self.packed.times[-1] if self.packed.times else None
        return self.times[-1] if self.times else None


@dataclass(frozen=True)
class Packed:
    """The reads of a finished exchange. `size` is the number of bytes before compression, 0 where there was none."""

    times: "array[float]"
    sizes: "array[int]"
    blob: bytes
    size: int

    @classmethod
    def of(cls, times: list[float], reads: list[bytes]) -> "Packed":
        """Pack reads; streams of JSON events shrink to a twentieth."""
        raw = b"".join(reads)
        sizes = array("I", map(len, reads))
        if len(raw) < WORTH_PACKING_BYTES:
            return cls(array("d", times), sizes, raw, 0)
        return cls(array("d", times), sizes, pa.compress(raw, codec=CODEC, asbytes=True), len(raw))

    def data(self) -> bytes:
        """The bytes again."""
        if not self.size:
            return self.blob
        return bytes(pa.decompress(self.blob, decompressed_size=self.size, codec=CODEC, asbytes=True))
