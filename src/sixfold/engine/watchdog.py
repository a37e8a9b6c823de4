"""Finds a process that hangs: something waits for it, and for too long it has not got on. Decides, and does nothing.

Nothing is asked of a process that nobody waits for: an idle server, or one whose engine is stopped in a debugger, is
left alone. What is waited for, and what shows that it gets on:

    process   waits for it                                        gets on
    worker    the server, while it loads                          anything that it does: processor time, page faults
              an engine that greets it                            `WORKER_SERVES` is that engine
              an engine with steps under way, which itself turns  steps begun and ended; inside a step, processor time
    engine    the server, until it turns                          processor time; not asked while its worker loads
              requests                                            turns of its loop, four a second at least
    api i     the server, until it is ready                       processor time, then turns of its loop, one a second
              its requests, and bytes or connections that it has  turns of its loop
              not taken from the kernel

Who does not get on for the timeout hangs. A step that computes has ten times as long: how long one takes is the
model's and the machine's affair, and a worker that is stuck while it computes must not stay for ever. A process that
somebody has stopped (SIGSTOP) will not get on by itself: it has `STOPPED_S`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from sixfold.engine.progress import Count, Progress
from sixfold.process_stat import process_stat
from sixfold.roles import ENGINE, WORKER, api_index

__all__ = ["STOPPED_S", "AwakeClock", "Sight", "Watchdog", "see"]

STOPPED_S = 5.0
STEP_FACTOR = 10
API_TURN_S = 3.0
"""The loop of an API process that is well turns within this, whatever the timeout is."""
API_QUIET_S = 1.5
"""A loop that has not turned for so long may leave callers waiting whom it does not know of."""
GAP_S = 1.0
_QUIET_S = 0.4
"""A process is looked at from outside when its counters have not moved for so long."""


class Sight(NamedTuple):
    """A process from outside."""

    is_stopped: bool
    """By a signal; not by a debugger, who may look as long as he likes."""
    activity: int
    """Rises with whatever it does: processor time of all its threads, page faults."""


def see(pid: int) -> Sight:
    """Ask the kernel. A process that is gone is still, and not stopped."""
    stat = process_stat(pid)
    return Sight(False, 0) if stat is None else Sight(stat.state == "T", stat.faults + stat.cpu_ticks)


class AwakeClock:
    """A clock for whoever looks at others: it stands still while the looker did not turn either, because the machine,
    the container or it alone was suspended. That time is nobody's fault."""

    def __init__(self, now_s: float) -> None:
        self._last_s = now_s
        self._awake_s = 0.0

    def at(self, now_s: float) -> float:
        """To be called more than once a second.

        Args:
            now_s: any monotonic clock.
        """
        self._awake_s += min(now_s - self._last_s, GAP_S)
        self._last_s = now_s
        return self._awake_s


@dataclass
class _Record:
    """Of a process that is waited for."""

    turns: int
    since_s: float
    """Since when its counters have not moved, or it is waited for."""
    activity: int = -1
    active_s: float = -math.inf
    stopped_s: float | None = None


