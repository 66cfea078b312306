"""A point as one Arrow file: a row for each request, everything else in the schema's metadata.

The file is Arrow IPC (file format). Rows follow REQUESTS. The metadata holds

    servelab.schema   this module's SCHEMA_VERSION, as text
    servelab.key      the point's key (32 hex digits)
    servelab.point    one JSON object, see PointMeta
    servelab.series   an Arrow IPC stream: /metrics polled during the point, rows follow SERIES

A file is complete or it is refused: `read_point` opens it, checks the schema, the key and the row count.
"""

import json
import os
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa

SCHEMA_VERSION = 1
MAX_POINT_BYTES = 4 << 30

REQUESTS = pa.schema(
    [
        pa.field("index", pa.int32(), nullable=False),  # order of intended start within its role
        pa.field("role", pa.string(), nullable=False),  # measured, warmup, victim, inserted
        pa.field("slot", pa.int32()),  # closed-loop slot, null in open loop
        pa.field("prefix_group", pa.int32()),  # null where prompts share nothing
        pa.field("intended_s", pa.float64(), nullable=False),  # all *_s: seconds on the point's clock
        pa.field("sent_s", pa.float64()),  # request handed to the socket; null if it never was
        pa.field("first_byte_s", pa.float64()),
        pa.field("end_s", pa.float64()),  # stream over, or the failure seen
        pa.field("chunk_s", pa.list_(pa.float64()), nullable=False),  # token-carrying chunks only
        pa.field("chunk_tokens", pa.list_(pa.int32()), nullable=False),  # tokens in each of them
        pa.field("input_tokens_asked", pa.int32(), nullable=False),
        pa.field("output_tokens_asked", pa.int32(), nullable=False),
        pa.field("input_tokens", pa.int32()),  # the server's usage; null if it gave none
        pa.field("output_tokens", pa.int32()),
        pa.field("cached_tokens", pa.int32()),  # prompt tokens the server says it had cached
        pa.field("finish_reason", pa.string()),
        pa.field("http_status", pa.int32()),
        pa.field("ok", pa.bool_(), nullable=False),
        pa.field("cause", pa.string()),  # null if ok, else one of CAUSES
        pa.field("detail", pa.string()),  # the server's own words, shortened
        pa.field("nll", pa.float64()),  # perplexity: sum of -log p over the prompt's scored tokens
        pa.field("scored_tokens", pa.int32()),
    ]
)

SERIES = pa.schema(
    [
        pa.field("at_s", pa.float64(), nullable=False),
        pa.field("name", pa.string(), nullable=False),  # metric name with labels, engine's spelling
        pa.field("value", pa.float64(), nullable=False),
    ]
)

CAUSES = {
    "connect": "no connection to the server",
    "http_error": "the server answered with an error status",
    "error_event": "the stream carried an error event",
    "closed_early": "the stream ended without a finish reason",
    "reset": "the connection broke while the request was in flight",
    "stalled": "no byte for longer than the stall limit",
    "timeout": "the point's time ran out while the request was in flight",
    "usage_missing": "the server gave no usage figures",
    "input_tokens": "the server counted other prompt tokens than were asked for",
    "output_tokens": "the server counted other output tokens than were asked for",
    "token_count": "tokens counted over the chunks differ from the server's usage figure",
    "bad_stream": "the stream is not what the protocol allows",
    "server_died": "the server process ended while the request was in flight",
    "cancelled": "the run was stopped",
}

POINT_CAUSES = {
    "server_start": "the server did not start",
    "server_died": "the server died during the measurement",
    "timeout": "the point took longer than its limit",
    "not_supported": "the engine cannot do what the point needs",
    "all_failed": "no request succeeded",
}


@dataclass
class PointMeta:
    """Everything about a point but its request rows. Times of day are UTC, ISO 8601.

    spec: ServerStart.point_spec (the key's content). status: "ok" or "failed"; cause: one of POINT_CAUSES.
    start: the ServerStart without its points, for the report (names, paths, argv).
    session: the server's life as far as the point is concerned: id, order (points measured on it before this one,
      from 0), boot ("first", "restart", "attached"), ready_s, argv, version, capacity, phases, log facts.
    metrics: {"before": {name: value}, "after": {name: value}} of /metrics, histogram buckets left out.
    client: the load generator's self-knowledge: cpu_s, wall_s, lag_p50_ms, lag_p99_ms, lag_max_ms, …
    window: first_send_s, last_token_s, steady_start_s, steady_end_s on the point's clock.
    log_events: what the server's log said during the point that bears on validity (JIT, compile, warnings).
    machine: cpu, cores, memory, accelerators, os, id; limits: what the machine can do (limits.py).
    provenance: servelab version, git commit, python, started_at, ended_at; model: what was fetched (models.origin).
    """

    key: str
    spec: dict[str, Any]
    name: str
    study: str
    experiment: str
    slug: str
    status: str = "ok"
    cause: str | None = None
    detail: str | None = None
    start: dict[str, Any] = field(default_factory=dict)
    session: dict[str, Any] = field(default_factory=dict)
    metrics: dict[str, dict[str, float]] = field(default_factory=dict)
    client: dict[str, float] = field(default_factory=dict)
    window: dict[str, float] = field(default_factory=dict)
    log_events: list[dict[str, Any]] = field(default_factory=list)
    machine: dict[str, Any] = field(default_factory=dict)
    limits: dict[str, float] = field(default_factory=dict)
    provenance: dict[str, Any] = field(default_factory=dict)
    extra: dict[str, Any] = field(default_factory=dict)


