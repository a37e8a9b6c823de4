"""Memory that processes of one server share, through a file of its run directory.

All of the file's room is taken when it is made: a page that a full disk cannot give would otherwise end whoever first
writes it with SIGBUS, hours later. A process that is started again finds its predecessor's file and needs no more room.
"""

from __future__ import annotations

import errno
import mmap
import os

from sixfold.errors import ConfigError

__all__ = ["share", "view"]


def share(path: str, n_bytes: int) -> mmap.mmap:
    """A file's bytes, to be read and written; zeros where it is new. Private (0600).

    Raises:
        ConfigError: there is no room for it.
    """
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            os.posix_fallocate(fd, 0, n_bytes)
        except OSError as e:
            if e.errno not in (errno.EOPNOTSUPP, errno.EINVAL):
                where = os.path.dirname(path)
                raise ConfigError(f"{where} has no room for {n_bytes} bytes more: {e.strerror}") from e
            os.ftruncate(fd, n_bytes)  # a file system that promises nothing
        return mmap.mmap(fd, n_bytes)
    finally:
        os.close(fd)


def view(path: str) -> mmap.mmap:
    """All bytes of a file, to be read.

    Raises:
        OSError: it is not there, or has no bytes yet.
    """
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return mmap.mmap(fd, 0, access=mmap.ACCESS_READ)
    except ValueError as e:
        raise FileNotFoundError(errno.ENOENT, "it has no bytes yet", path) from e
    finally:
        os.close(fd)
