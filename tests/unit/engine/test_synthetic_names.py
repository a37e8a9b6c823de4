"""A synthetic model is asked for by name like any other, and made where the cache is."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest

from sixfold.engine.launch import model_path
from sixfold.errors import DownloadError, ModelFileError, ModelNotFound


def test_made_in_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SIXFOLD_CACHE", str(tmp_path))
    assert model_path("synthetic:tiny@q8_0") == tmp_path / "synthetic" / "tiny-q8_0.gguf"
    assert model_path("synthetic:tiny@q8_0").is_file()


def test_no_such_shape() -> None:
    with pytest.raises(ModelNotFound, match="no synthetic model"):
        model_path("synthetic:large")


def test_a_cache_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("SIXFOLD_CACHE", str(tmp_path / "file"))
    with pytest.raises(DownloadError, match="synthetic:tiny cannot be written to the cache"):
        model_path("synthetic:tiny")


@pytest.mark.parametrize(
    "changes",
    ["hidden=33", "ffn=31", "head_dim=33", "head_dim=1024", "n_heads=3,n_kv_heads=2", "n_heads=32", "n_experts=4"],
)
def test_numbers_that_make_no_model_leave_nothing(
    changes: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SIXFOLD_CACHE", str(tmp_path))
    with pytest.raises(ModelFileError, match=f"^tiny-{changes.replace(',', '-')}-q4_1.gguf: "):
        model_path(f"synthetic:tiny,{changes}")
    assert not list(tmp_path.iterdir())


def test_a_disk_without_room_is_told_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SIXFOLD_CACHE", str(tmp_path))
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=1000))
    with pytest.raises(DownloadError, match=r"No space left on device; 0 MB are needed"):
        model_path("synthetic:tiny@f32")
    assert not list((tmp_path / "synthetic").iterdir())


def test_what_a_killed_process_has_left_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SIXFOLD_CACHE", str(tmp_path))
    folder = tmp_path / "synthetic"
    folder.mkdir()
    left, kept = folder / ".tiny-q4_1.gguf.99999999.part", folder / f".tiny-q4_1.gguf.{os.getppid()}.part"
    left.touch()
    kept.touch()
    model_path("synthetic:tiny")
    assert sorted(folder.iterdir()) == [kept, folder / "tiny-q4_1.gguf"]
