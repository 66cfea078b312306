"""The fake server against arithmetic: its scheduler does what its step-time model and vLLM's policy say.

Then the load generator against the fake server's truth. Times are compared as sums and with wide bounds: the
machine is shared.
"""

import asyncio
import itertools
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from fake_server.cache import Blocks
from fake_server.knobs import Knobs
from fake_server.scheduler import Request, Scheduler
from fake_server.truth import prompt_digest, read
from fake_starts import closed, fake_start
from servelab import loadgen, server
from servelab.prompts import PromptSource
from servelab.spec import ServerStart, Workload

STEP_MS = 20.0


class Run:
    """The scheduler without its clock: steps one after the other, each as long as the model says."""

    def __init__(
        self, blocks: int = 101, size: int = 4, seqs: int = 8, budget: int = 64, caching: bool = True
    ) -> None:
        self.knobs = Knobs(step_ms=1.0, prefill_us=10.0, decode_us=100.0)
        self.scheduler = Scheduler(self.knobs, Blocks(blocks, size, caching), seqs, budget)
        self.now = 0.0
        self.steps: list[tuple[int, int]] = []

    def add(self, prompt: list[int], output: int, use_cache: bool = True) -> Request:
        request = Request(prompt, output, lambda count, finished: None, self.now, use_cache)
        self.scheduler.add(request)
        return request

    def step(self) -> None:
        work = self.scheduler.step(self.now)
        prompt_tokens = sum(count for _, count, prefill in work if prefill)
        decoding = sum(1 for _, _, prefill in work if not prefill)
        self.steps.append((prompt_tokens, decoding))
        self.now += self.knobs.step_s(prompt_tokens, decoding)
        self.scheduler.finish(work, self.now)

    def until_done(self, *requests: Request) -> None:
        for _ in range(10_000):
            if all(request.output >= request.max_tokens for request in requests):
                return
            self.step()
        raise AssertionError("the scheduler never came to an end")


def prompt(seed: int, tokens: int) -> list[int]:
    return [int(value) for value in np.random.default_rng(seed).integers(0, 1000, tokens)]


@pytest.fixture
def run() -> Callable[..., Run]:
    return Run


def test_a_lone_request_takes_as_long_as_the_model_says() -> None:
    """32 prompt tokens take one step of 1 + 0.32 ms; each further token a step of 1 + 0.1 ms."""
    made = Run()
    request = made.add(prompt(1, 32), 5)
    made.until_done(request)
    assert request.token_s == pytest.approx([0.00132 + n * 0.0011 for n in range(5)])


def test_a_long_prompt_is_cut_into_chunks_of_the_token_budget() -> None:
    """200 tokens under a budget of 64 take four steps, and a decoding victim gets one token in each of them."""
    made = Run()
    victim = made.add(prompt(1, 8), 40)
    for _ in range(5):
        made.step()
    made.add(prompt(2, 200), 1)
    for _ in range(4):
        made.step()
    assert made.steps[5:9] == [(63, 1), (63, 1), (63, 1), (11, 1)]
    gaps = np.diff(victim.token_s)
    assert gaps[5] == pytest.approx(0.001 + 63 * 10e-6 + 100e-6)


def test_no_more_requests_run_than_max_num_seqs() -> None:
    """The others wait, and start when a place is free."""
    made = Run(seqs=2)
    requests = [made.add(prompt(n, 8), 3) for n in range(5)]
    made.step()
    assert (len(made.scheduler.running), len(made.scheduler.waiting)) == (2, 3)
    made.until_done(*requests)
    assert max(decoding for _, decoding in made.steps) <= 2


def test_capacity_is_blocks_without_the_null_block() -> None:
    """25 blocks of 128 tokens hold 12 requests of 128 + 32 tokens, as the real server does."""
    made = Run(blocks=25, size=128, seqs=64, budget=10_000)
    requests = [made.add(prompt(n, 128), 32) for n in range(16)]
    for _ in range(2):
        made.step()
    assert len(made.scheduler.running) == 12
    made.until_done(*requests)


def test_the_last_to_come_is_preempted_and_computed_again() -> None:
    """When blocks run out the youngest goes back to the head of the queue; every request still gets its tokens."""
    made = Run(blocks=9, size=4, seqs=4, budget=64, caching=False)
    first, second = made.add(prompt(1, 12), 12), made.add(prompt(2, 12), 12)
    made.until_done(first, second)
    assert first.preemptions == 0
    assert second.preemptions >= 1
    assert made.scheduler.counters.preemptions == second.preemptions
    assert (len(first.token_s), len(second.token_s)) == (12, 12)
    assert made.scheduler.blocks.usage == 0.0


