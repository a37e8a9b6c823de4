"""Memory that processes share has all of its room from the start: a disk that fills later ends nobody."""

from __future__ import annotations

import errno
import os
import resource
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sixfold import shared_file
from sixfold.api.admission.tallies import Tallies
from sixfold.engine.progress import Progress
from sixfold.errors import ConfigError
from sixfold.observability.calls import CallRing
from sixfold.observability.history import History
from sixfold.observability.meter import Meter
from sixfold.shared_file import share, view

MAKERS: dict[str, Callable[[str], Any]] = {
    "progress": Progress.create,
    "history": History.create,
    "meter-engine": lambda run_dir: Meter.create(run_dir, "engine"),
    "calls-0": lambda run_dir: CallRing.create(run_dir, 0),
    "tallies-*": lambda run_dir: Tallies.open(run_dir, ["a"] * 200, n_processes=2, own=0),
}


@pytest.mark.parametrize("name", MAKERS)
def test_every_page_is_taken_when_the_file_is_made(tmp_path: Path, name: str) -> None:
    MAKERS[name](str(tmp_path))
    (path,) = tmp_path.glob(name)
    status = path.stat()
    assert status.st_size > 0 and 512 * status.st_blocks >= status.st_size
    assert status.st_mode & 0o777 == 0o600


def test_who_is_started_again_needs_no_room_and_finds_what_was_there(tmp_path: Path) -> None:
    path = str(tmp_path / "file")
    first = share(path, 8192)
    first[5000] = 7
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, limit[1]))  # as on a disk that is full
        again = share(path, 8192)
        with pytest.raises(ConfigError, match=r"has no room for 8192 bytes more"):  # a sentence for whoever starts it
            share(str(tmp_path / "other"), 8192)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
    assert again[5000] == 7 and view(path)[5000] == 7


def test_a_file_system_that_promises_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: int) -> None:
        raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))

    monkeypatch.setattr(shared_file.os, "posix_fallocate", refuse)
    memory = share(str(tmp_path / "file"), 8192)
    memory[8191] = 1
    assert len(view(str(tmp_path / "file"))) == 8192


def test_what_is_not_there_yet_cannot_be_viewed(tmp_path: Path) -> None:
    for path in (tmp_path / "none", tmp_path / "empty"):
        if path.name == "empty":
            path.touch()
        with pytest.raises(FileNotFoundError):
            view(str(path))
