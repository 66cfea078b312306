"""The process between a measurement and its server: starts it, keeps its log, and leaves nothing of it behind.

A server outlives its parent's SIGKILL, and so do the workers it has started, in groups of their own. So the
server is the child of this small process, which

- reads what to start as one line of JSON from standard input and stops everything when that input ends:
  however the measuring process dies, its end of the pipe closes;
- is the subreaper of all that the server starts: a daemon that leaves the group becomes our child, not
  init's;
- dies only after the last of them, and tells the measuring process what happened, one JSON line an event;
- writes the log, bounded on the disk, and hides the keys of this start in it.

Standard library only: it is started without site-packages so that it is there at once and small.
"""

import contextlib
import ctypes
import json
import os
import resource
import selectors
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from servelab import processes, redact

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
TAIL_BYTES = 64 << 10
READ_BYTES = 256 << 10
LINE_BYTES = 8 << 10
LEFTOVER_GRACE_S = 2.0
KILL_DEADLINE_S = 20.0


class Log:
    """The server's log file: everything from the first byte up to `limit` bytes, then a mark; the end at the end.

    Secrets are hidden: the given ones, and what looks like one (redact.py). A line is written when it is complete
    (or longer than a line may be), so that no secret is cut in half by two reads.
    """

    def __init__(self, path: Path, limit: int, secrets: list[bytes]) -> None:
        self.file = path.open("ab", buffering=0)
        self.limit = limit
        self.written = self.file.tell()
        self.secrets = [secret for secret in secrets if len(secret) >= 6]
        self.held = b""
        self.tail = b""
        self.cut_bytes = 0
        self.error: str | None = None

    def write(self, data: bytes) -> None:
        """Take what the server wrote."""
        data = self.held + data
        end = max(data.rfind(b"\n"), data.rfind(b"\r")) + 1
        if len(data) - end > LINE_BYTES:
            end = max(data.rfind(b" ") + 1, len(data) - LINE_BYTES)
        self.held = data[end:]
        self._out(self._hidden(data[:end]))

    def close(self) -> None:
        """Write what was held back and, of a log that was cut, its last lines."""
        self._out(self._hidden(self.held))
        self.held = b""
        if self.cut_bytes:
            self._raw(
                f"\n«servelab: {self.cut_bytes} bytes of this log left out; its end follows»\n".encode()
                + self.tail
            )
        self.file.close()

    def _hidden(self, data: bytes) -> bytes:
        for secret in self.secrets:
            data = data.replace(secret, redact.HIDDEN.encode())
        return redact.text(data.decode("utf-8", "surrogateescape")).encode("utf-8", "surrogateescape")

    def _out(self, data: bytes) -> None:
        room = max(self.limit - self.written, 0)
        if data[:room]:
            self._raw(data[:room])
        rest = data[room:]
        if rest:
            if not self.cut_bytes:
                self._raw("\n«servelab: log cut here, it is longer than it may be»\n".encode())
            self.cut_bytes += len(rest)
            self.tail = (self.tail + rest)[-TAIL_BYTES:]

    def _raw(self, data: bytes) -> None:
        """Disk full is no reason to stop a measurement: the log ends there, and the event says so."""
        try:
            self.file.write(data)
            self.written += len(data)
        except OSError as error:
            self.error = str(error)


