"""The one place that knows vLLM's log lines: start-up phases, KV capacity, backend, and why a server died.

Lines look like `(EngineCore pid=7) INFO 11-29 17:07:48 [core.py:114] text`: one second of resolution, local
time, no year. Both the 0.25 and the 0.31 spelling are read, on GPU and CPU; a line that a later release words
differently is missing from the result, never guessed.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import lru_cache
from typing import Any

from servelab import redact

GIB = 1 << 30
UNACCOUNTED = "unaccounted"
PHASES = (
    "imports",  # process start → the API server's banner
    "config",  # banner → the API server's last line before the engine speaks: model config, option checks
    "engine_process",  # → the engine process's first line: its start and imports
    "engine_init",  # → the worker begins to load: distributed set-up, device
    "weights",  # loading (or drawing, for load_format dummy)
    "compile",  # torch.compile, or the CPU runner's compiling warm-up
    "profiling",  # → the memory for the KV cache is known
    "kv_allocation",  # → the number of KV tokens is known
    "graph_capture",  # CUDA graphs, as long as the server says it took
    "api_server",  # engine ready → the API server listens
    UNACCOUNTED,
)
MAX_LINE = 400
MAX_WARNINGS = 40

_STAMPED = re.compile(
    r"^(?:\((?P<who>[A-Za-z_]+)[^)]*?pid=\d+\) )?(?P<level>DEBUG|INFO|WARNING|ERROR|CRITICAL) "
    r"(?P<stamp>\d\d-\d\d \d\d:\d\d:\d\d) \[(?P<place>[^\]]*)\] ?(?P<text>.*)$"
)


@dataclass(frozen=True)
class Line:
    """A stamped line: seconds on the log's clock (see parse), who wrote it ("APIServer", "EngineCore", …)."""

    at_s: float
    who: str
    level: str
    place: str
    text: str


@dataclass(frozen=True)
class Phase:
    """One stretch of the start-up, seconds since the process started. Stretches do not overlap and leave no gap."""

    name: str
    start_s: float
    end_s: float


@dataclass
class BootLog:
    """What a server said while it started. None: it did not say.

    kv_cache_bytes: bytes of the KV cache that kv_cache_tokens live in (where blocks are overridden, the
    memory scaled by the blocks used). kv_available_bytes: memory found for it. enforce_eager: as the server
    has it.
    graphs: whether CUDA graphs were captured. compile_s, init_engine_s, weights_s, graph_capture_s: as the
    server says. warnings: WARNING and ERROR lines of the start-up, each text once.
    """

    version: str | None = None
    phases: list[Phase] = field(default_factory=list)
    kv_cache_tokens: int | None = None
    kv_cache_bytes: int | None = None
    kv_available_bytes: int | None = None
    kv_blocks: int | None = None
    kv_blocks_profiled: int | None = None
    max_concurrency: float | None = None
    max_concurrency_tokens: int | None = None
    backend: str | None = None
    enforce_eager: bool | None = None
    graphs: bool | None = None
    graph_memory_bytes: int | None = None
    graph_capture_s: float | None = None
    compile_s: float | None = None
    weights_s: float | None = None
    weights_bytes: int | None = None
    init_engine_s: float | None = None
    dtype: str | None = None
    kv_cache_dtype: str | None = None
    chunked_prefill_tokens: int | None = None
    warnings: list[str] = field(default_factory=list)

    def facts(self) -> dict[str, Any]:
        """As plain values for a point's metadata; what the server did not say is left out."""
        found = {k: v for k, v in vars(self).items() if v is not None and k != "phases"}
        found["phases"] = [[p.name, round(p.start_s, 3), round(p.end_s, 3)] for p in self.phases]
        return found


