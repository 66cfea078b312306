"""The machine a measurement was made on, and what else it was busy with: read from /proc, /sys and NVML.

Everything here is looked up where it is there and left out where it is not; nothing is assumed.
"""

import os
import platform
import shutil
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from servelab import nvml, processes
from servelab.canonical import digest

CPUS = Path("/sys/devices/system/cpu")
POWERCAP = Path("/sys/class/powercap")
CGROUP = Path("/sys/fs/cgroup")
GPU_MEMORY_TOLERANCE_BYTES = 256 << 20
_NVIDIA_FIELDS = (
    "name",
    "uuid",
    "memory.total",
    "driver_version",
    "power.limit",
    "clocks.max.sm",
    "mig.mode.current",
)


def facts() -> dict[str, Any]:
    """For PointMeta.machine. `id`: digest of the hardware (CPU, cores, memory, GPUs), not of its name."""
    cpu = _cpu()
    memory = _memory_bytes()
    gpus = _nvidia()
    hardware = {
        "cpu": cpu.get("model", platform.machine()),
        "cores": cpu.get("cores", 0),
        "threads": os.cpu_count() or 0,
        "memory_gib": round(memory / (1 << 30)),
        "gpus": [gpu.get("uuid", gpu.get("name", "")) for gpu in gpus],
    }
    for gpu in gpus:
        gpu.pop("uuid", None)
    return {
        "id": digest(hardware, 16),
        "cpu": hardware["cpu"],
        "cores": hardware["cores"],
        "threads": hardware["threads"],
        "threads_usable": len(os.sched_getaffinity(0)),
        "cpu_quota": _cpu_quota(),
        "cpu_features": cpu.get("features", []),
        "governor": _text(CPUS / "cpu0/cpufreq/scaling_governor"),
        "numa_nodes": len(list(Path("/sys/devices/system/node").glob("node[0-9]*"))),
        "memory_bytes": memory,
        "accelerators": gpus,
        "os": _os_name(),
        "kernel": platform.release(),
        "python": platform.python_version(),
    }


@dataclass
class _Reading:
    at: float
    busy_s: float
    steal_s: float
    cpu_s: dict[tuple[int, int], float]
    reaped_s: dict[tuple[int, int], float]
    names: dict[tuple[int, int], str]
    table: list[processes.Process]
    rapl: dict[str, tuple[float, float]]
    gpus: list[nvml.Reading]
    throttled: dict[str, float]


@dataclass
class Watch:
    """What else the machine did between start and stop. Two readings, nothing in between: it loads nothing.

    ours: pids of the server and what it has started, asked at both ends. This process and all that it has
    started are the measurement's own as well, also what ends in between (a compiler that the server calls);
    everything else is foreign.
    """

    ours: Callable[[], set[int]]
    first: _Reading | None = field(default=None, repr=False)
    own_at_first: set[int] = field(default_factory=set, repr=False)

    def start(self) -> "Watch":
        """Take the first reading."""
        self.first = _read()
        self.own_at_first = self._own(self.first)
        return self

    def _own(self, reading: _Reading) -> set[int]:
        mine = os.getpid()
        return {
            mine,
            *self.ours(),
            *(each.pid for each in processes.descendants(mine, reading.table)),
        }

    def stop(self) -> dict[str, Any]:
        """What happened since start, for PointMeta.machine: plain values, a reading that is not there left out.

        foreign_cpus: CPUs that other processes kept busy on average; foreign_top: the busiest of them (name,
        CPUs);
        steal_cpus: CPUs the hypervisor took; throttled: what was slowed down and how often; energy_j: by
        source.
        """
        assert self.first is not None, "start() comes first"
        before, after = self.first, _read()
        wall_s = max(after.at - before.at, 1e-9)
        ours = self._own(after)
        own_after = {key for key in after.cpu_s if key[0] in ours}
        own_before = {key for key in before.cpu_s if key[0] in self.own_at_first or key in own_after}
        ours_s = _seconds(after, own_after) - _seconds(before, own_before)
        foreign = {
            key: s - before.cpu_s.get(key, 0.0)
            for key, s in after.cpu_s.items()
            if key[0] not in ours and key in before.cpu_s
        }
        top = sorted(foreign.items(), key=lambda item: -item[1])[:3]
        energy = _energy(before, after)
        return {
            "wall_s": wall_s,
            "foreign_cpus": max(after.busy_s - before.busy_s - ours_s, 0.0) / wall_s,
            "foreign_top": [[after.names[key], round(s / wall_s, 3)] for key, s in top if s / wall_s >= 0.01],
            "steal_cpus": (after.steal_s - before.steal_s) / wall_s,
            "throttled": _throttled(before, after),
            **({"energy_j": energy} if energy else {}),
        }


def _seconds(reading: _Reading, keys: set[tuple[int, int]]) -> float:
    """Processor time of these processes up to now, of what they have waited for too.

    A process that ends is counted on by whoever waited for it, so that the difference of two readings has all the
    time that was spent in between, and none twice: as long as that is one of ours, which the supervisor sees to.
    """
    return sum(reading.cpu_s[key] + reading.reaped_s[key] for key in keys)


def gpu_memory_used() -> dict[int, int]:
    """Bytes in use on each GPU; {} without GPUs."""
    return {gpu.index: gpu.memory_used_bytes for gpu in nvml.readings()}


