"""Weights that are quantized when they are loaded."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tests.fixtures import tiny_models as tiny

from sixfold.config import Config
from sixfold.engine.resolve import resolve
from sixfold.executor.model_runner import NativeBackend


@pytest.mark.parametrize("kind", ["folder", "gguf"])
def test_float_weights_become_what_was_asked_for(kind: str, tmp_path: Path) -> None:
    path = (tiny.folder if kind == "folder" else tiny.gguf)(tmp_path, "llama")
    if kind == "folder":
        (path / "tokenizer.json").write_text('{"model": {}}')  # no text here, but a folder without one is refused
    ids, reference = tiny.references("llama")[0]
    sizes, errors = [], []
    for quantize in ("none", "q8_0", "q4_1"):
        settings = {"model": str(path), "quantize": quantize, "threads": 1, "num_kv_blocks": 16}
        backend = NativeBackend.load(resolve(Config.from_flat(settings)))
        logits = backend.logits(list(ids))
        sizes.append(backend.facts.bytes_weights)
        errors.append(float(np.abs(logits - reference).mean() / np.abs(reference).mean()))
        backend.close()
    assert sizes[0] > 3 * sizes[1] > 4 * sizes[2] * 0.9
    assert errors[0] < 0.01 < errors[2] and errors[1] < errors[2]
