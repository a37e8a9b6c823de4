"""Fixtures that several folders share: the default model's file, its golden reference, a running server."""

from __future__ import annotations

import json
import os
import signal
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


@pytest.fixture(scope="session")
def model_path() -> Path:
    """The default model's file: `SIXFOLD_TEST_MODEL`, or the one in the cache (`sixfold pull smollm2`)."""
    if path := os.environ.get("SIXFOLD_TEST_MODEL"):
        return Path(path)
    from sixfold.errors import ModelNotFound
    from sixfold.model_store import resolve

    try:
        return resolve("smollm2")
    except ModelNotFound:
        pytest.skip("the default model is not in the cache; `make test` fetches it, or run: sixfold pull smollm2")


@pytest.fixture(scope="session")
def gemma_path() -> Path:
    """Gemma 3 270M (Q4_K_M): `SIXFOLD_TEST_GEMMA`, or the one in the cache."""
    if path := os.environ.get("SIXFOLD_TEST_GEMMA"):
        return Path(path)
    from sixfold.errors import ModelNotFound
    from sixfold.model_store import resolve

    try:
        return resolve("gemma3-270m")
    except ModelNotFound:
        pytest.skip("gemma3-270m is not in the cache; `sixfold pull gemma3-270m` brings it")


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
