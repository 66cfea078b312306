"""/metrics in vLLM 0.31's spelling."""

import time
from pathlib import Path
from typing import Any

from fake_server.scheduler import Scheduler

STARTED = time.time()
DESCRIPTORS = Path("/proc/self/fd")


def text(scheduler: Scheduler, served: str, cache: dict[str, Any]) -> str:
    """The exposition."""
    tags = f'engine="0",model_name="{served}"'
    count = scheduler.counters
    live = sum(1 for request in scheduler.running)
    lines = [
        f"process_start_time_seconds {STARTED:.2f}",
        f"process_cpu_seconds_total {time.process_time():.2f}",
        f"process_open_fds {len(list(Path('/proc/self/fd').iterdir()))}",
        "# TYPE vllm:num_requests_running gauge",
        f"vllm:num_requests_running{{{tags}}} {live}.0",
        f"vllm:num_requests_waiting{{{tags}}} {len(scheduler.waiting)}.0",
        f"vllm:kv_cache_usage_perc{{{tags}}} {scheduler.blocks.usage}",
        "# TYPE vllm:num_preemptions counter",
    ]
    for name, value in (
        ("num_preemptions", count.preemptions),
        ("prefix_cache_queries", count.prefix_queries),
        ("prefix_cache_hits", count.prefix_hits),
        ("prompt_tokens", count.prompt_tokens),
        ("generation_tokens", count.generation_tokens),
    ):
        lines += [f"vllm:{name}_total{{{tags}}} {value}.0", f"vllm:{name}_created{{{tags}}} {STARTED}"]
    for reason, value in (("length", count.finished), ("abort", count.aborted), ("stop", 0)):
        lines.append(
            f'vllm:request_success_total{{engine="0",finished_reason="{reason}",model_name="{served}"}} '
            f"{value}.0"
        )
    for bound in ("0.1", "1.0", "+Inf"):
        lines.append(
            f'vllm:iteration_tokens_total_bucket{{engine="0",le="{bound}",model_name="{served}"}} '
            f"{count.steps}.0"
        )
    lines += [
        f"vllm:iteration_tokens_total_sum{{{tags}}} {count.prompt_tokens + count.generation_tokens}.0",
        f"vllm:iteration_tokens_total_count{{{tags}}} {count.steps}.0",
        "vllm:cache_config_info{"
        + ",".join(f'{name}="{value}"' for name, value in sorted(cache.items()))
        + "} 1.0",
    ]
    return "\n".join(lines) + "\n"
