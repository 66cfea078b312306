"""E2: does KV-cache capacity match the formula, on the first start and on restarts, for each KV dtype?"""

from dataclasses import dataclass, field

from servelab.config.schema import Experiment
from servelab.experiments import workloads
from servelab.experiments.base import ServerPlan

KIND = "kv_capacity"


@dataclass
class Config(Experiment):
    """kv_cache_dtype: each gets its own servers. restarts: starts after the first, with its compile cache.

    input_tokens, output_tokens: request lengths for which «how many fit» is calculated.
    """

    kv_cache_dtype: list[str] = field(default_factory=lambda: ["auto", "fp8"])
    restarts: int = 3
    input_tokens: list[int] = field(default_factory=lambda: [512, 2048])
    output_tokens: int = 128


def expand(config: Config) -> list[ServerPlan]:
    """A first start and the restarts for each KV dtype; the starts are the measurement.

    Raises ValueError naming the key of a value that makes no sense.
    """
    workloads.numbers(1, input_tokens=config.input_tokens, output_tokens=config.output_tokens)
    dtypes = workloads.settings("kv_cache_dtype", config.kv_cache_dtype)
    return [
        plan
        for dtype in dtypes
        for plan in workloads.boots({"kv_cache_dtype": dtype}, config.starts, config.restarts)
    ]