def test_a_preempted_request_finds_its_prefix_if_nobody_took_it() -> None:
    """With the prefix cache on, blocks that were not overwritten are found again; queries count it only once."""
    made = Run(blocks=9, size=4, seqs=4, budget=64)
    first, second = made.add(prompt(1, 12), 12), made.add(prompt(2, 12), 12)
    made.until_done(first, second)
    assert second.preemptions >= 1 and second.resumed_cached > 0
    assert made.scheduler.counters.prefix_queries == 24


def test_the_prefix_cache_hits_whole_blocks_but_never_the_whole_prompt() -> None:
    """Of the same 32 tokens again 28 are found (the last is always computed); none with the cache off."""
    for caching, hit in ((True, 28), (False, 0)):
        made = Run(caching=caching)
        first = made.add(prompt(1, 32), 1)
        made.until_done(first)
        again = made.add(prompt(1, 32), 1)
        made.until_done(again)
        assert (first.cached, again.cached) == (0, hit)
        assert made.scheduler.counters.prefix_hits == hit


def test_prompt_logprobs_do_not_read_the_cache() -> None:
    """A request that scores its prompt computes all of it, and is no query."""
    made = Run()
    made.until_done(made.add(prompt(1, 32), 1))
    scoring = made.add(prompt(1, 32), 1, use_cache=False)
    made.until_done(scoring)
    assert scoring.cached == 0
    assert made.scheduler.counters.prefix_queries == 32


def test_blocks_are_neither_lost_nor_doubled() -> None:
    """After a hundred random requests with aborts every usable block is free, once."""
    made = Run(blocks=30, size=4, seqs=6, budget=40)
    rng = np.random.default_rng(7)
    waiting: list[Request] = []
    for number in range(100):
        waiting.append(made.add(prompt(number % 9, int(rng.integers(1, 60))), int(rng.integers(1, 20))))
        for _ in range(int(rng.integers(0, 4))):
            made.step()
        if rng.random() < 0.2:
            victim = waiting.pop(int(rng.integers(len(waiting))))
            if victim.output < victim.max_tokens:
                made.scheduler.abort(victim)
    made.until_done(*waiting)
    pool = made.scheduler.blocks
    assert sorted(pool.free) == list(range(1, 30))
    assert not pool.users
    assert made.scheduler.counters.preemptions > 0


# --- the load generator against the truth
# ---------------------------------------------------------------------


def measured(
    start: ServerStart, workload: Workload, tmp_path: Path
) -> tuple[loadgen.Measurement, list[dict[str, object]]]:
    """(what the load generator saw, what the fake server did, matched by prompt in the measurement's order)."""
    truth = tmp_path / "truth.jsonl"
    source = PromptSource(1, "point", 1000)
    with server.launch(start, tmp_path / "log", tmp_path / "boot") as live:
        seen = loadgen.measure(live.target, workload, source, loadgen.RunLimits(), live.alive)
    done = {line["prompt"]: line for line in read(truth, "request")}
    rows = seen.requests.select(["role", "index"]).to_pylist()
    prompts = [source.prompt(row["role"], row["index"], workload.input_tokens, workload) for row in rows]
    return seen, [done[prompt_digest(int(token) for token in ids)] for ids in prompts]


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> tuple[loadgen.Measurement, list[dict[str, object]]]:
    """Eight slots on a server that runs four at a time, 20 ms a step."""
    tmp_path = tmp_path_factory.mktemp("loaded")
    knobs = {"truth": str(tmp_path / "truth.jsonl"), "step_ms": STEP_MS, "decode_us": 0.0, "prefill_us": 20.0}
    start = fake_start(knobs=knobs, options={"max_num_seqs": 4, "max_num_batched_tokens": 64})
    return measured(start, closed(8, 16, output_tokens=8), tmp_path)


def test_every_token_is_counted(loaded: tuple[loadgen.Measurement, list[dict[str, object]]]) -> None:
    """Requests, tokens and prompts are exactly those that the server dealt with."""
    seen, truth = loaded
    requests: pa.Table = seen.requests
    assert requests.num_rows == 16
    assert requests["ok"].to_pylist() == [True] * 16
    assert [sum(tokens) for tokens in requests["chunk_tokens"].to_pylist()] == [
        t["output_tokens"] for t in truth
    ]
    assert requests["input_tokens"].to_pylist() == [t["prompt_tokens"] for t in truth] == [32] * 16


