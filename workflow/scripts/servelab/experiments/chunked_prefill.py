"""E7: how long does a decoding request stall while long prompts are read in; is it the chunk size?"""

from dataclasses import dataclass, field

from servelab.config.schema import Experiment
from servelab.experiments import workloads
from servelab.experiments.base import ServerPlan

KIND = "chunked_prefill"


@dataclass
class Config(Experiment):
    """max_num_batched_tokens: the chunk sizes, a server each. On each server, for every repeat:

    prefill: prefill_requests prompts of input_tokens one after the other (the prefill rate);
    interference: a victim (victim_*) decodes while `inserted` prompts of input_tokens arrive one by one, the
      first after its insert_after_tokens-th token.
    """

    repeats: int = 3
    max_num_batched_tokens: list[int] = field(default_factory=lambda: [512, 1024, 2048, 4096, 8192])
    victim_input_tokens: int = 300
    victim_output_tokens: int = 256
    inserted: int = 3
    input_tokens: int = 3500
    insert_after_tokens: int = 32
    prefill_requests: int = 3


def expand(config: Config) -> list[ServerPlan]:
    """One server for each chunk size: prefill alone, then interference.

    Raises ValueError naming the key of a value that makes no sense.
    """
    workloads.numbers(1, max_num_batched_tokens=config.max_num_batched_tokens, inserted=config.inserted)
    workloads.numbers(1, victim_input_tokens=config.victim_input_tokens, input_tokens=config.input_tokens)
    workloads.numbers(1, insert_after_tokens=config.insert_after_tokens)
    workloads.numbers(1, prefill_requests=config.prefill_requests)
    if config.victim_output_tokens <= config.insert_after_tokens:
        raise ValueError(
            f"victim_output_tokens: {config.victim_output_tokens} leaves nothing to decode after "
            f"insert_after_tokens ({config.insert_after_tokens})"
        )
    loads = (
        workloads.closed(1, config.input_tokens, 1, config.prefill_requests),
        workloads.interference(
            config.victim_input_tokens,
            config.victim_output_tokens,
            config.inserted,
            config.input_tokens,
            config.insert_after_tokens,
        ),
    )
    chunks = workloads.settings("max_num_batched_tokens", config.max_num_batched_tokens)
    return [ServerPlan(loads, {"max_num_batched_tokens": chunk}) for chunk in chunks]
