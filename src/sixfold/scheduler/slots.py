"""The worker's permanent rows, as the engine sees them: which are taken, and under which generation."""

from __future__ import annotations

__all__ = ["SlotTable"]


class SlotTable:
    """Slots 0 .. n_slots - 1. A slot's generation rises when it is freed, so that a late row does not match."""

    def __init__(self, n_slots: int) -> None:
        self.n_slots = n_slots
        self._free = list(reversed(range(n_slots)))
        self._generations = [0] * n_slots
        self._unannounced: list[tuple[int, int]] = []

    @property
    def n_free(self) -> int:
        return len(self._free)

    @property
    def has_unannounced(self) -> bool:
        """Whether the worker still has to be told of freed slots."""
        return bool(self._unannounced)

    def take(self) -> tuple[int, int]:
        """(slot, generation). The caller has asked `n_free`."""
        slot = self._free.pop()
        return slot, self._generations[slot]

    def free(self, slot: int, generation: int) -> None:
        assert self._generations[slot] == generation, "a slot is freed once"
        self._generations[slot] += 1
        self._free.append(slot)
        self._unannounced.append((slot, generation))

    def announce(self) -> list[tuple[int, int]]:
        """The (slot, generation) pairs freed since the last call, for `StepPlan.frees`."""
        frees, self._unannounced = self._unannounced, []
        return frees