class Supervisor:
    """One server: start it, follow it, stop it and all that it started."""

    def __init__(self, order: dict[str, Any]) -> None:
        self.order = order
        self.started_at, self.started_monotonic = time.time(), time.monotonic()
        self.log = Log(Path(order["log"]), order["log_limit"], [s.encode() for s in order["secrets"]])
        self.scratch = tempfile.mkdtemp(prefix="servelab-")
        self.read_end, write_end = os.pipe()
        os.set_blocking(self.read_end, False)
        self.shared: set[str] = set()
        self.code: int | None = None
        self.stop_asked = False
        self.server = self._start(write_end)
        os.close(write_end)
        self.me = os.getpid()

    def _start(self, output: int) -> "subprocess.Popen[bytes] | None":
        prctl = ctypes.CDLL(None, use_errno=True).prctl
        prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        parent = os.getpid()

        def die_with_supervisor() -> None:
            prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
            if os.getppid() != parent:
                os._exit(1)
            _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
            resource.setrlimit(
                resource.RLIMIT_NOFILE, (hard, hard)
            )  # a shell's low limit is no server option

        environment = {**self.order["environment"], "TMPDIR": self.scratch}
        try:
            return subprocess.Popen(
                self.order["argv"],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=environment,
                start_new_session=True,
                preexec_fn=die_with_supervisor,
            )
        except (OSError, ValueError) as error:
            self.log.write(f"{error}\n".encode())
            tell(event="not_started", error=str(error))
            return None

    def run(self) -> None:
        """Follow the server until it ends or we are told to stop, then clear away."""
        if self.server is not None:
            tell(event="started", pid=self.server.pid, at=self.started_at, monotonic=self.started_monotonic)
            killed = self._follow()
            left = self._clear_away()
            self._drain()
            tell(event="gone", code=self.code, killed=killed, left=left, log_error=self.log.error)
        self.log.close()
        shutil.rmtree(self.scratch, ignore_errors=True)
        for name in self.shared:
            self._unlink_shared(name)

    def _follow(self) -> bool:
        """Pump the log until the server has ended. True if it had to be killed."""
        wake, poke = os.pipe()
        os.set_blocking(poke, False)
        signal.set_wakeup_fd(poke)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.signal(signal.SIGTERM, self._told_to_stop)
        with selectors.DefaultSelector() as selector:
            for end in (self.read_end, sys.stdin.fileno(), wake):
                selector.register(end, selectors.EVENT_READ)
            deadline: float | None = None
            killed = False
            while not self._ended():
                wait = None if deadline is None else max(deadline - time.monotonic(), 0.05)
                for key, _ in selector.select(wait):
                    if key.fd == self.read_end:
                        if not self._pump():
                            selector.unregister(self.read_end)
                    elif key.fd == wake:
                        os.read(wake, 4096)
                    else:  # a word: stop; the input's end: the measuring process is gone
                        selector.unregister(sys.stdin.fileno())
                        self.stop_asked = True
                if self.stop_asked and deadline is None:
                    deadline = self._ask_to_stop()
                if deadline is not None and time.monotonic() >= deadline:
                    if killed:
                        break  # SIGKILL did not end it: the kernel holds it, and we say so instead of waiting
                    killed = True
                    self._note_shared_memory()
                    self._kill_all()
                    deadline = time.monotonic() + KILL_DEADLINE_S
            tell(event="ended", code=self.code)
            return killed

    def _told_to_stop(self, *_: object) -> None:
        self.stop_asked = True

    def _ended(self) -> bool:
        """Reap whoever has ended; whether the server is among them."""
        assert self.server is not None
        while self.code is None:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                self.code = self.code if self.code is not None else -1
                break
            if pid == 0:
                break
            if pid == self.server.pid:
                self.code = os.waitstatus_to_exitcode(status)
                self.server.returncode = self.code
        return self.code is not None

    def _ask_to_stop(self) -> float:
        """SIGTERM to the server alone: it knows best how to stop its workers. Returns when patience ends."""
        assert self.server is not None
        self._note_shared_memory()
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.server.pid, signal.SIGTERM)
        return time.monotonic() + float(self.order["stop_timeout_s"])

    def _remaining(self) -> list[processes.Process]:
        table = processes.everyone()
        found = {each.pid: each for each in processes.descendants(self.me, table)}
        found.update({each.pid: each for each in processes.marked(self.order["mark"], table)})
        found.pop(self.me, None)
        return [each for each in found.values() if each.state not in ("Z", "X")]

    def _kill_all(self) -> None:
        for each in self._remaining():
            processes.kill(each)

    def _clear_away(self) -> list[int]:
        """Wait for what the server left behind, kill what stays. Returns pids that nothing could end."""
        patience = time.monotonic() + LEFTOVER_GRACE_S
        deadline = time.monotonic() + KILL_DEADLINE_S
        self._note_shared_memory()
        while True:
            self._pump()
            self._reap()
            left = self._remaining()
            if not left:
                return []
            if time.monotonic() > deadline:
                return [each.pid for each in left]
            if time.monotonic() > patience:
                for each in left:
                    processes.kill(each)
            time.sleep(0.05)

    def _reap(self) -> None:
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass

    def _pump(self) -> bool:
        """Take what the pipe holds. False at its end."""
        try:
            data = os.read(self.read_end, READ_BYTES)
        except BlockingIOError:
            return True
        if data:
            self.log.write(data)
        return bool(data)

    def _drain(self) -> None:
        while True:
            try:
                data = os.read(self.read_end, READ_BYTES)
            except BlockingIOError:
                return
            if not data:
                return
            self.log.write(data)

    def _note_shared_memory(self) -> None:
        """Remember the shared memory of our processes: one that is killed leaves it allocated."""
        for each in self._remaining():
            self.shared |= processes.shared_memory(each.pid)

    def _unlink_shared(self, name: str) -> None:
        file = Path(name)
        with contextlib.suppress(OSError):
            if file.stat().st_ctime >= self.started_at and file.stat().st_uid == os.getuid():
                file.unlink()


def tell(**event: object) -> None:
    """One event to the measuring process; nobody may be listening any more."""
    with contextlib.suppress(OSError):
        os.write(1, (json.dumps(event) + "\n").encode())


def main() -> None:
    """Read the order, run the server. Terminal signals are the measuring process's business.

    They get a handler that does nothing instead of being ignored: what is ignored, the server would inherit.
    """
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGPIPE):
        signal.signal(number, lambda *_: None)
    line = b""
    while not line.endswith(b"\n"):
        data = os.read(0, 1 << 20)
        if not data:
            return
        line += data
    try:
        supervisor = Supervisor(json.loads(line))
    except OSError as error:
        tell(event="not_started", error=str(error))
        return
    supervisor.run()
