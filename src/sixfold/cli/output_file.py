"""The file that a user names with -o: refused with one sentence where it cannot be written."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

from sixfold.errors import ConfigError

__all__ = ["check_output", "output_error"]


def check_output(path: Path, option: str = "-o") -> None:
    """Before the work whose result goes there. Makes nothing, and touches no file that is there.

    Raises:
        ConfigError: it could not be written.
    """
    try:
        if path.exists():
            with path.open("ab"):
                pass
        elif not stat.S_ISDIR(os.stat(path.parent).st_mode):
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
        elif not os.access(path.parent, os.W_OK | os.X_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    except OSError as error:
        raise output_error(path, error, option) from None


def output_error(path: Path, error: OSError, option: str = "-o") -> ConfigError:
    """What to raise for a failed attempt to write."""
    return ConfigError(f"{option} {path} cannot be written: {(error.strerror or str(error)).lower()}", param=option)
