"""Whose processes are running, read from /proc: descendants, members of a session, bearers of our mark; and running
a command so that nothing of it is left. Linux only.

Used by the supervisor, which runs without site-packages: standard library only.
"""

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

PROC = Path("/proc")


@dataclass(frozen=True)
class Process:
    """A process as /proc/<pid>/stat has it. started: clock ticks since boot; (pid, started) is unique.

    cpu_ticks: its own processor time. reaped_ticks: that of children, and theirs, that have ended and were waited for.
    """

    pid: int
    name: str
    state: str
    parent: int
    session: int
    started: int
    cpu_ticks: int
    reaped_ticks: int = 0


def process(pid: int) -> Process | None:
    """The process with this id, or None if there is none (any more)."""
    try:
        raw = (PROC / str(pid) / "stat").read_bytes()
    except OSError:
        return None
    name = raw[raw.index(b"(") + 1 : raw.rindex(b")")].decode(errors="replace")
    rest = raw[raw.rindex(b")") + 2 :].split()
    return Process(
        pid=pid,
        name=name,
        state=rest[0].decode(),
        parent=int(rest[1]),
        session=int(rest[3]),
        started=int(rest[19]),
        cpu_ticks=int(rest[11]) + int(rest[12]),
        reaped_ticks=int(rest[13]) + int(rest[14]),
    )


def everyone() -> list[Process]:
    """All processes of this machine that can be seen."""
    found = (process(int(entry.name)) for entry in PROC.iterdir() if entry.name.isdigit())
    return [each for each in found if each is not None]


def descendants(root: int, table: list[Process] | None = None) -> list[Process]:
    """Children of `root`, their children and so on, without `root` itself."""
    table = everyone() if table is None else table
    children: dict[int, list[Process]] = {}
    for each in table:
        children.setdefault(each.parent, []).append(each)
    found: list[Process] = []
    queue = [root]
    while queue:
        for child in children.get(queue.pop(), []):
            found.append(child)
            queue.append(child.pid)
    return found


def marked(mark: str, table: list[Process] | None = None) -> list[Process]:
    """Processes whose environment holds `mark` ("NAME=value"), whoever their parent is by now."""
    table = everyone() if table is None else table
    wanted = mark.encode()
    return [each for each in table if wanted in _environment(each.pid)]


def alive(each: Process) -> bool:
    """Whether this very process still runs; a zombie does not."""
    now = process(each.pid)
    return now is not None and now.started == each.started and now.state not in ("Z", "X")


def kill(each: Process, number: int = signal.SIGKILL) -> None:
    """Signal this very process; one that has gone or is another user's is left alone."""
    if not alive(each):
        return
    try:
        os.kill(each.pid, number)
    except (ProcessLookupError, PermissionError):
        return


def kill_marked(mark: str, within_s: float = 10.0) -> list[int]:
    """SIGKILL everything that bears `mark`, again and again until nothing does. Returns pids that would not go."""
    deadline = time.monotonic() + within_s
    while True:
        left = [each for each in marked(mark) if each.state not in ("Z", "X") and each.pid != os.getpid()]
        if not left or time.monotonic() > deadline:
            return [each.pid for each in left]
        for each in left:
            kill(each)
        time.sleep(0.02)


def run(
    command: Sequence[str],
    capture: bool = False,
    environment: Mapping[str, str] | None = None,
    timeout_s: float | None = None,
) -> "subprocess.CompletedProcess[str]":
    """subprocess.run, which leaves nothing behind: interrupted, it kills the command and what that has started.

    capture: keep its output and errors as text. environment: left out, ours. Raises OSError where the command cannot
    be started, subprocess.TimeoutExpired after `timeout_s`.
    """
    stream = subprocess.PIPE if capture else None
    # A session of its own, so that a group can be killed in which we are not.
    with subprocess.Popen(
        command, stdout=stream, stderr=stream, text=True, env=environment, start_new_session=True
    ) as child:
        try:
            out, errors = child.communicate(timeout=timeout_s)
        except BaseException:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
            raise
    return subprocess.CompletedProcess(command, child.returncode, out, errors)


def shared_memory(pid: int) -> set[str]:
    """Files under /dev/shm that a process has mapped."""
    try:
        lines = (PROC / str(pid) / "maps").read_text(errors="replace").splitlines()
    except OSError:
        return set()
    files = {line.split(None, 5)[5] for line in lines if "/dev/shm/" in line}  # noqa: S108 a place, not a file we make
    return {name for name in files if not name.endswith(" (deleted)")}


def _environment(pid: int) -> list[bytes]:
    try:
        return (PROC / str(pid) / "environ").read_bytes().split(b"\0")
    except OSError:
        return []
