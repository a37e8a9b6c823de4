"""How much memory may still be taken: the least of what the system, control groups and limits of the process leave.

system           MemAvailable; where the system does not overcommit, CommitLimit - Committed_AS, too
control groups   of this process's group and of each above it: limit - used + page cache, which gives way
process          RLIMIT_AS and RLIMIT_DATA (`ulimit -v`, `ulimit -d`)
"""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

__all__ = ["FreeMemory", "free_memory"]

_NEVER_OVERCOMMIT = 2
"""Of /proc/sys/vm/overcommit_memory."""
_ADDRESSES = 192 << 20
"""Of addresses alone: memory that is taken in whole chunks, stacks, what allocators set aside."""


class FreeMemory(NamedTuple):
    """Bytes that may be taken, and who says so."""

    n_bytes: int
    source: str = "free"
    """Completes "1.2 GB are ..."."""


def free_memory(n_mapped: int = 0, n_elsewhere: int = 0, root: Path = Path("/")) -> FreeMemory:
    """What may be taken without swapping.

    Args:
        n_mapped: bytes of files that will be mapped: they take addresses, not memory.
        n_elsewhere: bytes that other processes will take: this one's limits do not count them.
        root: where /proc and /sys are.
    """
    limits = [free._replace(n_bytes=free.n_bytes + n_elsewhere) for free in _of_process(root, n_mapped)]
    found = [*_of_system(root), *_of_groups(root), *limits]
    least = min(found, key=lambda free: free.n_bytes)
    return least._replace(n_bytes=max(0, least.n_bytes))


def _of_system(root: Path) -> Iterator[FreeMemory]:
    info = _sizes(root / "proc/meminfo")
    yield FreeMemory(info.get("MemAvailable", os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")))
    if _number(root / "proc/sys/vm/overcommit_memory") == _NEVER_OVERCOMMIT:
        left = info.get("CommitLimit", 0) - info.get("Committed_AS", 0) - _ADDRESSES
        yield FreeMemory(left, "left of what the system promises (vm.overcommit_memory)")


def _of_groups(root: Path) -> Iterator[FreeMemory]:
    """Version 2 of control groups, or version 1, whose numbers have other names."""
    mount = root / "sys/fs/cgroup"
    two = (mount / "cgroup.controllers").exists()
    for line in _lines(root / "proc/self/cgroup"):
        _, controllers, path = line.split(":", 2)
        if two and not controllers:
            yield from _of_hierarchy(mount, path, ("memory.max", "memory.high"), "memory.current", "")
        elif not two and "memory" in controllers.split(","):
            yield from _of_hierarchy(
                mount / "memory", path, ("memory.limit_in_bytes",), "memory.usage_in_bytes", "total_"
            )


def _of_hierarchy(mount: Path, path: str, limits: tuple[str, ...], used: str, prefix: str) -> Iterator[FreeMemory]:
    group = mount / path.strip("/")
    if ".." in path or not group.is_dir():
        group = mount  # inside a container its own group is the top, whatever the path says
    for folder in (group, *group.parents):
        if folder == mount.parent:
            return
        stat = _sizes(folder / "memory.stat", unit=1)
        cache = sum(stat.get(f"{prefix}{kind}_file", 0) for kind in ("active", "inactive"))
        for name in limits:
            limit, n_used = _number(folder / name), _number(folder / used)
            if limit is not None and n_used is not None:
                yield FreeMemory(limit - n_used + cache, "left of the control group's limit")


def _of_process(root: Path, n_mapped: int) -> Iterator[FreeMemory]:
    status = _sizes(root / "proc/self/status")
    addresses, data = (resource.getrlimit(kind)[0] for kind in (resource.RLIMIT_AS, resource.RLIMIT_DATA))
    if addresses != resource.RLIM_INFINITY:
        left = addresses - status.get("VmSize", 0) - n_mapped - _ADDRESSES
        yield FreeMemory(left, "left of the limit of addresses (ulimit -v)")
    if data != resource.RLIM_INFINITY:
        yield FreeMemory(data - status.get("VmData", 0) - _ADDRESSES, "left of the limit of data (ulimit -d)")


def _sizes(path: Path, unit: int = 1024) -> dict[str, int]:
    """Lines `name: 12 kB` or `name 12`, in bytes."""
    found = {}
    for line in _lines(path):
        words = line.replace(":", " ").split()
        if len(words) > 1 and words[1].isdigit():
            found[words[0]] = int(words[1]) * unit
    return found


def _number(path: Path) -> int | None:
    """None where there is no such file, or it says "max"."""
    text = "".join(_lines(path))
    return int(text) if text.isdigit() else None


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(errors="replace").splitlines()
    except OSError:
        return []
