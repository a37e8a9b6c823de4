"""The private directory of one server (0700): its sockets, and the files through which its processes know each other.

Its supervisor removes it, or where that was killed the children do; where there were none yet, the next server that
starts does. Who lives holds a lock on a file in it, which the kernel lets go however the process ends.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from sixfold.errors import ConfigError

__all__ = ["run_directory"]

_PREFIX = "sixfold-"
_LOCK = "lock"
_YOUNG_S = 60.0
"""A directory may be without a lock for a moment when it is made."""


@contextmanager
def run_directory() -> Iterator[str]:
    """A new one, under XDG_RUNTIME_DIR where that can be used; it is removed at the end.

    Raises:
        ConfigError: there is no place for it.
    """
    for parent in (os.environ.get("XDG_RUNTIME_DIR"), tempfile.gettempdir()):
        # A socket's path has at most 107 bytes.
        if parent and os.path.isdir(parent) and os.access(parent, os.W_OK) and len(parent) < 70:
            break
    else:
        raise ConfigError("no directory for sockets: XDG_RUNTIME_DIR and TMPDIR cannot be used")
    _sweep(Path(parent))
    path = tempfile.mkdtemp(prefix=_PREFIX, dir=parent)
    fd = os.open(os.path.join(path, _LOCK), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        fcntl.flock(folder, fcntl.LOCK_EX)  # what cleans /tmp by age leaves a locked folder alone: tmpfiles.d(5)
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)
        os.close(fd)
        os.close(folder)


def _sweep(parent: Path) -> None:
    """Remove what servers left here that were killed before they had children."""
    for path in parent.glob(f"{_PREFIX}*/{_LOCK}"):
        with suppress(OSError):
            about = path.parent.lstat()
            if about.st_uid != os.getuid() or time.time() - about.st_mtime < _YOUNG_S:
                continue
            fd = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(path.parent, ignore_errors=True)
            finally:
                os.close(fd)
