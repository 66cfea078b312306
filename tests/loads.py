"""Loads put on a stub server in this process, as the load generator's tests want them."""

from typing import Any

from servelab import loadgen
from servelab.loadgen import Measurement, PromptSource, RunLimits, Target
from servelab.records import REQUESTS, SERIES
from servelab.spec import Workload
from stub_server import Stub

PROMPTS = PromptSource(1, "point", 1000)


def closed(concurrency: int = 2, requests: int = 6, **changes: Any) -> Workload:
    values: dict[str, Any] = {"input_tokens": 20, "output_tokens": 4, "warmup_requests": 0}
    return Workload(concurrency=concurrency, requests=requests, **{**values, **changes})


def parse(text: str) -> dict[str, float]:
    return {name: float(value) for name, value in (line.split() for line in text.splitlines())}


def measure(server: Stub, workload: Workload, alive: Any = lambda: True, **limits: Any) -> Measurement:
    values = {"timeout_s": 30.0, "stall_s": 10.0, "poll_s": 0.0, **limits}
    target = Target(server.url, "m")
    got = loadgen.measure(target, workload, PROMPTS, RunLimits(**values), alive, parse)
    assert got.requests.schema == REQUESTS and got.series.schema == SERIES
    return got


def rows(got: Measurement, role: str = "measured") -> list[dict[str, Any]]:
    return [row for row in got.requests.to_pylist() if row["role"] == role]


def interference(**changes: Any) -> Workload:
    values: dict[str, Any] = {"input_tokens": 60, "output_tokens": 2, "inserted": 3, "insert_after_tokens": 5}
    values |= {"victim_input_tokens": 10, "victim_output_tokens": 80}
    return Workload(kind="interference", **{**values, **changes})
