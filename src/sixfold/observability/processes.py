"""The processes of a server, seen from one of them: their meters, and the CPU time that the kernel counts for them."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

from sixfold.observability.meter import Meter
from sixfold.process_stat import process_stat
from sixfold.roles import ENGINE, SUPERVISOR, WORKER, api_role

__all__ = ["Processes", "cpu_seconds"]

_TICKS = os.sysconf("SC_CLK_TCK")


class Processes:
    """Every process of one server.

    Args:
        run_dir: the server's run directory.
        n_api: its API processes.
    """

    def __init__(self, run_dir: str, n_api: int) -> None:
        self._run_dir = run_dir
        self.roles = (ENGINE, WORKER, *map(api_role, range(n_api)))
        """Of those that have a meter."""

    def meters(self) -> Iterator[tuple[str, Meter]]:
        """(role, meter) of all that have begun. None of them is kept: each would take a descriptor as long as this
        process lives, of whichever process was once asked for its metrics."""
        for role in self.roles:
            with contextlib.suppress(OSError):
                yield role, Meter.open(self._run_dir, role)

    def cpu(self) -> Iterator[tuple[str, float]]:
        """(role, CPU seconds since that process was started), of those that live; call it from a child of the
        supervisor's."""
        pids = {SUPERVISOR: os.getppid(), **{role: meter.pid for role, meter in self.meters()}}
        for role, pid in pids.items():
            seconds = cpu_seconds(pid)
            if seconds is not None:
                yield role, seconds


def cpu_seconds(pid: int) -> float | None:
    """User and system time of all threads of a process; None: there is none with this number."""
    stat = process_stat(pid)
    return None if stat is None else stat.cpu_ticks / _TICKS