# field of BootLog → pattern; the group is the value. The first line that matches counts.
_FACTS: tuple[tuple[str, re.Pattern[str]], ...] = (
    ("version", re.compile(r"LLM engine \(v([^)\s]+)\)|\bversion (\d\S*)")),
    ("kv_cache_tokens", re.compile(r"KV cache size: ([\d,]+) tokens")),
    ("max_concurrency", re.compile(r"Maximum concurrency for [\d,]+ tokens per request: ([\d.,]+)x")),
    ("max_concurrency_tokens", re.compile(r"Maximum concurrency for ([\d,]+) tokens per request")),
    ("kv_blocks_profiled", re.compile(r"Overriding num_gpu_blocks=(\d+)")),
    ("kv_blocks", re.compile(r"num_gpu_blocks_override=(\d+)")),
    ("backend", re.compile(r"Using (?:the )?'?(\w+)'? attention backend|attention backend:? (\w+)\b")),
    ("graph_capture_s", re.compile(r"Graph capturing finished in ([\d.]+) secs")),
    ("compile_s", re.compile(r"torch\.compile t(?:oo|ake)[ks] ([\d.]+) s in|\(compilation: ([\d.]+) s\)")),
    ("weights_s", re.compile(r"Model loading took [\d.]+ GiB(?: memory)? and ([\d.]+) sec|"
                             r"Loading weights took ([\d.]+) sec")),
    ("init_engine_s", re.compile(r"init engine \(.*\) took ([\d.]+) s")),
    ("dtype", re.compile(r"\bdtype=(?:torch\.)?(\w+)")),
    ("kv_cache_dtype", re.compile(r"\bkv_cache_dtype=(\w+)")),
    ("chunked_prefill_tokens", re.compile(r"Chunked prefill is enabled with max_num_batched_tokens=(\d+)")),
)  # fmt: skip
_SIZES: tuple[tuple[str, re.Pattern[str]], ...] = (
    (
        "kv_available_bytes",
        re.compile(r"Available KV cache memory: ([\d.]+) GiB|(?:Explicitly|Auto) set \(([\d.]+)/"),
    ),
    ("weights_bytes", re.compile(r"Model loading took ([\d.]+) GiB|Checkpoint size: ([\d.]+) GiB")),
    ("graph_memory_bytes", re.compile(r"Graph capturing finished in [\d.]+ secs, took ([\d.]+) GiB")),
)
_WHOLE = (
    "kv_cache_tokens",
    "max_concurrency_tokens",
    "kv_blocks",
    "kv_blocks_profiled",
    "chunked_prefill_tokens",
)
_TEXTS = ("version", "backend", "dtype", "kv_cache_dtype")


def parse(lines: Iterable[str], process_start: float | None = None, ready: float | None = None) -> BootLog:
    """Read a start-up.

    process_start, ready: UTC seconds (time.time()) at which the process was started and seen to answer. With
    them phases reach from 0 to ready; without, from the first stamped line to the last of the start-up.
    """
    every = list(lines)
    stamped = _stamped(every, process_start)
    boot = BootLog()
    startup = _startup(stamped)
    for line in startup:
        _facts(boot, line)
    boot.graphs = _graphs(boot, startup)
    if boot.kv_available_bytes is not None and boot.kv_cache_tokens is not None:
        share = (
            boot.kv_blocks / boot.kv_blocks_profiled if boot.kv_blocks and boot.kv_blocks_profiled else 1.0
        )
        boot.kv_cache_bytes = round(boot.kv_available_bytes * share)
    length = ready - process_start if ready is not None and process_start is not None else None
    boot.phases = _phases(startup, 0.0 if process_start is not None else None, length)
    return boot


def events(lines: Iterable[str], read_at: float | None = None) -> list[dict[str, Any]]:
    """What lines written during a measurement say about its validity: kind "jit", "compile", "warning" or "error".

    Each text once, with how often it came (count) and in which seconds (utc_s: whole UTC seconds, each once, as
    far as its lines are stamped); at most MAX_WARNINGS of them. read_at: UTC seconds at which the lines were read,
    now if left out: stamps have no year.
    """
    latest = datetime.now() if read_at is None else datetime.fromtimestamp(read_at)
    found: dict[tuple[str, str], dict[str, Any]] = {}
    for line in lines:
        match = _STAMPED.match(line)
        text = match["text"] if match else line
        kind = _event_kind(text, match["level"] if match else "")
        if kind is None:
            continue
        key = (kind, text)
        if key not in found:
            if len(found) >= MAX_WARNINGS:
                continue
            found[key] = {"kind": kind, "text": _short(text), "count": 0, "utc_s": []}
        event = found[key]
        event["count"] += 1
        utc_s = _utc_seconds(match["stamp"], latest) if match else None
        if utc_s is not None and utc_s not in event["utc_s"]:
            event["utc_s"].append(utc_s)
    return list(found.values())


@lru_cache(maxsize=8)  # a log in flood has many lines of one second
def _utc_seconds(stamp: str, latest: datetime) -> int | None:
    """A stamp of a line read at `latest`: a date far ahead is one of the year before. None for what is no date."""
    try:
        moment = _moment(stamp, latest.year)
        if moment > latest + timedelta(days=180):
            moment = _moment(stamp, latest.year - 1)
    except ValueError:
        return None
    return int(moment.timestamp())


