"""Open loop: requests arrive on a schedule, whatever the server does; latency against arrival rate."""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import product
from pathlib import PurePath

from servelab.canonical import path_number
from servelab.claims import Analysis
from servelab.config.errors import BadValueError, nearest
from servelab.config.schema import Experiment
from servelab.experiments import workloads
from servelab.experiments.base import ServerPlan, StudyData
from servelab.experiments.load_sweep import at_least
from servelab.spec import Workload

KIND = "open_loop"
PROCESSES = ("poisson", "constant", "gamma", "ramp")
USUAL_RATES = (0.5, 1.0, 2.0, 4.0)
USUAL_S = 60.0
SERVELAB_CHOOSES = -1.0


@dataclass
class Config(Experiment):
    """Keys of an open loop.

    rates: arrivals a second, each with each of `processes` (poisson, constant, gamma, ramp); left empty they are
    USUAL_RATES, or none where there are traces. burstiness: shape of gamma (1 is poisson, smaller comes in
    bursts). rate_end_rps: where a ramp ends. traces: files with one arrival time in seconds a line, each a point
    of its own. duration_s: how long requests are sent; -1 is USUAL_S at a rate, and a trace to its end. With
    `requests` above zero so many are sent instead.
    """

    rates: list[float] = field(default_factory=list)
    processes: list[str] = field(default_factory=lambda: ["poisson"])
    burstiness: float = 1.0
    rate_end_rps: float = 0.0
    traces: list[str] = field(default_factory=list)
    input_tokens: list[int] = field(default_factory=lambda: [512])
    output_tokens: list[int] = field(default_factory=lambda: [128])
    requests: int = 0
    duration_s: float = SERVELAB_CHOOSES
    warmup_requests: int = -1


def expand(config: Config) -> Iterable[ServerPlan]:
    """One plan: all points on one server, by shape, process and rising rate; traces last.

    The content of a trace is not read here: whoever builds the grid fills `trace_digest`.
    Raises BadValueError where a point would make no sense.
    """
    _check(config)
    loads = tuple(_workloads(config))
    names = [name for name, _ in loads]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        allowed = f"files of different names: two of these make the same point name {twice[0]!r}"
        raise BadValueError("traces", config.traces, allowed)
    return [ServerPlan(workloads=loads)]


def _rates(config: Config) -> list[float]:
    """Rates to measure, rising: who gives traces and no rates wants the traces only."""
    return sorted(set(config.rates or (() if config.traces else USUAL_RATES)))


def _check(config: Config) -> None:
    for process in config.processes:
        if process not in PROCESSES:
            allowed = f"{', '.join(PROCESSES)}; a file goes under traces"
            raise BadValueError("processes", process, allowed, nearest(process, PROCESSES))
    at_least("input_tokens", config.input_tokens, 1)
    at_least("output_tokens", config.output_tokens, 1)
    at_least("burstiness", [config.burstiness], 1e-6)
    if config.duration_s < 0 and config.duration_s != SERVELAB_CHOOSES:
        raise BadValueError("duration_s", config.duration_s, "-1 (servelab chooses), or seconds from 0")
    rates = _rates(config)
    if not rates:
        return
    at_least("rates", rates, 1e-6)
    workloads.settings("processes", config.processes)
    if config.requests <= 0 and config.duration_s == 0:
        allowed = "seconds above 0, or `requests` above 0: something must end the arrivals at a rate"
        raise BadValueError("duration_s", config.duration_s, allowed)
    if "ramp" in config.processes and config.rate_end_rps <= 0:
        raise BadValueError("rate_end_rps", config.rate_end_rps, "the rate above 0 at which the ramp ends")


def _workloads(config: Config) -> Iterator[tuple[str, Workload]]:
    given_s = 0.0 if config.requests > 0 or config.duration_s < 0 else config.duration_s
    usual_s = USUAL_S if config.requests <= 0 and config.duration_s < 0 else given_s
    for input_tokens, output_tokens in product(
        sorted(set(config.input_tokens)), sorted(set(config.output_tokens))
    ):
        shape = f"i{path_number(input_tokens)}-o{path_number(output_tokens)}"
        common = {
            "kind": "open",
            "input_tokens": input_tokens,
            "output_tokens": output_tokens,
            "requests": max(config.requests, 0),
            "duration_s": usual_s,
            "warmup_requests": config.warmup_requests,
        }
        for process, rate in product(dict.fromkeys(config.processes), _rates(config)):
            yield _scheduled(process, rate, config, shape, common)
        for trace in dict.fromkeys(config.traces):
            stem = re.sub(r"[^A-Za-z0-9._]+", "_", PurePath(trace).stem)[:60]
            # A trace ends by itself: only what the config says cuts it short.
            load = {**common, "duration_s": given_s, "arrival": "trace", "trace": trace}
            yield f"trace-{stem}-{shape}", Workload.from_json(load)


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