class Watchdog:
    """Looks at all processes but the supervisor, whose it is.

    Args:
        timeout_s: without progress; 0 is never.
        has_unread: whether bytes or connections wait in the kernel for the process with this id.
        see: how a process looks from outside.
    """

    def __init__(
        self,
        progress: Progress,
        timeout_s: float,
        *,
        has_unread: Callable[[int], bool] = lambda pid: False,
        see: Callable[[int], Sight] = see,
    ) -> None:
        self._progress = progress
        self._timeout_s = timeout_s
        self._has_unread = has_unread
        self._see = see
        self._pids: dict[str, int] = {}
        self._starting: set[str] = set()
        self._records: dict[str, _Record] = {}
        self._api_turns: dict[str, tuple[int, float]] = {}
        """Role -> turns of its loop, and when they last changed."""
        self.is_stopped = False
        """Whether the process that was found last was stopped by a signal: no fault of its own."""

    def started(self, role: str, pid: int) -> None:
        """A process of this role (`roles.py`) lives."""
        self._pids[role] = pid
        self._starting.add(role)
        self._records.pop(role, None)

    def is_ready(self, role: str) -> None:
        """An API process serves: from now on only callers wait for it."""
        self._starting.discard(role)

    def ended(self, role: str) -> None:
        del self._pids[role]
        self._starting.discard(role)
        self._records.pop(role, None)

    def hanging(self, now_s: float) -> str | None:
        """The role that hangs, once each time; None: all is well.

        Args:
            now_s: of an `AwakeClock`.
        """
        if not self._timeout_s:
            return None
        for role, hangs in ((ENGINE, self._engine_hangs), (WORKER, self._worker_hangs)):
            if hangs(now_s):
                return self._found(role)
        for role in self._pids:
            index = api_index(role)
            if index is not None and self._api_hangs(role, index, now_s):
                return self._found(role)
        return None

    def _found(self, role: str) -> str:
        self.is_stopped = self._records.pop(role).stopped_s is not None
        return role

    def _engine_hangs(self, now_s: float) -> bool:
        counts = self._progress.counts
        turns, attaching = counts[Count.ENGINE_TURNS], counts[Count.ENGINE_ATTACHING]
        if turns:
            waited_for = bool(counts[Count.ENGINE_BUSY] or self._progress.n_open)
            return self._hangs(ENGINE, waited_for, turns, now_s)
        waits_for_worker = attaching and counts[Count.WORKER_SERVES] != attaching
        patience_s = math.inf if waits_for_worker else self._timeout_s
        return self._hangs(ENGINE, ENGINE in self._pids, 0, now_s, patience_s, math.inf)

    def _worker_hangs(self, now_s: float) -> bool:
        counts = self._progress.counts
        turns, attaching = counts[Count.WORKER_TURNS], counts[Count.ENGINE_ATTACHING]
        if not counts[Count.WORKER_LOADED]:
            return self._hangs(WORKER, WORKER in self._pids, turns, now_s, self._timeout_s, math.inf)
        is_greeted = attaching and counts[Count.WORKER_SERVES] != attaching
        waited_for = bool(is_greeted or counts[Count.ENGINE_OUTSTANDING])
        if not self._hangs(WORKER, waited_for, turns, now_s, self._timeout_s, STEP_FACTOR * self._timeout_s):
            return False
        if turns % 2 or self._records[WORKER].stopped_s is not None:
            return True
        # It is done with all that it was told. An engine that stands still has not taken the results, or not greeted.
        engine = self._records.get(ENGINE)
        if engine is None:
            return True
        return engine.stopped_s is None and bool(is_greeted or now_s - engine.since_s < 0.75 * self._timeout_s)

    def _api_hangs(self, role: str, index: int, now_s: float) -> bool:
        counts = self._progress.counts
        turns = counts[Count.API_TURNS + index]
        if not turns:
            return self._hangs(role, True, 0, now_s, self._timeout_s, math.inf)
        patience_s = max(self._timeout_s, API_TURN_S)
        last_turns, since_s = self._api_turns.get(role, (-1, now_s))
        if turns != last_turns:
            self._api_turns[role] = (turns, now_s)
        waited_for = role in self._starting or counts[Count.API_OPEN + index] > 0
        if not waited_for and turns == last_turns and now_s - since_s >= API_QUIET_S:
            waited_for = self._has_unread(self._pids[role])
        return self._hangs(role, waited_for, turns, now_s, patience_s)

    def _hangs(
        self,
        role: str,
        waited_for: bool,
        turns: int,
        now_s: float,
        patience_s: float | None = None,
        busy_patience_s: float | None = None,
    ) -> bool:
        """Args:
        patience_s: without a turn; default: the timeout.
        busy_patience_s: without a turn, but with activity; default: that is no excuse.
        """
        record = self._records.get(role)
        if record is None or not waited_for or turns != record.turns:
            self._records[role] = _Record(turns if waited_for else -1, now_s)
            return False
        patience_s = self._timeout_s if patience_s is None else patience_s
        pid = self._pids.get(role)
        if pid is not None and now_s - record.since_s >= min(_QUIET_S, self._timeout_s):
            sight = self._see(pid)
            if not sight.is_stopped:
                record.stopped_s = None
            elif record.stopped_s is None:
                record.stopped_s = now_s
            if sight.activity != record.activity:
                record.activity, record.active_s = sight.activity, now_s
        if record.stopped_s is not None and now_s - record.stopped_s >= min(STOPPED_S, self._timeout_s):
            return True
        idle_s = now_s - record.since_s
        if idle_s < patience_s:
            return False
        is_active = busy_patience_s is not None and now_s - record.active_s < patience_s
        return not is_active or idle_s >= (busy_patience_s or 0.0)
