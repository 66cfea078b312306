"""The life of one server: started, recognised, watched, read, stopped, and nothing of it left.

    with launch(start, log, boot_dir) as server:
        measure(server.target)

The server is a child of a supervisor (supervisor.py), which stops it also when this process is killed. A
server is ours if its process lives and the unique name of this start is served to the key of this start: an
old server on the port is never measured.
"""

import contextlib
import http.client
import json
import os
import re
import secrets
import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from servelab import (
    device_lock,
    engine,
    machine,
    processes,
    prometheus,
    redact,
    server_http,
    signals,
    vllm_log,
)
from servelab.canonical import digest
from servelab.loadgen import Target
from servelab.spec import ServerStart
from servelab.supervised import Supervised, read_log

LOG_LIMIT_BYTES = 256 << 20
POLL_S = 0.1
HEALTH_S = 10.0
PORT_TRIES = 3
MEMORY_BACK_S = 60.0
DETAIL_CHARS = 1000


# What a server died of while starting, from its own words.
_CAUSES = (
    ("bad_option", re.compile(r"unrecognized arguments|error: argument |invalid choice|ambiguous option")),
    ("port_taken", re.compile(r"[Aa]ddress already in use")),
    ("out_of_memory", re.compile(r"OutOfMemory|out of memory|MemoryError|No available memory|"
                                 r"KV cache is needed|annot allocate|signal 9|"
                                 r"(?:Available|Free) memory on .* less than")),
    ("model_missing", re.compile(r"Repo id must|not a valid model identifier|does not appear to have a file|"
                                 r"RepositoryNotFound|LocalEntryNotFound|is not a local folder|"
                                 r"[Cc]ouldn't connect to|Cannot find any model weights|No such file")),
)  # fmt: skip
START_CAUSES = (*(name for name, _ in _CAUSES), "not_ready", "attach", "died")


class ServerStartError(Exception):
    """A server that did not come to life. cause: one of START_CAUSES; detail: one line, its own words."""

    def __init__(self, cause: str, detail: str) -> None:
        self.cause = cause
        self.detail = redact.line(detail, limit=DETAIL_CHARS)
        super().__init__(f"{cause}: {self.detail}")


@dataclass
class Server:
    """A server that answers.

    session_id: unique to this process life. ready_s: from the start of the process to its first right answer.
    boot: "first" (compile caches were empty), "restart" or "attached". argv: as started, secrets hidden.
    """

    target: Target
    pid: int
    session_id: str
    ready_s: float
    boot: str
    argv: list[str]
    log: Path | None = None
    log_start: int = 0
    started_at: float = 0.0
    version: str | None = None
    boot_log: vllm_log.BootLog = field(default_factory=vllm_log.BootLog)
    cache_config: dict[str, str] = field(default_factory=dict)
    environment: dict[str, str] = field(default_factory=dict)
    life: "Supervised | None" = None
    given_up: bool = False

    def alive(self) -> bool:
        """Whether the process lives; of an attached server, whether nothing to the contrary is known. Costs nothing."""
        return self.life is None or (self.life.running() and not self.given_up)

    def survived(self) -> bool:
        """Whether the server is still there after requests have failed; if not, alive() is False from now on.

        Its process may be gone without our knowing yet, or live on for seconds although its engine is dead: vLLM's
        /health tells. A server that has no such route is believed.
        """
        if self.life is None or not self.alive():
            return self.alive()
        try:
            status, _ = server_http.get(self.target, "/health", HEALTH_S)
        except (OSError, http.client.HTTPException):
            status = 0
        if status not in (200, 404):
            self.life.wait_for("ended", timeout_s=HEALTH_S)  # its last words may still be to come
            self.given_up = True
        return self.alive()

    def last_words(self) -> str:
        """What a dead server said about why, and how its process ended."""
        if self.life is None or self.log is None:
            return ""
        return self.life.epitaph(self.log, self.log_start)

    def log_mark(self) -> int:
        """The log's length now."""
        try:
            return self.log.stat().st_size if self.log is not None else 0
        except OSError:
            return 0

    def log_since(self, mark: int) -> list[str]:
        """Lines written since the mark; of more than READ_LIMIT_BYTES the first and last part."""
        return read_log(self.log, mark) if self.log is not None else []

    def processes(self) -> set[int]:
        """Pids of the supervisor, the server and all it has started."""
        if self.life is None:
            return set()
        root = self.life.supervisor.pid
        return {root, *(each.pid for each in processes.descendants(root))}

    def facts(self) -> dict[str, Any]:
        """For PointMeta.session: who this server is and what it said about itself."""
        boot = self.boot_log.facts()
        phases = boot.pop("phases", [])
        return {
            "id": self.session_id,
            "boot": self.boot,
            "ready_s": self.ready_s,
            "argv": self.argv,
            "version": self.version or self.boot_log.version,
            "environment": self.environment,
            "phases": phases,
            "log": boot,
            "cache_config": self.cache_config,
        }


