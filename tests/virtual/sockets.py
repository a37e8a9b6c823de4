"""Stream sockets without a kernel: bytes arrive later, in pieces, and only as fast as they are read.

Within one direction of one connection the order holds; between connections nothing does.
"""

from __future__ import annotations

import itertools
import os
import selectors
import socket
import struct
from collections import deque
from collections.abc import Callable
from contextvars import copy_context
from random import Random
from typing import Any

from tests.virtual.loop import VirtualLoop

_descriptors = itertools.count(1000)


class VirtualSocket:
    """One end of a connection.

    Attributes:
        instant: what is sent is there at once, whatever its size (for greetings).
        slowest_s: the longest that a piece is under way.
        capacity: bytes that fit on the way to this end.
        on_readable, on_writable: called when there may be something to do.
    """

    def __init__(self, loop: VirtualLoop, random: Random) -> None:
        self._loop = loop
        self._random = random
        self.peer: VirtualSocket = self
        self.instant = False
        self.slowest_s = 0.0
        self.capacity = 1 << 20
        self.on_readable: Callable[[], object] | None = None
        self.on_writable: Callable[[], object] | None = None
        self.closed = False
        self._fd = next(_descriptors)
        self._inbox = bytearray()
        self._under_way: deque[bytes] = deque()
        self._n_unread = 0
        self._eof = False
        self._latest_s = 0.0
        """When the piece arrives that was sent here last."""

    @property
    def readable(self) -> bool:
        return bool(self._inbox) or self._eof

    @property
    def writable(self) -> bool:
        return self.peer._n_unread < self.peer.capacity or self.peer.closed

    def fileno(self) -> int:
        return -1 if self.closed else self._fd

    def setsockopt(self, *_: Any) -> None:
        pass

    def setblocking(self, _: bool) -> None:
        pass

    def getsockopt(self, *_: Any) -> bytes:
        """Credentials of the peer: our own user."""
        return struct.pack("3i", 1, os.getuid(), 0)

    def send(self, data: bytes | bytearray, flags: int = 0) -> int:
        if self.closed or self.peer.closed:
            raise BrokenPipeError
        room = len(data) if self.instant else self.peer.capacity - self.peer._n_unread
        if room <= 0:
            raise BlockingIOError
        piece = bytes(data[:room])
        cut = self._random.randrange(len(piece)) if self._random.random() < 0.1 else 0
        for part in (piece[:cut], piece[cut:]):
            if part:
                self._ship(part)
        return len(piece)

    def sendall(self, data: bytes) -> None:
        assert self.instant, "nothing here may block"
        self.send(data)

    def recv(self, n_bytes: int, flags: int = 0) -> bytes:
        data = bytes(self._inbox[:n_bytes])
        if data:
            del self._inbox[: len(data)]
            self._n_unread -= len(data)
            if self.peer.on_writable is not None:
                self._loop.call_soon(self.peer.on_writable)
            return data
        if self._eof or self.closed:
            return b""
        assert flags & socket.MSG_DONTWAIT, "nothing here may block"
        raise BlockingIOError

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            self._ship(b"")

    def _ship(self, piece: bytes) -> None:
        peer = self.peer
        peer._n_unread += len(piece)
        peer._under_way.append(piece)
        if self.instant:
            peer._arrive()
            return
        peer._latest_s = max(peer._latest_s, self._loop.time() + self._random.random() * peer.slowest_s)
        # Timers of one moment may fire in any order: each takes the oldest piece.
        self._loop.call_at(peer._latest_s, peer._arrive)

    def _arrive(self) -> None:
        piece = self._under_way.popleft()
        self._inbox += piece
        self._eof |= not piece
        if not self.closed and self.on_readable is not None:
            self.on_readable()


def socket_pair(loop: VirtualLoop, random: Random) -> tuple[VirtualSocket, VirtualSocket]:
    one, other = VirtualSocket(loop, random), VirtualSocket(loop, random)
    one.peer, other.peer = other, one
    return one, other


class VirtualListener:
    """What a server accepts from."""

    def __init__(self, on_connect: Callable[[], object]) -> None:
        self.on_connect = on_connect
        self._waiting: deque[VirtualSocket] = deque()

    def fileno(self) -> int:
        return -1

    @property
    def readable(self) -> bool:
        return bool(self._waiting)

    writable = False

    def connected(self, sock: VirtualSocket) -> None:
        self._waiting.append(sock)
        self.on_connect()

    def accept(self) -> tuple[VirtualSocket, None]:
        return self._waiting.popleft(), None

    def close(self) -> None:
        for sock in self._waiting:
            sock.close()


class TurnOver(Exception):
    """A loop around `select` would wait now."""


class VirtualSelector:
    """Gives what is ready once per turn, in any order; then it raises `TurnOver` instead of waiting."""

    def __init__(self, random: Random) -> None:
        self._random = random
        self._keys: dict[int, selectors.SelectorKey] = {}
        self.may_select = False

    def register(self, fileobj: Any, events: int, data: Any = None) -> None:
        assert id(fileobj) not in self._keys
        self._keys[id(fileobj)] = selectors.SelectorKey(fileobj, fileobj.fileno(), events, data)

    def modify(self, fileobj: Any, events: int, data: Any = None) -> None:
        self._keys[id(fileobj)] = selectors.SelectorKey(fileobj, fileobj.fileno(), events, data)

    def unregister(self, fileobj: Any) -> None:
        del self._keys[id(fileobj)]

    def get_key(self, fileobj: Any) -> selectors.SelectorKey:
        return self._keys[id(fileobj)]

    def sockets(self) -> list[Any]:
        return [getattr(key.fileobj, "sock", key.fileobj) for key in self._keys.values()]

    def ready(self) -> list[tuple[selectors.SelectorKey, int]]:
        found = []
        for key in self._keys.values():
            sock: Any = getattr(key.fileobj, "sock", key.fileobj)
            events = selectors.EVENT_READ * sock.readable | selectors.EVENT_WRITE * sock.writable
            if events & key.events:
                found.append((key, events & key.events))
        return found

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if not self.may_select:
            raise TurnOver
        self.may_select = False
        found = self.ready()
        self._random.shuffle(found)
        return found

    def close(self) -> None:
        self._keys.clear()


class VirtualTransport:
    """What an `asyncio.Protocol` writes to and hears from."""

    def __init__(self, loop: VirtualLoop, sock: VirtualSocket, protocol: Any) -> None:
        self._loop = loop
        self._protocol = protocol
        self._unsent = bytearray()
        self._lost = False
        self.context = copy_context()
        """Of the process whose connection it is: its protocol is called there."""
        self.sock = sock
        sock.on_readable = lambda: loop.call_soon(self._read)
        sock.on_writable = self._flush
        if sock.readable:
            loop.call_soon(self._read)

    def write(self, data: bytes) -> None:
        self._unsent += data
        self._flush()

    def abort(self) -> None:
        self.sock.close()
        self._loop.call_soon(self._lose)

    def _read(self) -> None:
        while not self._lost and not self.sock.closed and self.sock.readable:
            data = self.sock.recv(1 << 18, socket.MSG_DONTWAIT)
            if not data:
                self.sock.close()
                self._lose()
                return
            self.context.run(self._protocol.data_received, data)

    def _lose(self) -> None:
        if not self._lost:
            self._lost = True
            self.context.run(self._protocol.connection_lost, None)

    def _flush(self) -> None:
        try:
            while self._unsent:
                del self._unsent[: self.sock.send(self._unsent)]
        except (BlockingIOError, BrokenPipeError):
            return
