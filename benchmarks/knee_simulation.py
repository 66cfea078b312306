"""Simulated servers whose knee is known: the fake server's scheduler as an event simulation, and noise on top.

A step takes `base_s` + `sequence_s` for each running request + `prefill_token_s` for each prompt token read in.
A request is admitted when a batch slot is free and the KV cache has room for its prompt; when the cache is full
the request admitted last is put back and later read in again with what it had generated (preemption by
recomputation, as vLLM does). Between events every running request gains one token a step, so whole stretches are
stepped over at once.
"""

from collections import deque
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Server:
    """A server's truth. batch: most requests in a step. kv_tokens: tokens that the KV cache holds."""

    base_s: float
    sequence_s: float
    prefill_token_s: float
    batch: int
    kv_tokens: int


@dataclass(frozen=True)
class Shape:
    """Input and output tokens of every request."""

    input_tokens: int
    output_tokens: int


def throughput(server: Server, shape: Shape, concurrency: int, requests: int) -> float:
    """Output tokens a second of a closed loop while every slot was busy (waiting counts), as the knee is fitted."""
    waiting: deque[int] = deque(
        [0] * min(concurrency, requests)
    )  # tokens generated before (preempted requests)
    unsent = requests - len(waiting)
    running: list[list[int]] = []  # [tokens in cache, tokens still to generate], in order of admission
    used = done = tokens = 0
    watermark = server.kv_tokens // 100  # kept free when admitting, so that a request is not put back at once
    clock = 0.0
    while done < requests:
        prefilled = 0
        while waiting and len(running) < server.batch:
            generated = waiting[0]
            length = shape.input_tokens + generated
            if running and used + length + 1 + watermark > server.kv_tokens:
                break
            waiting.popleft()
            running.append([length + 1, shape.output_tokens - generated - 1])
            used += length + 1
            prefilled += length
            tokens += 1
        size = len(running)
        if prefilled:  # the step that reads them in gives each its first token, and the others theirs
            clock += server.base_s + server.sequence_s * size + server.prefill_token_s * prefilled
        left = min(entry[1] for entry in running)
        room = max((server.kv_tokens - used) // size, 0)
        steps = min(left, room) if size > 1 else left
        if steps > 0:
            clock += steps * (server.base_s + server.sequence_s * size)
            for entry in running:
                entry[0] += steps
                entry[1] -= steps
            used += steps * size
            tokens += steps * size
        finished = [entry for entry in running if entry[1] <= 0]
        if finished:
            running = [entry for entry in running if entry[1] > 0]
            used -= sum(entry[0] for entry in finished)
            done += len(finished)
            if len(finished) > unsent:
                return tokens / clock  # the first slot with nothing left to send: the steady part is over
            fresh = len(finished)
            unsent -= fresh
            waiting.extend([0] * fresh)
        elif steps == 0 or steps == room:
            last = running.pop()
            used -= last[0]
            waiting.appendleft(shape.output_tokens - last[1])
    raise AssertionError("a closed loop ends when a slot has nothing left to send")


def true_knee(server: Server, shape: Shape, elasticity: float, top: int, window: float = 1.08) -> float:
    """Where throughput stops following concurrency, read off noise-free long runs at every whole concurrency.

    The concurrency from which the elasticity (slope on logarithmic axes, over a window of ± 8 %) stays below the
    threshold; inf if it does not up to `top`. No curve is fitted: this is the definition itself.
    """
    whole = np.arange(1, top + 1)
    log_rate = np.log([throughput(server, shape, int(c), 12 * int(c)) for c in whole])
    at = np.exp(np.arange(np.log(1.5), np.log(top / window), 0.01))
    above, below = (np.interp(np.log(at * f), np.log(whole), log_rate) for f in (window, 1 / window))
    follows = (above - below) / (2 * np.log(window)) >= elasticity
    if follows[-1]:
        return float("inf")
    return float(at[np.flatnonzero(follows)[-1] + 1]) if follows.any() else 0.0
