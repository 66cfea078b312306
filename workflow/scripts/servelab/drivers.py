"""How a workload is put on a server: closed loop, open loop, interference. Callbacks only, no task a request.

A driver begins with warm-up requests and goes over to the measured ones through the gate: the moment at which
the server's counters are read. `done` is resolved when every request has ended or was given up.
"""

import asyncio
from collections.abc import Awaitable, Callable
from time import perf_counter

from servelab.exchange import Exchange
from servelab.http_framing import Body
from servelab.schedule import measured_arrivals, slots, warmup_count
from servelab.sender import Sender
from servelab.sse import EventStream, Tally, tally_reads

RETRY_PAUSE_S = 0.02
MAX_RETRY_PAUSE_S = 0.25


class Gate:
    """Between warm-up and measuring: reads the server's counters once, then lets everything through."""

    def __init__(self, before: Callable[[], Awaitable[None]]) -> None:
        self.opened_s: float | None = None
        self._before = before
        self._waiting: list[Callable[[], None]] = []
        self._task: asyncio.Task[None] | None = None

    def ask(self, then: Callable[[], None]) -> None:
        """Call `then` as soon as the gate is open; the first to ask opens it."""
        if self.opened_s is not None:
            then()
            return
        self._waiting.append(then)
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._open())

    async def settled(self) -> None:
        """Wait for a reading that is under way."""
        if self._task is not None:
            await self._task

    async def _open(self) -> None:
        await self._before()
        self.opened_s = perf_counter()
        waiting, self._waiting = self._waiting, []
        for then in waiting:
            then()


class ClosedLoop:
    """Each slot sends its next request when its last one has ended, on the connection that has become free.

    A slot whose request failed pauses before the next (20 ms, doubled up to 250 ms), so that a broken server is
    not hammered. steady_s: from when the last slot began to measure until the first had nothing left to send.
    """

    def __init__(self, sender: Sender, gate: Gate) -> None:
        self.sender, self.gate = sender, gate
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._slots = slots(sender.workload)
        self._warm_left = self._warmups = warmup_count(sender.workload)
        self._sent = 0
        self._first_sent_s: dict[int, float] = {}
        self._idle_from_s: float | None = None
        self._active = self._slots
        self._failures = [0] * self._slots

    def prepare(self) -> None:
        """Build requests ahead."""
        workload = self.sender.workload
        self.sender.build_ahead(workload.requests or max(2 * self._slots, 64))
        self._warm_ahead = [self.sender.build("warmup", i) for i in range(self._warmups)]
        self._warm_ahead.reverse()

    def start(self) -> None:
        """Fill the slots."""
        now = perf_counter()
        begin = min(self._warmups, self._slots) or self._slots
        self._parked = list(range(begin, self._slots))
        for slot in range(begin):
            self._next(slot, now)

    @property
    def steady_s(self) -> tuple[float, float] | None:
        """Begin and end of the time in which every slot was busy; None if there was none."""
        if len(self._first_sent_s) < self._slots or self._idle_from_s is None:
            return None
        begin = max(self._first_sent_s.values())
        return (begin, self._idle_from_s) if self._idle_from_s > begin else None

    def _next(self, slot: int, free_s: float) -> None:
        if self.sender.stopped is not None:
            self._retire(free_s)
        elif self._warm_left:
            self._warm_left -= 1
            self._send(slot, self._warm_ahead.pop(), free_s)
        elif self.gate.opened_s is None:
            self.gate.ask(lambda: self._release(slot))
        elif self._exhausted():
            self._retire(free_s)
        else:
            self._sent += 1
            self._first_sent_s.setdefault(slot, perf_counter())
            self._send(slot, self.sender.next_measured(), free_s)

    def _release(self, slot: int) -> None:
        now = perf_counter()
        parked, self._parked = self._parked, []
        for each in (slot, *parked):
            self._next(each, now)

    def _send(self, slot: int, exchange: Exchange, free_s: float) -> None:
        exchange.slot = slot
        self.sender.send(exchange, free_s, self._ended)

    def _ended(self, exchange: Exchange) -> None:
        slot, now = exchange.slot, exchange.end_s
        assert slot is not None and now is not None
        if exchange.cause is None and exchange.head is not None and exchange.head.status == 200:
            self._failures[slot] = 0
            self._next(slot, now)
            return
        pause = min(RETRY_PAUSE_S * 2.0 ** self._failures[slot], MAX_RETRY_PAUSE_S)
        self._failures[slot] += 1
        if self.sender.stopped is not None:
            self._next(slot, now)
        else:
            asyncio.get_running_loop().call_later(pause, lambda: self._next(slot, perf_counter()))

    def _exhausted(self) -> bool:
        workload = self.sender.workload
        if workload.requests and self._sent >= workload.requests:
            return True
        assert self.gate.opened_s is not None
        return bool(workload.duration_s and perf_counter() - self.gate.opened_s >= workload.duration_s)

    def _retire(self, now: float) -> None:
        self._idle_from_s = now if self._idle_from_s is None else min(self._idle_from_s, now)
        self._active -= 1
        if self.sender.stopped is not None:
            parked, self._parked = self._parked, []
            self._active -= len(parked)
        if self._active <= 0:
            self._finish(now)

    def give_up(self) -> None:
        """End now, whatever is still waited for; the sender has stopped."""
        self._finish(perf_counter())

    def _finish(self, now: float) -> None:
        if self.done.done():
            return
        if self.sender.stopped is not None:
            for index in range(self._sent, self.sender.workload.requests):
                self.sender.not_sent(self.sender.placeholder("measured", index), now)
        self.done.set_result(None)


