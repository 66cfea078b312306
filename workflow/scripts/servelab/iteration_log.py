"""What the scheduler computed, from vLLM's line for each step (option enable_logging_iteration_details).

`/metrics` cannot tell what becomes of a preempted request: vLLM counts the prefix-cache look-up of a
request that resumes apart (PrefixCacheStats.preempted_queries, preempted_hits) and exports neither to
Prometheus nor to its own log; cached_tokens, prompt_tokens_by_source and iteration_tokens count a request's
first prefill only (vllm/v1/metrics/stats.py, vllm/v1/metrics/loggers.py, vllm/v1/core/sched/scheduler.py of
0.31.0). But every token that a step computes is in the step's line. Summed over a point they are the tokens
of the requests, each once, and whatever was computed again after a preemption.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

_STEP = re.compile(
    r"Iteration\((\d+)\): (\d+) context requests, (\d+) context tokens, "
    r"(\d+) generation requests, (\d+) generation tokens"
)


def totals(lines: Iterable[str]) -> dict[str, int]:
    """Sums over the steps of a log: steps, context_tokens, generation_requests, generation_tokens; {} without steps.

    A resumed request that has output tokens already counts as generation, with all the tokens it computes.
    """
    steps = [tuple(map(int, match.groups())) for line in lines if (match := _STEP.search(line))]
    numbers = [step[0] for step in steps]
    if not steps or numbers != list(range(numbers[0], numbers[0] + len(steps))):
        return {}
    _, _, context, requests, generation = (sum(column) for column in zip(*steps, strict=True))
    return {
        "steps": len(steps),
        "context_tokens": context,
        "generation_requests": requests,
        "generation_tokens": generation,
    }


@dataclass(frozen=True)
class Recomputed:
    """Tokens computed more than once during a point. context: those the server counted as context.

    A request that resumes with output counts as generation, one preempted before its first token as context; a
    server that counts every resumed request as new (vLLM's second model runner) makes all of them context.
    """

    tokens: int
    context: int


def recomputed(step_totals: dict[str, int], requests: pa.Table) -> Recomputed | None:
    """What was computed more than once during a point; None if it cannot be told.

    requests: all rows of the point, records.REQUESTS, warm-up included, because the log covers it. A request needs
    input + output - 1 computed tokens (the last token is never fed back), its input as context, less those found in
    the prefix cache when it first ran. A failed request may have computed any number, so none may have failed.
    """
    if not step_totals or requests.num_rows == 0 or not pc.all(requests["ok"]).as_py():
        return None
    inputs, outputs = (pc.sum(requests[name]).as_py() for name in ("input_tokens", "output_tokens"))
    cached = pc.sum(requests["cached_tokens"]).as_py() or 0
    if inputs is None or outputs is None:
        return None
    context = step_totals["context_tokens"] - (inputs - cached)
    generation = step_totals["generation_tokens"] - (outputs - requests.num_rows)
    return Recomputed(int(context + generation), int(context))
