"""What this machine is and what it can do: for `doctor`, which names it, and `bench`, which compares with it."""

from __future__ import annotations

import os
import platform
from pathlib import Path

__all__ = ["cores_allowed", "cpu_name", "measured_limits", "memory_bytes"]


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


def measured_limits(threads: int) -> dict[str, float]:
    """Best of a few rounds with the kernels' own threads: other work on the machine lowers it as it lowers the rest."""
    from sixfold.executor.native import kernels

    limits = kernels.measure_limits(kernels.ThreadPool(threads))
    return {
        "memory_read_gb_s": round(limits.bytes_read_per_s / 1e9, 1),
        "int8_gmac_s": round(limits.int8_macs_per_s / 1e9, 1),
    }
