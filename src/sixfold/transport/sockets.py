"""A framed connection over a Unix stream socket, for loops that use `select` and for blocking use.

The API process reads the same frames through asyncio (`engine/link.py`).
"""

from __future__ import annotations

import contextlib
import os
import secrets
import select
import socket
import struct
from collections import deque

from sixfold.errors import ProtocolError
from sixfold.transport.frames import Frame, FrameReader, frame

__all__ = ["INSTANCE", "FrameSocket", "accept", "connect", "expect", "is_own_user", "listen"]

INSTANCE = secrets.randbits(63)
"""This process start, in every frame that it sends."""

_RECEIVE_BYTES = 1 << 16
"""At a time. From 128 KiB on the C library maps and unmaps memory for each buffer: 12 us a call."""
_SOCKET_BUFFER_BYTES = 1 << 20
_NOW = int(socket.MSG_DONTWAIT)
_NOW_QUIETLY = int(socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)  # joining them takes as long as to send a frame


def listen(path: str) -> socket.socket:
    """A listening Unix socket with mode 0600; the directory must be private (0700)."""
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    sock.bind(path)
    os.chmod(path, 0o600)
    sock.listen(64)
    return sock


def connect(path: str) -> FrameSocket:
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    sock.connect(path)
    return FrameSocket(sock)


def accept(listener: socket.socket) -> FrameSocket | None:
    """Accept a connection, or None when the peer is another user: only our own user may talk to our processes."""
    sock, _ = listener.accept()
    if not is_own_user(sock):
        sock.close()
        return None
    return FrameSocket(sock)


def is_own_user(sock: socket.socket) -> bool:
    """Whether the peer of a connected socket runs as our user."""
    credentials = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    _pid, uid, _gid = struct.unpack("3i", credentials)
    return bool(uid == os.getuid())


class FrameSocket:
    """Frames in, frames out. Sending never blocks unless asked to: what the peer cannot take yet waits here."""

    def __init__(self, sock: socket.socket, epoch: int = 0) -> None:
        for option in (socket.SO_SNDBUF, socket.SO_RCVBUF):
            with contextlib.suppress(OSError):
                sock.setsockopt(socket.SOL_SOCKET, option, _SOCKET_BUFFER_BYTES)
        self.sock = sock
        self.epoch = epoch
        self._reader = FrameReader()
        self._ready: deque[Frame] = deque()
        self._unsent = bytearray()
        self._seq = 0

    def fileno(self) -> int:
        return self.sock.fileno()

    @property
    def bytes_unsent(self) -> int:
        return len(self._unsent)

    def send(self, kind: int, body: bytes, *, block: bool = False) -> None:
        """Queue a frame and write what the peer takes now; with `block`, all of it.

        Raises:
            OSError: the connection is gone.
        """
        data = frame(kind, body, seq=self._seq, sender=INSTANCE, epoch=self.epoch)
        self._seq += 1
        if not block:
            self._unsent += data
            self.flush()
        else:
            if self._unsent:
                data, self._unsent = bytes(self._unsent + data), bytearray()
            self.sock.sendall(data)

    def flush(self) -> None:
        """Write as much as the peer takes without waiting."""
        unsent = self._unsent
        while unsent:
            try:
                sent = self.sock.send(unsent, _NOW_QUIETLY)
            except (BlockingIOError, InterruptedError):
                return
            del unsent[:sent]

    def receive(self) -> list[Frame] | None:
        """Frames that can be read without waiting (maybe none); None when the peer has closed.

        Raises:
            ProtocolError: the peer sent something that is not a frame.
        """
        try:
            data = self.sock.recv(_RECEIVE_BYTES, _NOW)
        except (BlockingIOError, InterruptedError):
            return []
        except OSError:
            return None
        if not data:
            return None
        return list(self._reader.feed(data))

    def receive_next(self) -> Frame | None:
        """The next frame, if all of it is here; what follows it stays for later.

        Raises:
            EOFError: the peer has closed.
            ProtocolError: the peer sent something that is not a frame.
        """
        if not self._ready:
            frames = self.receive()
            if frames is None:
                raise EOFError("connection closed")
            self._ready.extend(frames)
        return self._ready.popleft() if self._ready else None

    def receive_one(self) -> Frame:
        """Wait for the next frame.

        Raises:
            EOFError: the peer has closed.
            ProtocolError: the peer sent something that is not a frame.
        """
        while not self._ready:
            try:
                data = self.sock.recv(_RECEIVE_BYTES)
            except OSError as e:
                raise EOFError("connection lost") from e
            if not data:
                raise EOFError("connection closed")
            self._ready.extend(self._reader.feed(data))
        return self._ready.popleft()

    def wait(self, seconds: float | None) -> bool:
        """Whether there is something to read, at the latest after `seconds`, if any: data, or the connection's end."""
        return bool(self._ready) or bool(select.select([self.sock], [], [], seconds)[0])

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self.sock.close()


def expect(received: Frame, kind: int) -> bytes:
    """The body of a frame that must be of one kind.

    Raises:
        ProtocolError: it is of another.
    """
    if received.kind != kind:
        raise ProtocolError(f"frame of kind {received.kind} where {kind} was due")
    return received.body
