"""What the kernel says of a process: proc_pid_stat(5)."""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["ProcessStat", "process_stat"]


class ProcessStat(NamedTuple):
    """Of all threads of a process, since it was started."""

    state: str
    """One letter; `T` is stopped by a signal, `t` by a debugger."""
    faults: int
    """Pages, minor and major."""
    cpu_ticks: int
    """User and system, in `os.sysconf("SC_CLK_TCK")` a second."""


def process_stat(pid: int) -> ProcessStat | None:
    """None: there is no process with this number."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()  # its name, in parentheses, may hold anything
    except OSError:
        return None
    # Fields 3; 10 and 12; 14 and 15.
    return ProcessStat(fields[0].decode(), int(fields[7]) + int(fields[9]), int(fields[11]) + int(fields[12]))
