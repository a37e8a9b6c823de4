"""When a refused caller should come again: not when the next place is free, but when it is likely to be his.

    wait = place_s * max(1, returning / 2), from 1 s to 15 s

`place_s` is the time between two places that become free, and `returning` how many callers have been told to come again
and are still away. So twice as many come as there are places, however many there are: enough that no place stays empty,
and few enough that refusing them costs the running ones nothing.
"""

from __future__ import annotations

import heapq
import time
from collections.abc import Callable

__all__ = ["MAX_RETURNING", "Returning"]

WAIT_S_MIN, WAIT_S_MAX = 1.0, 15.0
COMING_PER_PLACE = 2
MAX_RETURNING = 4096
"""Callers that are counted; beyond them the wait is at its longest anyway."""


class Returning:
    """See the module's docstring. Belongs to one event loop.

    Args:
        n_processes: API processes among which callers are spread; each counts its own.
        clock: seconds, monotonic.
    """

    def __init__(self, n_processes: int = 1, clock: Callable[[], float] = time.monotonic) -> None:
        self._n_processes = n_processes
        self._clock = clock
        self._due_s: list[float] = []
        """Heap: when each is expected."""

    def wait_s(self, place_s: float) -> float:
        """One more is refused: how long he should stay away."""
        now_s = self._clock()
        while self._due_s and self._due_s[0] <= now_s:
            heapq.heappop(self._due_s)
        n_returning = self._n_processes * len(self._due_s)
        wait_s = min(max(place_s * max(1.0, n_returning / COMING_PER_PLACE), WAIT_S_MIN), WAIT_S_MAX)
        if len(self._due_s) < MAX_RETURNING:
            heapq.heappush(self._due_s, now_s + wait_s)
        return wait_s
