"""SIGTERM and SIGHUP end a measurement the way Ctrl-C does, and a measurement ends when Snakemake has gone.

Snakemake that is killed with SIGKILL leaves its jobs running. So a job watches its ancestors up to Snakemake; and
since it takes a job seconds to come up, in which Snakemake may go and the job become an orphan, Snakemake tells its
jobs in a variable who it is.
"""

import contextlib
import os
import select
import signal
import threading
from collections.abc import Callable, Iterator
from types import FrameType

from servelab import processes

RUN_VARIABLE = "SERVELAB_SNAKEMAKE"
STOPPING = (signal.SIGTERM, signal.SIGHUP)
_watching = threading.Lock()


@contextlib.contextmanager
def as_interrupt() -> Iterator[None]:
    """Within this, SIGTERM and SIGHUP raise KeyboardInterrupt (in asyncio: cancel the main task, as Ctrl-C does).

    A SIGHUP that is ignored stays so: the run was started with nohup, to outlive its terminal. Does nothing outside
    the main thread, where Python has no signal handlers.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    ignored = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    numbers = [number for number in STOPPING if not (ignored and number == signal.SIGHUP)]
    before = {number: signal.signal(number, _interrupt) for number in numbers}
    interrupt_before = signal.getsignal(signal.SIGINT)
    if interrupt_before in (
        signal.SIG_IGN,
        signal.SIG_DFL,
    ):  # a shell's background job ignores SIGINT; we still clean up
        signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        signal.signal(signal.SIGINT, interrupt_before)


def announce() -> None:
    """Tell the jobs to come who their Snakemake is: this process, unless one above it has said so already."""
    me = processes.process(os.getpid())
    if me is not None:
        os.environ.setdefault(RUN_VARIABLE, f"{me.pid}:{me.started}:{_place()}")


@contextlib.contextmanager
def ending_with_snakemake() -> Iterator[None]:
    """Within this, we get SIGTERM as soon as the Snakemake that started us (or a shell between) has gone.

    Within another such block it does nothing: one SIGTERM is enough, a second would disturb the clearing away.
    """
    orphan = _announced_has_gone()
    watched = _ancestors_to_snakemake()
    if not (watched or orphan) or not _watching.acquire(blocking=False):
        yield
        return
    handles: list[int] = []
    for each in watched:
        with contextlib.suppress(ProcessLookupError):
            handles.append(os.pidfd_open(each.pid))
    over, done = os.pipe()
    gone = orphan or len(handles) < len(watched) or not all(processes.alive(each) for each in watched)
    thread = threading.Thread(target=_watch, args=(handles, over, gone), name="ancestors", daemon=True)
    thread.start()
    try:
        yield
    finally:
        os.close(done)
        thread.join(5.0)
        for handle in (*handles, over):
            os.close(handle)
        _watching.release()


def job(main: Callable[[], int]) -> int:
    """Run a job's main function; it ends with its Snakemake. Exit status: main's, 130 if it was stopped.

    Without this a job whose Snakemake was killed goes on, and writes over what a later run has made meanwhile.
    """
    try:
        with as_interrupt(), ending_with_snakemake():
            return main()
    except KeyboardInterrupt:
        return 130


def _place() -> str:
    """Names this boot of this machine and its process numbers; a job elsewhere cannot look for a process here."""
    try:
        boot = (processes.PROC / "sys/kernel/random/boot_id").read_text().strip()
        return f"{boot}:{(processes.PROC / 'self/ns/pid').readlink()}"
    except OSError:
        return ""


def _announced_has_gone() -> bool:
    """Whether the Snakemake that announced itself, on this machine, runs no more."""
    pid, _, rest = os.environ.get(RUN_VARIABLE, "").partition(":")
    started, _, place = rest.partition(":")
    if not (pid.isdigit() and started.isdigit() and place and place == _place()):
        return False
    each = processes.process(int(pid))
    return each is None or each.started != int(started) or each.state in ("Z", "X")


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    signal.raise_signal(signal.SIGINT)


def _watch(handles: list[int], over: int, gone: bool) -> None:
    """Wait until one of the processes has ended (its pidfd turns readable) or the measurement is over."""
    poll = select.poll()
    for handle in (*handles, over):
        poll.register(handle, select.POLLIN | select.POLLHUP)
    ready = [] if gone else [handle for handle, _ in poll.poll()]
    if gone or over not in ready:
        os.kill(os.getpid(), signal.SIGTERM)


def _ancestors_to_snakemake() -> list[processes.Process]:
    """Our ancestors up to the outermost Snakemake; empty if there is none among them."""
    chain: list[processes.Process] = []
    last = 0
    each = processes.process(os.getppid())
    while each is not None and each.pid > 1:
        chain.append(each)
        if _is_snakemake(each.pid):
            last = len(chain)
        each = processes.process(each.parent)
    return chain[:last]


def _is_snakemake(pid: int) -> bool:
    try:
        words = (processes.PROC / str(pid) / "cmdline").read_bytes().split(b"\0")
    except OSError:
        return False
    return any(word.rsplit(b"/", 1)[-1] == b"snakemake" for word in words[:4])
