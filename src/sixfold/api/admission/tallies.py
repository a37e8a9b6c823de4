"""What the API processes of a server have used of its keys' limits, in memory that they share.

    file `tallies-DIGEST` of the run directory, float64, native:
    [key][requests, tokens, tokens of the day][used, at]      `allowance.py` says what they mean
    [process][key]                                            calls that run

A bucket is read and written by all processes without a lock, so that one which hangs in between stops nobody. Two that
write in the same microsecond lose one of two counts; what is lost drains away with the rest. Calls that run would not
drain: each process counts its own, and begins at 0.
"""

from __future__ import annotations

import enum
import mmap
import os
from collections.abc import MutableSequence, Sequence
from hashlib import blake2b

from sixfold.shared_file import share

__all__ = ["Cells", "Limit", "Tallies", "Tally"]

Cells = MutableSequence[float]
"""Used, at."""
_BYTES = 8


class Limit(enum.IntEnum):
    """Limits of a key that fill again with time."""

    REQUESTS = 0
    TOKENS = 1
    DAY = 2


_CELLS = 2 * len(Limit)
"""Of a key, shared."""


class Tally:
    """The numbers of one key.

    Args:
        shared: [_CELLS].
        running: [processes].
        own: this process.
    """

    def __init__(self, shared: memoryview[float], running: memoryview[float], own: int) -> None:
        self._shared = shared
        self._running = running
        self._own = own

    @classmethod
    def private(cls) -> Tally:
        """Of a process without others."""
        return Tallies.private(1)[0]

    def cells(self, limit: Limit) -> Cells:
        return self._shared[2 * limit : 2 * limit + 2]  # type: ignore[return-value]

    @property
    def n_running(self) -> int:
        """Calls of this process."""
        return int(self._running[self._own])

    @n_running.setter
    def n_running(self, n_calls: int) -> None:
        self._running[self._own] = n_calls

    @property
    def n_running_everywhere(self) -> int:
        return int(sum(self._running))


class Tallies:
    """The numbers of all keys, by their place in the list of keys."""

    def __init__(self, cells: memoryview[float], n_keys: int, own: int) -> None:
        shared, running = cells[: n_keys * _CELLS], cells[n_keys * _CELLS :]
        self._of_key = [
            Tally(shared[_CELLS * key : _CELLS * (key + 1)], running[key::n_keys], own) for key in range(n_keys)
        ]

    def __getitem__(self, key: int) -> Tally:
        return self._of_key[key]

    @classmethod
    def private(cls, n_keys: int) -> Tallies:
        """Of a process without others."""
        return cls(_doubles(bytearray(_BYTES * n_keys * (_CELLS + 1))), n_keys, 0)

    @classmethod
    def open(cls, run_dir: str, keys: Sequence[str], *, n_processes: int, own: int) -> Tallies:
        """Of the processes of one server. One that was started with another list of keys shares with nobody.

        Args:
            keys: their names, in order.
            own: this process.
        """
        digest = blake2b("\n".join(keys).encode(), digest_size=8).hexdigest()
        size = _BYTES * len(keys) * (_CELLS + n_processes)
        tallies = cls(_doubles(share(os.path.join(run_dir, f"tallies-{digest}"), size)), len(keys), own)
        for tally in tallies._of_key:
            tally.n_running = 0
        return tallies


def _doubles(memory: bytearray | mmap.mmap) -> memoryview[float]:
    return memoryview(memory).cast("d")
