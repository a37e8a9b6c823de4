"""What makes a start quick is what it does not import; a time would depend on the machine."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from tests.fixtures import tiny_models as tiny

from sixfold.api.app import ROUTES, Late


def _loaded(code: str, *names: str) -> str:
    """Which of the modules are there when a new process has run `code`."""
    code = f"import sys\n{code}\nprint('LOADED', *sorted({set(names)} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    return done.stdout.splitlines()[-1]


def _config(tmp_path: Path) -> str:
    path = tiny.gguf(tmp_path, "llama")
    return f"""
from sixfold.config import Config
from sixfold.engine.launch import load_text
from sixfold.engine.resolve import resolve
config = resolve(Config.from_flat({{"model": {str(path)!r}, "max_model_len": 64}}))
"""


def test_the_supervisor_needs_no_arrays_to_say_what_is_served(tmp_path: Path) -> None:
    code = "import sixfold.engine.supervisor" + _config(tmp_path)
    assert _loaded(code, "numpy", "sixfold.executor.native.models", "sixfold.text", "asyncio") == "LOADED"


def test_an_api_process_imports_what_completions_and_chats_need(tmp_path: Path) -> None:
    code = "import sixfold.api.process, sixfold.api.server" + _config(tmp_path) + "load_text(config)"
    late = {f"sixfold.api.{route.module}" for _, _, route in ROUTES if isinstance(route, Late)}
    assert {"sixfold.api.anthropic.messages", "sixfold.api.responses.create", "sixfold.api.openapi"} < late
    assert _loaded(code, "numpy", "opentelemetry", "rich", *late) == "LOADED"


@pytest.mark.parametrize("route", [route for _, _, route in ROUTES if isinstance(route, Late)])
def test_handlers_that_are_imported_late_are_there(route: Late) -> None:
    assert callable(route.handler())
