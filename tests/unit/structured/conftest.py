"""The walker over the default model's vocabulary."""

from __future__ import annotations

from pathlib import Path

import pytest

from .walker import Walker


@pytest.fixture(scope="session")
def walker(model_path: Path) -> Walker:
    return Walker(model_path)
