"""The life of one server: started, recognised, watched, read, stopped, and nothing of it left.

    with launch(start, log, boot_dir) as server:
        measure(server.target)

The server is a child of a supervisor (supervisor.py), which stops it also when this process is killed. A server is
ours if its process lives and the unique name of this start is served to the key of this start: an old server on the
port is never measured.
"""

import contextlib
import http.client
import json
import os
import re
import secrets
import shutil
import socket
import subprocess
import sys
import threading
import time
import urllib.parse
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from servelab import device_lock, engine, machine, processes, prometheus, redact, signals, vllm_log
from servelab.canonical import digest
from servelab.loadgen import Target
from servelab.spec import ServerStart

LOG_LIMIT_BYTES = 256 << 20
READ_LIMIT_BYTES = 4 << 20
POLL_S = 0.1
PORT_TRIES = 3
MEMORY_BACK_S = 60.0


# What a server died of while starting, from its own words.
_CAUSES = (
    ("bad_option", re.compile(r"unrecognized arguments|error: argument |invalid choice|ambiguous option")),
    ("port_taken", re.compile(r"[Aa]ddress already in use")),
    ("out_of_memory", re.compile(r"OutOfMemory|out of memory|MemoryError|No available memory|KV cache is needed|annot allocate|signal 9")),
    ("model_missing", re.compile(r"Repo id must|not a valid model identifier|No such file|does not appear to have a file|"
                                 r"RepositoryNotFound|LocalEntryNotFound|is not a local folder|[Cc]ouldn't connect to")),
)  # fmt: skip
START_CAUSES = (*(name for name, _ in _CAUSES), "not_ready", "attach", "died")


class ServerStartError(Exception):
    """A server that did not come to life. cause: one of START_CAUSES; detail: one line, its own words."""

    def __init__(self, cause: str, detail: str) -> None:
        super().__init__(f"{cause}: {detail}")
        self.cause = cause
        self.detail = detail


class ServerStopError(Exception):
    """Processes of a server that would not end, not even by SIGKILL; the message names them."""


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
    life: "_Life | None" = None

    def alive(self) -> bool:
        """Whether the process lives; of an attached server, whether nothing to the contrary is known. Costs nothing."""
        return self.life is None or self.life.running()

    def last_words(self) -> str:
        """What a dead server said about why, and how its process ended."""
        if self.life is None or self.log is None:
            return ""
        return self.life.epitaph(read_log(self.log, self.log_start))

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
        """Pids of the server and all it has started."""
        return (
            {each.pid for each in processes.descendants(self.life.supervisor.pid)}
            if self.life is not None
            else set()
        )

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


class _Life:
    """The supervisor's events, read as they come."""

    def __init__(self, order: dict[str, Any], handles: list[int]) -> None:
        code = "import sys; sys.path.insert(0, sys.argv[1]); from servelab.supervisor import main; main()"
        self.mark = order["mark"]
        self.events: dict[str, dict[str, Any]] = {}
        self.changed = threading.Condition()
        self.over = False
        self.supervisor = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", code, str(Path(__file__).parents[1])],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
            pass_fds=handles,
        )
        self.reader = threading.Thread(target=self._read, name="supervisor", daemon=True)
        self.reader.start()
        assert self.supervisor.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self.supervisor.stdin.write((json.dumps(order) + "\n").encode())
            self.supervisor.stdin.flush()

    def _read(self) -> None:
        assert self.supervisor.stdout is not None
        for line in self.supervisor.stdout:
            event = json.loads(line)
            with self.changed:
                self.events[event.pop("event")] = event
                self.changed.notify_all()
        with self.changed:
            self.over = True
            self.changed.notify_all()

    def running(self) -> bool:
        return not self.over and "ended" not in self.events and "not_started" not in self.events

    def wait_for(self, *names: str, timeout_s: float) -> str | None:
        """The first of these events that has come; None if none has in time or none will."""

        def come() -> str | None:
            return next((name for name in names if name in self.events), None)

        with self.changed:
            self.changed.wait_for(lambda: come() is not None or self.over, timeout_s)
            return come()

    def epitaph(self, lines: list[str]) -> str:
        """Why the process ended: its words, and its exit status."""
        self.wait_for("gone", timeout_s=5.0)  # until then the log may grow
        code = self.events.get("ended", {}).get("code")
        how = "" if code is None else f"killed by signal {-code}" if code < 0 else f"exit status {code}"
        if "not_started" in self.events:
            how = str(self.events["not_started"].get("error", ""))
        return redact.text("; ".join(part for part in (vllm_log.last_words(lines), how) if part))

    def stop(self, patience_s: float) -> None:
        """Ask, wait, and make sure. Raises ServerStopError for a process that stays."""
        assert self.supervisor.stdin is not None
        with contextlib.suppress(OSError):
            self.supervisor.stdin.write(b"stop\n")
            self.supervisor.stdin.flush()
        self.wait_for("gone", timeout_s=patience_s + 60.0)
        with contextlib.suppress(OSError):
            self.supervisor.stdin.close()
        try:
            self.supervisor.wait(10.0)
        except subprocess.TimeoutExpired:
            self.supervisor.kill()
            self.supervisor.wait()
        left = processes.kill_marked(self.mark)  # the supervisor itself may have been killed
        self.reader.join(5.0)
        if left:
            raise ServerStopError(f"processes {left} of the server did not end, not even by SIGKILL")


