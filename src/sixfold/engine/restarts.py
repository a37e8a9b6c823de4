"""When a process that died is started again: at once, after a pause, or not any more. Decides, and does nothing.

A crash is *fruitless* when no work was done between it and the one before (steps committed; for an API process,
requests sent). A first crash costs no pause; fruitless ones in a row wait longer each time, and after
`MAX_FRUITLESS` the server gives up, so that whoever runs it can see that it does not run.
"""

from __future__ import annotations

import signal

__all__ = ["MAX_FRUITLESS", "Restarts", "is_own_fault"]

PAUSES_S = (0.0, 0.1, 0.5, 2.0, 5.0)
MAX_FRUITLESS = len(PAUSES_S)
QUIET_S = 60.0
"""A process that lived so long did not crash at its start, whatever it was asked to do."""

_OWN_SIGNALS = frozenset(
    {signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGTRAP, signal.SIGSYS}
)
"""What the kernel, or the process itself, sends for what it was doing; any other is somebody's wish."""


def is_own_fault(status: int) -> bool:
    """Whether a process ended by what it was doing (an exception, a fault of memory), and not by somebody's signal.

    Args:
        status: as of `Popen`: negative for a signal.
    """
    return status >= 0 or -status in _OWN_SIGNALS


class Restarts:
    """The crashes of one role.

    Args:
        started_s: when its process was started; any monotonic clock.
    """

    def __init__(self, started_s: float) -> None:
        self.total = 0
        self._started_s = started_s
        self._work_done = 0
        self._fruitless = 0

    def crashed(self, now_s: float, work_done: int) -> float | None:
        """The process died.

        Args:
            work_done: anything that rises with every bit of work that the server has done.

        Returns:
            Seconds until the next start; None: there shall be none.
        """
        if work_done != self._work_done or now_s - self._started_s > QUIET_S:
            self._fruitless = 0
        self._work_done = work_done
        self._fruitless += 1
        if self._fruitless > MAX_FRUITLESS:
            return None
        pause_s = PAUSES_S[self._fruitless - 1]
        self.total += 1
        self._started_s = now_s + pause_s
        return pause_s
