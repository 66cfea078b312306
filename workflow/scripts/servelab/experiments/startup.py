"""E9: where does the time until the server is ready go, on a first start and on a restart?"""

from dataclasses import dataclass, field

from servelab.config.schema import Experiment
from servelab.experiments import workloads
from servelab.experiments.base import ServerPlan

KIND = "startup"


@dataclass
class Config(Experiment):
    """enforce_eager: false starts with compilation (and CUDA graphs where there are any), true without.

    restarts: starts after the first one, with its compile cache.
    """

    enforce_eager: list[bool] = field(default_factory=lambda: [False, True])
    restarts: int = 1


def expand(config: Config) -> list[ServerPlan]:
    """A first start and the restarts with and without compilation; the starts are the measurement."""
    settings = workloads.settings("enforce_eager", config.enforce_eager)
    return [
        plan
        for eager in settings
        for plan in workloads.boots({"enforce_eager": eager}, config.starts, config.restarts)
    ]