class OpenLoop:
    """Requests are sent on a schedule, whatever the server does; `RunLimits.max_concurrency` holds back, never drops.

    One request alone warms the shape up, then the schedule's first arrivals are warm-up, so that the measured
    ones meet a server in the middle of its work. Latency counts from the intended start.
    """

    steady_s = None

    def __init__(self, sender: Sender, gate: Gate) -> None:
        self.sender, self.gate = sender, gate
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._warmups = warmup_count(sender.workload)
        random = sender.prompts.generator("arrivals")
        alone = 1 if self._warmups or sender.workload.warmup_requests < 0 else 0
        before, measured = measured_arrivals(sender.workload, random, max(self._warmups - alone, 0))
        self._alone = alone
        self._times = [(time, "warmup") for time in before] + [(time, "measured") for time in measured]
        self._zero = 0.0
        self._at = 0
        self._open = 0
        self._held: list[tuple[Exchange, float]] = []

    def prepare(self) -> None:
        """Build requests ahead."""
        self.sender.build_ahead(sum(role == "measured" for _, role in self._times))
        warmups = self._alone + sum(role == "warmup" for _, role in self._times)
        self._warm = [self.sender.build("warmup", index) for index in reversed(range(warmups))]

    def start(self) -> None:
        """Warm up, then follow the schedule."""
        self.sender.when_stopped(self._finish_if_over)
        if self._alone:
            self.sender.send(self._warm.pop(), perf_counter(), lambda _: self._follow())
        else:
            self._follow()

    def give_up(self) -> None:
        """End now, whatever is still waited for; the sender has stopped."""
        self._open = 0
        self._finish_if_over()

    def _follow(self) -> None:
        if any(role == "warmup" for _, role in self._times):
            self._begin()
        else:
            self.gate.ask(self._begin)

    def _begin(self) -> None:
        self._zero = perf_counter() + 0.01
        self._send_due()

    def _send_due(self) -> None:
        """Send what is due and come back for the next; never early: the last fraction of a timer tick is polled."""
        while self._at < len(self._times) and self.sender.stopped is None:
            time, role = self._times[self._at]
            intended = self._zero + time
            wait = intended - perf_counter()
            if wait > 0:
                loop = asyncio.get_running_loop()
                _ = loop.call_soon(self._send_due) if wait < 0.0005 else loop.call_later(wait, self._send_due)
                return
            self._at += 1
            if role == "measured" and self.gate.opened_s is None:
                self.gate.ask(lambda: None)
            self._send(self._warm.pop() if role == "warmup" else self.sender.next_measured(), intended)
        self._finish_if_over()

    def _send(self, exchange: Exchange, intended: float) -> None:
        limit = self.sender.limits.max_concurrency
        if limit and self._open >= limit:
            self._held.append((exchange, intended))
            return
        self._open += 1
        self.sender.send(exchange, intended, self._ended)

    def _ended(self, exchange: Exchange) -> None:
        self._open -= 1
        if self._held and self.sender.stopped is None:
            self._send(*self._held.pop(0))
        self._finish_if_over()

    def _finish_if_over(self) -> None:
        if (
            self.done.done()
            or self._open
            or (self.sender.stopped is None and (self._held or self._at < len(self._times)))
        ):
            return
        if self.sender.stopped is not None:
            self._give_up_rest()
        self.done.set_result(None)

    def _give_up_rest(self) -> None:
        for exchange, intended in self._held:
            self.sender.not_sent(exchange, intended)
        first = sum(role == "measured" for _, role in self._times[: self._at])
        zero = self._zero or perf_counter()
        rest = [time for time, role in self._times[self._at :] if role == "measured"]
        for index, time in enumerate(rest, first):
            self.sender.not_sent(self.sender.placeholder("measured", index), zero + time)


