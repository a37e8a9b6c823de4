"""The waiting queue: choices without a slot, in two orders, of service and of age.

Starvation guard: each time a younger choice is admitted, it overtakes the oldest one that waits. After OVERTAKES_MAX
overtakes the oldest is first, whatever the policy says; so under any load it gets one admission in OVERTAKES_MAX + 1.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator
from operator import attrgetter

from sixfold.scheduler.sequence import Sequence

__all__ = ["OVERTAKES_MAX", "WaitingQueue"]

OVERTAKES_MAX = 16
"""Leaves a policy 94 % of the admissions, and bounds the wait of the last in line."""


_by_key = attrgetter("key")


def _by_age(sequence: Sequence) -> tuple[int, int]:
    return sequence.key[1:]


class WaitingQueue:
    """Choices without a slot, in two orders: of service, and of age for the starvation guard."""

    def __init__(self) -> None:
        self._in_order: list[Sequence] = []
        """By key; empty where a subclass orders otherwise."""
        self._in_age: list[Sequence] = []
        self._n_overtakes = 0
        """Of the oldest, since it became the oldest."""

    def __len__(self) -> int:
        return len(self._in_age)

    def __iter__(self) -> Iterator[Sequence]:
        """In the order of service. The queue must not change meanwhile."""
        if self._n_overtakes < OVERTAKES_MAX:
            yield from self._ordered()
        else:
            oldest = self._in_age[0]
            yield oldest
            yield from (sequence for sequence in self._ordered() if sequence is not oldest)

    def push(self, sequence: Sequence) -> None:
        if self._in_age and _by_age(sequence) < _by_age(self._in_age[0]):
            self._n_overtakes = 0
        self._insert(sequence)
        insort(self._in_age, sequence, key=_by_age)

    def remove(self, sequence: Sequence) -> None:
        """It left the queue without being served."""
        if self._in_age[0] is sequence:
            self._n_overtakes = 0
        self._delete(sequence)
        del self._in_age[bisect_left(self._in_age, _by_age(sequence), key=_by_age)]

    def admit(self, sequence: Sequence) -> None:
        """It left the queue for a slot: the oldest, if another, was overtaken."""
        if self._in_age[0] is not sequence:
            self._n_overtakes += 1
        self.remove(sequence)

    # what a subclass does otherwise

    def _ordered(self) -> Iterator[Sequence]:
        yield from self._in_order

    def _insert(self, sequence: Sequence) -> None:
        insort(self._in_order, sequence, key=_by_key)

    def _delete(self, sequence: Sequence) -> None:
        index = bisect_left(self._in_order, sequence.key, key=_by_key)
        assert self._in_order[index] is sequence
        del self._in_order[index]