@contextlib.contextmanager
def launch(start: ServerStart, log: Path, boot_dir: Path) -> Iterator[Server]:
    """Have a server for the time of the block.

    Starts the process, waits until it answers as ours, and stops it however the block ends: also at Ctrl-C,
    SIGTERM and SIGHUP, and when this process or the Snakemake above it is killed. log: the server's whole
    output is appended there. boot_dir: compile caches and boot history of this server configuration; emptied
    first for boot="first". An engine of kind "attach" is only looked at.

    Raises ServerStartError (it died, hung or cannot be started; everything is cleared away), ServerStopError.
    """
    with signals.as_interrupt(), signals.ending_with_snakemake():
        if start.engine.kind == "attach":
            yield attach(start)
        else:
            with _started(start, log, boot_dir) as server:
                yield server


@contextlib.contextmanager
def _started(start: ServerStart, log: Path, boot_dir: Path) -> Iterator[Server]:
    try:
        _prepare(start, log, boot_dir)
    except engine.EngineOptionError as error:
        raise ServerStartError("bad_option", str(error)) from error
    memory = machine.gpu_memory_used()
    life: Supervised | None = None
    try:
        for attempt in range(PORT_TRIES):
            try:
                server = _attempt(start, log, boot_dir)
                break
            except _Failed as failed:
                failed.life.stop(start.engine.stop_timeout_s)
                if failed.cause != "port_taken" or attempt + 1 == PORT_TRIES:
                    raise ServerStartError(failed.cause, failed.detail) from failed
        life = server.life
        yield server
    finally:
        if life is not None:
            life.stop(start.engine.stop_timeout_s)
        machine.wait_for_gpu_memory(memory, MEMORY_BACK_S)


class _Failed(Exception):
    """A start that came to nothing, its process still to be cleared away."""

    def __init__(self, life: Supervised, detail: str, cause: str = "") -> None:
        super().__init__(detail)
        self.life = life
        self.detail = detail
        self.cause = cause or next((name for name, pattern in _CAUSES if pattern.search(detail)), "died")


def boots(boot_dir: Path) -> int:
    """How many servers have become ready with the compile caches in this folder."""
    return engine.boots(boot_dir)


def forget_boots(boot_dir: Path) -> None:
    """Empty a folder of compile caches and its history; whatever else may lie there stays. Raises OSError."""
    for name in ("vllm", "inductor", "triton", "cuda"):
        if (boot_dir / name).exists():
            shutil.rmtree(boot_dir / name)
    (boot_dir / "boots.json").unlink(missing_ok=True)


def _prepare(start: ServerStart, log: Path, boot_dir: Path) -> None:
    """Folders; for a first start, no compile caches and no history."""
    engine.command(start, 0, "")
    engine.environment(start, boot_dir, "", "", {})
    engine.preloaded(start.engine)
    log.parent.mkdir(parents=True, exist_ok=True)
    if start.boot == "first":
        forget_boots(boot_dir)
    boot_dir.mkdir(parents=True, exist_ok=True)


def _attempt(start: ServerStart, log: Path, boot_dir: Path) -> Server:
    """One process on one port, until it answers. Raises _Failed with the process still to be cleared away."""
    session_id = secrets.token_hex(8)
    api_key = secrets.token_urlsafe(24)
    served = f"servelab-{session_id}"
    port = server_http.free_port()
    argv = engine.command(start, port, served)
    environment = engine.environment(start, boot_dir, session_id, api_key, os.environ)
    hidden = [value for name, value in environment.items() if redact.is_secret_name(name)]
    boot = "restart" if engine.boots(boot_dir) else "first"
    log_start = log.stat().st_size if log.exists() else 0
    life = Supervised(
        {
            "argv": argv,
            "environment": environment,
            "log": str(log.absolute()),
            "log_limit": log_start + LOG_LIMIT_BYTES,
            "secrets": hidden,
            "mark": f"{engine.SESSION_VARIABLE}={session_id}",
            "stop_timeout_s": start.engine.stop_timeout_s,
        },
        device_lock.handles(),
    )
    try:
        target = Target(f"http://{engine.HOST}:{port}", served, api_key)
        ready_at = _wait_until_ready(life, target, log, log_start, start.engine.startup_timeout_s)
    except BaseException as error:
        if not isinstance(error, _Failed):
            life.stop(start.engine.stop_timeout_s)
        raise
    started = life.events["started"]
    server = Server(
        target=target,
        pid=started["pid"],
        session_id=session_id,
        ready_s=ready_at - started["monotonic"],
        boot=boot,
        argv=redact.argv(argv),
        log=log,
        log_start=log_start,
        started_at=started["at"],
        environment=redact.environment(start.engine.environment),
        life=life,
    )
    _ask(server)
    server.boot_log = vllm_log.parse(read_log(log, log_start), started["at"], started["at"] + server.ready_s)
    try:
        engine.record_boot(boot_dir, server.version)
    except OSError as error:
        raise _Failed(life, f"the boot history cannot be written: {error}") from error
    return server


