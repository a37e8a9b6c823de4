"""A request beyond the life of an engine: what must be kept of it so that the next one goes on where its client is.

Kept is the request itself and the tokens that came, nothing of how they were made: seed and position give each further
token, the worker's slot is rebuilt from prompt and tokens (`SlotAdmit`), and text, stop strings and usage never left
this process. docs/reliability.md tells the whole of it.

A request that was in the engine when that, or the worker, crashed by its own fault is a *suspect*: the next engine
tries suspects one at a time. A token clears it; a second crash before that was its doing.
"""

from __future__ import annotations

import contextlib
import os
import struct
import time
from collections import OrderedDict
from collections.abc import Collection
from hashlib import blake2b

import msgspec

from sixfold.errors import RequestFailed
from sixfold.messages import GenerateRequest, TokenDelta

__all__ = ["Poisoned", "Replay", "poison_error"]


_FINGERPRINT_BYTES = 16


class Replay:
    """One request's record. Written by its handle."""

    __slots__ = ("_tokens", "is_suspect", "is_tried", "request")

    def __init__(self, request: GenerateRequest) -> None:
        self.request = request
        self._tokens: list[list[int]] = [[] for _ in range(request.n)]
        self.is_suspect = False
        self.is_tried = True
        """Whether the engine of now has it, and not only on a list of suspects."""

    def take(self, delta: TokenDelta) -> None:
        """Tokens came. What a delta repeats is not counted twice."""
        self.is_suspect = False
        self._tokens[delta.choice][delta.first_index :] = delta.token_ids

    def n_tokens(self, choice: int) -> int:
        """That have come of a choice."""
        return len(self._tokens[choice])

    def again(self, open_choices: Collection[int], *, admitted: bool) -> GenerateRequest:
        """What to send to an engine that does not know the request.

        Args:
            open_choices: those that have not ended.
            admitted: whether an engine has taken it before; if not, the queue's bounds hold for it still.
        """
        self.is_tried = not self.is_suspect
        if admitted:
            self.request = msgspec.structs.replace(
                self.request,
                attempt=self.request.attempt + 1,
                delivered=tuple(map(tuple, self._tokens)),
                ended=tuple(sorted(set(range(self.request.n)) - set(open_choices))),
            )
        self.request = msgspec.structs.replace(self.request, suspect=self.is_suspect)
        return self.request

    def crashed(self) -> bool:
        """The engine or its worker has crashed by its own fault. Returns whether this request was the cause."""
        is_cause = self.is_tried and self.is_suspect
        self.is_suspect = self.is_suspect or self.is_tried
        return is_cause


def poison_error() -> RequestFailed:
    """For a request that crashed the engine or the worker."""
    return RequestFailed("the server failed twice over this request; it is not tried again", code="poisoned")


class Poisoned:
    """Requests that are not taken any more, by what they ask for: neither uid nor seed, which another try would change.

    Bounded in number and in time. The API processes of a server share the file `poisoned` of its run directory, to
    which each appends what it learns, and which each reads on when it has grown:

        | fingerprint, 16 bytes | until, CLOCK_MONOTONIC float64 | 8 zeros | ...

    A record never lies in two pages, so that a full disk takes all of it or nothing; then only this process knows.

    Args:
        fd: of that file; None: nothing is shared.
    """

    MAX = 1024
    KEEP_S = 600.0
    _RECORD = struct.Struct(f"<{_FINGERPRINT_BYTES}sd8x")

    def __init__(self, fd: int | None = None) -> None:
        self._until: OrderedDict[bytes, float] = OrderedDict()
        self._fd = fd
        self._n_read = 0
        """Bytes of the file."""

    @classmethod
    def open(cls, run_dir: str) -> Poisoned:
        """The list of the server whose run directory this is."""
        flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        return cls(os.open(os.path.join(run_dir, "poisoned"), flags, 0o600))

    def add(self, request: GenerateRequest) -> None:
        fingerprint, until_s = _fingerprint(request), time.monotonic() + self.KEEP_S
        self._keep(fingerprint, until_s)
        if self._fd is not None:
            with contextlib.suppress(OSError):
                os.write(self._fd, self._RECORD.pack(fingerprint, until_s))

    def _keep(self, fingerprint: bytes, until_s: float) -> None:
        self._until[fingerprint] = until_s
        if len(self._until) > self.MAX:
            self._until.popitem(last=False)

    def _read_on(self) -> None:
        """What any process has appended since the last time."""
        assert self._fd is not None
        size = os.fstat(self._fd).st_size // self._RECORD.size * self._RECORD.size
        if size > self._n_read:
            data = os.pread(self._fd, size - self._n_read, self._n_read)
            self._n_read = size
            for fingerprint, until_s in self._RECORD.iter_unpack(data):
                self._keep(fingerprint, until_s)

    def check(self, request: GenerateRequest) -> None:
        """Raises: RequestFailed: it crashed the server not long ago."""
        if self._fd is not None:
            self._read_on()
        if not self._until:
            return
        fingerprint = _fingerprint(request)
        until_s = self._until.get(fingerprint)
        if until_s is None:
            return
        if until_s > time.monotonic():
            raise poison_error()
        del self._until[fingerprint]


def _fingerprint(request: GenerateRequest) -> bytes:
    plain = msgspec.structs.replace(
        request,
        uid=0,
        attempt=0,
        delivered=(),
        ended=(),
        suspect=False,
        arrival_s=0.0,
        deadline_s=None,
        sampling=msgspec.structs.replace(request.sampling, seed=0),
    )
    return blake2b(msgspec.msgpack.encode(plain), digest_size=_FINGERPRINT_BYTES).digest()
