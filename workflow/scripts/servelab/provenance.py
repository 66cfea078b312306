"""Which servelab made this: version, commit, interpreter."""

import platform
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

from servelab import __version__


@cache
def facts() -> dict[str, Any]:
    """servelab's version and git commit («+changes» if the tree was not clean; empty outside a checkout), Python."""
    return {
        "servelab": __version__,
        "commit": commit(Path(__file__).parent),
        "python": platform.python_version(),
    }


def commit(folder: Path) -> str:
    """Short commit of the checkout that holds a folder, or an empty text."""
    short = _git(folder, "rev-parse", "--short=12", "HEAD")
    if not short:
        return ""
    changed = _git(folder, "status", "--porcelain", "--untracked-files=no")
    return short + ("+changes" if changed else "")


def _git(folder: Path, *words: str) -> str:
    try:
        done = subprocess.run(["git", "-C", str(folder), *words], capture_output=True, text=True, timeout=10)  # noqa: S607
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""
