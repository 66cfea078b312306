"""Waking at a moment, finer than the event loop's own timers (epoll counts whole milliseconds)."""

import asyncio
import ctypes
import os
import struct
import time

_CLOCK_MONOTONIC = 1
_ABSOLUTE = 1
_NON_BLOCKING = os.O_NONBLOCK


class Alarm:
    """A kernel timer on CLOCK_MONOTONIC as something to await."""

    def __init__(self) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._handle = self._libc.timerfd_create(_CLOCK_MONOTONIC, _NON_BLOCKING)
        if self._handle < 0:
            raise OSError(ctypes.get_errno(), "timerfd_create")
        self._ring = asyncio.Event()
        asyncio.get_running_loop().add_reader(self._handle, self._rung)

    async def at(self, moment: float) -> None:
        """Return at this moment of time.monotonic(), or at once (letting others run) if it has passed."""
        if moment <= time.monotonic():
            await asyncio.sleep(0)
            return
        self._ring.clear()
        seconds = int(moment)
        spec = struct.pack("qqqq", 0, 0, seconds, int((moment - seconds) * 1e9))
        self._libc.timerfd_settime(self._handle, _ABSOLUTE, spec, None)
        await self._ring.wait()

    def _rung(self) -> None:
        os.read(self._handle, 8)
        self._ring.set()