@dataclass
class PointRecord:
    """A point as read: metadata, request rows, polled series."""

    meta: PointMeta
    requests: pa.Table
    series: pa.Table


class BadPointError(Exception):
    """A file that is not the point it should be; the message says why in one line."""


def empty_requests() -> pa.Table:
    """A table of no requests."""
    return REQUESTS.empty_table()


def requests_table(rows: list[dict[str, Any]]) -> pa.Table:
    """Rows (dicts with REQUESTS' names; a missing nullable one is null) as a table."""
    return pa.Table.from_pylist(rows, schema=REQUESTS)


def series_table(rows: list[dict[str, Any]]) -> pa.Table:
    """Rows with at_s, name, value as a table."""
    return pa.Table.from_pylist(rows, schema=SERIES)


def encode_point(record: PointRecord) -> pa.Buffer:
    """The file's bytes."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, SERIES) as writer:
        writer.write_table(record.series)
    series = sink.getvalue().to_pybytes()
    metadata = {
        b"servelab.schema": str(SCHEMA_VERSION).encode(),
        b"servelab.key": record.meta.key.encode(),
        b"servelab.point": json.dumps(asdict(record.meta), sort_keys=True, allow_nan=False).encode(),
        b"servelab.series": series,
    }
    table = record.requests.cast(REQUESTS).replace_schema_metadata(metadata)
    options = pa.ipc.IpcWriteOptions(compression="zstd")
    out = pa.BufferOutputStream()
    with pa.ipc.new_file(out, table.schema, options=options) as writer:
        writer.write_table(table)
    return out.getvalue()


def write_atomically(path: Path, data: bytes | memoryview | pa.Buffer) -> None:
    """Write a file so that it is complete or absent: temporary name in the same folder, fsync, rename.

    Raises OSError (disk full, no permission); no temporary file is left then.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(prefix=f".{path.name[:40]}.", suffix=".tmp", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        Path(name).chmod(0o644)
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def read_meta(path: Path, key: str | None = None) -> PointMeta:
    """Metadata of a point's file, without its rows. Raises BadPointError (see read_point)."""
    return _meta(_open(path).schema, path, key)


def read_point(path: Path, key: str | None = None) -> PointRecord:
    """Read a point and check it: readable to the last byte, this schema, the key asked for (if one is given).

    Raises BadPointError: the file is missing, cut short, no Arrow, of another schema, or another point's.
    """
    reader = _open(path)
    meta = _meta(reader.schema, path, key)
    try:
        table = reader.read_all()
        table.validate(full=True)
        stream = pa.ipc.open_stream(reader.schema.metadata[b"servelab.series"])
        series = stream.read_all().cast(SERIES)
        requests = table.replace_schema_metadata(None).cast(REQUESTS)
    except (pa.ArrowException, OSError, KeyError, ValueError) as error:
        raise BadPointError(f"{path}: damaged ({error})") from error
    return PointRecord(meta, requests, series)


def _open(path: Path) -> "pa.ipc.RecordBatchFileReader":
    try:
        size = path.stat().st_size
        if size > MAX_POINT_BYTES:
            raise BadPointError(f"{path}: {size} bytes is more than a point may have ({MAX_POINT_BYTES})")
        return pa.ipc.open_file(pa.memory_map(str(path)))
    except FileNotFoundError as error:
        raise BadPointError(f"{path}: missing") from error
    except (pa.ArrowException, OSError, ValueError) as error:
        raise BadPointError(f"{path}: no complete Arrow file ({str(error).splitlines()[0]})") from error


_TEXTS = ("key", "name", "study", "experiment", "slug", "status")
_MAPPINGS = (
    "spec",
    "start",
    "session",
    "metrics",
    "client",
    "window",
    "machine",
    "limits",
    "provenance",
    "extra",
)


def _check_kinds(meta: PointMeta) -> None:
    """A point may come from anybody: its texts must be texts and its mappings mappings. Raises TypeError."""
    for name in _TEXTS:
        if not isinstance(getattr(meta, name), str):
            raise TypeError(f"{name} is no text")
    for name in _MAPPINGS:
        if not isinstance(getattr(meta, name), dict):
            raise TypeError(f"{name} is no mapping")


def _meta(schema: pa.Schema, path: Path, key: str | None) -> PointMeta:
    metadata: Mapping[bytes, bytes] = schema.metadata or {}
    version = metadata.get(b"servelab.schema", b"none").decode(errors="replace")
    if version != str(SCHEMA_VERSION):
        raise BadPointError(f"{path}: schema {version}, this servelab reads {SCHEMA_VERSION}")
    try:
        meta = PointMeta(**json.loads(metadata[b"servelab.point"]))
        _check_kinds(meta)
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        raise BadPointError(f"{path}: unreadable metadata ({error})") from error
    if metadata.get(b"servelab.key", b"").decode(errors="replace") != meta.key:
        raise BadPointError(f"{path}: its key and its metadata disagree")
    if key is not None and meta.key != key:
        raise BadPointError(f"{path}: holds point {meta.key}, not {key}")
    return meta
