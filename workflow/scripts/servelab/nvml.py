"""What NVIDIA's management library says about the GPUs, through ctypes: no process is started for a reading.

Functions and units: NVML API reference (nvmlDeviceGetTotalEnergyConsumption: mJ since the driver was loaded;
nvmlDeviceGetMemoryInfo: bytes; nvmlDeviceGetCurrentClocksEventReasons: bit mask).
"""

import ctypes
from dataclasses import dataclass
from functools import cache

# Reasons that mean «slower than it could be» (nvml.h: nvmlClocksEventReason…); idle and application settings
# do not.
SLOWED = {
    0x0004: "power cap",
    0x0008: "hardware slowdown",
    0x0020: "software thermal slowdown",
    0x0040: "hardware thermal slowdown",
    0x0080: "hardware power brake",
}


class _Memory(ctypes.Structure):
    _fields_ = [("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong)]


@dataclass(frozen=True)
class Reading:
    """One GPU now. energy_j: since the driver was loaded, None where the GPU does not count it."""

    index: int
    memory_used_bytes: int
    energy_j: float | None
    slowed: tuple[str, ...]


@cache
def _library() -> ctypes.CDLL | None:
    """The library, initialised; None on a machine without it."""
    try:
        library = ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        return None
    return library if library.nvmlInit_v2() == 0 else None


def readings() -> list[Reading]:
    """All GPUs that can be seen; [] on a machine without NVIDIA GPUs."""
    library = _library()
    count = ctypes.c_uint()
    if library is None or library.nvmlDeviceGetCount_v2(ctypes.byref(count)) != 0:
        return []
    return [found for index in range(count.value) if (found := _reading(library, index)) is not None]


def _reading(library: ctypes.CDLL, index: int) -> Reading | None:
    device = ctypes.c_void_p()
    if library.nvmlDeviceGetHandleByIndex_v2(ctypes.c_uint(index), ctypes.byref(device)) != 0:
        return None
    memory = _Memory()
    if library.nvmlDeviceGetMemoryInfo(device, ctypes.byref(memory)) != 0:
        return None
    energy = ctypes.c_ulonglong()
    counted = library.nvmlDeviceGetTotalEnergyConsumption(device, ctypes.byref(energy)) == 0
    reasons = ctypes.c_ulonglong()
    ask = getattr(library, "nvmlDeviceGetCurrentClocksThrottleReasons", None)
    known = ask is not None and ask(device, ctypes.byref(reasons)) == 0
    return Reading(
        index=index,
        memory_used_bytes=int(memory.used),
        energy_j=energy.value / 1000 if counted else None,
        slowed=tuple(name for bit, name in SLOWED.items() if known and reasons.value & bit),
    )
