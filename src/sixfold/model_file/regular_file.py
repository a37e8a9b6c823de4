"""Opening the files of a model: regular files only, within bounds.

A path may name a pipe, which would never end or never begin, or a device, which would fill the memory.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import stat
from collections.abc import Iterator
from pathlib import Path

from sixfold.errors import ModelFileError

__all__ = ["map_whole", "naming_faults", "read_whole"]


def map_whole(path: Path, *, bytes_min: int, kind: str) -> mmap.mmap:
    """A file's content, mapped and read-only.

    Args:
        bytes_min: the shortest that a file of this kind can be.
        kind: for messages.

    Raises:
        ModelFileError: it cannot be opened, is not a regular file or too short; the message begins with its name.
    """
    with _opened(path) as (fd, n_bytes):
        if n_bytes < bytes_min:
            raise ModelFileError(f"{path.name}: not a {kind} file, since it is too short ({n_bytes} bytes)")
        return mmap.mmap(fd, n_bytes, access=mmap.ACCESS_READ)


def read_whole(path: Path, *, bytes_max: int) -> bytes:
    """A file's content.

    Raises:
        ModelFileError: it cannot be opened, is not a regular file or longer than `bytes_max`; the message begins with
            its name.
    """
    with _opened(path) as (fd, n_bytes):
        if n_bytes > bytes_max:
            raise ModelFileError(f"{path.name}: longer than {bytes_max} bytes")
        with open(fd, "rb", closefd=False) as file:
            return file.read(n_bytes)


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[tuple[int, int]]:
    """-> (descriptor, bytes)."""
    try:
        # Without O_NONBLOCK opening a pipe would wait for a writer.
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
        try:
            facts = os.fstat(fd)
            if not stat.S_ISREG(facts.st_mode):
                raise ModelFileError(f"{path.name}: not a regular file")
            yield fd, facts.st_size
        finally:
            os.close(fd)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise ModelFileError(f"{path.name}: cannot be opened ({reason})") from error


@contextlib.contextmanager
def naming_faults(path: Path) -> Iterator[None]:
    """Within it, a ModelFileError that does not name this file or folder yet gets its name in front."""
    try:
        yield
    except ModelFileError as error:
        prefix = f"{path.name}: "
        if error.message.startswith(prefix):
            raise
        raise ModelFileError(prefix + error.message) from error
