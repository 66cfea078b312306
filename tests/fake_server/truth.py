"""What really happened, one JSON object a line: written by the server, read by tests.

    {"what": "start", "start": 3, "pid": …, "argv": […], "at": monotonic seconds}
    {"what": "ready", "blocks": …, "boot": "first" | "restart"}
    {"what": "request", "prompt": digest, "prompt_tokens": …, "token_s": [when each token was due],
     "arrived_s": …, …}
    {"what": "fault", "fault": {…}}
    {"what": "stop", "how": "SIGTERM", "counters": {…}}

Times are CLOCK_MONOTONIC, which time.monotonic() and time.perf_counter() of a client on the same machine read too.
"""

import hashlib
import json
import os
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any


def prompt_digest(tokens: Iterable[int]) -> str:
    """Names a prompt in the truth."""
    return hashlib.sha256(",".join(map(str, tokens)).encode()).hexdigest()[:16]


class Truth:
    """Appends to the file; whole lines, so that servers killed at any moment leave a readable one."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.start = 1 + sum(1 for line in read(path) if line["what"] == "start") if path else 1

    def tell(self, what: str, **facts: Any) -> None:
        """One line."""
        if not self.path:
            return
        line = json.dumps({"what": what, "start": self.start, "at": time.monotonic(), **facts}) + "\n"
        handle = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        try:
            os.write(handle, line.encode())
        finally:
            os.close(handle)


def read(path: str | Path, what: str | None = None) -> list[dict[str, Any]]:
    """Lines of a truth file, of one kind if `what` is given; [] if there is none yet."""
    try:
        text = Path(path).read_text(encoding="utf-8")
    except FileNotFoundError:
        return []
    lines = [json.loads(line) for line in text.splitlines() if line.endswith("}")]
    return [line for line in lines if what is None or line["what"] == what]
