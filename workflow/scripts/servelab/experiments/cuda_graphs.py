"""E8: what do CUDA graphs (on a CPU: compilation) bring in speed, and what do they cost in time to ready?"""

from dataclasses import dataclass, field

from servelab.config.schema import Experiment
from servelab.experiments import workloads
from servelab.experiments.base import ServerPlan

KIND = "cuda_graphs"


@dataclass
class Config(Experiment):
    """enforce_eager: false is the server's default (graphs, compilation), true is without; a server each."""

    repeats: int = 3
    enforce_eager: list[bool] = field(default_factory=lambda: [False, True])
    concurrency: list[int] = field(default_factory=lambda: [1, 32])
    input_tokens: int = 512
    output_tokens: int = 128
    requests_per_slot: int = 4


def expand(config: Config) -> list[ServerPlan]:
    """One server with and one without graphs, each concurrency on each. Raises ValueError naming the key."""
    workloads.numbers(1, concurrency=config.concurrency, requests_per_slot=config.requests_per_slot)
    workloads.numbers(1, input_tokens=config.input_tokens, output_tokens=config.output_tokens)
    loads = tuple(
        workloads.closed(c, config.input_tokens, config.output_tokens, c * config.requests_per_slot)
        for c in sorted(set(config.concurrency))
    )
    settings = workloads.settings("enforce_eager", config.enforce_eager)
    return [ServerPlan(loads, {"enforce_eager": eager}) for eager in settings]
