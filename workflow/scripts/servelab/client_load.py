"""What the load generator knows of itself: how late its event loop runs and how much CPU it takes.

Lag is the time from when a timer was due to when its callback ran, sampled every 10 ms, at the resolution of
the event loop's timers (1 ms): what a read waits before it is stamped. `run_delay_s` is what the kernel says
the main thread waited for a CPU (/proc/self/schedstat): on a machine shared with the server it tells a slow
client from a crowded one.
"""

import resource
import time
from array import array
from pathlib import Path

import numpy as np

# From here on the client, not the server, may be what limits a point.
BUSY_SHARE_LIMIT = 0.8
LAG_P99_LIMIT_MS = 10.0


class ClientLoad:
    """Collects over the hot phase, from `start` to `stop`."""

    def __init__(self) -> None:
        self._lags: array[float] = array("d")
        self._begin: tuple[float, float, float, int, float] | None = None
        self._end: tuple[float, float, float, int, float] | None = None

    def start(self) -> None:
        """The hot phase begins."""
        self._begin = _now()

    def lag(self, seconds: float) -> None:
        """One sample of lateness."""
        self._lags.append(seconds)

    def stop(self) -> None:
        """The hot phase is over; said again, it ended when it was said first."""
        if self._end is None:
            self._end = _now()

    def figures(self, tokens: int, send_lags_s: "array[float]") -> dict[str, float]:
        """PointMeta.client: cpu_s (of it cpu_system_s in the kernel), wall_s, busy_share, run_delay_s,
        preempted, lag_*_ms, send_lag_*_ms, tokens, us_per_token, limited (1 if the client may have been the
        limit).

        tokens: output tokens received in the hot phase. send_lags_s: sent − intended of open-loop requests.
        """
        begin = self._begin or _now()
        end = self._end or _now()
        wall_s, cpu_s = end[0] - begin[0], end[1] - begin[1]
        figures = {
            "cpu_s": cpu_s,
            "cpu_system_s": end[4] - begin[4],
            "wall_s": wall_s,
            "busy_share": cpu_s / wall_s if wall_s > 0 else 0.0,
            "run_delay_s": end[2] - begin[2],
            "preempted": float(end[3] - begin[3]),
            "tokens": float(tokens),
            **_percentiles("lag", self._lags),
            **_percentiles("send_lag", send_lags_s),
        }
        if tokens:
            figures["us_per_token"] = cpu_s / tokens * 1e6
        late = figures.get("lag_p99_ms", 0.0) >= LAG_P99_LIMIT_MS
        figures["limited"] = float(late or figures["busy_share"] >= BUSY_SHARE_LIMIT)
        return figures


def _percentiles(name: str, values: "array[float]") -> dict[str, float]:
    if not values:
        return {}
    ms = np.frombuffer(values) * 1e3
    p50, p99 = np.percentile(ms, [50, 99])
    return {f"{name}_p50_ms": float(p50), f"{name}_p99_ms": float(p99), f"{name}_max_ms": float(ms.max())}


def _now() -> tuple[float, float, float, int, float]:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return time.perf_counter(), time.process_time(), _run_delay_s(), usage.ru_nivcsw, usage.ru_stime


def _run_delay_s() -> float:
    try:
        return int(Path("/proc/self/schedstat").read_text(encoding="ascii").split()[1]) / 1e9
    except (OSError, IndexError, ValueError):
        return 0.0
