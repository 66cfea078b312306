"""The least a client can do: append (time, bytes) to a list, send the next request when an answer has ended.

It checks nothing, parses nothing and keeps nothing on disk: the limit that a load generator in Python on this
event loop can reach, in the same run and on the same machine as the one it is compared with.
"""

import asyncio
import gc
import json
import resource
from time import perf_counter
from typing import cast

import numpy as np
import uvloop


class _Stream(asyncio.Protocol):
    def __init__(self, run: "_Run") -> None:
        self.run = run
        self.log: list[tuple[float, bytes]] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.WriteTransport, transport)

    def data_received(self, data: bytes) -> None:
        self.log.append((perf_counter(), data))
        if data.endswith(b"0\r\n\r\n"):
            self.run.ended(self)

    def send(self) -> None:
        self.log = []
        self.sent = perf_counter()
        self.transport.write(self.run.request)


class _Run:
    def __init__(self, port: int, streams: int, requests: int, input_tokens: int, output_tokens: int) -> None:
        self.port, self.streams, self.left = port, streams, requests
        body = json.dumps(
            {"prompt": list(range(1000, 1000 + input_tokens)), "max_tokens": output_tokens}
        ).encode()
        self.request = (
            b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body) + body
        )
        self.kept: list[tuple[float, list[tuple[float, bytes]]]] = []
        self.active = streams

    def ended(self, stream: _Stream) -> None:
        self.kept.append((stream.sent, stream.log))
        if self.left:
            self.left -= 1
            stream.send()
        else:
            self.active -= 1
            if not self.active:
                self.done.set_result(None)

    async def go(self) -> None:
        loop = asyncio.get_running_loop()
        self.done = loop.create_future()
        made = [
            await loop.create_connection(lambda: _Stream(self), "127.0.0.1", self.port)
            for _ in range(self.streams)
        ]
        gc.disable()
        self.left -= self.streams
        for _, stream in made:
            stream.send()
        await self.done
        gc.enable()


def measure(
    port: int, streams: int, requests: int, input_tokens: int = 512, output_tokens: int = 128
) -> dict[str, float]:
    """Drive a metronome and read the reads: one whole answer has output_tokens + 1 reads or fewer."""
    run = _Run(port, streams, requests, input_tokens, output_tokens)
    before = resource.getrusage(resource.RUSAGE_SELF)
    uvloop.run(run.go())
    after = resource.getrusage(resource.RUSAGE_SELF)
    cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    logs = [(sent, [time for time, data in log if b"data: " in data]) for sent, log in run.kept]
    span = max(times[-1] for _, times in logs) - min(sent for sent, _ in logs)
    return {
        "tok_s": requests * output_tokens / span,
        "ttft_p50_ms": float(np.median([times[0] - sent for sent, times in logs])) * 1e3,
        "itl_p99_ms": float(np.percentile(np.concatenate([np.diff(times) for _, times in logs]), 99)) * 1e3,
        "us_per_token": cpu_s / (requests * output_tokens) * 1e6,
        "kernel_us_per_token": (after.ru_stime - before.ru_stime) / (requests * output_tokens) * 1e6,
    }
