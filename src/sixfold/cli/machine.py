"""What this machine is and what it can do: for `doctor`, which names it, and `bench`, which compares with it."""

from __future__ import annotations

import os
import platform
import threading
import time
from pathlib import Path

__all__ = ["cores_allowed", "cpu_name", "measured_limits", "memory_bytes"]

READ_BYTES = 256 << 20
"""Larger than any last-level cache, so that reading it is reading memory."""
READ_ROUNDS = 4


def cpu_name() -> str:
    """The processor's own name, or the architecture where the kernel does not tell."""
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.machine()


def cores_allowed() -> tuple[int, float | None]:
    """Cores that this process may use, and the share of them that its control group grants (None: no limit)."""
    cores = len(os.sched_getaffinity(0))
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
    except (OSError, ValueError):
        return cores, None
    return cores, None if quota == "max" else int(quota) / int(period)


def memory_bytes() -> tuple[int, int]:
    """(total, available without swapping)."""
    entries = {}
    for line in Path("/proc/meminfo").read_text().splitlines():
        name, _, rest = line.partition(":")
        entries[name] = int(rest.split()[0]) * 1024
    return entries["MemTotal"], entries["MemAvailable"]


def measured_limits(threads: int) -> dict[str, float | None]:
    """Best of several rounds, measured now: other work on the machine lowers them as it lowers the rest."""
    return {"memory_read_gb_s": round(_memory_read(threads), 1)}


def _memory_read(threads: int) -> float:
    """GB/s at which `threads` threads together read a buffer that fits no cache."""
    import numpy as np

    parts = np.array_split(np.ones(READ_BYTES // 8, np.uint64), threads)
    best = 0.0
    for _ in range(READ_ROUNDS):
        # NumPy's reduction releases the GIL and is limited by memory, not by its arithmetic.
        workers = [threading.Thread(target=np.bitwise_or.reduce, args=(part,)) for part in parts]
        started = time.perf_counter()
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        best = max(best, READ_BYTES / (time.perf_counter() - started) / 1e9)
    return best