@contextlib.contextmanager
def launch(start: ServerStart, log: Path, boot_dir: Path) -> Iterator[Server]:
    """Have a server for the time of the block.

    Starts the process, waits until it answers as ours, and stops it however the block ends: also at Ctrl-C, SIGTERM
    and SIGHUP, and when this process or the Snakemake above it is killed. log: the server's whole output is appended
    there. boot_dir: compile caches and boot history of this server configuration; emptied first for boot="first".
    An engine of kind "attach" is only looked at.

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
    life: _Life | None = None
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

    def __init__(self, life: _Life, detail: str, cause: str = "") -> None:
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
    log.parent.mkdir(parents=True, exist_ok=True)
    if start.boot == "first":
        forget_boots(boot_dir)
    boot_dir.mkdir(parents=True, exist_ok=True)


def _attempt(start: ServerStart, log: Path, boot_dir: Path) -> Server:
    """One process on one port, until it answers. Raises _Failed with the process still to be cleared away."""
    session_id = secrets.token_hex(8)
    api_key = secrets.token_urlsafe(24)
    served = f"servelab-{session_id}"
    port = free_port()
    argv = engine.command(start, port, served)
    environment = engine.environment(start, boot_dir, session_id, api_key, os.environ)
    hidden = [value for name, value in environment.items() if redact.is_secret_name(name)]
    boot = "restart" if engine.boots(boot_dir) else "first"
    log_start = log.stat().st_size if log.exists() else 0
    life = _Life(
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
        ready_s=ready_at - started["at"],
        boot=boot,
        argv=redact.argv(argv),
        log=log,
        log_start=log_start,
        started_at=started["at"],
        environment=redact.environment(start.engine.environment),
        life=life,
    )
    _ask(server)
    server.boot_log = vllm_log.parse(read_log(log, log_start), started["at"], ready_at)
    try:
        engine.record_boot(boot_dir, server.version)
    except OSError as error:
        raise _Failed(life, f"the boot history cannot be written: {error}") from error
    return server


def _wait_until_ready(life: _Life, target: Target, log: Path, log_start: int, patience_s: float) -> float:
    """UTC seconds of the first right answer. Raises _Failed: it died, or the deadline passed."""
    deadline = time.monotonic() + patience_s
    last = "it never answered"
    while True:
        if life.wait_for("ended", "not_started", timeout_s=POLL_S) or life.over:
            raise _Failed(life, life.epitaph(read_log(log, log_start)) or "it ended without a word")
        try:
            names = served_names(target, timeout_s=2.0)
            if target.model in names:
                return time.time()
            last = f"another server answers on its port, serving {', '.join(names)[:200]}"
        except (OSError, http.client.HTTPException, ValueError) as error:
            if not isinstance(error, ConnectionRefusedError):
                last = f"last answer: {str(error)[:200]}"
        if time.monotonic() > deadline:
            words = [line for line in read_log(log, log_start) if line.strip()][-1:]
            said = f"; last line of its log: {redact.text(words[0])[:300]}" if words else ""
            raise _Failed(life, f"not ready after {patience_s:g} s, {last}{said}", "not_ready")


def attach(start: ServerStart) -> Server:
    """Look at a server that is not ours. Raises ServerStartError if it does not answer or serves another model."""
    spec = start.engine
    key = os.environ.get(spec.api_key_env, "") if spec.api_key_env else ""
    if spec.api_key_env and not key:
        raise ServerStartError(
            "server_start", f"environment variable {spec.api_key_env} (api_key_env) is not set"
        )
    url = spec.url.rstrip("/").removesuffix("/v1")
    try:
        names = served_names(Target(url, "", key), timeout_s=10.0)
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise ServerStartError(
            "server_start", f"no server at {url}: {redact.text(str(error))[:300]}"
        ) from error
    wanted = [name for name in (start.model.path, start.model.name) if name in names] or names[:1]
    if len(wanted) != 1 or (len(names) > 1 and wanted[0] not in (start.model.path, start.model.name)):
        raise ServerStartError(
            "server_start", f"the server at {url} serves {', '.join(names)[:300]}, not {start.model.name}"
        )
    server = Server(Target(url, wanted[0], key), 0, "", 0.0, "attached", [])
    began = _ask(server)
    server.session_id = digest({"url": url, "model": wanted[0], "began": began}, 16)
    return server


def served_names(target: Target, timeout_s: float) -> list[str]:
    """Names of the models a server offers. Raises OSError, HTTPException or ValueError for any other answer."""
    status, body = get(target, "/v1/models", timeout_s)
    if status != 200:
        raise ValueError(f"/v1/models answered with status {status}: {body[:200].decode(errors='replace')}")
    try:
        return [str(entry["id"]) for entry in json.loads(body)["data"]]
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError("/v1/models answered with no list of models") from error


def metrics(target: Target, timeout_s: float = 10.0) -> dict[str, float]:
    """The server's /metrics now; {} if it has none. Raises OSError or HTTPException if it does not answer."""
    status, body = get(target, "/metrics", timeout_s)
    return prometheus.parse(body) if status == 200 else {}


