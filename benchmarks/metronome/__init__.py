"""The metronome: a completions server in C whose times are the truth, compiled on the spot."""

import json
import os
import subprocess
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SOURCE = Path(__file__).with_name("metronome.c")


@dataclass(frozen=True)
class Metronome:
    """A running metronome."""

    url: str

    def lateness(self) -> dict[str, Any]:
        """How late it was since the last call (see metronome.c)."""
        with urllib.request.urlopen(f"{self.url}/lateness", timeout=30) as answer:
            value = json.load(answer)
        assert isinstance(value, dict)
        return value


def compiled(folder: Path) -> Path:
    """Compile it with the system's C compiler (CC, else cc). Raises CalledProcessError or FileNotFoundError."""
    program = folder / "metronome"
    subprocess.run([os.environ.get("CC", "cc"), "-O2", "-o", str(program), str(SOURCE)], check=True)
    return program


@contextmanager
def running(
    program: Path, ttft_ms: float = 50.0, itl_ms: float = 10.0, grid_ms: float = 1.0
) -> Iterator[Metronome]:
    """A metronome on a free port, gone at the end."""
    command = [str(program), "0", str(ttft_ms), str(itl_ms), str(grid_ms)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        yield Metronome(f"http://127.0.0.1:{int(process.stdout.readline())}")
    finally:
        process.terminate()
        process.wait(10)
