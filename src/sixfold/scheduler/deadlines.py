"""Which requests have run out of time, without looking at those that have not."""

from __future__ import annotations

import heapq

__all__ = ["Deadlines"]


class Deadlines:
    """A heap of (deadline_s, uid); requests that have ended are removed lazily, and before they are the majority."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int]] = []
        self._by_uid: dict[int, float] = {}

    def __len__(self) -> int:
        return len(self._by_uid)

    def add(self, uid: int, deadline_s: float) -> None:
        self._by_uid[uid] = deadline_s
        heapq.heappush(self._heap, (deadline_s, uid))

    def remove(self, uid: int) -> None:
        """No-op for a request without a deadline."""
        self._by_uid.pop(uid, None)
        if len(self._heap) > 2 * len(self._by_uid):
            self._heap = [(deadline_s, uid) for uid, deadline_s in self._by_uid.items()]
            heapq.heapify(self._heap)

    def pop_expired(self, now_s: float) -> list[int]:
        """Remove and return the uids whose deadline has passed."""
        expired: list[int] = []
        while self._heap and self._heap[0][0] <= now_s:
            deadline_s, uid = heapq.heappop(self._heap)
            if self._by_uid.get(uid) == deadline_s:
                del self._by_uid[uid]
                expired.append(uid)
        return expired
