"""Fixtures that several folders share: the known models' files and their golden references."""

from __future__ import annotations

import json
import os
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

# The same examples everywhere, and no time limit for one: a test must not depend on the day or on the machine's load.
settings.register_profile("sixfold", derandomize=True, deadline=None)
settings.load_profile("sixfold")

GOLDEN = Path(__file__).parent / "golden"


def pytest_sessionstart() -> None:
    """A shell's background job starts with SIGINT ignored, and would hand that on to every program under test."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files that take minutes first: begun last, one of them would be all that the other process waits for."""
    items.sort(key=lambda item: item.path.parent.name != "isa")


@pytest.fixture
def runtime_dir(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty folder in which servers make their run directories. `tmp_path` may be too long: a socket's path ends at
    108 bytes, and a server goes elsewhere then."""
    with tempfile.TemporaryDirectory(prefix="sf-") as path:
        monkeypatch.setenv("XDG_RUNTIME_DIR", path)
        yield Path(path)


def _known_model(name: str, variable: str) -> Path:
    if path := os.environ.get(variable):
        return Path(path)
    from sixfold.errors import ModelNotFound
    from sixfold.model_store import resolve

    try:
        return resolve(name)
    except ModelNotFound:
        pytest.skip(f"{name} is not in the cache; `make test` fetches it, or run: sixfold pull {name}")


@pytest.fixture(scope="session")
def model_path() -> Path:
    """The default model's file: `SIXFOLD_TEST_MODEL`, or the one in the cache."""
    return _known_model("smollm2", "SIXFOLD_TEST_MODEL")


@pytest.fixture(scope="session")
def gemma_path() -> Path:
    """Gemma 3 270M (Q4_K_M): `SIXFOLD_TEST_GEMMA`, or the one in the cache."""
    return _known_model("gemma3-270m", "SIXFOLD_TEST_GEMMA")


@pytest.fixture(scope="session")
def gemma_golden() -> dict[str, Any]:
    """Float32 reference of Gemma 3 270M: see the file's `fields`."""
    loaded: dict[str, Any] = json.loads((GOLDEN / "gemma3.json").read_text())
    return loaded


@pytest.fixture(scope="session")
def golden() -> dict[str, Any]:
    """Float32 reference of the default model: see the file's `fields`."""
    loaded: dict[str, Any] = json.loads((GOLDEN / "smollm2.json").read_text())
    return loaded
