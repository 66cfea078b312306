"""What the machine can do: FLOP/s and bytes a second, measured once by the server's own environment.

`limits_probe.py` runs in that environment; here it is called and its answer checked. A machine that cannot be
measured has no limits, and points are then not held against it (gates/machine.py notes it on each).
"""

import json
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from servelab import processes

PROBE = Path(__file__).with_name("limits_probe.py")
DEVICES = {"cpu": "cpu", "cuda": "cuda", "rocm": "cuda"}  # torch calls a ROCm device cuda
TIMEOUT_S = 300.0
REQUIRED = ("flops", "bytes_per_s")


class LimitsError(Exception):
    """The machine's limits could not be measured; the message says why in one line."""


def measure(python: str, device: str, dtypes: Sequence[str] = (), budget_s: float = 1.5) -> dict[str, Any]:
    """Limits of this machine: {"flops": FLOP/s, "bytes_per_s": B/s, "cache_bytes": B, "source": "measured", …}.

    python: interpreter of the server's environment. device: engine device (cpu, cuda, rocm). dtypes: of
    matrix products; left out, bfloat16 and float32. About 15 s. Raises LimitsError.
    """
    if device not in DEVICES:
        raise LimitsError(f"device {device!r} is not one of {', '.join(DEVICES)}")
    command = [python, str(PROBE), "--device", DEVICES[device], "--budget-seconds", str(budget_s)]
    for dtype in dtypes:
        command += ["--dtype", dtype]
    try:
        done = processes.run(command, capture=True, timeout_s=TIMEOUT_S)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise LimitsError(f"{python}: {error}") from error
    if done.returncode != 0:
        words = done.stderr.strip().splitlines()
        raise LimitsError(f"{python}: {words[-1] if words else f'exit status {done.returncode}'}")
    return checked(done.stdout.strip().splitlines()[-1] if done.stdout.strip() else "")


def checked(text: str) -> dict[str, Any]:
    """The probe's answer as a dict with source "measured". Raises LimitsError if it is no such answer."""
    try:
        answer = json.loads(text)
    except ValueError as error:
        raise LimitsError(f"the probe's answer is no JSON: {text[:80]!r}") from error
    for name in REQUIRED:
        value = answer.get(name) if isinstance(answer, dict) else None
        if not isinstance(value, (int, float)) or not value > 0:
            raise LimitsError(f"the probe's answer has no {name}: {text[:80]!r}")
    return {**answer, "source": "measured"}


def unknown(reason: str) -> dict[str, Any]:
    """What is written where the machine could not be measured: no numbers, and why."""
    return {"source": "unknown", "reason": reason}
