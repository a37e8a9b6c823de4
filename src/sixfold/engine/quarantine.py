"""Suspects: requests that were there when an engine or a worker crashed by its own fault. They are tried one at a time,
the next when the one before has got a token or has ended, so that a second crash has one cause and all can see which.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Generic, TypeVar

from sixfold.messages import GenerateRequest

__all__ = ["Quarantine"]

Peer = TypeVar("Peer")


class Quarantine(Generic[Peer]):
    """Requests of API processes (`Peer`) in the order of their arrival, and which of them is on trial."""

    def __init__(self) -> None:
        self._waiting: OrderedDict[int, tuple[Peer, GenerateRequest]] = OrderedDict()
        self.on_trial: int | None = None

    def __len__(self) -> int:
        """How many wait for their trial."""
        return len(self._waiting)

    def enter(self, peer: Peer, request: GenerateRequest) -> None:
        self._waiting[request.uid] = (peer, request)

    def next(self) -> tuple[Peer, GenerateRequest] | None:
        """Whose trial begins now; None while another's lasts, or without suspects."""
        if self.on_trial is not None or not self._waiting:
            return None
        self.on_trial, suspect = self._waiting.popitem(last=False)
        return suspect

    def passed(self, uid: int) -> None:
        """The request has shown that it does no harm, or has left."""
        if uid == self.on_trial:
            self.on_trial = None
        elif self._waiting:
            self._waiting.pop(uid, None)

    def drop(self, peer: Peer) -> None:
        """A process is gone, and what it wanted tried. Whoever is on trial is told of by `passed`."""
        for uid in [uid for uid, (owner, _) in self._waiting.items() if owner is peer]:
            del self._waiting[uid]
