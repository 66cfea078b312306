"""E6: what does the prefix cache save where prompts share a beginning, and cost where they do not?"""

from dataclasses import dataclass, field

from servelab.config.schema import Experiment
from servelab.experiments import workloads
from servelab.experiments.base import ServerPlan

KIND = "prefix_cache"


@dataclass
class Config(Experiment):
    """Three loads on a server with the cache on and on one with it off (`enable_prefix_caching`):

    shared, one request at a time, output 1: `groups` prefixes of shared_tokens, each asked for
      1 + hits_per_group times with unique_tokens of its own: the first is a miss, the others can hit. The
      groups together must fit into the KV cache.
    unshared, one at a time, output 1: as many requests of the same length that share nothing.
    cost: closed loop at cost_concurrency where nothing is shared.
    """

    repeats: int = 5
    enable_prefix_caching: list[bool] = field(default_factory=lambda: [True, False])
    shared_tokens: int = 3000
    unique_tokens: int = 32
    groups: int = 4
    hits_per_group: int = 4
    unshared_requests: int = 8
    cost_concurrency: int = 32
    cost_input_tokens: int = 2048
    cost_output_tokens: int = 16
    cost_requests: int = 96


def expand(config: Config) -> list[ServerPlan]:
    """The same loads with the cache on and off. Raises ValueError naming the key of a senseless value."""
    workloads.numbers(1, shared_tokens=config.shared_tokens, unique_tokens=config.unique_tokens)
    workloads.numbers(1, groups=config.groups, hits_per_group=config.hits_per_group)
    workloads.numbers(1, unshared_requests=config.unshared_requests, cost_requests=config.cost_requests)
    workloads.numbers(1, cost_concurrency=config.cost_concurrency)
    workloads.numbers(
        1, cost_input_tokens=config.cost_input_tokens, cost_output_tokens=config.cost_output_tokens
    )
    length = config.shared_tokens + config.unique_tokens
    loads = (
        workloads.closed(
            1, length, 1, config.groups * (1 + config.hits_per_group), config.shared_tokens, config.groups
        ),
        workloads.closed(1, length, 1, config.unshared_requests),
        workloads.closed(
            config.cost_concurrency, config.cost_input_tokens, config.cost_output_tokens, config.cost_requests
        ),
    )
    settings = workloads.settings("enable_prefix_caching", config.enable_prefix_caching)
    return [ServerPlan(loads, {"enable_prefix_caching": on}) for on in settings]
