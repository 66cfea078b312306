"""The measuring process's end of the supervisor (supervisor.py): its events, the log it writes, and the word
to stop.
"""

import contextlib
import json
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

from servelab import processes, redact, vllm_log

READ_LIMIT_BYTES = 4 << 20


class ServerStopError(Exception):
    """Processes of a server that would not end, not even by SIGKILL; the message names them."""


class Supervised:
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
        """Whether nothing says that the server has ended. Costs nothing."""
        return not self.over and "ended" not in self.events and "not_started" not in self.events

    def wait_for(self, *names: str, timeout_s: float) -> str | None:
        """The first of these events that has come; None if none has in time or none will."""

        def come() -> str | None:
            return next((name for name in names if name in self.events), None)

        with self.changed:
            self.changed.wait_for(lambda: come() is not None or self.over, timeout_s)
            return come()

    def epitaph(self, log: Path, log_start: int) -> str:
        """Why the process ended: its words, and its exit status."""
        self.wait_for("gone", timeout_s=5.0)  # until then the log may grow
        code = self.events.get("ended", {}).get("code")
        how = "" if code is None else f"killed by signal {-code}" if code < 0 else f"exit status {code}"
        if "not_started" in self.events:
            how = str(self.events["not_started"].get("error", ""))
        # Who is killed has no last words: the line before may be about anything.
        words = vllm_log.last_words(read_log(log, log_start), or_last=code is None or code >= 0)
        return redact.text("; ".join(part for part in (words, how) if part))

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


def read_log(path: Path, offset: int = 0, limit: int = READ_LIMIT_BYTES) -> list[str]:
    """Lines of a log from an offset; of more than `limit` bytes the first and last half, whole lines. [] if
    unreadable.
    """
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
