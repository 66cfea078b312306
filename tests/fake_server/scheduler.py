"""The scripted scheduler: vLLM's policy, a step-time model whose outcome can be calculated, real time.

Running requests are served first, in order of arrival, one token each if they decode or the rest of their
prompt as far as the step's token budget goes; where blocks run out the last one is preempted and computed
again later. Then waiting ones enter, as long as nobody was preempted in this step. A step ends after
Knobs.step_s, measured from the
end of the one before if the scheduler was busy: no drift.
"""

import asyncio
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from fake_server.cache import Blocks
from fake_server.clock import Alarm
from fake_server.knobs import Knobs


@dataclass(eq=False)
class Request:
    """One sequence. token_s: when each output token was due. on_token(count, finished) is called then."""

    prompt: list[int]
    max_tokens: int
    on_token: Callable[[int, bool], None]
    arrived_s: float
    use_cache: bool = True
    computed: int = 0
    output: int = 0
    blocks: list[int] = field(default_factory=list)
    hashes: list[int] = field(default_factory=list)
    kept: int = 0
    cached: int | None = None
    resumed_cached: int = 0
    preemptions: int = 0
    scheduled_s: float | None = None
    token_s: list[float] = field(default_factory=list)
    stalled: bool = False

    @property
    def length(self) -> int:
        """Prompt and output so far."""
        return len(self.prompt) + self.output

    def tokens(self) -> list[int]:
        """The sequence; output tokens are made up from their place, different for each prompt."""
        seed = hash(tuple(self.prompt[-4:])) & 0xFFFF
        return self.prompt + [-1 - seed - n for n in range(self.output)]


@dataclass
class Counters:
    """What /metrics counts."""

    preemptions: int = 0
    prefix_queries: int = 0
    prefix_hits: int = 0
    prompt_tokens: int = 0
    generation_tokens: int = 0
    finished: int = 0
    aborted: int = 0
    steps: int = 0


class Scheduler:
    """Runs steps as long as there is something to do."""

    def __init__(self, knobs: Knobs, blocks: Blocks, max_num_seqs: int, budget: int) -> None:
        self.knobs = knobs
        self.blocks = blocks
        self.max_num_seqs = max_num_seqs
        self.budget = budget
        self.waiting: deque[Request] = deque()
        self.running: list[Request] = []
        self.counters = Counters()
        self.halted = False
        self.wake = asyncio.Event()
        self.on_step: Callable[[int, list[tuple[int, bool]]], None] | None = None

    def add(self, request: Request) -> None:
        """A new request joins the queue."""
        request.hashes = self.blocks.hashes(request.prompt) if request.use_cache else []
        self.waiting.append(request)
        self.wake.set()

    def abort(self, request: Request) -> None:
        """The client has gone, or a fault ended it."""
        if request in self.waiting:
            self.waiting.remove(request)
        elif request in self.running:
            self.running.remove(request)
            self._release(request)
        else:
            return
        self.counters.aborted += 1

    async def run(self) -> None:
        """Steps for ever."""
        alarm = Alarm()
        due = time.monotonic()
        while True:
            while self.halted or not (self.waiting or any(not r.stalled for r in self.running)):
                self.wake.clear()
                await self.wake.wait()
                due = time.monotonic()
            now = time.monotonic()
            work = self.step(now)
            prompt_tokens = sum(count for request, count, prefill in work if prefill)
            decoding = sum(1 for _, _, prefill in work if not prefill)
            due = due + self.knobs.step_s(prompt_tokens, decoding)
            await alarm.at(due)
            self.finish(work, due)
            if not work:  # nothing fits: every running request stalls
                await asyncio.sleep(0.001)

    def step(self, now: float) -> list[tuple[Request, int, bool]]:
        """Choose the work of one step: (request, tokens, whether it is prompt work)."""
        left = self.budget
        work: list[tuple[Request, int, bool]] = []
        preempted = False
        at = 0
        while at < len(self.running) and left > 0:
            request = self.running[at]
            at += 1
            if request.stalled:
                continue
            count = min(request.length - request.computed, left)
            while not self._room(request, count):
                victim = self.running.pop()
                self._preempt(victim)
                preempted = True
                work = [entry for entry in work if entry[0] is not victim]
                if victim is request:
                    break
            else:
                work.append(
                    (
                        request,
                        count,
                        request.computed + count < request.length or request.output == 0 or count > 1,
                    )
                )
                left -= count
        while self.waiting and not preempted and left > 0 and len(self.running) < self.max_num_seqs:
            entered = self._enter(self.waiting[0], left, now)
            if entered == 0:
                break
            work.append((self.waiting[0], entered, True))
            self.running.append(self.waiting.popleft())
            left -= entered
        return work

    def finish(self, work: list[tuple[Request, int, bool]], due: float) -> None:
        """A step's end: tokens computed, full blocks kept, output tokens out."""
        self.counters.steps += 1
        if self.on_step is not None:  # tokens of each request, and whether it has no output yet
            self.on_step(self.counters.steps, [(count, request.output == 0) for request, count, _ in work])
        for request, count, _ in work:
            if request not in self.running:
                continue  # aborted while the step ran
            request.computed += count
            self._keep_full_blocks(request)
            if request.computed < request.length:
                continue
            request.output += 1
            request.token_s.append(due)
            self.counters.generation_tokens += 1
            if request.output == 1:
                self.counters.prompt_tokens += len(request.prompt)
            finished = request.output >= request.max_tokens
            if finished:
                self.running.remove(request)
                self._release(request)
                self.counters.finished += 1
            request.on_token(request.output, finished)

    def _enter(self, request: Request, left: int, now: float) -> int:
        """Prompt tokens of a waiting request that this step computes; 0 if it does not fit."""
        most = (request.length - 1) // self.blocks.size
        hits = self.blocks.cached(request.hashes, most) if request.use_cache else []
        done = len(hits) * self.blocks.size
        count = min(request.length - done, left)
        if not self.blocks.room(self.blocks.needed(done + count) - len(hits), hits):
            return 0
        self.blocks.use(hits)
        fresh = self.blocks.take(self.blocks.needed(done + count) - len(hits))
        assert fresh is not None
        request.blocks = hits + fresh
        request.computed = done
        request.kept = len(hits)
        if request.cached is None:
            request.cached, request.scheduled_s = done, now
            if request.use_cache and self.blocks.caching:
                self.counters.prefix_queries += request.length
                self.counters.prefix_hits += done
        else:
            request.resumed_cached += done
        return count

    def _room(self, request: Request, count: int) -> bool:
        fresh = self.blocks.take(self.blocks.needed(request.computed + count) - len(request.blocks))
        if fresh is None:
            return False
        request.blocks += fresh
        return True

    def _preempt(self, request: Request) -> None:
        self._release(request)
        request.computed = 0
        request.preemptions += 1
        request.hashes = self.blocks.hashes(request.tokens()) if request.use_cache else []
        self.counters.preemptions += 1
        self.waiting.appendleft(request)

    def _release(self, request: Request) -> None:
        self.blocks.give_back(request.blocks)
        request.blocks = []
        request.kept = 0

    def _keep_full_blocks(self, request: Request) -> None:
        full = request.computed // self.blocks.size
        if full <= request.kept or not request.use_cache:
            return
        if len(request.hashes) < full:
            request.hashes = self.blocks.hashes(request.tokens())
        for at in range(request.kept, full):
            self.blocks.keep(request.blocks[at], request.hashes[at])
        request.kept = full
