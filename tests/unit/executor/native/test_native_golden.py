"""Real weights, of the default model and of Gemma, against a float32 forward pass made elsewhere (tests/golden).

tests/e2e/test_golden.py compares all cases on this machine's best build; here are types and builds besides."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from tests.unit.executor.native.tiny_llama import Row, run

from sixfold.executor.native import models
from sixfold.executor.native.kernels import ThreadPool
from sixfold.model_file import open_model

pytestmark = pytest.mark.model
CHUNK, BLOCKS = 128, 96


class Model:
    def __init__(self, path: Path, isa: str, activations: str, dtype: str) -> None:
        self.loaded = models.load(
            open_model(path), ThreadPool(2, isa), activations=activations, max_positions=BLOCKS * 16
        )
        self.program = self.loaded.program(self.loaded.kv_cache(BLOCKS, dtype), CHUNK)
        self.tables = np.arange(BLOCKS, dtype=np.int32)[None]

    def logits(self, ids: list[int], start: int = 0, last: int = 0) -> npt.NDArray[np.float32]:
        """[tokens, vocabulary], of the last tokens alone if so wished."""
        parts = []
        for a in range(0, len(ids), CHUNK):
            wanted = a + CHUNK > len(ids) - last or not last
            parts.append(run(self.program, self.tables, [Row(ids[a : a + CHUNK], start + a, 0)], greedy=not wanted)[0])
        return np.concatenate(parts)[-last:]


def divergence(case: dict[str, Any], logits: npt.NDArray[np.float32]) -> list[float]:
    """Per position: sum of p_ref * (log p_ref - log p) over the reference's 20 most likely tokens."""
    wide = logits[-len(case["top_ids"]) :].astype(np.float64)
    wide -= wide.max(axis=1, keepdims=True)
    logprobs = wide - np.log(np.exp(wide).sum(axis=1, keepdims=True))
    found = []
    for row, ids, ref in zip(logprobs, case["top_ids"], np.array(case["top_logprobs"]), strict=True):
        found.append(float((np.exp(ref) * (ref - row[ids])).sum()))
    return found


@pytest.mark.parametrize(
    ("isa", "activations", "dtype", "longest", "allowed"),
    [
        ("", "float32", "float32", 64, 2e-5),
        ("", "float32", "bfloat16", 64, 1e-3),
        ("", "int8", "bfloat16", 256, 6e-3),
        ("generic", "int8", "bfloat16", 16, 6e-3),
    ],
)
def test_logits_agree(
    model_path: Path, golden: dict[str, Any], isa: str, activations: str, dtype: str, longest: int, allowed: float
) -> None:
    model = Model(model_path, isa, activations, dtype)
    cases = [c for c in golden["cases"] if len(c["ids"]) <= longest]
    found = [x for case in cases for x in divergence(case, model.logits(case["ids"]))]
    assert len(found) > 20
    assert abs(np.mean(found)) < allowed


def test_greedy_tokens_agree_in_float32(model_path: Path, golden: dict[str, Any]) -> None:
    model = Model(model_path, "", "float32", "float32")
    for case in [c for c in golden["cases"] if len(c["ids"]) <= 20][:3]:
        ids = list(case["ids"])
        last = model.logits(ids)[-1]
        for want in case["greedy"]:
            assert int(last.argmax()) == want
            last = model.logits([want], len(ids))[-1]
            ids.append(want)


def test_gemma_agrees_on_the_portable_build(gemma_path: Path, gemma_golden: dict[str, Any]) -> None:
    model = Model(gemma_path, "generic", "int8", "bfloat16")
    cases = [c for c in gemma_golden["cases"] if len(c["ids"]) <= 16]
    found = [x for case in cases for x in divergence(case, model.logits(case["ids"], last=len(case["top_ids"])))]
    assert len(found) > 20
    assert abs(np.mean(found)) < 6e-3


def test_gemma_in_chunks_and_beside_others_keeps_every_bit(gemma_path: Path, gemma_golden: dict[str, Any]) -> None:
    model = Model(gemma_path, "", "int8", "bfloat16")
    long, short = (next(c["ids"] for c in gemma_golden["cases"] if len(c["ids"]) > n) for n in (600, 10))
    want, other = model.logits(long[:600])[-1], model.logits(short)
    program = model.loaded.program(model.loaded.kv_cache(BLOCKS), CHUNK)
    tables = np.arange(BLOCKS, dtype=np.int32).reshape(2, -1)
    cuts = [0, 100, 227, 228, 300, 417, 540, 599]
    for a, b in itertools.pairwise(cuts):
        run(program, tables, [Row(long[a:b], a, 0)], greedy=True)
    both, _, _ = run(program, tables, [Row(long[599:600], 599, 0), Row(short, 0, 1)])
    np.testing.assert_array_equal(both[0], want)
    np.testing.assert_array_equal(both[1:], other)
