"""What goes wrong on demand.

A fault is {"do": …} with the place where it happens:
    starts: [1, 3]      only on these starts (counted from 1 in the truth file); left out: on every start
    requests: [2, 5]    only at these completion requests of a start (counted from 1); left out: at every one
    chance: 0.05        drawn for each start (or request) from `seed`, its number and the fault's place in the list
    after: 4            in a stream: after so many output tokens

Of a start:    die_at_start (words: one of WORDS) · slow_start (s) · hang_at_start · ignore_sigterm ·
               slow_stop (s) · grandchild (a daemon that leaves the group and ignores SIGTERM) · log_flood (mb)
Of a request:  http (status) · die (SIGKILL to itself) · die_engine (error events, then exit 1) · stall (this
               stream) · halt (the whole scheduler) · error_event · close · reset · garbage · usage (prompt, completion:
               added) · no_usage · no_finish · split (events in pieces)
"""

import random
from dataclasses import dataclass
from typing import Any

START_FAULTS = frozenset(
    {"die_at_start", "slow_start", "hang_at_start", "ignore_sigterm", "slow_stop", "grandchild", "log_flood"}
)
STREAM_FAULTS = frozenset({"die", "die_engine", "stall", "halt", "error_event", "close", "reset", "garbage"})
REQUEST_FAULTS = STREAM_FAULTS | {"http", "usage", "no_usage", "no_finish", "split"}

ENGINE_FAILED = "RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s)"
WORDS = {
    "oom": [
        "ERROR {stamp} [core.py:1200] EngineCore failed to start.",
        "ERROR {stamp} [core.py:1200] Traceback (most recent call last):",
        "ERROR {stamp} [core.py:1200] torch.OutOfMemoryError: CUDA out of memory. Tried to allocate "
        "2.00 GiB. GPU 0 has a total capacity of 7.60 GiB of which 1.10 GiB is free.",
        ENGINE_FAILED,
    ],
    "model_missing": [
        "Traceback (most recent call last):",
        "OSError: Repo id must use alphanumeric chars, '-', '_' or '.'. The name cannot start or end "
        "with '-' or '.' and the maximum length is 96: '/nonexistent/model'.",
    ],
    "kv_too_small": [
        "ERROR {stamp} [core.py:1200] EngineCore failed to start.",
        "ERROR {stamp} [core.py:1200] ValueError: To serve at least one request with the model's max seq len "
        "(4096), (0.09 GiB KV cache is needed, which is larger than the available KV cache memory (0.05 "
        "GiB). Try increasing `gpu_memory_utilization` or decreasing `max_model_len` when initializing.",
        ENGINE_FAILED,
    ],
    "secret": ["RuntimeError: token hf_abcdefghijklmnopqrstuvwxyz is not accepted"],
    "hostile": ["RuntimeError: <script>alert(1)</script> \x1b[31mred\x07 ${HOME} `id` $(id)"],
    "silent": [],
}


@dataclass(frozen=True)
class Faults:
    """The faults of one start."""

    every: list[dict[str, Any]]
    start: int

    def __post_init__(self) -> None:
        unknown = {fault["do"] for fault in self.every} - START_FAULTS - REQUEST_FAULTS
        if unknown:
            raise ValueError(f"SERVELAB_FAKE: unknown faults {sorted(unknown)}")

    def of_start(self, name: str) -> dict[str, Any] | None:
        """This fault, if it happens on this start."""
        return next((fault for fault in self._here(START_FAULTS, 0) if fault["do"] == name), None)

    def of_request(self, number: int) -> list[dict[str, Any]]:
        """What goes wrong with this request of this start."""
        return [
            fault for fault in self._here(REQUEST_FAULTS, number) if number in fault.get("requests", [number])
        ]

    def _here(self, kind: frozenset[str], number: int) -> list[dict[str, Any]]:
        return [
            fault
            for place, fault in enumerate(self.every)
            if fault["do"] in kind
            and self.start in fault.get("starts", [self.start])
            and self._drawn(fault, place, number)
        ]

    def _drawn(self, fault: dict[str, Any], place: int, number: int) -> bool:
        chance = fault.get("chance", 1.0)
        return (
            chance >= 1.0
            or random.Random(f"{fault.get('seed', 0)}/{self.start}/{place}/{number}").random() < chance
        )
