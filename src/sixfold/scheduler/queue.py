"""Policies: the order in which waiting choices are to run.

A policy gives each request one number at arrival, its *order*; the queue is sorted by (order, arrival). A preempted
choice keeps its key and thus returns to the head of its class.

    fcfs       0                       first come, first served
    priority   request.priority        lower first, then arrival
    shortest   prompt tokens           a short prompt does not wait for long ones
    fair       0, within a tenant      the tenant that was served least goes first (fair_queue.py)
"""

from __future__ import annotations

from typing import Protocol

from sixfold.messages import GenerateRequest
from sixfold.scheduler.fair_queue import FairQueue, FairShares
from sixfold.scheduler.sequence import Request
from sixfold.scheduler.waiting import WaitingQueue

__all__ = ["Policy", "make_policy", "make_queue"]


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


def make_policy(name: str) -> Policy:
    """Build the policy of `--scheduling-policy`."""
    policies: dict[str, type[Policy]] = {
        "fcfs": _Stateless,
        "priority": _Priority,
        "shortest": _Shortest,
        "fair": FairShares,
    }
    return policies[name]()


def make_queue(policy: Policy) -> WaitingQueue:
    """The queue that a policy goes with."""
    return FairQueue(policy) if isinstance(policy, FairShares) else WaitingQueue()