class TokenWatch:
    """Counts the tokens of one stream while it runs, for workloads that react to them."""

    def __init__(self, on_tokens: Callable[[int], None]) -> None:
        self._on_tokens = on_tokens
        self._body: Body | None = None
        self._stream = EventStream()
        self._tally = Tally()
        self._skip = True

    def __call__(self, exchange: Exchange, data: bytes) -> None:
        """Take one read of the exchange, whose head is known."""
        if exchange.head is None or exchange.head.status != 200:
            return
        if exchange.framed:
            if self._body is None:
                self._body = Body(exchange.head)
                data = b"".join(exchange.reads)[exchange.head.size :]
            data = self._body.feed(data)
        for tokens in tally_reads([(0, data)], self._tally, self._stream):
            self._on_tokens(tokens)


class Interference:
    """One victim decodes while long prompts are inserted one after the other (E7).

    The first is sent when the victim has `insert_after_tokens` tokens, each further one when the one before
    it has its first token (or has failed). A small run of the same shapes warms up. What the victim did not
    live to see is kept as a failed request.
    """

    steady_s = None

    def __init__(self, sender: Sender, gate: Gate) -> None:
        self.sender, self.gate = sender, gate
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._role = ("warmup", "warmup")
        self._to_insert = 0
        self._inserted = 0
        self._open = 0
        self._victim_lives = False

    def prepare(self) -> None:
        """Build the requests."""
        workload = self.sender.workload
        self._ready = [self.sender.build("inserted", i) for i in range(workload.inserted)]
        self._victim = self.sender.build(
            "victim", 0, workload.victim_input_tokens, workload.victim_output_tokens
        )
        short = min(workload.victim_output_tokens, workload.insert_after_tokens + 8)
        self._warm_victim = self.sender.build("warmup", 0, workload.victim_input_tokens, short)
        self._warm_inserted = [self.sender.build("warmup", 1)]

    def start(self) -> None:
        """Warm up, then measure."""
        self.sender.when_stopped(self._finish_if_over)
        if warmup_count(self.sender.workload):
            self._run(self._warm_victim, self._warm_inserted)
        else:
            self.gate.ask(self._measure)

    def give_up(self) -> None:
        """End now, whatever is still waited for; the sender has stopped."""
        self._open = 0
        self._finish_if_over()

    def _measure(self) -> None:
        self._role = ("victim", "inserted")
        if self.sender.stopped is None:
            self._run(self._victim, self._ready)
        else:
            self._finish_if_over()

    def _run(self, victim: Exchange, inserted: list[Exchange]) -> None:
        self._waiting = list(inserted)
        after = max(self.sender.workload.insert_after_tokens, 1)
        fired = False

        def on_tokens(tokens: int) -> None:
            nonlocal fired
            if not fired and tokens >= after:
                fired = True
                self._insert()

        self._victim_lives = True
        victim.watch = TokenWatch(on_tokens)
        self._open += 1
        self.sender.send(victim, perf_counter(), self._victim_ended)

    def _insert(self) -> None:
        if not self._waiting or self.sender.stopped is not None or not self._victim_lives:
            return
        exchange = self._waiting.pop(0)
        fired = False

        def once(tokens: int = 1) -> None:
            nonlocal fired
            if not fired and tokens:
                fired = True
                self._insert()

        def ended(_: Exchange) -> None:
            self._open -= 1
            once()
            self._finish_if_over()

        exchange.watch = TokenWatch(once)
        self._open += 1
        self.sender.send(exchange, perf_counter(), ended)

    def _victim_ended(self, _: Exchange) -> None:
        self._victim_lives = False
        self._open -= 1
        self._finish_if_over()

    def _finish_if_over(self) -> None:
        if self._open or self.done.done():
            return
        stopped = self.sender.stopped is not None
        if self._role[0] == "warmup" and not stopped:
            self.gate.ask(self._measure)
            return
        if self._role[0] == "warmup":
            self.sender.not_sent(self._victim, perf_counter())
            self._waiting = self._ready
        elif self._waiting and not stopped:
            self.sender.stopped = ("cancelled", "the victim ended before this prompt's turn")
        for exchange in self._waiting:
            self.sender.not_sent(exchange, perf_counter())
        self.done.set_result(None)
