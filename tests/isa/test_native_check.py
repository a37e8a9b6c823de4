"""The kernels without Python, each build against scalar code: native/checks, for this machine and for AArch64."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from sixfold.executor.native.kernels import available_isas

ROOT = Path(__file__).resolve().parents[2]
NO_HEADERS = 3
NEEDED = {"aarch64-linux-gnu-g++": "g++-aarch64-linux-gnu", "qemu-aarch64": "qemu-user"}


def good_builds(*arguments: str) -> list[str]:
    done = subprocess.run(
        ["sh", str(ROOT / "scripts" / "check_native.sh"), *arguments],
        env={**os.environ, "PYTHON": sys.executable},
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    if done.returncode == NO_HEADERS:
        pytest.skip(done.stderr.strip())
    assert done.returncode == 0, done.stdout + done.stderr
    return re.findall(r"^(\w+): good$", done.stdout, re.MULTILINE)


def needs(*programs: str) -> None:
    """Skips the test, naming the packages that are missing."""
    missing = [p for p in programs if shutil.which(p, path=f"{ROOT}/build/tools/bin:{os.environ['PATH']}") is None]
    if missing:
        packages = " ".join(NEEDED.get(p, p) for p in missing)
        pytest.skip(f"{' and '.join(missing)} missing (Debian, Ubuntu: apt-get install {packages})")


def test_the_builds_of_this_machine() -> None:
    needs("cmake", "ninja")
    good = good_builds()
    assert good[: len(available_isas())] == available_isas()
    if "avx512" in good:
        assert "avxvnni_evex" in good


def test_the_builds_for_aarch64() -> None:
    needs("cmake", "ninja", *NEEDED)
    assert good_builds("aarch64") == ["generic", "neon"]
