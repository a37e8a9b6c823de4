"""The numeric suite on each build of the kernels that this CPU has and does not choose by itself, in processes.

Tests under tests/unit/executor/native run on all of them anyway; here are those that use the default, as far as the
time of every day allows: golden distributions, and a model of two layers for the rest. All tests on one build:
SIXFOLD_ISA=avx2 make test.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from sixfold.executor.native.kernels import available_isas
from sixfold.model_file.synthetic import SyntheticModel

ROOT = Path(__file__).resolve().parents[2]
pytestmark = [
    pytest.mark.skipif("SIXFOLD_ISA" in os.environ, reason="SIXFOLD_ISA chose the build of this run"),
    pytest.mark.parametrize("isa", available_isas()[1:]),
]


def run(isa: str, model: Path, *arguments: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", *arguments],
        cwd=ROOT,
        env={**os.environ, "SIXFOLD_ISA": isa, "SIXFOLD_TEST_MODEL": str(model)},
        capture_output=True,
        text=True,
        timeout=1200,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-8000:]
    assert " passed" in done.stdout


def test_sampling(isa: str) -> None:
    run(isa, Path("none"), "tests/unit/sampler")


def test_golden(isa: str, model_path: Path) -> None:
    """`generic` is ten times slower, and computes the short prompts alone. Beyond their 200 tokens what is left is
    attention over more than a segment, and windows: scripts/check_native.sh has both, on every build."""
    run(isa, model_path, "tests/e2e/test_golden.py", "-k", "distributions" + " and short" * (isa == "generic"))


def test_same_request_same_tokens(isa: str, tmp_path: Path) -> None:
    model = SyntheticModel.parse("synthetic:smollm2-135m,n_layers=2,ffn=512,vocab=1024").write(tmp_path / "small.gguf")
    # Its prompts have more tokens: a pool of 80 blocks makes requests wait, and no preemption comes of it.
    run(isa, model, "tests/e2e/test_determinism.py", "-k", "not pool or budget")
