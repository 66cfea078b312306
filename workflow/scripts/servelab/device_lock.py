"""One measurement at a time on one machine: a file lock for the CPU or for each GPU that a server will use.

Two studies that run side by side would measure each other. The lock is held by the measuring process and by
its server's supervisor (they share the open file), so it goes when both have gone, however they ended: no
stale lock.
"""

import contextlib
import fcntl
import json
import os
import re
import time
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path

from servelab import signals

FOLDER_VARIABLE = "SERVELAB_LOCKS"
# Not the place for temporary files: that follows TMPDIR, and two shells or users would not see each other's locks.
FOLDER = Path("/tmp/servelab-locks")  # noqa: S108 files in it are never followed as links, see _open
RETRY_S = 0.25
_VISIBLE = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES")
_held: list[int] = []


@contextlib.contextmanager
def device_lock(
    device: str, root: Path, say: Callable[[str], None], ambient: Mapping[str, str] | None = None
) -> Iterator[None]:
    """Hold the machine's lock for a device ("cpu", "cuda", "rocm"), waiting as long as it takes.

    Says once for whom it waits; `root` (the project's folder) is what others are told while we hold it. The
    lock of all GPUs and that of one GPU exclude each other. ambient: the variables that say which GPUs the server
    sees and where locks lie; left out, ours. Raises OSError where the lock folder cannot be written.
    """
    variables = os.environ if ambient is None else ambient
    wanted = names(device, variables)
    shared = ["gpu"] if any(name.startswith("gpu-") for name in wanted) else []
    taken: list[int] = []
    # A job that waits must not outlive its Snakemake and measure later, when nobody asks for it any more.
    with signals.ending_with_snakemake():
        try:
            folder = _folder(variables)
            for name in [*shared, *wanted]:
                taken.append(_take(folder / f"{name}.lock", str(root.absolute()), say, name not in shared))
            _held.extend(taken)
            yield
        finally:
            for handle in taken:
                if handle in _held:
                    _held.remove(handle)
                os.close(handle)


def handles() -> list[int]:
    """File descriptors of the locks that this process holds now, for a supervisor to hold them as well."""
    return list(_held)


def names(device: str, ambient: Mapping[str, str]) -> list[str]:
    """What a server on this device occupies: "cpu", a name for each visible GPU, or "gpu" for all.

    One by one only where all are given as plain indices: the same GPU has other names too (UUIDs, MIG devices).
    """
    if device == "cpu":
        return ["cpu"]
    said = next((text for variable in _VISIBLE if (text := ambient.get(variable, "").strip(", "))), "")
    visible = [part.strip() for part in said.split(",")]
    if all(re.fullmatch(r"[0-9]+", part) for part in visible):
        return sorted({f"gpu-{int(part)}" for part in visible})
    return ["gpu"]


def _folder(ambient: Mapping[str, str]) -> Path:
    """One place for all users of the machine."""
    if ambient.get(FOLDER_VARIABLE):
        folder = Path(ambient[FOLDER_VARIABLE])
        folder.mkdir(parents=True, exist_ok=True)
        return folder
    with contextlib.suppress(FileExistsError):
        FOLDER.mkdir()
        FOLDER.chmod(0o1777)
    return FOLDER


def _take(path: Path, purpose: str, say: Callable[[str], None], exclusive: bool) -> int:
    handle = _open(path)
    try:
        told = False
        while True:
            try:
                fcntl.flock(handle, (fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH) | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if not told:
                    say(f"waiting for the {path.stem} of this machine: {_holder(path)}")
                    told = True
                time.sleep(RETRY_S)
        if exclusive:
            since = datetime.now(UTC).isoformat(timespec="seconds")
            os.ftruncate(handle, 0)
            os.pwrite(handle, json.dumps({"pid": os.getpid(), "root": purpose, "since": since}).encode(), 0)
    except BaseException:
        os.close(handle)
        raise
    return handle


def _open(path: Path) -> int:
    """Open or make the lock file; never through a link that somebody has put there."""
    flags = os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        return os.open(path, flags)
    except FileNotFoundError:
        handle = os.open(path, flags | os.O_CREAT, 0o666)
        with contextlib.suppress(OSError):
            os.fchmod(handle, 0o666)
        return handle


def _holder(path: Path) -> str:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
        return f"process {value['pid']} measures for {value['root']} since {value['since']}"
    except (OSError, ValueError, KeyError, TypeError):
        return "another process holds it"
