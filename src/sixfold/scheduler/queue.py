"""Waiting choices, in the order in which they are to run.

A policy gives each request one number at arrival, its *order*; the queue is sorted by (order, arrival). A preempted
choice keeps its key and thus returns to the head of its class.

    fcfs       0                       first come, first served
    priority   request.priority        lower first, then arrival
    shortest   prompt tokens           a short prompt does not wait for long ones
    fair       virtual start time      tenants take turns, weighted by choices: start-time fair queueing

Starvation guard: each time a younger choice is admitted, it overtakes the oldest one that waits. After OVERTAKES_MAX
overtakes the oldest is first, whatever the policy says; so under any load it gets one admission in OVERTAKES_MAX + 1.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator
from operator import attrgetter
from typing import Protocol

from sixfold.messages import GenerateRequest
from sixfold.scheduler.sequence import Request, Sequence

__all__ = ["Policy", "WaitingQueue", "make_policy"]

OVERTAKES_MAX = 16
"""Leaves a policy 94 % of the admissions, and bounds the wait of the last in line."""


class Policy(Protocol):
    """Decides the order of requests. `enter` and `leave` are called once each per request."""

    def enter(self, message: GenerateRequest) -> int:
        """The request's order: smaller runs earlier."""

    def admitted(self, request: Request) -> None:
        """A choice of the request got a slot."""

    def leave(self, request: Request) -> None:
        """The request is forgotten."""


class _Stateless:
    """A policy whose order is a function of the request alone."""

    def enter(self, message: GenerateRequest) -> int:
        return 0

    def admitted(self, request: Request) -> None:
        pass

    def leave(self, request: Request) -> None:
        pass


class _Priority(_Stateless):
    def enter(self, message: GenerateRequest) -> int:
        return message.priority


class _Shortest(_Stateless):
    def enter(self, message: GenerateRequest) -> int:
        return len(message.prompt_token_ids)


class _Fair:
    """Start-time fair queueing (Goyal, Vin, Cheng 1996): a tenant's next request starts, in virtual time, where its
    last one ended, but not in the past; a request's length is its number of choices."""

    def __init__(self) -> None:
        self._now = 0
        """Virtual time: the start of the request admitted last."""
        self._ends: dict[str, int] = {}
        self._n_open: dict[str, int] = {}

    def enter(self, message: GenerateRequest) -> int:
        tenant = message.tenant
        start = max(self._now, self._ends.get(tenant, 0))
        self._ends[tenant] = start + message.n
        self._n_open[tenant] = self._n_open.get(tenant, 0) + 1
        return start

    def admitted(self, request: Request) -> None:
        self._now = max(self._now, request.order)

    def leave(self, request: Request) -> None:
        tenant = request.message.tenant
        self._n_open[tenant] -= 1
        if self._n_open[tenant] == 0:
            del self._n_open[tenant], self._ends[tenant]


def make_policy(name: str) -> Policy:
    """Build the policy of `--scheduling-policy`."""
    policies: dict[str, type[Policy]] = {
        "fcfs": _Stateless,
        "priority": _Priority,
        "shortest": _Shortest,
        "fair": _Fair,
    }
    return policies[name]()


_by_key = attrgetter("key")


def _by_age(sequence: Sequence) -> tuple[int, int]:
    return sequence.key[1:]


class WaitingQueue:
    """Choices without a slot, in two orders: of service, and of age for the starvation guard."""

    def __init__(self) -> None:
        self._in_order: list[Sequence] = []
        self._in_age: list[Sequence] = []
        self._n_overtakes = 0
        """Of the oldest, since it became the oldest."""

    def __len__(self) -> int:
        return len(self._in_order)

    def __iter__(self) -> Iterator[Sequence]:
        """In the order of service. The queue must not change meanwhile."""
        if self._n_overtakes < OVERTAKES_MAX:
            yield from self._in_order
        else:
            oldest = self._in_age[0]
            yield oldest
            yield from (sequence for sequence in self._in_order if sequence is not oldest)

    def push(self, sequence: Sequence) -> None:
        if self._in_age and _by_age(sequence) < _by_age(self._in_age[0]):
            self._n_overtakes = 0
        insort(self._in_order, sequence, key=_by_key)
        insort(self._in_age, sequence, key=_by_age)

    def remove(self, sequence: Sequence) -> None:
        """It left the queue without being served."""
        if self._in_age[0] is sequence:
            self._n_overtakes = 0
        del self._in_order[self._index(self._in_order, sequence)]
        del self._in_age[bisect_left(self._in_age, _by_age(sequence), key=_by_age)]

    def admit(self, sequence: Sequence) -> None:
        """It left the queue for a slot: the oldest, if another, was overtaken."""
        if self._in_age[0] is not sequence:
            self._n_overtakes += 1
        self.remove(sequence)

    @staticmethod
    def _index(items: list[Sequence], sequence: Sequence) -> int:
        index = bisect_left(items, sequence.key, key=_by_key)
        assert items[index] is sequence
        return index