# What names the cause wherever it stands in the log; the last such line counts.
_PLAIN_CAUSES = (
    re.compile(r"error: (?:unrecognized arguments|argument |the following arguments|ambiguous option)"),
    re.compile(r"\bCUDA out of memory|OutOfMemoryError\b|^MemoryError\b|[Cc]annot allocate memory"),
    re.compile(r"[Aa]ddress already in use"),
)
_EXCEPTION = re.compile(r"^(?:[A-Za-z_][\w.]*\.)?[A-Z]\w*(?:Error|Exception|Exit|Interrupt)\b(?:: .+)?$")
_CONSEQUENCE = re.compile(
    r"Engine core initialization failed|EngineDeadError|encountered an issue|WorkerProc initialization failed|"
    r"^(?:KeyboardInterrupt|SystemExit|asyncio\S*CancelledError)\b"
)
_ENGINE_SAYS = re.compile(
    r"EngineCore failed to start|EngineCore encountered a fatal error|WorkerProc failed to start"
)
_BAD_SIGN = re.compile(r"(?i)\b(?:fatal|error|killed|aborted|segmentation fault)\b")
_LAST_LINES = 2000
_LINE_READ = 1000


def last_words(lines: Sequence[str], or_last: bool = True) -> str:
    """The line that says why a server died, in its own words, secrets hidden; "" if it said nothing.

    Takes the root cause (the engine's exception, argparse's complaint, out of memory), not the API server's
    «Engine core initialization failed. See root cause above.» that follows it. Looks at the last _LAST_LINES.
    or_last: where no line looks like a cause, give the last one.
    """
    texts = [text for line in lines[-_LAST_LINES:] if (text := _bare(line[:_LINE_READ]))]
    for cause in _PLAIN_CAUSES:
        hits = [text[match.start() :] for text in texts if (match := cause.search(text))]
        if hits:
            return _short(hits[-1] if hits[-1].startswith("error: ") else _whole(texts, hits[-1]))
    own = [
        (at, text)
        for at, text in enumerate(texts)
        if _EXCEPTION.match(text) and not _CONSEQUENCE.search(text)
    ]
    # A worker of its own process says why before the engine says that it failed: the last who has a reason.
    for said in reversed([at for at, text in enumerate(texts) if _ENGINE_SAYS.search(text)]):
        if after := [text for at, text in own if at > said]:
            return _short(after[0])
    if own:
        return _short(own[-1][1])
    signs = [text for text in texts if _BAD_SIGN.search(text)]
    return _short((signs or (texts if or_last else []) or [""])[-1])


def _whole(texts: list[str], end: str) -> str:
    """The line that ends like this."""
    return next(text for text in reversed(texts) if text.endswith(end))


def _bare(line: str) -> str:
    """A line without who, level, stamp and place; tracebacks inside log lines come out as plain text."""
    match = _STAMPED.match(line.strip())
    text = match["text"] if match else re.sub(r"^\([A-Za-z_]+[^)]*pid=\d+\) ", "", line.strip())
    return text.strip()


def _short(text: str) -> str:
    """One line without control characters and secrets, not longer than MAX_LINE."""
    text = "".join(char if char.isprintable() else " " for char in text)
    text = redact.text(" ".join(text.split()))
    return text if len(text) <= MAX_LINE else text[: MAX_LINE - 1] + "…"


def _stamped(lines: list[str], process_start: float | None) -> list[Line]:
    """Stamped lines on a clock that starts with the process (or with the first stamp).

    The year is the start's; a stamp that lies more than half a day before the one above it belongs to the
    next year or, where the log has been put together by hand, is left as it is. Stamps are whole seconds: a
    line stamped within the second of the start is put at the start, not before it.
    """
    zero = datetime.fromtimestamp(process_start) if process_start is not None else None
    found: list[Line] = []
    for raw in lines:
        match = _STAMPED.match(raw)
        if match is None:
            continue
        if zero is None:
            zero = _moment(match["stamp"], datetime.now().year)
        moment = _moment(match["stamp"], zero.year)
        if moment < zero - timedelta(days=180):
            moment = _moment(match["stamp"], zero.year + 1)
        at = max((moment - zero).total_seconds(), 0.0)
        found.append(Line(at, match["who"] or "", match["level"], match["place"], match["text"]))
    return found


def _moment(stamp: str, year: int) -> datetime:
    return datetime.strptime(f"{year}-{stamp}", "%Y-%m-%d %H:%M:%S")


