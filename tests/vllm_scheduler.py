"""Run by the server environment's Python: vLLM's own scheduler, without a model, on loads that preempt.

argv: the model's folder. Prints a JSON line a load: the steps' tokens as `Iteration(…)` lines count them, and vLLM's
own count of what resumed requests looked up and found (PrefixCacheStats), which it exports nowhere.
"""

import json
import random
import sys

import torch
from vllm.config import CacheConfig, DeviceConfig, ModelConfig, SchedulerConfig, VllmConfig
from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
from vllm.v1.metrics.stats import PrefixCacheStats
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.request import Request
from vllm.v1.structured_output import StructuredOutputManager
from vllm.v1.utils import compute_iteration_details

# blocks, tokens in a block, requests, input, output, tokens a step
LOADS = ((25, 128, 24, 112, 32, 512), (1378, 16, 64, 1500, 256, 2048), (1378, 16, 64, 512, 128, 2048))


def scheduler(model: str, blocks: int, size: int, budget: int) -> Scheduler:
    """vLLM's scheduler with a KV cache of one layer."""
    cache = CacheConfig(block_size=size, enable_prefix_caching=True)
    cache.num_gpu_blocks = blocks
    config = VllmConfig(
        model_config=ModelConfig(model=model, dtype="float32", max_model_len=2048, skip_tokenizer_init=True),
        cache_config=cache,
        scheduler_config=SchedulerConfig(
            max_num_seqs=64, max_num_batched_tokens=budget, max_model_len=2048,
            enable_chunked_prefill=True, is_encoder_decoder=False,
        ),
        device_config=DeviceConfig("cpu"),
    )  # fmt: skip
    config.cache_config.block_size = size
    spec = FullAttentionSpec(block_size=size, num_kv_heads=1, head_size=1, dtype=torch.float32)
    layout = KVCacheConfig(
        num_blocks=blocks, kv_cache_tensors=[], kv_cache_groups=[KVCacheGroupSpec(["l"], spec)]
    )
    manager = StructuredOutputManager(config)
    return Scheduler(
        vllm_config=config,
        kv_cache_config=layout,
        structured_output_manager=manager,
        block_size=size,
        log_stats=True,
    )


def run(model: str, blocks: int, size: int, count: int, inputs: int, outputs: int, budget: int) -> dict:
    """All requests at once, to the end; a step's tokens are made up."""
    made = scheduler(model, blocks, size, budget)
    hasher, draw = get_request_block_hasher(size, sha256), random.Random(1)
    requests = []
    for number in range(count):
        params = SamplingParams(max_tokens=outputs, ignore_eos=True, temperature=0)
        prompt = [draw.randrange(40_000) for _ in range(inputs)]
        requests.append(Request(str(number), prompt, params, None, block_hasher=hasher))
        made.add_request(requests[-1])
    told = {"preemptions": 0, "lost": 0, "context_tokens": 0, "generation_tokens": 0, "steps": 0}
    while made.has_unfinished_requests():
        before = [(request.num_computed_tokens, request.num_preemptions) for request in requests]
        output = made.schedule()
        for request, (computed, preempted) in zip(requests, before, strict=True):
            told["preemptions"] += request.num_preemptions - preempted
            told["lost"] += computed if request.num_preemptions > preempted else 0
        details = compute_iteration_details(output)
        told["steps"] += 1
        told["context_tokens"] += details.num_ctx_tokens
        told["generation_tokens"] += details.num_generation_tokens
        ids = list(output.num_scheduled_tokens)
        ready = [made.requests[each].num_computed_tokens >= made.requests[each].num_tokens for each in ids]
        made.update_from_output(output, ModelRunnerOutput(
            req_ids=ids, req_id_to_index={each: place for place, each in enumerate(ids)},
            sampled_token_ids=[[draw.randrange(40_000)] if each else [] for each in ready],
            logprobs=None, prompt_logprobs_dict={}, pooler_output=[],
        ))  # fmt: skip
    return {**told, "count": count, "input": inputs, "output": outputs}


def main() -> None:
    """Every load; what resumed requests found is read where vLLM records it."""
    init_none_hash(sha256)
    found: list[int] = []
    record = PrefixCacheStats.record

    def seen(self: PrefixCacheStats, num_tokens: int, num_hits: int, preempted: bool) -> None:
        if preempted:
            found.append(num_hits)
        record(self, num_tokens, num_hits, preempted)

    PrefixCacheStats.record = seen
    for load in LOADS:
        found.clear()
        told = run(sys.argv[1], *load)
        print("told " + json.dumps({**told, "found": sum(found)}), flush=True)


if __name__ == "__main__":
    main()
