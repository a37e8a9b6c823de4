"""Each family's tiny model, as a folder and as a GGUF file: the same numbers and tensors, the reference's logits."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tests.fixtures import forward
from tests.fixtures import tiny_models as tiny

from sixfold.model_file import ModelFile, open_model

LONG = {"phi3_longrope": 1}
"""Sequences up to this index are computed by the reference with the short factors, later ones with the long."""


def context_of(family: str, i: int) -> int:
    return 128 if family in LONG and i > LONG[family] else 0


def distance(file: ModelFile, family: str) -> float:
    """Largest difference from the reference's logits, relative to their largest value."""
    worst = 0.0
    for i, (ids, expected) in enumerate(tiny.references(family)):
        found = forward.logits(file, ids, context=context_of(family, i))
        worst = max(worst, float(np.abs(found - expected).max() / np.abs(expected).max()))
    return worst


@pytest.mark.parametrize("family", tiny.FAMILIES)
def test_folder_and_gguf_give_the_logits_of_the_reference(family: str, tmp_path: Path) -> None:
    folder, gguf = open_model(tiny.folder(tmp_path, family)), open_model(tiny.gguf(tmp_path, family))
    assert distance(folder, family) < 2e-5
    ids, _ = tiny.references(family)[1]
    assert np.array_equal(forward.logits(folder, ids), forward.logits(gguf, ids))
    assert folder.unused() == gguf.unused() == []
    assert folder.bytes_weights == gguf.bytes_weights


@pytest.mark.parametrize("family", tiny.FAMILIES)
def test_folder_and_gguf_say_the_same_numbers(family: str, tmp_path: Path) -> None:
    folder, gguf = open_model(tiny.folder(tmp_path, family)).config, open_model(tiny.gguf(tmp_path, family)).config
    # Of llama3's scaling GGUF keeps the factors alone.
    assert replace(gguf, rope=folder.rope, rope_local=folder.rope_local) == folder
    for ours, theirs in ((folder.rope, gguf.rope), (folder.rope_local, gguf.rope_local)):
        assert replace(theirs, factor=ours.factor, original_context=ours.original_context) == ours


@pytest.mark.parametrize("dtype", ["F16", "BF16"])
@pytest.mark.parametrize("family", ["llama", "gemma3", "phi3", "mixtral"])
def test_half_width_shards(family: str, dtype: str, tmp_path: Path) -> None:
    whole = open_model(tiny.folder(tmp_path, family))
    sharded = open_model(tiny.folder(tmp_path / "s", family, dtype=dtype, shards=3))
    ids, _ = tiny.references(family)[1]
    assert np.array_equal(forward.logits(whole, ids), forward.logits(sharded, ids))
    assert sharded.unused() == []


def test_float16_gguf(tmp_path: Path) -> None:
    ids, _ = tiny.references("llama")[1]
    first, second = open_model(tiny.gguf(tmp_path, "llama")), open_model(tiny.gguf(tmp_path, "llama", kind=tiny.F16))
    assert np.array_equal(forward.logits(first, ids), forward.logits(second, ids))
