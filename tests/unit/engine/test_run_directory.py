"""A server's directory goes with it, and what a killed one left goes with the next."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

import pytest

from sixfold.engine.run_directory import run_directory
from sixfold.errors import ConfigError

pytestmark = pytest.mark.usefixtures("runtime_dir")


def left_behind(parent: Path, name: str, *, lock: bool = True) -> Path:
    """A directory as it was an hour ago."""
    path = parent / name
    path.mkdir(0o700)
    (path / ("lock" if lock else "else")).touch()
    os.utime(path, (0, 0))
    return path


def test_private_and_gone_at_the_end(runtime_dir: Path) -> None:
    with run_directory() as path:
        assert Path(path).parent == runtime_dir and Path(path).stat().st_mode & 0o777 == 0o700
    assert not list(runtime_dir.iterdir())


def test_what_nobody_holds_is_swept(runtime_dir: Path) -> None:
    dead, young = left_behind(runtime_dir, "sixfold-dead"), left_behind(runtime_dir, "sixfold-young")
    os.utime(young)
    others = left_behind(runtime_dir, "sixfold-others", lock=False)
    with run_directory():
        assert not dead.exists() and young.exists() and others.exists()


def test_who_lives_keeps_his(runtime_dir: Path) -> None:
    with run_directory() as first:
        os.utime(first, (0, 0))
        with run_directory() as second:
            assert first != second and Path(first).exists()


def test_no_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("XDG_RUNTIME_DIR")
    monkeypatch.setattr("tempfile.gettempdir", lambda: "/nonexistent")
    with pytest.raises(ConfigError), run_directory():
        pass


def test_what_cleans_by_age_sees_that_it_is_in_use(runtime_dir: Path) -> None:
    """tmpfiles.d(5): a folder on which somebody holds a lock is left alone, with all that is in it."""
    with run_directory() as path:
        fd = os.open(path, os.O_RDONLY)
        try:
            with pytest.raises(BlockingIOError):
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        finally:
            os.close(fd)
