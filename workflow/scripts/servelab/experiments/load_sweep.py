"""E1: throughput and latency against concurrency, closed loop; where the knee is."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import product

from servelab.canonical import path_number
from servelab.claims import Analysis
from servelab.config.errors import BadValueError
from servelab.config.schema import Experiment
from servelab.experiments.base import ServerPlan, StudyData
from servelab.spec import Workload

KIND = "load_sweep"


@dataclass
class Config(Experiment):
    """Keys of a load sweep.

    concurrency, input_tokens, output_tokens: every combination is a point. requests of a point:
    `requests_per_slot` for each slot, never fewer than `requests_min`; with `duration_s` above zero the point
    lasts so long instead. shared_prefix_tokens: the first so many tokens are the same within each of
    `prefix_groups` groups. same_prompt: send one prompt for every request; such points are invalid wherever a
    prefix cache is on (E11).
    """

    concurrency: list[int] = field(default_factory=lambda: [1, 2, 4, 8, 16, 32, 64])
    input_tokens: list[int] = field(default_factory=lambda: [512])
    output_tokens: list[int] = field(default_factory=lambda: [128])
    requests_per_slot: int = 4
    requests_min: int = 8
    duration_s: float = 0.0
    shared_prefix_tokens: int = 0
    prefix_groups: int = 1
    same_prompt: bool = False
    warmup_requests: int = -1


def expand(config: Config) -> Iterable[ServerPlan]:
    """One plan: all points on one server, by shape and then by rising concurrency.

    Raises BadValueError where a point would make no sense.
    """
    return [ServerPlan(workloads=tuple(_workloads(config)))]


def point_name(concurrency: int, input_tokens: int, output_tokens: int) -> str:
    """c8-i512-o128."""
    return f"c{path_number(concurrency)}-i{path_number(input_tokens)}-o{path_number(output_tokens)}"


def at_least(key: str, values: Iterable[float], least: float) -> None:
    """Raise BadValueError with the key and the first value below `least`, or for an empty list."""
    values = list(values)
    if not values:
        raise BadValueError(key, values, "at least one value")
    for value in values:
        if value < least:
            raise BadValueError(key, value, f"{least} or more")


def _workloads(config: Config) -> Iterator[tuple[str, Workload]]:
    at_least("concurrency", config.concurrency, 1)
    at_least("input_tokens", config.input_tokens, 1)
    at_least("output_tokens", config.output_tokens, 1)
    at_least("duration_s", [config.duration_s], 0)
    at_least("requests_min", [config.requests_min], 1)
    at_least("requests_per_slot", [config.requests_per_slot], 1)
    # A request has a token of its own after the prefix, unless all requests are one prompt anyway.
    most = min(config.input_tokens) - (0 if config.same_prompt else 1)
    if not 0 <= config.shared_prefix_tokens <= most:
        allowed = f"0 to {most} (the shortest of input_tokens is {min(config.input_tokens)})"
        raise BadValueError("shared_prefix_tokens", config.shared_prefix_tokens, allowed)
    shapes = product(sorted(set(config.input_tokens)), sorted(set(config.output_tokens)))
    for (input_tokens, output_tokens), concurrency in product(shapes, sorted(set(config.concurrency))):
        requests = max(config.requests_min, config.requests_per_slot * concurrency)
        workload = Workload(
            kind="closed",
            input_tokens=input_tokens,
            output_tokens=output_tokens,
            concurrency=concurrency,
            requests=0 if config.duration_s > 0 else requests,
            duration_s=config.duration_s,
            shared_prefix_tokens=config.shared_prefix_tokens,
            prefix_groups=config.prefix_groups if config.shared_prefix_tokens else 1,
            same_prompt=config.same_prompt,
            warmup_requests=config.warmup_requests,
        )
        yield point_name(concurrency, input_tokens, output_tokens), workload


def analyse(data: StudyData, name: str, config: Config) -> Analysis:
    """Points with intervals, efficiency against concurrency 1, the knee and its curve."""
    from servelab import knee_report  # not above: it needs this package itself

    return knee_report.analyse(data, name, kind=KIND)