def _wait_until_ready(
    life: Supervised, target: Target, log: Path, log_start: int, patience_s: float
) -> float:
    """time.monotonic() of the first right answer. Raises _Failed: it died, or the deadline passed."""
    deadline = time.monotonic() + patience_s
    last = "it never answered"
    while True:
        if life.wait_for("ended", "not_started", timeout_s=POLL_S) or life.over:
            epitaph = life.epitaph(log, log_start) or "it ended without a word"
            raise _Failed(life, epitaph, "died" if "not_started" in life.events else "")
        try:
            names = server_http.served_names(target, timeout_s=2.0)
            if target.model in names:
                return time.monotonic()
            last = f"another server answers on its port, serving {', '.join(names)[:200]}"
        except (OSError, http.client.HTTPException, ValueError) as error:
            if not isinstance(error, ConnectionRefusedError):
                last = f"last answer: {redact.line(str(error), target.api_key, limit=200)}"
        if time.monotonic() > deadline:
            words = [line for line in read_log(log, log_start) if line.strip()][-1:]
            said = f"; last line of its log: {redact.text(words[0])[:300]}" if words else ""
            raise _Failed(life, f"not ready after {patience_s:g} s, {last}{said}", "not_ready")


def metrics(target: Target) -> dict[str, float]:
    """A server's /metrics now; {} if it has none or does not answer (any more)."""
    try:
        return server_http.metrics(target)
    except (OSError, http.client.HTTPException):
        return {}


def attach(start: ServerStart) -> Server:
    """Look at a server that is not ours. Raises ServerStartError if it does not answer or serves another model."""
    spec = start.engine
    key = os.environ.get(spec.api_key_env, "") if spec.api_key_env else ""
    if spec.api_key_env and not key:
        raise ServerStartError("attach", f"environment variable {spec.api_key_env} (api_key_env) is not set")
    url = spec.url.rstrip("/").removesuffix("/v1")
    try:
        names = server_http.served_names(Target(url, "", key), timeout_s=10.0)
    except (OSError, http.client.HTTPException, ValueError) as error:
        words = redact.line(str(error), key, limit=300)
        if "status 401" in words or "status 403" in words:
            words += "; engine.api_key_env names the variable that holds its key"
        raise ServerStartError("attach", f"no server at {url}: {words}") from error
    wanted = [name for name in (start.model.path, start.model.name) if name in names][:1]
    # What is a folder here has another name there: then a server of one model is taken at its word.
    if not wanted and len(names) == 1 and Path(start.model.path).is_dir():
        wanted = names
    if not wanted:
        raise ServerStartError(
            "attach", f"the server at {url} serves {', '.join(names)[:300]}, not {start.model.path}"
        )
    server = Server(Target(url, wanted[0], key), 0, "", 0.0, "attached", [])
    began = _ask(server)
    server.session_id = digest({"url": url, "model": wanted[0], "began": began}, 16)
    return server


def _ask(server: Server) -> float | None:
    """Version and cache settings in the server's own words; UTC seconds since when it runs, if it says so."""
    no_answer = (OSError, http.client.HTTPException)
    with contextlib.suppress(*no_answer, ValueError, KeyError, TypeError, RecursionError):
        status, body = server_http.get(server.target, "/version", 10.0)
        if status == 200:
            server.version = redact.line(str(json.loads(body)["version"]), limit=100)
    with contextlib.suppress(*no_answer):
        found = server_http.metrics(server.target)
        server.cache_config = prometheus.cache_config(found)
        return prometheus.value(found, "process_start_time_seconds")
    return None
