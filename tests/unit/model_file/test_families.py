"""Each family's tiny model, as a folder and as a GGUF file: the same numbers and tensors, the reference's logits."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.fixtures import forward
from tests.fixtures import tiny_models as tiny

from sixfold.errors import ModelFileError
from sixfold.executor.native.models import FAMILIES
from sixfold.model_file import ModelFile, open_model
from sixfold.model_file.architectures import ARCHITECTURES
from sixfold.model_file.synthetic import SHAPES

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


def gguf_with(tmp_path: Path, family: str, **changes: Any) -> Path:
    """The family's GGUF file with keys of its architecture changed (`__` is a dot); None: without the key."""
    cfg = tiny.config(family)
    arch = tiny.architecture(cfg)
    metadata = tiny.gguf_metadata(cfg) | tiny.vocabulary(cfg["vocab_size"])
    metadata |= {f"{arch}.{name.replace('__', '.')}": value for name, value in changes.items()}
    metadata = {key: value for key, value in metadata.items() if value is not None}
    tensors = tiny.gguf_tensors(cfg, tiny.weights(family), tiny.F32)
    return tiny.gguf_writer.write(tmp_path / "m.gguf", metadata, tensors)


@pytest.mark.parametrize(
    ("family", "changes", "fault"),
    [
        ("qwen3moe", {"expert_weights_scale": 2.5}, r"qwen3moe\.expert_weights_scale is not supported"),
        ("qwen3moe", {"leading_dense_block_count": 1}, r"qwen3moe\.leading_dense_block_count is not supported"),
        ("qwen3moe", {"expert_shared_feed_forward_length": 64}, "expert_shared_feed_forward_length is not supported"),
        ("qwen3moe", {"expert_gating_func": 2}, "another function than softmax"),
        ("llama", {"attention__causal": False}, r"llama\.attention\.causal is not supported"),
        ("llama", {"nextn_predict_layers": 1}, "nextn_predict_layers is not supported"),
        ("llama", {"logit_scale": 8.0}, "logit_scale is not supported"),
        ("llama", {"residual_scale": 0.22}, "residual_scale is not supported"),
        ("llama", {"rope__dimension_sections": [16, 0, 0, 0]}, "dimension_sections is not supported"),
        ("llama", {"a_number_of_tomorrow": 3}, r"llama\.a_number_of_tomorrow is not supported"),
        ("qwen3", {"pooling_type": 3}, "pooling_type is not supported"),
        ("qwen2_yarn", {"rope__scaling__yarn_ext_factor": 0.5}, "yarn_ext_factor is not supported"),
        ("gemma2", {"rope__freq_base_swa": 1e6}, "freq_base_swa is not supported"),
        ("gemma2", {"attention__sliding_window": None}, r"gemma2\.attention\.sliding_window is missing"),
        ("gemma2", {"final_logit_softcapping": None}, r"gemma2\.final_logit_softcapping is missing"),
    ],
)
def test_keys_that_change_what_is_computed_are_refused(
    family: str, changes: dict[str, Any], fault: str, tmp_path: Path
) -> None:
    with pytest.raises(ModelFileError, match=fault):
        open_model(gguf_with(tmp_path, family, **changes))


@pytest.mark.parametrize(
    ("family", "changes"),
    [
        ("llama", {"attention__causal": True, "logit_scale": 1.0, "expert_shared_count": 0, "pooling_type": 0}),
        ("llama", {"rope__scaling__finetuned": True, "tensor_data_layout": "Meta AI original pth"}),
        ("llama_linear", {"rope__scaling__type": None}),
        ("llama_linear", {"rope__scaling__type": None, "rope__scaling__factor": None, "rope__scale_linear": 4.0}),
        ("qwen3moe", {"expert_weights_scale": 1.0, "expert_weights_norm": True, "expert_gating_func": 1}),
        ("gemma3", {"attention__sliding_window_pattern": 3}),
        ("olmo3", {"attention__sliding_window_pattern": None}),
    ],
)
def test_the_same_in_other_keys(family: str, changes: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "plain").mkdir()
    plain = open_model(tiny.gguf(tmp_path / "plain", family))
    assert open_model(gguf_with(tmp_path, family, **changes)).config == plain.config


def test_every_family_has_a_reference() -> None:
    """The multimodal `gemma3` has `gemma3_text` within."""
    known = {model_type for entry in ARCHITECTURES.values() for model_type in entry.folders}
    assert known - {tiny.config(family)["model_type"] for family in tiny.FAMILIES} == {"gemma3"}
    assert set(FAMILIES) == set(ARCHITECTURES) == {shape.architecture for shape in SHAPES.values()}
