"""What results on the disk were made of, in a small file beside them: servelab's own memory of it.

Snakemake's memory in `.snakemake/` is lost with a copy or a deletion, and what it does not remember it takes for up to
date. A file here holds the digest of all that the results beside it depend on; `parse_time` compares it before a run.
"""

import hashlib
import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from servelab.records import write_atomically


def digest(*parts: str) -> str:
    """32 hex digits of what results depend on."""
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:32]


def path(folder: Path, job: str) -> Path:
    """Where a job's note lies, in the folder of its results."""
    return folder / f".made-of-{job}"


def note(folder: Path, job: str, made_of: str) -> None:
    """Write down what a job's results were made of; nothing for an empty digest (a job run by hand)."""
    if made_of:
        write_atomically(path(folder, job), made_of.encode())


def noted(folder: Path, job: str) -> str:
    """The note, empty where there is none."""
    try:
        return path(folder, job).read_text(encoding="utf-8")
    except (OSError, ValueError):
        return ""


def forget(files: Iterable[Path]) -> None:
    """Take results out of the way, so that they are missing and made again."""
    for file in files:
        file.unlink(missing_ok=True)


def doubt(files: Iterable[Path]) -> None:
    """Make results older than all they come from: who does not remember them makes them again, until then they stay."""
    for file in files:
        with suppress(FileNotFoundError):
            os.utime(file, (1, 1))
