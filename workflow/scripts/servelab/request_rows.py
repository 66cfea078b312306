"""Finished exchanges → the tables of a point: a row a request, the window, the polled series."""

from array import array
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from servelab import redact
from servelab.arrow_columns import column, lists
from servelab.exchange import Exchange
from servelab.metrics_poll import kept_in_series
from servelab.records import REQUESTS, SERIES
from servelab.stream_reader import read_stream

_COLUMNS = {
    "index": "index",
    "role": "role",
    "slot": "slot",
    "prefix_group": "group",
    "input_tokens_asked": "input_tokens",
    "output_tokens_asked": "output_tokens",
}


@dataclass
class Measurement:
    """One workload measured once.

    requests: records.REQUESTS, measured and other roles, in order of role and index. series: records.SERIES.
    client: see client_load.ClientLoad.figures. window: first_send_s, last_token_s, and for closed loops
    steady_start_s and steady_end_s if every slot was busy at some time. clock_zero: UTC seconds of the
    point's zero.
    metrics: {"before": {name: value}, "after": …}; empty where the server has none. stopped: (cause, detail)
    if the run ended before the workload did.
    """

    requests: pa.Table
    series: pa.Table
    client: dict[str, float]
    window: dict[str, float]
    clock_zero: float
    metrics: dict[str, dict[str, float]] = field(default_factory=dict)
    stopped: tuple[str, str] | None = None


def requests_table(exchanges: Iterable[Exchange], zero: float, api_key: str = "") -> pa.Table:
    """REQUESTS rows; times relative to `zero`. Each exchange's bytes are let go once read.

    api_key: hidden wherever the server's words repeat it.
    """
    ordered = sorted(exchanges, key=lambda exchange: (exchange.role, exchange.index))
    columns: dict[str, list[Any]] = {
        name: [] for name in REQUESTS.names if name not in ("chunk_s", "chunk_tokens")
    }
    chunk_s: list[npt.NDArray[np.float64]] = []
    chunk_tokens: list[npt.NDArray[np.int32]] = []
    for exchange in ordered:
        record, stamps = read_stream(exchange)
        for name, attribute in _COLUMNS.items():
            columns[name].append(getattr(exchange, attribute))
        first = exchange.first_byte_s
        exchange.forget()
        columns["intended_s"].append(exchange.intended_s - zero)
        columns["sent_s"].append(None if exchange.sent_s is None else exchange.sent_s - zero)
        columns["first_byte_s"].append(None if first is None else first - zero)
        columns["end_s"].append(None if exchange.end_s is None else exchange.end_s - zero)
        columns["input_tokens"].append(record.input_tokens)
        columns["output_tokens"].append(record.output_tokens)
        columns["cached_tokens"].append(record.cached_tokens)
        columns["finish_reason"].append(record.finish_reason)
        columns["http_status"].append(exchange.head.status if exchange.head is not None else None)
        columns["ok"].append(record.cause is None)
        columns["cause"].append(record.cause)
        columns["detail"].append(None if record.detail is None else redact.line(record.detail, api_key))
        columns["nll"].append(None)
        columns["scored_tokens"].append(None)
        chunk_s.append(stamps - zero)
        chunk_tokens.append(np.asarray(record.chunk_tokens, dtype=np.int32))
    listed = {"chunk_s": lists(chunk_s, pa.float64()), "chunk_tokens": lists(chunk_tokens, pa.int32())}
    arrays = [listed[f.name] if f.name in listed else column(columns[f.name], f.type) for f in REQUESTS]
    return pa.Table.from_arrays(arrays, schema=REQUESTS)


def window(requests: pa.Table, steady_s: tuple[float, float] | None, zero: float) -> dict[str, float]:
    """First send and last token of the measured requests (those of a victim's point: victim and inserted), steady time.

    All in seconds on the point's clock; what did not happen is left out.
    """
    out: dict[str, float] = {}
    roles = requests["role"].to_pylist()
    measured = [i for i, role in enumerate(roles) if role != "warmup"]
    sent = [s for i in measured if (s := requests["sent_s"][i].as_py()) is not None]
    if sent:
        out["first_send_s"] = min(sent)
    lasts = [last for i in measured if (last := _last(requests["chunk_s"][i])) is not None]
    if lasts:
        out["last_token_s"] = max(lasts)
    if steady_s is not None:
        out["steady_start_s"], out["steady_end_s"] = steady_s[0] - zero, steady_s[1] - zero
    return out


def series_table(readings: Iterable[tuple[float, dict[str, float]]], zero: float) -> pa.Table:
    """SERIES rows of the metrics worth keeping."""
    rows = [
        (at - zero, name, value)
        for at, values in readings
        for name, value in sorted(values.items())
        if kept_in_series(name)
    ]
    at_s, names, values = zip(*rows, strict=True) if rows else ((), (), ())
    arrays = [column(at_s, pa.float64()), column(names, pa.string()), column(values, pa.float64())]
    return pa.Table.from_arrays(arrays, schema=SERIES)


def tokens_received(requests: pa.Table) -> int:
    """Output tokens over all chunks of all requests."""
    values = [chunk.values for chunk in requests["chunk_tokens"].chunks]
    return sum(
        int(np.frombuffer(part.buffers()[1], np.int32, len(part), 4 * part.offset).sum()) for part in values
    )


def send_lags_s(requests: pa.Table) -> "array[float]":
    """Sent − intended of every measured request that was sent, in seconds."""
    rows = zip(*(requests[name].to_pylist() for name in ("role", "intended_s", "sent_s")), strict=True)
    return array(
        "d", [sent - intended for role, intended, sent in rows if role == "measured" and sent is not None]
    )


def _last(chunks: pa.ListScalar) -> float | None:
    values = chunks.values
    return float(values[len(values) - 1].as_py()) if len(values) else None
