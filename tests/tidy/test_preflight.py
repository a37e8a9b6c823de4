"""`make install` on a machine where something is missing: one sentence and the remedy, before pip says anything."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "preflight.sh"


def preflight(python: str, cxx: str) -> tuple[int, str]:
    done = subprocess.run(["sh", str(SCRIPT), python, cxx], capture_output=True, text=True, timeout=60, check=False)
    return done.returncode, done.stderr


def python_that_fails(folder: Path, check: str) -> str:
    """An interpreter that fails the check whose program holds `check`, and passes the others."""
    path = folder / "python"
    path.write_text(f'#!/bin/sh\ncase "$*" in\n*{check}*) exit 1 ;;\n-V) echo Python 3.9.2 ;;\nesac\n')
    path.chmod(0o755)
    return str(path)


def test_all_there() -> None:
    assert preflight(sys.executable, "sh") == (0, "")


@pytest.mark.parametrize(
    ("check", "said", "remedy"),
    [
        ("version_info", "is Python 3.9.2; Sixfold needs Python 3.11", "make PYTHON="),
        ("ensurepip", "has no venv module", "python3-venv"),
        ("Python.h", "Python.h, the C header", "python3-dev"),
    ],
)
def test_a_poor_interpreter(tmp_path: Path, check: str, said: str, remedy: str) -> None:
    code, message = preflight(python_that_fails(tmp_path, check), "sh")
    assert code == 1
    assert said in message
    assert remedy in message
    assert len(message.splitlines()) == 2


@pytest.mark.parametrize(("python", "cxx", "remedy"), [("no-python", "sh", "python3"), ("sh", "no-compiler", "g++")])
def test_a_missing_program(tmp_path: Path, python: str, cxx: str, remedy: str) -> None:
    interpreter = python if python != "sh" else python_that_fails(tmp_path, "nothing-fails")
    code, message = preflight(interpreter, cxx)
    assert code == 1
    assert remedy in message
    assert len(message.splitlines()) == 2
