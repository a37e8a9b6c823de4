"""A synthetic model is asked for by name like any other, and made where the cache is."""

from __future__ import annotations

from pathlib import Path

import pytest

from sixfold.engine.launch import model_path
from sixfold.errors import DownloadError, ModelNotFound


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
