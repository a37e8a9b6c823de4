"""Who is here, who was, and until when: requests by uid, tombstones of those that ended, deadlines."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple

from sixfold.errors import InvalidRequest
from sixfold.messages import GenerateRequest
from sixfold.scheduler.deadlines import Deadlines
from sixfold.scheduler.sequence import Request, Sequence

__all__ = ["Register"]

TOMBSTONES_MAX = 1 << 14
"""Ended uids that are remembered, about 2.5 MB of them; the oldest are forgotten first. What still comes for one that
has ended (an abort, a request that is sent again) was under way when it ended."""


ANY_ATTEMPT = 1 << 62
"""Of a request that never came: later than every attempt."""


class _Tombstone(NamedTuple):
    attempt: int
    is_aborted: bool


_tombstone = lru_cache(maxsize=64)(_Tombstone)
"""Most are equal: one object for all of these."""


class Register:
    """One entry per request that has not closed; `(uid, attempt)` is its identity.

    add     of a known uid     same attempt or an older one   answered before: nothing happens
                               aborted, even before it came   refused
                               a newer attempt                takes the older one's place, an aborted one's too: its
                                                              process had lost the engine, and is back
    """

    def __init__(self) -> None:
        self._requests: dict[int, Request] = {}
        self._tombstones: OrderedDict[int, _Tombstone] = OrderedDict()
        self._deadlines = Deadlines()

    def __len__(self) -> int:
        return len(self._requests)

    def get(self, uid: int) -> Request | None:
        return self._requests.get(uid)

    def is_repeated(self, message: GenerateRequest) -> bool:
        """Whether this `add` was answered before.

        Raises:
            InvalidRequest: the request was aborted.
        """
        known = self._requests.get(message.uid) or self._tombstones.get(message.uid)
        if known is None:
            return False
        if message.attempt > known.attempt:
            return False
        if known.is_aborted:
            raise InvalidRequest("the request was aborted before it was queued", code="aborted")
        return True

    def enter(self, request: Request) -> None:
        self._requests[request.uid] = request
        self._tombstones.pop(request.uid, None)
        self._deadlines.remove(request.uid)
        if request.message.deadline_s is not None:
            self._deadlines.add(request.uid, request.message.deadline_s)

    def leave(self, request: Request) -> None:
        """Nothing of the request remains but a tombstone. No-op where a newer attempt has taken its place."""
        if self._requests.get(request.uid) is request:
            del self._requests[request.uid]
            self._deadlines.remove(request.uid)
            self._bury(request.uid, _tombstone(request.attempt, request.is_aborted))

    def refuse_later(self, uid: int) -> None:
        """An abort came for a request that is not here: should it still come, it is refused."""
        known = self._tombstones.get(uid)
        self._bury(uid, _tombstone(known.attempt if known is not None else ANY_ATTEMPT, True))

    def pop_expired(self, now_s: float) -> Iterator[Request]:
        """Those whose deadline has passed, each once."""
        for uid in self._deadlines.pop_expired(now_s):
            yield self._requests[uid]

    def sequences(self) -> Iterator[Sequence]:
        for request in self._requests.values():
            yield from request.sequences

    def check(self) -> None:
        """Raises AssertionError when an entry outlives its request."""
        assert len(self._deadlines) <= len(self._requests) and len(self._tombstones) <= TOMBSTONES_MAX
        assert all(request.n_unclosed for request in self._requests.values())

    def _bury(self, uid: int, tombstone: _Tombstone) -> None:
        self._tombstones[uid] = tombstone
        self._tombstones.move_to_end(uid)
        if len(self._tombstones) > TOMBSTONES_MAX:
            self._tombstones.popitem(last=False)
