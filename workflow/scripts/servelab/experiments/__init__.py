"""The experiments E1 to E12, one module a kind. `KINDS` lists them in the order of the report."""

from types import ModuleType

from servelab.experiments import (
    chunked_prefill,
    cuda_graphs,
    kv_capacity,
    kv_dtype,
    load_sweep,
    max_num_seqs,
    open_loop,
    perplexity,
    preemption,
    prefix_cache,
    repeatability,
    startup,
)

_MODULES: tuple[ModuleType, ...] = (
    load_sweep,
    open_loop,
    kv_capacity,
    preemption,
    max_num_seqs,
    kv_dtype,
    perplexity,
    prefix_cache,
    chunked_prefill,
    cuda_graphs,
    startup,
    repeatability,
)

# Kind → its module: KIND, Config, expand(config), analyse(data, name, config); see base.py.
KINDS: dict[str, ModuleType] = {module.KIND: module for module in _MODULES}
