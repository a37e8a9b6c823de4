"""What callers have sent and a process has not taken: connections to be accepted, and bytes to be read.

A process that stands still does not know who waits for it; the kernel does.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

__all__ = ["has_unread"]

_LISTEN = "0A"
_SOCKET = re.compile(r"socket:\[(\d+)\]")


def has_unread(pid: int, port: int) -> bool:
    """Whether a connection to this TCP port waits to be accepted, or bytes wait on one that the process holds.

    See proc_net(5): of a listening socket `rx_queue` is the length of its backlog, of any other the bytes to read.
    """
    waiting = list(_waiting(port))
    if any(is_listening for is_listening, _ in waiting):
        return True
    inodes = {inode for _, inode in waiting}
    return bool(inodes) and not inodes.isdisjoint(_sockets(pid))


def _waiting(port: int) -> Iterator[tuple[bool, str]]:
    """Of each socket of the port that has something to take: whether it listens, and its inode."""
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        try:
            rows = Path(table).read_text().splitlines()[1:]
        except OSError:
            continue
        for row in rows:
            _, local, _, state, queues, _, _, _, _, inode, *_ = row.split()
            if int(local.rpartition(":")[2], 16) == port and int(queues.rpartition(":")[2], 16):
                yield state == _LISTEN, inode


def _sockets(pid: int) -> Iterator[str]:
    """Inodes of the sockets that a process has open."""
    folder = f"/proc/{pid}/fd"
    try:
        names = os.listdir(folder)
    except OSError:
        return
    for name in names:
        try:
            found = _SOCKET.fullmatch(os.readlink(f"{folder}/{name}"))
        except OSError:
            continue
        if found is not None:
            yield found[1]
