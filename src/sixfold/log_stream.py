"""Standard error as something that nobody ever waits for.

Whoever starts a server may hand it a pipe and then not read it, or slowly. A process that wrote into it would stand
still with its event loop, and all its callers with it. So nothing here blocks: what the other end does not take is
kept, up to MAX_KEPT_BYTES, and a thread hands it on as soon as there is room; what comes beyond that is lost and
counted.
"""

from __future__ import annotations

import contextlib
import os
import select
import stat
import threading
import time
from collections import deque
from collections.abc import Callable

__all__ = ["MAX_KEPT_BYTES", "LogStream", "can_write"]

MAX_KEPT_BYTES = 256 << 10
CLOSE_S = 0.2
"""For what is still kept when the process ends."""


class LogStream:
    """See the module's docstring. May be written by any thread.

    Args:
        fd: to write to. Its own flags stay as they are: other processes share them.
        lost: (lines) -> a line that says so, without its end.
    """

    def __init__(self, fd: int, lost: Callable[[int], str]) -> None:
        self._lost = lost
        self._lock = threading.Lock()
        self._kept: deque[bytes] = deque()
        self._kept_bytes = 0
        self.n_lost = 0
        """Lines, since it was last said."""
        self._thread: threading.Thread | None = None
        self._is_closed = False
        self._fd, self._send = _unblocked(fd)
        self._is_own = self._fd != fd

    def write(self, line: str) -> None:
        """Never waits.

        Args:
            line: without its end.

        Raises:
            OSError: it cannot be written at all; it is lost.
        """
        data = line.encode("utf-8", "backslashreplace") + b"\n"
        with self._lock:
            if self._is_closed:
                return
            if not self._kept:
                data = self._write(data)
            if not data:
                return
            if self._kept and self._kept_bytes + len(data) > MAX_KEPT_BYTES:
                self.n_lost += 1
                return
            self._keep(data)
            if self._thread is None:
                self._thread = threading.Thread(target=self._hand_on, name="sf: log", daemon=True)
                self._thread.start()

    def close(self) -> None:
        """Hand on what is kept, for CLOSE_S at most; what comes later is lost. Idempotent."""
        until_s = time.monotonic() + CLOSE_S
        while self._kept and (left_s := until_s - time.monotonic()) > 0 and can_write(self._fd, left_s):
            with contextlib.suppress(OSError):
                self._empty()
        with self._lock:
            if self._is_own and not self._kept and not self._is_closed:
                os.close(self._fd)
            self._is_closed = True

    def _write(self, data: bytes) -> bytes:
        """What is left of it."""
        while data:
            try:
                data = data[self._send(_whole_lines(data)) :]
            except BlockingIOError:
                break
        return data

    def _keep(self, data: bytes) -> None:
        self._kept.append(data)
        self._kept_bytes += len(data)

    def _empty(self) -> bool:
        """Write what can be written. Returns: whether that was all."""
        with self._lock:
            while self._kept:
                data = self._kept.popleft()
                self._kept_bytes -= len(data)
                if left := self._write(data):
                    self._kept.appendleft(left)
                    self._kept_bytes += len(left)
                    return False
                if self.n_lost and not self._kept:
                    n_lost, self.n_lost = self.n_lost, 0
                    self._keep(self._lost(n_lost).encode() + b"\n")
            self._thread = None
            return True

    def _hand_on(self) -> None:
        with contextlib.suppress(OSError):
            while not self._empty():
                can_write(self._fd, None)
            return
        with self._lock:  # the other end is gone
            self._kept.clear()
            self._kept_bytes = 0
            self._thread = None


def _whole_lines(data: bytes) -> bytes:
    """As many as a pipe takes whole or not at all, so that no line of another process comes into the middle of one; all
    of it where the first line is longer."""
    if len(data) <= select.PIPE_BUF:
        return data
    end = data.rfind(b"\n", 0, select.PIPE_BUF) + 1
    return data[:end] if end else data


def can_write(fd: int, seconds: float | None = 0.0) -> bool:
    """Whether something can be written (or fails at once), now or within this time; None: waits for it."""
    poll = select.poll()
    poll.register(fd, select.POLLOUT)
    return bool(poll.poll(None if seconds is None else seconds * 1e3))


def _unblocked(fd: int) -> tuple[int, Callable[[bytes], int]]:
    """(descriptor, what writes to the same place without waiting). Files never make anybody wait."""
    mode = os.fstat(fd).st_mode
    if stat.S_ISREG(mode):
        return fd, lambda data: os.write(fd, data)
    if stat.S_ISFIFO(mode) or os.isatty(fd):
        with contextlib.suppress(OSError):  # a terminal of another user's, a pipe without a reader
            own = os.open(f"/proc/self/fd/{fd}", os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
            return own, lambda data: os.write(own, data)

    def write(data: bytes) -> int:
        if not can_write(fd):
            raise BlockingIOError
        return os.write(fd, data[: select.PIPE_BUF])  # for which there is room, if no other process took it just now

    return fd, write
