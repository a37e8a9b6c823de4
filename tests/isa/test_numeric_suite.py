"""The numeric suite on each build of the kernels that this CPU has and does not choose by itself.

Tests under tests/unit/executor/native run on all of them anyway; here are those that use the default: a process each.
All tests on one build: SIXFOLD_ISA=avx2 make test.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from sixfold.executor.native.kernels import available_isas

ROOT = Path(__file__).resolve().parents[2]
SUITE = ("tests/unit/sampler", "tests/e2e/test_golden.py", "tests/e2e/test_determinism.py")
SELECTED = "not (closer or same_request or gemma) or together"
"""The default model alone: portable code takes minutes for the other one. Float reference mode is compared in
tests/unit/executor/native; of the configurations of `test_determinism.py` one stands for all, since bit equality of
rows is checked there, too."""


@pytest.mark.skipif("SIXFOLD_ISA" in os.environ, reason="SIXFOLD_ISA chose the build of this run")
@pytest.mark.parametrize("isa", available_isas()[1:])
def test_numeric_suite(isa: str, model_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *SUITE, "-k", SELECTED],
        cwd=ROOT,
        env={**os.environ, "SIXFOLD_ISA": isa, "SIXFOLD_TEST_MODEL": str(model_path)},
        capture_output=True,
        text=True,
        timeout=1200,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-8000:]
