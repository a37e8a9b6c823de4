"""What the engine did with each request, and when: one entry for every change of a choice's state, in shared memory.

A choice that decodes with the same others for a thousand steps has two entries for it: the first such step and the last
one. So an entry is rare, and it says all the same which choices were in which step (`assembly.py` puts both together
with the steps' own stamps). One writer, the engine process; any process of the server reads. A restarted engine goes on
behind its predecessor's entries.

The file: a header of 4 words of 8 bytes (entries ever written, 3 spare), and a ring of ENTRIES records of 32 bytes:
time, uid, event | choice << 8, value, step.
"""

from __future__ import annotations

import enum
import mmap
import os
import struct
import time
from typing import NamedTuple

from sixfold.shared_file import share, view

__all__ = ["ENTRIES", "Entry", "Event", "History", "Mode", "Reason"]

ENTRIES = 1 << 15
"""That are kept."""

_HEADER = 32
_entry = struct.Struct("=QQIIQ")
_FILE = "history"


class Event(enum.IntEnum):
    """What happened. With its value and step, where they mean something."""

    EPOCH = 0
    """An engine began (value: its epoch): nothing of the one before goes on."""
    RECEIVED = 1
    """The request was read from its API process's socket."""
    HELD = 2
    """The choice waits for another of its request to compute their prompt."""
    QUEUED = 3
    """It entered the queue; value 1: because it was preempted."""
    ADMITTED = 4
    """It got a slot, in the step that is being launched."""
    STEPS_BEGIN = 5
    """From this step on it is in every step; value: `Mode`."""
    STEPS_END = 6
    """This step was the last such."""
    PREEMPTED = 7
    """It lost its place; what is in flight still counts."""
    CLOSED = 8
    """It has ended."""
    REASON = 9
    """From now on this is why those wait that wait; value: `Reason`. Of no request."""


class Reason(enum.IntEnum):
    """Why nobody is admitted from the queue."""

    STEP = 0
    """The next step has not been planned yet."""
    SLOTS = 1
    BLOCKS = 2
    BUDGET = 3


class Mode(enum.IntEnum):
    """What a row of a step does."""

    DECODE = 0
    PREFILL = 1


class Entry(NamedTuple):
    """One event."""

    at_ns: int
    """CLOCK_MONOTONIC."""
    uid: int
    event: int
    choice: int
    value: int
    step: int


class History:
    """See the module's docstring."""

    __slots__ = ("_memory", "_n", "_size", "_words")

    def __init__(self, memory: mmap.mmap) -> None:
        self._memory = memory
        self._words = memoryview(memory).cast("Q")
        self._size = (len(memory) - _HEADER) // _entry.size
        self._n = self._words[0]

    @classmethod
    def create(cls, run_dir: str) -> History:
        """The history that this process writes from now on."""
        return cls(share(os.path.join(run_dir, _FILE), _HEADER + ENTRIES * _entry.size))

    @classmethod
    def open(cls, run_dir: str) -> History:
        """To be read.

        Raises:
            OSError: there is none yet.
        """
        return cls(view(os.path.join(run_dir, _FILE)))

    @classmethod
    def private(cls, n_entries: int = 64) -> History:
        """One that nobody else sees."""
        return cls(mmap.mmap(-1, _HEADER + n_entries * _entry.size))

    def note(self, event: int, uid: int = 0, choice: int = 0, value: int = 0, step: int = 0) -> int:
        """Write an entry. Returns: its time."""
        at_ns, n = time.monotonic_ns(), self._n
        at = _HEADER + n % self._size * _entry.size
        _entry.pack_into(self._memory, at, at_ns, uid, event | choice << 8, value, step)
        self._words[0] = self._n = n + 1
        return at_ns

    def entries(self) -> list[Entry]:
        """All that are kept, in order."""
        end = self._words[0]
        data = bytes(self._memory[_HEADER:])
        written = self._words[0]  # meanwhile: what was overwritten while it was copied is left out
        out = []
        for index in range(max(0, written + 1 - self._size) if written > self._size else 0, end):
            at_ns, uid, event, value, step = _entry.unpack_from(data, index % self._size * _entry.size)
            out.append(Entry(at_ns, uid, event & 0xFF, event >> 8, value, step))
        return out
