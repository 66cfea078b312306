"""E10: the same point several times on one server, and on several server starts; how far numbers repeat."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import product

from servelab.claims import Analysis
from servelab.config.schema import Experiment
from servelab.experiments.base import ServerPlan, StudyData
from servelab.experiments.load_sweep import at_least, point_name
from servelab.spec import Workload

KIND = "repeatability"


@dataclass
class Config(Experiment):
    """Keys of the repeatability experiment.

    concurrency, input_tokens, output_tokens: every combination is a point, measured `repeats` times on each
    of `starts` server starts. requests: of each point; 0 means four for each slot, but never fewer than 8.
    """

    concurrency: list[int] = field(default_factory=lambda: [32])
    input_tokens: list[int] = field(default_factory=lambda: [512])
    output_tokens: list[int] = field(default_factory=lambda: [128])
    requests: int = 0
    repeats: int = 5
    starts: int = 3
    warmup_requests: int = -1


def expand(config: Config) -> Iterable[ServerPlan]:
    """One plan; repeats and starts come from the experiment's own keys. Raises BadValueError."""
    return [ServerPlan(workloads=tuple(_workloads(config)))]


def _workloads(config: Config) -> Iterator[tuple[str, Workload]]:
    at_least("concurrency", config.concurrency, 1)
    at_least("input_tokens", config.input_tokens, 1)
    at_least("output_tokens", config.output_tokens, 1)
    at_least("requests", [config.requests], 0)
    shapes = product(sorted(set(config.input_tokens)), sorted(set(config.output_tokens)))
    for (input_tokens, output_tokens), concurrency in product(shapes, sorted(set(config.concurrency))):
        workload = Workload(
            kind="closed",
            input_tokens=input_tokens,
            output_tokens=output_tokens,
            concurrency=concurrency,
            requests=config.requests or max(8, 4 * concurrency),
            warmup_requests=config.warmup_requests,
        )
        yield point_name(concurrency, input_tokens, output_tokens), workload


def analyse(data: StudyData, name: str, config: Config) -> Analysis:
    """Values, spread, shares of variance, verdict, smallest visible difference (see repeatability.py)."""
    from servelab import repeatability  # not above: it needs this package itself

    return repeatability.analyse(data, name)
