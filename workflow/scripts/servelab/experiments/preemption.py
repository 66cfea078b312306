"""E3: where does the KV cache run out so that the scheduler preempts, and what becomes of the preempted?"""

from dataclasses import dataclass, field
from itertools import product

from servelab.config.schema import Experiment
from servelab.experiments import workloads
from servelab.experiments.base import ServerPlan

KIND = "preemption"


@dataclass
class Config(Experiment):
    """The map is input_tokens × output_tokens × concurrency.

    requests_per_slot: each point sends so many requests for each slot.
    """

    input_tokens: list[int] = field(default_factory=lambda: [512, 1500, 2048])
    output_tokens: list[int] = field(default_factory=lambda: [128, 256])
    concurrency: list[int] = field(default_factory=lambda: [32, 64])
    requests_per_slot: int = 2


def expand(config: Config) -> list[ServerPlan]:
    """The whole map on one server, the light points first (a preempted point leaves a full cache behind).

    Raises ValueError naming the key of a value that makes no sense.
    """
    axes = (config.concurrency, config.input_tokens, config.output_tokens)
    workloads.numbers(1, concurrency=axes[0], input_tokens=axes[1], output_tokens=axes[2])
    workloads.numbers(1, requests_per_slot=config.requests_per_slot)
    grid = sorted(product(*map(set, axes)), key=lambda point: (point[0] * (point[1] + point[2]), point))
    return [ServerPlan(tuple(workloads.closed(c, i, o, c * config.requests_per_slot) for c, i, o in grid))]