def test_times_are_the_servers(loaded: tuple[loadgen.Measurement, list[dict[str, object]]]) -> None:
    """No chunk is seen before it was due; half of them within a step; so are the first and last ones."""
    seen, truth = loaded
    rows = seen.requests.to_pylist()
    firsts, lasts, lags = [], [], []
    for row, true in zip(rows, truth, strict=True):
        due = np.array(true["token_s"]) - true["arrived_s"]  # type: ignore[operator]
        got = np.array(row["chunk_s"]) - row["sent_s"]
        assert len(due) == len(got)
        lags += list(got - due)
        firsts.append(got[0] - due[0])
        lasts.append(got[-1] - due[-1])
    assert min(lags) > -0.001
    for kind in (lags, firsts, lasts):
        assert np.median(kind) < STEP_MS / 1000


def test_gaps_have_the_mean_of_the_scripted_step(
    loaded: tuple[loadgen.Measurement, list[dict[str, object]]],
) -> None:
    """Mean ITL is the mean step, whatever single gaps look like on a busy machine."""
    seen, truth = loaded
    got = [list(np.diff(times)) for times in seen.requests["chunk_s"].to_pylist()]
    due = [list(np.diff(line["token_s"])) for line in truth]  # type: ignore[arg-type]
    mean = float(np.mean(list(itertools.chain(*due))))
    assert STEP_MS <= mean * 1000 < 1.4 * STEP_MS
    assert float(np.mean(list(itertools.chain(*got)))) == pytest.approx(mean, rel=0.05)


def test_the_queue_shows_in_the_first_token(
    loaded: tuple[loadgen.Measurement, list[dict[str, object]]],
) -> None:
    """With twice as many slots as places, waiting is the larger part of TTFT, in the truth and as measured."""
    seen, truth = loaded
    waited = np.array([t["scheduled_s"] - t["arrived_s"] for t in truth])  # type: ignore[operator]
    ttft = np.array([row["chunk_s"][0] - row["sent_s"] for row in seen.requests.to_pylist()])
    assert np.median(waited[8:]) > 0.5 * np.median(ttft[8:])


def test_counters_before_and_after_are_the_servers(tmp_path: Path) -> None:
    """Preemptions, queries and hits over the point are those that the scheduler counted."""
    truth = tmp_path / "truth.jsonl"
    knobs = {"truth": str(truth), "step_ms": 0.5}
    start = fake_start(
        knobs=knobs, options={"num_gpu_blocks_override": 13, "block_size": 16, "max_model_len": 128}
    )
    workload = closed(6, 12, output_tokens=30)
    seen, _ = measured(start, workload, tmp_path)
    counters = read(truth, "stop")[0]["counters"]
    for name, key in (("num_preemptions", "preemptions"), ("prefix_cache_queries", "prefix_queries")):
        before, after = (
            server.prometheus.value(seen.metrics[when], f"vllm:{name}_total") for when in ("before", "after")
        )
        assert before is not None and after is not None
        assert after - before == counters[key] > 0


@pytest.mark.slow
def test_an_8_bit_cache_and_a_restart_hold_more(tmp_path: Path) -> None:
    """fp8 doubles the blocks, a restart has more than a first start; the log and /metrics say the same."""
    capacity = {}
    for dtype in ("auto", "fp8"):
        start = fake_start(knobs={"blocks": 100, "first_boot_share": 0.9}, options={"kv_cache_dtype": dtype})
        for boot in ("first", "restart"):
            with server.launch(start, tmp_path / "log", tmp_path / dtype) as live:
                assert live.boot == boot
                capacity[dtype, boot] = live.boot_log.kv_cache_tokens
                assert live.cache_config["kv_cache_size_tokens"] == str(capacity[dtype, boot])
    assert capacity == {
        ("auto", "first"): 1440, ("auto", "restart"): 1600, ("fp8", "first"): 2880, ("fp8", "restart"): 3200,
    }  # fmt: skip


def test_the_alarm_rings_in_time() -> None:
    """Moments half a millisecond apart do not drift: 200 of them take a tenth of a second, not two."""
    from fake_server.clock import Alarm

    async def ring() -> float:
        alarm, loop = Alarm(), asyncio.get_running_loop()
        began = loop.time()
        for number in range(200):
            await alarm.at(began + 0.0005 * (number + 1))
        return loop.time() - began

    assert 0.1 <= asyncio.run(ring()) < 0.2
