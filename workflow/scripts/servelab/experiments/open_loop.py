"""Open loop: requests arrive on a schedule, whatever the server does; latency against arrival rate."""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import product
from pathlib import PurePath

from servelab.canonical import path_number
from servelab.claims import Analysis
from servelab.config.schema import Experiment
from servelab.experiments.base import ServerPlan, StudyData
from servelab.experiments.load_sweep import at_least
from servelab.spec import Workload

KIND = "open_loop"
PROCESSES = ("poisson", "constant", "gamma", "ramp")


@dataclass
class Config(Experiment):
    """Keys of an open loop.

    rates: arrivals a second, each with each of `processes` (poisson, constant, gamma, ramp). burstiness:
    shape of gamma (1 is poisson, smaller comes in bursts). rate_end_rps: where a ramp ends. traces: files
    with one arrival time in seconds a line, each a point of its own. duration_s: how long requests are sent;
    with `requests` above zero so many are sent instead.
    """

    rates: list[float] = field(default_factory=lambda: [0.5, 1.0, 2.0, 4.0])
    processes: list[str] = field(default_factory=lambda: ["poisson"])
    burstiness: float = 1.0
    rate_end_rps: float = 0.0
    traces: list[str] = field(default_factory=list)
    input_tokens: list[int] = field(default_factory=lambda: [512])
    output_tokens: list[int] = field(default_factory=lambda: [128])
    requests: int = 0
    duration_s: float = 60.0
    warmup_requests: int = -1


def expand(config: Config) -> Iterable[ServerPlan]:
    """One plan: all points on one server, by shape, process and rising rate; traces last.

    The content of a trace is not read here: whoever builds the grid fills `trace_digest`.
    Raises ValueError naming the key and the value where a point would make no sense.
    """
    _check(config)
    workloads = tuple(_workloads(config))
    names = [name for name, _ in workloads]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ValueError(f"traces: two files make the same point name {twice[0]!r}; rename one")
    return [ServerPlan(workloads=workloads)]


def _check(config: Config) -> None:
    for process in config.processes:
        if process not in PROCESSES:
            raise ValueError(
                f"processes: {process!r} is not one of {', '.join(PROCESSES)} (a file goes under traces)"
            )
    if not config.traces:
        at_least("rates", config.rates, 1e-6)
        at_least("processes", [len(config.processes)], 1)
    at_least("input_tokens", config.input_tokens, 1)
    at_least("output_tokens", config.output_tokens, 1)
    at_least("burstiness", [config.burstiness], 1e-6)
    if config.requests <= 0 and config.duration_s <= 0:
        raise ValueError("requests, duration_s: one of them must be above zero")
    if "ramp" in config.processes and config.rate_end_rps <= 0:
        raise ValueError(f"rate_end_rps: {config.rate_end_rps!r}, but a ramp must end at a rate above zero")


def _workloads(config: Config) -> Iterator[tuple[str, Workload]]:
    for input_tokens, output_tokens in product(
        sorted(set(config.input_tokens)), sorted(set(config.output_tokens))
    ):
        shape = f"i{path_number(input_tokens)}-o{path_number(output_tokens)}"
        common = {
            "kind": "open",
            "input_tokens": input_tokens,
            "output_tokens": output_tokens,
            "requests": max(config.requests, 0),
            "duration_s": 0.0 if config.requests > 0 else config.duration_s,
            "warmup_requests": config.warmup_requests,
        }
        for process, rate in product(dict.fromkeys(config.processes), sorted(set(config.rates))):
            yield _scheduled(process, rate, config, shape, common)
        for trace in dict.fromkeys(config.traces):
            stem = re.sub(r"[^A-Za-z0-9._]+", "_", PurePath(trace).stem)[:60]
            yield f"trace-{stem}-{shape}", Workload.from_json({**common, "arrival": "trace", "trace": trace})


def _scheduled(
    process: str, rate: float, config: Config, shape: str, common: dict[str, object]
) -> tuple[str, Workload]:
    label, extra = process, {}
    if process == "gamma":
        label, extra = f"gamma{path_number(config.burstiness)}", {"burstiness": float(config.burstiness)}
    if process == "ramp":
        label, extra = f"ramp{path_number(config.rate_end_rps)}", {"rate_end_rps": float(config.rate_end_rps)}
    workload = Workload.from_json({**common, "arrival": process, "rate_rps": float(rate), **extra})
    return f"{label}-r{path_number(rate)}-{shape}", workload


def analyse(data: StudyData, name: str, config: Config) -> Analysis:
    """Latency and goodput against arrival rate, with intervals (see open_loop_report.py)."""
    from servelab import open_loop_report  # not above: it needs this package itself

    return open_loop_report.analyse(data, name)
