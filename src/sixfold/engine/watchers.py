"""Views for API processes that watch: not more often than they want, and for a small part of the engine's time.

A view of a large pool takes milliseconds, and the engine has one thread. So after each the next one is due when at
least COST_FACTOR times as long has passed: however many watch, and whatever they ask for, requests lose one part in
COST_FACTOR of the engine's time at most. While nobody watches, a turn of the loop asks one question of an empty dict.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from sixfold.messages import EngineView, Watch

__all__ = ["COST_FACTOR", "MIN_PERIOD_MS", "Watchers"]

MIN_PERIOD_MS = 16
COST_FACTOR = 20
IDLE_PERIOD_NS = 250_000_000
"""Between two views while nothing happens: they say that the engine is well."""


class Watchers:
    """Who watches, by the number of the process's start (`ApiPeer.instance`).

    Args:
        view: makes a view at a time (CLOCK_MONOTONIC, ns).
        clock: CLOCK_MONOTONIC in ns.
    """

    def __init__(self, view: Callable[[int], EngineView], clock: Callable[[], int] = time.monotonic_ns) -> None:
        self._view = view
        self._clock = clock
        self._periods: dict[int, int] = {}
        self._due_ns = 0
        self._idle_due_ns = 0
        self._seen: object = None
        """The state at the last view: an engine in which nothing has happened needs no other one."""

    def __bool__(self) -> bool:
        return bool(self._periods)

    def __contains__(self, instance: int) -> bool:
        return instance in self._periods

    def set(self, instance: int, watch: Watch) -> None:
        """A process wants views, or no longer."""
        if watch.period_ms:
            self._periods[instance] = max(watch.period_ms, MIN_PERIOD_MS)
            self._seen = None  # it has seen nothing yet
            self._idle_due_ns = 0
        else:
            self.drop(instance)

    def drop(self, instance: int) -> None:
        """The process is gone, or does not watch."""
        self._periods.pop(instance, None)

    def wait_s(self, seconds: float, state: object) -> float:
        """How long the loop may sleep: at most `seconds`, less where a view is owed for what has happened."""
        if not self._periods or state == self._seen:
            return seconds
        return min(seconds, max(0.0, (self._due_ns - self._clock()) / 1e9))

    def take(self, state: object) -> EngineView | None:
        """A view, if one is due.

        Args:
            state: compares equal while nothing happens.
        """
        now = self._clock()
        if now < self._due_ns or (state == self._seen and now < self._idle_due_ns):
            return None
        view = self._view(now)
        self._seen = state
        cost = self._clock() - now
        self._due_ns = now + max(min(self._periods.values()) * 1_000_000, COST_FACTOR * cost)
        self._idle_due_ns = now + IDLE_PERIOD_NS
        return view
