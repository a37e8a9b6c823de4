"""The latest calls of each API process, in shared memory: what the process itself knows of where their time went.

A record is written when its call is handed to the engine and again when it is over. Any process of the server reads all
of them, so whichever API process is asked answers for all.

The file: a header of 4 words of 8 bytes (records ever begun, those begun before this process, 2 spare), and a ring of
RECORDS slots of SLOT_BYTES bytes: a word that counts the writings of the slot (odd while one is going on), the length
of the record as a word of 4 bytes, the record in msgpack.
"""

from __future__ import annotations

import mmap
import os
import struct
import time
from contextvars import ContextVar

import msgspec

from sixfold.observability.timeline import State
from sixfold.shared_file import share, view

__all__ = ["IN_ENGINE", "MAX_UIDS", "RECORDS", "CallRecord", "CallRing", "current", "read_all", "stage"]

RECORDS = 1024
"""Calls per API process that are kept."""
SLOT_BYTES = 2048
MAX_UIDS = 32
"""Of one call, of which the engine's part can be shown."""
MAX_STAGES = 64

_HEADER = 32
_slot = struct.Struct("=QI")
_FILE = "calls-{}"

API_STATES: tuple[State | None, ...] = (
    None,
    State.RECEIVE,
    State.PARSE,
    State.THREAD,
    State.GRAMMAR,
    State.TEMPLATE,
    State.TOKENIZE,
    State.RESUME,
    State.SUBMIT,
    State.DELIVER,
    State.FINISH,
    State.SOCKET,
)
"""What an API process stamps, by the number in a record. None: the engine has the request, and stamps it itself."""
_NUMBER = {state: number for number, state in enumerate(API_STATES)}
IN_ENGINE = None


class CallRecord(msgspec.Struct, array_like=True):
    """One call that generates something, as its API process sees it.

    Its stages follow one another without a gap: each begins where the one before ends, at a stamp. It is written by its
    call alone; `enter` may be called in the thread that works for it meanwhile.
    """

    request_id: str
    start_ns: int
    end_ns: int = 0
    """0: it is in flight."""
    path: str = ""
    status: int = 0
    fault: str = ""
    uids: list[int] = []
    stages: list[tuple[int, int]] = []
    """(number in `API_STATES`, begin)."""
    ends: list[tuple[int, int]] = []
    """Per wave of engine requests: the step whose batch brought the last end, and when its reading began."""
    slot: int = -1
    """In the ring."""

    @property
    def state(self) -> State | None:
        """The stage that it is in."""
        return API_STATES[self.stages[-1][0]]

    def enter(self, state: State | None, at_ns: int = 0) -> None:
        """From now on (or from `at_ns`) it is in this state."""
        at_ns = at_ns or time.monotonic_ns()
        if self.stages:
            at_ns = max(at_ns, self.stages[-1][1])
        if len(self.stages) < MAX_STAGES:
            self.stages.append((_NUMBER[state], at_ns))


current: ContextVar[CallRecord | None] = ContextVar("current", default=None)
"""Of the call whose task, or whose work in a thread, this is."""


def stage(state: State | None) -> None:
    """The current call, if there is one, is in this state from now on."""
    record = current.get()
    if record is not None:
        record.enter(state)


class CallRing:
    """See the module's docstring."""

    def __init__(self, memory: mmap.mmap) -> None:
        self._memory = memory
        self._words = memoryview(memory).cast("Q")
        self._n_slots = (len(memory) - _HEADER) // SLOT_BYTES
        self._encoder = msgspec.msgpack.Encoder()

    @classmethod
    def create(cls, run_dir: str, api_server: int) -> CallRing:
        """The ring that API process number `api_server` writes."""
        ring = cls(share(_path(run_dir, api_server), _HEADER + RECORDS * SLOT_BYTES))
        ring._words[1] = ring._words[0]
        return ring

    @classmethod
    def open(cls, run_dir: str, api_server: int) -> CallRing:
        """To be read.

        Raises:
            OSError: there is none yet.
        """
        return cls(view(_path(run_dir, api_server)))

    @classmethod
    def private(cls, n_records: int = 16) -> CallRing:
        """One that nobody else sees."""
        return cls(mmap.mmap(-1, _HEADER + n_records * SLOT_BYTES))

    def write(self, record: CallRecord) -> None:
        """Put it in its place, or in the next one."""
        if record.slot < 0:
            record.slot = self._words[0] % self._n_slots
            self._words[0] += 1
        body = self._encoder.encode(record)
        if len(body) > SLOT_BYTES - _slot.size:
            return  # does not happen within the bounds above
        at = _HEADER + record.slot * SLOT_BYTES
        writings = self._words[at >> 3] | 1
        _slot.pack_into(self._memory, at, writings, len(body))
        self._memory[at + _slot.size : at + _slot.size + len(body)] = body
        self._words[at >> 3] = writings + 1

    def records(self) -> list[CallRecord]:
        """All that are kept, newest first; without those that were in flight when their process died."""
        n, n_before = self._words[0], self._words[1]
        found = []
        for index in range(n - 1, max(0, n - self._n_slots) - 1, -1):
            at = _HEADER + index % self._n_slots * SLOT_BYTES
            data = bytes(self._memory[at : at + SLOT_BYTES])
            writings, length = _slot.unpack_from(data)
            if writings % 2 == 0 and self._words[at >> 3] == writings and length:
                record = _decoder.decode(data[_slot.size : _slot.size + length])
                if record.end_ns or index >= n_before:
                    found.append(record)
        return found


_decoder = msgspec.msgpack.Decoder(CallRecord)


def read_all(run_dir: str, n_api: int) -> list[tuple[int, CallRecord]]:
    """(API process, call), newest first."""
    found: list[tuple[int, CallRecord]] = []
    for api_server in range(n_api):
        try:
            ring = CallRing.open(run_dir, api_server)
        except OSError:
            continue
        found += [(api_server, record) for record in ring.records()]
    return sorted(found, key=lambda one: one[1].start_ns, reverse=True)


def _path(run_dir: str, api_server: int) -> str:
    return os.path.join(run_dir, _FILE.format(api_server))