def get(target: Target, path: str, timeout_s: float) -> tuple[int, bytes]:
    """(status, body) of a GET, no redirects, no proxy, at most READ_LIMIT_BYTES."""
    parts = urllib.parse.urlsplit(target.base_url)
    make = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
    connection = make(parts.hostname or "", parts.port, timeout=timeout_s)
    try:
        headers = {"Authorization": f"Bearer {target.api_key}"} if target.api_key else {}
        connection.request("GET", parts.path + path, headers={**headers, **target.headers})
        answer = connection.getresponse()
        return answer.status, answer.read(READ_LIMIT_BYTES)
    finally:
        connection.close()


def free_port() -> int:
    """A TCP port of 127.0.0.1 that is free now."""
    with socket.socket() as probe:
        probe.bind((engine.HOST, 0))
        return int(probe.getsockname()[1])


def read_log(path: Path, offset: int = 0, limit: int = READ_LIMIT_BYTES) -> list[str]:
    """Lines of a log from an offset; of more than `limit` bytes the first and last half, whole lines. [] if unreadable."""
    try:
        with path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(offset)
            if size - offset <= limit:
                data = file.read(limit)
            else:
                head = file.read(limit // 2)
                file.seek(size - limit // 2)
                tail = file.read(limit // 2)
                data = head[: head.rfind(b"\n") + 1] + tail[tail.find(b"\n") + 1 :]
    except OSError:
        return []
    return data.decode("utf-8", errors="replace").splitlines()


def _ask(server: Server) -> float | None:
    """Version and cache settings in the server's own words; UTC seconds since when it runs, if it says so."""
    with contextlib.suppress(OSError, http.client.HTTPException, ValueError, KeyError, TypeError):
        status, body = get(server.target, "/version", 10.0)
        if status == 200:
            server.version = str(json.loads(body)["version"])
    with contextlib.suppress(OSError, http.client.HTTPException):
        found = metrics(server.target)
        server.cache_config = prometheus.cache_config(found)
        return prometheus.value(found, "process_start_time_seconds")
    return None