def wait_for_gpu_memory(before: dict[int, int], within_s: float) -> bool:
    """Wait until each GPU's memory is back to what it was, about. False if it is not in time."""
    deadline = time.monotonic() + within_s
    while True:
        now = gpu_memory_used()
        if all(now.get(index, 0) <= used + GPU_MEMORY_TOLERANCE_BYTES for index, used in before.items()):
            return True
        if time.monotonic() > deadline:
            return False
        time.sleep(0.2)


def _read() -> _Reading:
    tick = os.sysconf("SC_CLK_TCK")
    table = processes.everyone()
    words = Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]
    user, nice, system, _idle, _iowait, irq, softirq, steal = (int(word) for word in words[:8])
    return _Reading(
        at=time.monotonic(),
        busy_s=(user + nice + system + irq + softirq) / tick,
        steal_s=steal / tick,
        cpu_s={(each.pid, each.started): each.cpu_ticks / tick for each in table},
        reaped_s={(each.pid, each.started): each.reaped_ticks / tick for each in table},
        names={(each.pid, each.started): each.name for each in table},
        table=table,
        rapl=_rapl(),
        gpus=nvml.readings(),
        throttled=_throttle_counters(),
    )


def _rapl() -> dict[str, tuple[float, float]]:
    """Joules and the counter's range of each CPU package (top-level powercap zones); {} where unreadable."""
    found: dict[str, tuple[float, float]] = {}
    for zone in sorted(POWERCAP.glob("intel-rapl:[0-9]*")):
        if zone.name.count(":") != 1:
            continue
        energy, reach = _text(zone / "energy_uj"), _text(zone / "max_energy_range_uj")
        if energy and reach:
            found[_text(zone / "name") or zone.name] = (float(energy) / 1e6, float(reach) / 1e6)
    return found


def _energy(before: _Reading, after: _Reading) -> dict[str, float]:
    found: dict[str, float] = {}
    for name, (joules, reach) in after.rapl.items():
        if name in before.rapl:
            spent = joules - before.rapl[name][0]
            found[name] = spent if spent >= 0 else spent + reach  # the counter wraps
    earlier = {gpu.index: gpu.energy_j for gpu in before.gpus}
    for gpu in after.gpus:
        start = earlier.get(gpu.index)
        if gpu.energy_j is not None and start is not None:
            found[f"gpu-{gpu.index}"] = gpu.energy_j - start
    return found


def _throttle_counters() -> dict[str, float]:
    """Counters that grow when something slows the CPU down."""
    found: dict[str, float] = {}
    counts = [_text(path) for path in CPUS.glob("cpu[0-9]*/thermal_throttle/core_throttle_count")]
    if any(counts):
        found["cpu thermal events"] = float(sum(int(count) for count in counts if count))
    for line in (_text(CGROUP / "cpu.stat") or "").splitlines():
        name, _, value = line.partition(" ")
        if name == "throttled_usec":
            found["cpu quota throttled_s"] = float(value) / 1e6
    return found


def _throttled(before: _Reading, after: _Reading) -> dict[str, float]:
    found = {
        name: value - before.throttled[name]
        for name, value in after.throttled.items()
        if name in before.throttled and value > before.throttled[name]
    }
    for gpu in (*before.gpus, *after.gpus):
        for reason in gpu.slowed:
            found[f"gpu-{gpu.index} {reason}"] = 1.0
    return found


def _cpu() -> dict[str, Any]:
    """Model, physical cores and the instruction sets that matter for matrix products."""
    cores: set[tuple[str, str]] = set()
    model, flags, package = "", "", ""
    for line in Path("/proc/cpuinfo").read_text(errors="replace").splitlines():
        name, _, value = (part.strip() for part in line.partition(":"))
        if name == "model name":
            model = value
        elif name == "physical id":
            package = value
        elif name == "core id":
            cores.add((package, value))
        elif name in ("flags", "Features"):
            flags = value
    wanted = (
        "avx2",
        "avx512f",
        "avx512_vnni",
        "avx512_bf16",
        "amx_tile",
        "amx_bf16",
        "amx_int8",
        "asimd",
        "sve",
        "bf16",
        "i8mm",
    )
    present = set(flags.split())
    found: dict[str, Any] = {
        "cores": len(cores) or os.cpu_count() or 0,
        "features": [f for f in wanted if f in present],
    }
    if model:
        found["model"] = model
    return found


def _memory_bytes() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _cpu_quota() -> float | None:
    """CPUs that the container may use at most; None without a limit."""
    limit, _, period = (_text(CGROUP / "cpu.max") or "max").partition(" ")
    return None if limit == "max" or not period else int(limit) / int(period)


def _nvidia() -> list[dict[str, str]]:
    """What nvidia-smi says about each GPU; [] where there is none."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return []
    command = [program, f"--query-gpu={','.join(_NVIDIA_FIELDS)}", "--format=csv,noheader"]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=30, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return []
    rows = [[cell.strip() for cell in line.split(",")] for line in answer.splitlines() if line.strip()]
    return [dict(zip((f.replace(".", "_") for f in _NVIDIA_FIELDS), row, strict=False)) for row in rows]


def _os_name() -> str:
    try:
        return platform.freedesktop_os_release().get("PRETTY_NAME", platform.system())
    except OSError:
        return platform.system()


def _text(path: Path) -> str | None:
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return None
