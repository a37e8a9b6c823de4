"""Where a process's time goes: totals by site, and a ring of the latest intervals, in memory that its server shares.

Every process has one meter, a file in the run directory, and is its only writer; any process of the server reads it,
with nobody's help, so it also tells of a process that hangs. Times are CLOCK_MONOTONIC nanoseconds: one clock for all
processes of a machine. A process that is started again continues its predecessor's counts, so they only ever rise.

The file, in 8-byte words of the machine's order:

    header    intervals ever written, digest of the sites, pid, 5 spare
    sites     MAX_SITES records of 40 words:
              count, total ns, longest ns, 32 counts by length (bucket b: below 128 * 2^b ns, the last: all longer),
              how many wait here now, since when somebody does, who (uid) came first, 2 spare
    ring      RING records of 4 words: start, end, site | step << 16, uid

A reader may see a count without its time, for an instant. Of the ring it keeps only what was not overwritten while it
read.
"""

from __future__ import annotations

import mmap
import os
import struct
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from sixfold.observability.sites import DIGEST, SITES
from sixfold.roles import slug
from sixfold.shared_file import share, view

__all__ = ["MAX_SITES", "N_BUCKETS", "RING", "SITE_WORDS", "Meter", "SiteTotals", "Stay", "bucket_end_ns", "now"]

MAX_SITES = 128
RING = 1 << 14
"""Intervals that are kept."""
N_BUCKETS = 32

_HEADER = 8
_BUCKETS = 3
_WAITING, _SINCE, _WHO = 35, 36, 37
SITE_WORDS = 40
_RING = _HEADER + MAX_SITES * SITE_WORDS
_BYTES = 8 * (_RING + RING * 4)
_SHORTEST = 7
"""log2 of the first bucket's bound, in ns."""
_LAST = _BUCKETS + N_BUCKETS - 1

_interval = struct.Struct("=4Q")

now: Callable[[], int] = time.monotonic_ns
"""The clock of all meters, in ns."""


def bucket_end_ns(bucket: int) -> int:
    """What is in the bucket is shorter, unless it is the last one."""
    return 1 << (_SHORTEST + bucket)


@dataclass(frozen=True, slots=True)
class SiteTotals:
    """What one site adds up to, since the server's start."""

    count: int
    total_ns: int
    longest_ns: int
    buckets: tuple[int, ...]
    """[N_BUCKETS] Stays shorter than `bucket_end_ns(b)` and not counted before; the last: all longer ones."""
    n_waiting: int
    """Who is here now; of waits that say so when they begin."""
    since_ns: int
    """Since when somebody is here without a break; 0: nobody is."""
    uid: int
    """Of whoever came first, 0 for none."""


class Stay(NamedTuple):
    """One stay at a site."""

    start_ns: int
    end_ns: int
    site: int
    step: int
    """Of the engine; 0 where it belongs to none."""
    uid: int
    """Of the request; 0 where it belongs to none."""


