"""Finds a process that hangs: work is pending, and for too long its counters have not moved. Decides, and does nothing.

Nothing is asked of a process that has nothing to do: a server that was suspended, or whose engine is stopped in a
debugger while nobody waits, is left alone.
"""

from __future__ import annotations

from sixfold.engine.progress import Count, Progress

__all__ = ["Watchdog"]


class Watchdog:
    """Looks at the engine and the worker.

    Args:
        timeout_s: without progress; 0 is never.
    """

    def __init__(self, progress: Progress, timeout_s: float) -> None:
        self._progress = progress
        self._timeout_s = timeout_s
        self._last: dict[str, tuple[int, float]] = {}

    def hanging(self, now_s: float) -> str | None:
        """The role that hangs, once each time; None: all is well."""
        if not self._timeout_s:
            return None
        counts = self._progress.counts
        # The worker first: an engine that waits for one that is stuck still turns its loop.
        waited_for = counts[Count.ENGINE_OUTSTANDING] or counts[Count.ENGINE_ATTACHING]
        if self._stuck("worker", counts[Count.WORKER_LOADED] and waited_for, counts[Count.WORKER_TURNS], now_s):
            return "worker"
        pending = counts[Count.ENGINE_BUSY] or self._progress.n_open
        # An engine that has not turned yet is starting: it waits for a worker, which may be loading for minutes.
        if self._stuck("engine", pending and counts[Count.ENGINE_TURNS], counts[Count.ENGINE_TURNS], now_s):
            return "engine"
        return None

    def _stuck(self, role: str, pending: int, turns: int, now_s: float) -> bool:
        last_turns, since_s = self._last.get(role, (-1, now_s))
        if not pending or turns != last_turns:
            self._last[role] = (turns if pending else -1, now_s)
            return False
        if now_s - since_s < self._timeout_s:
            return False
        del self._last[role]
        return True
