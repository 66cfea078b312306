"""E4: what does the cap on concurrently running sequences do under a fixed load?"""

from dataclasses import dataclass, field

from servelab.config.schema import Experiment
from servelab.experiments import workloads
from servelab.experiments.base import ServerPlan

KIND = "max_num_seqs"


@dataclass
class Config(Experiment):
    """max_num_seqs: the caps, a server each. The load is the same for all: closed loop at `concurrency`."""

    max_num_seqs: list[int] = field(default_factory=lambda: [16, 32, 64])
    concurrency: int = 64
    input_tokens: int = 512
    output_tokens: int = 128
    requests_per_slot: int = 2


def expand(config: Config) -> list[ServerPlan]:
    """One server for each cap, the same load on each. Raises ValueError naming a senseless key."""
    workloads.numbers(1, max_num_seqs=config.max_num_seqs, requests_per_slot=config.requests_per_slot)
    workloads.numbers(1, concurrency=config.concurrency, input_tokens=config.input_tokens)
    workloads.numbers(1, output_tokens=config.output_tokens)
    requests = config.concurrency * config.requests_per_slot
    load = workloads.closed(config.concurrency, config.input_tokens, config.output_tokens, requests)
    caps = workloads.settings("max_num_seqs", config.max_num_seqs)
    return [ServerPlan((load,), {"max_num_seqs": cap}) for cap in caps]