class Meter:
    """See the module's docstring. Made by `create`, `open` or `private`.

    Args:
        memory: of `_BYTES`.
        writes: this process is its writer, and continues what is in it.
    """

    __slots__ = ("_memory", "_n", "_totals", "_words")

    def __init__(self, memory: mmap.mmap, *, writes: bool) -> None:
        self._memory = memory
        self._words = memoryview(memory).cast("Q")
        self._n = 0
        self._totals: list[list[int]] = []
        """The writer's own copy, per site: reading a list is half the price of reading the memory."""
        if writes:
            self._take_over()

    @classmethod
    def create(cls, run_dir: str, role: str) -> Meter:
        """The meter that this process writes.

        Args:
            role: of the process, see `roles.py`: one process at a time.
        """
        return cls(share(_path(run_dir, role), _BYTES), writes=True)

    @classmethod
    def open(cls, run_dir: str, role: str) -> Meter:
        """Another process's meter, to be read.

        Raises:
            OSError: there is none yet.
        """
        return cls(view(_path(run_dir, role)), writes=False)

    @classmethod
    def private(cls) -> Meter:
        """A meter that nobody else sees: for parts that run without a supervisor."""
        return cls(mmap.mmap(-1, _BYTES), writes=True)

    # -- writing --------------------------------------------------------------------------------------------------

    def add(self, site: int, start_ns: int, end_ns: int, step: int = 0, uid: int = 0) -> None:
        """Count one stay at `site`. About half a microsecond. Whatever is told here is counted: a stay that ends before
        it begins took no time.

        Args:
            step: of 48 bits; others count as 0.
            uid: of 64 bits; others count as 0.
        """
        words, totals, at = self._words, self._totals[site], _HEADER + site * SITE_WORDS
        took_ns = end_ns - start_ns
        if took_ns < 0:
            took_ns, start_ns = 0, end_ns
        words[at] = totals[0] = totals[0] + 1
        words[at + 1] = totals[1] = totals[1] + took_ns
        if took_ns > totals[2]:
            words[at + 2] = totals[2] = took_ns
        bucket = _BUCKETS + (took_ns >> _SHORTEST).bit_length()
        if bucket > _LAST:
            bucket = _LAST
        words[at + bucket] = totals[bucket] = totals[bucket] + 1
        n = self._n
        if step >> 48 or uid >> 64:  # also of negative ones
            step, uid = (0 if step >> 48 else step), (0 if uid >> 64 else uid)
        _interval.pack_into(self._memory, 8 * _RING + ((n & (RING - 1)) << 5), start_ns, end_ns, site | step << 16, uid)
        words[0] = self._n = n + 1

    def tally(self, site: int, took_ns: int) -> None:
        """Count a time that is no interval: a sum of small parts, below 0 counts as 0."""
        words, totals, at = self._words, self._totals[site], _HEADER + site * SITE_WORDS
        words[at] = totals[0] = totals[0] + 1
        words[at + 1] = totals[1] = totals[1] + (took_ns if took_ns > 0 else 0)

    def enter(self, site: int, start_ns: int, uid: int = 0) -> None:
        """Somebody begins to wait: what `add` cannot tell of a wait that does not end. Goes with `leave`."""
        words, at = self._words, _HEADER + site * SITE_WORDS
        words[at + _WAITING] += 1
        if words[at + _WAITING] == 1:
            words[at + _SINCE], words[at + _WHO] = start_ns, uid

    def leave(self, site: int, start_ns: int, end_ns: int, step: int = 0, uid: int = 0) -> None:
        """Whoever had entered at `start_ns` waits no more; counts it."""
        words, at = self._words, _HEADER + site * SITE_WORDS
        n_left = max(0, words[at + _WAITING] - 1)
        words[at + _WAITING] = n_left
        if not n_left:
            words[at + _SINCE] = words[at + _WHO] = 0
        self.add(site, start_ns, end_ns, step, uid)

    def move(self, site: int, other: int, start_ns: int) -> None:
        """Whoever had entered `site` at `start_ns` turns out to wait at `other`, and to have done so all the
        time."""
        words, at = self._words, _HEADER + site * SITE_WORDS
        words[at + _WAITING] = n_left = max(0, words[at + _WAITING] - 1)
        if not n_left:
            words[at + _SINCE] = words[at + _WHO] = 0
        self.enter(other, start_ns)

    def counters(self, first: int, last: int) -> memoryview:
        """Records of the sites `first` to `last`, [sites, SITE_WORDS] numbers, to be counted by others: count and total
        are the first two of each. Nothing else may count them."""
        words = self._words[_HEADER + first * SITE_WORDS : _HEADER + (last + 1) * SITE_WORDS]
        return words.cast("B").cast("Q", (last + 1 - first, SITE_WORDS))

    def _take_over(self) -> None:
        words = self._words
        if words[1] != DIGEST:  # new, or of a build with other sites
            for at in range(_RING):
                words[at] = 0
        words[1], words[2] = DIGEST, os.getpid()
        self._n = words[0]
        for site in range(MAX_SITES):
            at = _HEADER + site * SITE_WORDS
            words[at + _WAITING] = words[at + _SINCE] = words[at + _WHO] = 0
            self._totals.append(words[at : at + _WAITING].tolist())

    # -- reading --------------------------------------------------------------------------------------------------

    @property
    def pid(self) -> int:
        """Of the process that writes."""
        return self._words[2]

    @property
    def n_written(self) -> int:
        """Intervals ever written."""
        return self._words[0]

    def totals(self) -> list[SiteTotals]:
        """[len(SITES)] By site id."""
        words = self._words
        if words[1] != DIGEST:
            return [SiteTotals(0, 0, 0, (0,) * N_BUCKETS, 0, 0, 0)] * len(SITES)
        out = []
        for site in range(len(SITES)):
            count, total, longest, *rest = words[
                _HEADER + site * SITE_WORDS : _HEADER + (site + 1) * SITE_WORDS
            ].tolist()
            out.append(SiteTotals(count, total, longest, tuple(rest[:N_BUCKETS]), *rest[N_BUCKETS : N_BUCKETS + 3]))
        return out

    def recent(self, since_ns: int = 0) -> list[Stay]:
        """The intervals that ended after `since_ns`, as far as they are kept, in the order of their ends."""
        words = self._words
        if words[1] != DIGEST:
            return []
        end = words[0]
        data = bytes(self._memory[8 * _RING :])
        first = max(0, words[0] + 1 - RING)  # what came meanwhile, and what is being written, has overwritten the rest
        out = []
        for index in range(first, end):
            start_ns, end_ns, where, uid = _interval.unpack_from(data, (index & (RING - 1)) << 5)
            if end_ns > since_ns:
                out.append(Stay(start_ns, end_ns, where & 0xFFFF, where >> 16, uid))
        return out

    def after(self, n: int, n_max: int = RING // 2) -> tuple[int, list[Stay]]:
        """The intervals that came after the first `n` ever, the latest `n_max` of them at most: what `recent` gives,
        for a reader who comes often and copies nothing twice.

        Returns:
            (intervals ever written, in their order).
        """
        words = self._words
        if words[1] != DIGEST:
            return n, []
        end = words[0]
        first = max(n, end - n_max, 0)
        where = [8 * _RING + ((index & (RING - 1)) << 5) for index in range(first, end)]
        found = [_interval.unpack_from(self._memory, at) for at in where]
        lost = max(0, words[0] + 1 - RING - first)  # overwritten meanwhile
        return end, [Stay(begin, until, at & 0xFFFF, at >> 16, uid) for begin, until, at, uid in found[lost:]]


def _path(run_dir: str, role: str) -> str:
    return os.path.join(run_dir, f"meter-{slug(role)}")
