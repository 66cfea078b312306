"""E5q: does an 8-bit KV cache change what the model says? Perplexity of a fixed text, through the server."""

from dataclasses import dataclass, field
from itertools import product

from servelab.canonical import path_number
from servelab.config.schema import Experiment
from servelab.experiments import workloads
from servelab.experiments.base import ServerPlan
from servelab.spec import Option, Workload
from servelab.texts_source import MAX_SEGMENT_TOKENS

KIND = "perplexity"


@dataclass
class Config(Experiment):
    """kv_cache_dtype × attention_backend: a server each; "" leaves the backend to the server.

    text: `pydoc_data.topics`, a file, or `wikitext-2`. The first segment_tokens tokens of each of `segments`
    segments are scored. repeats: twice, so that «the same setting twice» can be answered.
    """

    repeats: int = 2
    kv_cache_dtype: list[str] = field(default_factory=lambda: ["auto", "fp8"])
    attention_backend: list[str] = field(default_factory=lambda: [""])
    text: str = "pydoc_data.topics"
    segments: int = 40
    segment_tokens: int = 1024


def expand(config: Config) -> list[ServerPlan]:
    """One server for each dtype and backend, prefix cache off: logprobs of cached tokens are not computed.

    Raises ValueError naming the key of a value that makes no sense.
    """
    workloads.numbers(1, segments=config.segments)
    workloads.numbers(2, segment_tokens=config.segment_tokens)
    if config.segment_tokens > MAX_SEGMENT_TOKENS:
        raise ValueError(f"segment_tokens: {config.segment_tokens} is above {MAX_SEGMENT_TOKENS}")
    if not config.text:
        raise ValueError("text: give pydoc_data.topics, a file, or wikitext-2")
    dtypes = workloads.settings("kv_cache_dtype", config.kv_cache_dtype)
    backends = workloads.settings("attention_backend", config.attention_backend)
    name = f"ppl-s{path_number(config.segments)}-t{path_number(config.segment_tokens)}"
    workload = Workload(
        kind="perplexity",
        input_tokens=config.segment_tokens,
        output_tokens=1,
        requests=config.segments,
        text=config.text,
        segments=config.segments,
        segment_tokens=config.segment_tokens,
        warmup_requests=0,
    )
    return [
        ServerPlan(((name, workload),), options_of(dtype, backend))
        for backend, dtype in product(backends, dtypes)
    ]


def options_of(dtype: str, backend: str) -> dict[str, Option]:
    """Server options of one setting; an empty backend is the server's own choice."""
    options: dict[str, Option] = {"kv_cache_dtype": dtype, "enable_prefix_caching": False}
    return {**options, "attention_backend": backend} if backend else options
