"""What every process of a server has done so far, in memory that all of them share: counters, each with one writer.

The supervisor reads them to tell a process that hangs from one that has nothing to do, and a crash loop from crashes
between which work was done; API processes read the restarts for their metrics. A counter is eight bytes, written at
once; nobody waits for anybody.

    writer      counters
    supervisor  restarts of the engine, the worker, API processes; the epoch of the engine that is started, and how many
                crashes of an engine or a worker so far were of their own making
    engine      turns of its loop, whether it has work, steps outstanding, steps committed (never reset), its epoch
                while it greets the worker
    worker      whether its model is loaded, turns (steps begun and ended: odd inside a step), epoch of the engine that
                it has greeted
    api i       choices of open requests, requests sent, turns of its loop (one a second at least)
"""

from __future__ import annotations

import enum
import mmap
import os

from sixfold.shared_file import share

__all__ = ["MAX_API", "Count", "Progress"]

MAX_API = 64
_FILE = "progress"


class Count(enum.IntEnum):
    """Places of the counters; of an API process, those of process 0."""

    RESTARTS_ENGINE = 0
    RESTARTS_WORKER = 1
    RESTARTS_API = 2
    ENGINE_TURNS = 3
    ENGINE_BUSY = 4
    ENGINE_OUTSTANDING = 5
    ENGINE_COMMITTED = 6
    ENGINE_ATTACHING = 7
    WORKER_LOADED = 8
    WORKER_TURNS = 9
    WORKER_SERVES = 10
    EPOCH = 11
    FAULTS = 12
    API_OPEN = 13
    API_SENT = API_OPEN + MAX_API
    API_TURNS = API_SENT + MAX_API


_BYTES = 8 * (Count.API_TURNS + MAX_API)


class Progress:
    """See the module's docstring. `counts[Count.X]` reads and writes."""

    def __init__(self, memory: mmap.mmap) -> None:
        self.counts = memoryview(memory).cast("Q")

    @classmethod
    def create(cls, run_dir: str) -> Progress:
        """All counters 0."""
        path = os.path.join(run_dir, _FILE)
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
        return cls(share(path, _BYTES))

    @classmethod
    def open(cls, run_dir: str) -> Progress:
        """The counters of the server whose run directory this is."""
        fd = os.open(os.path.join(run_dir, _FILE), os.O_RDWR | os.O_CLOEXEC)
        try:
            return cls(mmap.mmap(fd, _BYTES))
        finally:
            os.close(fd)

    @classmethod
    def private(cls) -> Progress:
        """Counters that nobody else sees: for parts that run without a supervisor."""
        return cls(mmap.mmap(-1, _BYTES))

    @property
    def n_open(self) -> int:
        """Choices that API processes wait for."""
        return sum(self.counts[Count.API_OPEN : Count.API_OPEN + MAX_API])

    @property
    def n_sent(self) -> int:
        """Requests that API processes ever sent."""
        return sum(self.counts[Count.API_SENT : Count.API_SENT + MAX_API])

    def restarts(self) -> dict[str, int]:
        """By role."""
        return {
            "engine": self.counts[Count.RESTARTS_ENGINE],
            "worker": self.counts[Count.RESTARTS_WORKER],
            "api": self.counts[Count.RESTARTS_API],
        }
