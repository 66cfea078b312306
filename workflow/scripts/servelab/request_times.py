"""Latencies and rates of a point's requests, as arrays: the definitions of TTFT, ITL, TPOT and throughput.

Definitions: docs/statistics.md (and vLLM's `vllm bench serve`, with which throughput and closed-loop TTFT
compare).
"""

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass(frozen=True)
class RequestTimes:
    """Successful requests that delivered a token, n of them, and all their chunks, N.

    start_s, first_s, last_s, tokens: one a request [n]. chunk_s, chunk_tokens: all chunks in order [N];
    offsets [n + 1]: request i has chunks offsets[i] to offsets[i + 1]. slot [n]: closed-loop slot, -1 without
    one.
    """

    start_s: Floats
    sent_s: Floats
    first_s: Floats
    last_s: Floats
    input_tokens: Ints
    tokens: Ints
    slot: Ints
    chunk_s: Floats
    chunk_tokens: Ints
    offsets: Ints

    @property
    def ttft_s(self) -> Floats:
        """First token-carrying chunk - start [n]."""
        return self.first_s - self.start_s

    @property
    def e2e_s(self) -> Floats:
        """Last token - start [n]."""
        return self.last_s - self.start_s

    @property
    def tpot_s(self) -> Floats:
        """(last token - first token) / (output tokens - 1), of requests with two or more tokens."""
        several = self.tokens > 1
        return (self.last_s - self.first_s)[several] / (self.tokens[several] - 1)

    @property
    def gaps_s(self) -> Floats:
        """Gaps between consecutive chunks of one request, pooled in order of request [N - n]."""
        return np.diff(self.chunk_s)[self._inner()]

    @property
    def gap_tokens(self) -> Ints:
        """Tokens in the chunk that ends each gap [N - n]; gap / tokens is the time a token took."""
        return self.chunk_tokens[1:][self._inner()]

    @property
    def gap_owner(self) -> Ints:
        """Request (its place in the arrays) of each gap [N - n]."""
        owner = np.repeat(np.arange(self.start_s.size), np.diff(self.offsets))
        return np.asarray(owner[1:][self._inner()], dtype=np.int64)

    @property
    def chunks(self) -> Ints:
        """Chunks of each request [n]."""
        return np.diff(self.offsets)

    def gaps_by_request(self) -> list[Floats]:
        """The gaps of each request, for bootstraps that draw whole requests."""
        counts = np.maximum(self.chunks - 1, 0)
        return [np.asarray(part) for part in np.split(self.gaps_s, np.cumsum(counts)[:-1])]

    def tokens_between(self, start_s: float, end_s: float) -> int:
        """Tokens delivered in the half-open window (start, end]."""
        inside = (self.chunk_s > start_s) & (self.chunk_s <= end_s)
        return int(self.chunk_tokens[inside].sum())

    def _inner(self) -> NDArray[np.bool_]:
        """Differences of the flat chunk array that do not cross from one request to the next."""
        keep = np.ones(max(self.chunk_s.size - 1, 0), dtype=bool)
        edges = self.offsets[1:-1] - 1
        keep[edges] = False
        return keep


def request_times(requests: pa.Table, roles: tuple[str, ...], open_loop: bool) -> RequestTimes:
    """The successful requests of these roles. Open loop: start is the intended time; else the sent time.

    requests: records.REQUESTS. Requests that failed, or ended well without one token, are not in it.
    """
    chosen = pc.and_(requests["ok"], pc.is_in(requests["role"], value_set=pa.array(roles)))
    has_chunk = pc.greater(pc.list_value_length(requests["chunk_s"]), 0)
    table = requests.filter(pc.and_(chosen, has_chunk)).combine_chunks()
    lists = _list(table["chunk_s"])
    offsets = lists.offsets.to_numpy().astype(np.int64)
    chunk_s = lists.flatten().to_numpy(zero_copy_only=False).astype(float)
    offsets = offsets - (offsets[0] if offsets.size else 0)
    if offsets.size == 0:
        offsets = np.zeros(1, dtype=np.int64)
    sent = _floats(table["sent_s"])
    return RequestTimes(
        start_s=_floats(table["intended_s"]) if open_loop else sent,
        sent_s=sent,
        first_s=chunk_s[offsets[:-1]],
        last_s=chunk_s[offsets[1:] - 1],
        input_tokens=_ints(table["input_tokens"], table["input_tokens_asked"]),
        tokens=_ints(table["output_tokens"], table["output_tokens_asked"]),
        slot=_ints(table["slot"], None),
        chunk_s=chunk_s,
        chunk_tokens=_list(table["chunk_tokens"]).flatten().to_numpy(zero_copy_only=False).astype(np.int64),
        offsets=offsets,
    )


def gaps_within(times: RequestTimes, start_s: float, end_s: float) -> tuple[Floats, Ints]:
    """Gaps (and tokens that end them) that overlap a window: a stall that began before it and ends in it counts."""
    ends = times.chunk_s[1:][times._inner()]
    begins = ends - times.gaps_s
    inside = (ends > start_s) & (begins < end_s)
    return times.gaps_s[inside], times.gap_tokens[inside]


def turn_of_slot(times: RequestTimes) -> Ints:
    """Which request of its closed-loop slot each one was [n], from 0 in order of sending; -1 without a slot."""
    order = np.lexsort((times.sent_s, times.slot))
    slots = times.slot[order]
    begins = (
        np.flatnonzero(np.r_[True, slots[1:] != slots[:-1]]) if slots.size else np.empty(0, dtype=np.int64)
    )
    turns = np.arange(slots.size) - np.repeat(begins, np.diff(np.r_[begins, slots.size]))
    found = np.empty(slots.size, dtype=np.int64)
    found[order] = np.where(slots >= 0, turns, -1)
    return found


def _list(column: pa.ChunkedArray) -> pa.ListArray:
    array = column.combine_chunks()
    return array.chunk(0) if isinstance(array, pa.ChunkedArray) and array.num_chunks else array


def _floats(column: pa.ChunkedArray) -> Floats:
    return np.asarray(column.to_numpy(), dtype=float)


def _ints(column: pa.ChunkedArray, fallback: pa.ChunkedArray | None) -> Ints:
    filled = pc.coalesce(column, fallback) if fallback is not None else pc.fill_null(column, -1)
    return np.asarray(filled.to_numpy(), dtype=np.int64)