def _startup(stamped: list[Line]) -> list[Line]:
    """Lines up to the API server's listening; all of them if it never did."""
    for at, line in enumerate(stamped):
        if "Starting vLLM" in line.text and "server" in line.text:
            return stamped[: at + 1]
    return stamped


def _facts(boot: BootLog, line: Line) -> None:
    for name, pattern in _FACTS:
        if getattr(boot, name) is None and (match := pattern.search(line.text)):
            text = next(group for group in match.groups() if group is not None).rstrip(",")
            plain = text.replace(",", "")
            setattr(boot, name, text if name in _TEXTS else int(plain) if name in _WHOLE else float(plain))
    for name, pattern in _SIZES:
        if getattr(boot, name) is None and (match := pattern.search(line.text)):
            setattr(boot, name, round(float(next(g for g in match.groups() if g is not None)) * GIB))
    if boot.enforce_eager is None and (match := re.search(r"\benforce_eager=(True|False)", line.text)):
        boot.enforce_eager = match[1] == "True"
    if line.level in ("WARNING", "ERROR") and len(boot.warnings) < MAX_WARNINGS:
        text = _short(line.text)
        if text and text not in boot.warnings:
            boot.warnings.append(text)


def _graphs(boot: BootLog, startup: list[Line]) -> bool | None:
    if boot.graph_capture_s is not None:
        return True
    return False if any("init engine" in line.text for line in startup) else None


def _phases(startup: list[Line], start: float | None, ready: float | None) -> list[Phase]:
    """Cut the time from `start` to `ready` at the lines that end a phase; what lies between stays unaccounted."""
    if not startup:
        return [Phase(UNACCOUNTED, 0.0, ready)] if ready else []
    begin = startup[0].at_s if start is None else start
    end = max(startup[-1].at_s if ready is None else ready, begin)
    spans: list[Phase] = []
    cursor = begin
    for name, left, right in _spans(startup, begin):
        left, right = min(max(left, cursor), end), min(max(right, cursor), end)
        if right <= left:
            continue
        if left > cursor:
            spans.append(Phase(UNACCOUNTED, cursor, left))
        spans.append(Phase(name, left, right))
        cursor = right
    if end > cursor:
        spans.append(Phase(UNACCOUNTED, cursor, end))
    return spans


def _spans(startup: list[Line], begin: float) -> list[tuple[str, float, float]]:
    """(phase, start, end) as far as the lines tell, in the order in which they happen."""

    def first(*texts: str) -> float | None:
        return next((line.at_s for line in startup if any(text in line.text for text in texts)), None)

    engine_at = next(
        (i for i, line in enumerate(startup) if "Initializing a V1 LLM engine" in line.text), None
    )
    engine = startup[engine_at].at_s if engine_at is not None else None
    config = startup[engine_at - 1].at_s if engine_at else None
    banner = startup[0].at_s
    load = first("Starting to load model", "Loading model from scratch")
    loaded = first("Model loading took", "Loading weights took") or first(
        "KV cache layout", "Warming up model for"
    )
    compiled = first("torch.compile took", "torch.compile takes", "Warming up done")
    memory = first("Available KV cache memory", "Explicitly set (", "Auto set (")
    tokens = first("KV cache size:")
    captured = first("Graph capturing finished")
    took = next(
        (m for line in startup if (m := re.search(r"Graph capturing finished in ([\d.]+) secs", line.text))),
        None,
    )
    initialised = first("init engine (")
    listening = first("Starting vLLM")
    cuts: list[tuple[str, float | None, float | None]] = [
        ("imports", begin, banner),
        ("config", banner, config),
        ("engine_process", config, engine),
        ("engine_init", engine, load),
        ("weights", load, loaded),
        ("compile", loaded, compiled),
        ("profiling", compiled if compiled is not None else loaded, memory),
        ("kv_allocation", memory, tokens),
        ("graph_capture", captured - float(took[1]) if captured is not None and took else None, captured),
        ("api_server", initialised, listening),
    ]
    return [(name, left, right) for name, left, right in cuts if left is not None and right is not None]


def _event_kind(text: str, level: str) -> str | None:
    if "during inference" in text or "JIT compil" in text:
        return "jit"
    if "Compiling a graph" in text or "torch.compile t" in text or "Dynamo bytecode" in text:
        return "compile"
    return {"WARNING": "warning", "ERROR": "error", "CRITICAL": "error"}.get(level)
