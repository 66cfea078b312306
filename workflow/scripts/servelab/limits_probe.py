"""What a device can do: floating-point operations and bytes a second, as JSON on standard output.

Run by path in the server's own environment (needs torch, nothing of servelab): the same matrix library and
the same threads as the server has. Limits are the best of several tries: a try that something disturbs is too
slow, none is too fast.
"""

import argparse
import json
import os
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch

SIZES = {"cpu": (256, 512, 1024, 2048), "cuda": (4096, 8192)}
COPY_BYTES = {"cpu": 512 << 20, "cuda": 2 << 30}
CACHES = Path("/sys/devices/system/cpu/cpu0/cache")


def best_seconds(device: str, work: Callable[[], object], budget_s: float) -> float:
    """Shortest time of one call within a budget of seconds; one call is made whatever it takes.

    On a CPU the time of all threads together, shared evenly among them, if that is less than the wall's.
    """
    threads = torch.get_num_threads()
    best, began = float("inf"), time.perf_counter()
    while best == float("inf") or time.perf_counter() - began < budget_s:
        start, cpu_start = time.perf_counter(), time.process_time()
        work()
        synchronise(device)
        wall_s, cpu_s = time.perf_counter() - start, time.process_time() - cpu_start
        best = min(best, wall_s, cpu_s / threads if device == "cpu" and cpu_s > 0 else wall_s)
    return best


def synchronise(device: str) -> None:
    """Wait until the device has done what it was given."""
    if device == "cuda":
        torch.cuda.synchronize()


def matrix_products(device: str, names: list[str], budget_s: float) -> dict[str, float]:
    """FLOP/s of square matrix products (2 n³ operations), the best size for each dtype that the device takes."""
    found: dict[str, float] = {}
    for name in names:
        for size in SIZES[device]:
            left = torch.randn(size, size, device=device).to(getattr(torch, name))
            right = torch.randn(size, size, device=device).to(getattr(torch, name))
            seconds = best_seconds(device, partial(torch.matmul, left, right), budget_s)
            found[name] = max(found.get(name, 0.0), 2.0 * size**3 / seconds)
            if seconds > budget_s / 8:  # the next size takes eight times as long
                break
    return found


def memory_rates(device: str, budget_s: float) -> dict[str, float]:
    """Bytes a second of a large copy (read and written) and of reading alone (a sum)."""
    count = COPY_BYTES[device] // 4
    source = torch.ones(count, dtype=torch.float32, device=device)
    target = torch.empty_like(source)
    copied = best_seconds(device, lambda: target.copy_(source), budget_s)
    read = best_seconds(device, source.sum, budget_s)
    return {"copy": 2.0 * 4 * count / copied, "read": 4.0 * count / read}


def cache_bytes(device: str) -> float:
    """What the last-level cache may hold: of one CPU package, or of the GPU; 0 if the system does not say."""
    if device == "cuda":
        return float(getattr(torch.cuda.get_device_properties(0), "L2_cache_size", 0))
    sizes = [0.0]
    for entry in CACHES.glob("index*/size"):
        text = entry.read_text().strip()
        factor = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}.get(text[-1:], 0)
        if factor and text[:-1].isdigit():
            sizes.append(float(text[:-1]) * factor)
    return max(sizes)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", choices=("cpu", "cuda"), required=True)
    parser.add_argument(
        "--dtype", action="append", default=[], help="torch dtype; may be given several times"
    )
    parser.add_argument("--budget-seconds", type=float, default=1.5, help="for each size and dtype")
    arguments = parser.parse_args()
    names = arguments.dtype or ["bfloat16", "float32"]
    rates = matrix_products(arguments.device, names, arguments.budget_seconds)
    memory = memory_rates(arguments.device, arguments.budget_seconds)
    answer: dict[str, Any] = {
        "flops": max(rates.values()),
        "bytes_per_s": max(memory.values()),
        "cache_bytes": cache_bytes(arguments.device),
        "flops_by_dtype": rates,
        "bytes_per_s_by_kind": memory,
        "threads": torch.get_num_threads(),
        "cpus": len(os.sched_getaffinity(0)),
        "torch": torch.__version__,
        "device": torch.cuda.get_device_name(0) if arguments.device == "cuda" else "cpu",
    }
    print(json.dumps(answer))


if __name__ == "__main__":
    main()
