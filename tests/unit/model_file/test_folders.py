"""Folders: what their configurations may leave out or say in old words, and what is refused with which sentence."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.fixtures import forward
from tests.fixtures import tiny_models as tiny
from tests.safetensors_writer import safetensors, stored, write_folder

from sixfold.errors import ModelFileError
from sixfold.model_file import ModelFile, open_model


def changed(tmp_path: Path, family: str, **changes: Any) -> Path:
    """The family's folder with entries of config.json changed; None: without the entry."""
    folder = tiny.folder(tmp_path, family)
    config = {key: value for key, value in (tiny.config(family) | changes).items() if value is not None}
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def logits(file: ModelFile, family: str) -> Any:
    return forward.logits(file, tiny.references(family)[2][0])


@pytest.mark.parametrize(
    ("family", "changes"),
    [
        ("llama", {"num_key_value_heads": 1, "head_dim": 32}),
        ("llama", {"rope_theta": None, "rope_parameters": {"rope_theta": 100000.0, "rope_type": "default"}}),
        ("llama", {"sliding_window": 16}),
        (
            "llama_linear",
            {"rope_theta": 10000.0, "rope_parameters": None, "rope_scaling": {"type": "linear", "factor": 4}},
        ),
        ("qwen2", {"use_sliding_window": False, "sliding_window": 16, "max_window_layers": 0}),
        ("gemma3", {"sliding_window_pattern": None, "layer_types": ["sliding_attention"] * 2 + ["full_attention"]}),
        ("gemma3", {"rope_local_base_freq": None}),
        ("gemma3", {"query_pre_attn_scalar": 32.0, "hidden_activation": None}),
        ("qwen3moe", {"mlp_only_layers": None, "decoder_sparse_step": None}),
        ("olmo3", {"layer_types": None}),
        (
            "gemma3_linear",
            {
                "rope_theta": None,
                "rope_local_base_freq": None,
                "rope_scaling": None,
                "rope_parameters": {
                    "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
                    "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
                },
            },
        ),
        (
            "phi3_longrope",
            {
                "rope_theta": None,
                "partial_rotary_factor": None,
                "rope_scaling": None,
                "rope_parameters": {
                    "rope_type": "longrope",
                    "rope_theta": 10000.0,
                    "partial_rotary_factor": 0.75,
                    "short_factor": [1.0 + 0.05 * i for i in range(12)],
                    "long_factor": [1.0 + 0.5 * i for i in range(12)],
                    "original_max_position_embeddings": 32,
                },
            },
        ),
    ],
)
def test_the_same_in_other_words(family: str, changes: dict[str, Any], tmp_path: Path) -> None:
    plain, other = (
        open_model(tiny.folder(tmp_path / "a", family)),
        open_model(changed(tmp_path / "b", family, **changes)),
    )
    assert np.array_equal(logits(plain, family), logits(other, family))


@pytest.mark.parametrize(
    ("family", "changes", "fault"),
    [
        ("llama", {"model_type": "gpt_neox"}, "models of type 'gpt_neox' are not supported; `llama`, `mistral`"),
        ("llama", {"model_type": None}, "model_type is missing"),
        ("llama", {"model_type": None, "auto_map": {"AutoModel": "x.py"}}, "code of its own, which is never run"),
        ("llama", {"hidden_size": None}, "hidden_size is missing"),
        ("llama", {"hidden_size": "64"}, "hidden_size is not a whole number"),
        ("llama", {"hidden_size": True}, "hidden_size is not a whole number"),
        ("llama", {"num_attention_heads": 3}, "21 rotated dimensions do not fit a head of 21"),
        ("llama", {"num_attention_heads": 0}, "1 to 16777216 are supported"),
        ("llama", {"num_hidden_layers": 1 << 30}, "layers is not supported"),
        ("llama", {"rms_norm_eps": 2.0}, "epsilon of 2.0"),
        ("llama", {"vocab_size": 300}, "vocab_size is 300, but the embedding has 256 rows"),
        ("llama", {"hidden_act": "relu"}, "activation 'relu' is not supported"),
        ("llama", {"hidden_act": "gelu"}, "activation 'gelu' is not supported"),
        ("llama", {"partial_rotary_factor": 0.5}, "over a part of the head are not supported in a llama folder"),
        ("llama", {"quantization_config": {"quant_method": "gptq"}}, "quantization_config is not supported"),
        ("qwen2", {"quantization_config": {"quant_method": "awq"}}, "quantization_config is not supported"),
        ("qwen2", {"quantization": {"bits": 4, "group_size": 64}}, "quantization is not supported"),
        ("llama", {"residual_multiplier": 0.22}, "residual_multiplier is not supported"),
        ("qwen3moe", {"shared_expert_intermediate_size": 64}, "shared_expert_intermediate_size is not supported"),
        ("qwen3moe", {"decoder_sparse_step": 2}, "dense layers among layers of experts"),
        ("mistral", {"layer_types": ["full_attention", "sliding_attention"]}, "both kinds .* in a mistral folder"),
        ("smollm3", {"no_rope_layers": [1, 0]}, "no_rope_layers is not a list of 4"),
        ("llama3", {"rope_parameters": {"rope_type": "default"}}, "rope_parameters and rope_scaling are both there"),
        (
            "llama",
            {"rope_scaling": {"type": "default", "mrope_section": [2, 2]}},
            "'mrope_section' of rotary positions",
        ),
        ("qwen2_yarn", {"rope_scaling": {"type": "yarn", "factor": 4, "attn_factor": 1}}, "'attn_factor' of rotary"),
        ("llama", {"tie_word_embeddings": False}, "there is no lm_head.weight"),
        ("llama", {"rope_scaling": {"type": "dynamic", "factor": 2}}, "rope scaling of type 'dynamic'"),
        ("llama", {"rope_scaling": [1]}, "rope_scaling is not an object"),
        ("llama3", {"rope_scaling": {"rope_type": "llama3", "factor": 8}}, "low_freq_factor is missing"),
        ("qwen2_yarn", {"rope_scaling": {"type": "yarn", "factor": 4, "mscale": 1.0}}, "variant of yarn"),
        ("phi3_longrope", {"rope_scaling": {"type": "longrope", "short_factor": [1.0]}}, "needs short_factor and long"),
        ("qwen3moe", {"mlp_only_layers": [0]}, "dense layers among layers of experts"),
        ("qwen3moe", {"num_experts_per_tok": 9}, "9 of 8 experts"),
        ("gemma3", {"layer_types": ["sliding_attention"]}, "layer_types is not a list of 3"),
        ("gemma3", {"layer_types": ["linear_attention"] * 3}, "more than sliding_attention and full_attention"),
        ("gemma3", {"sliding_window": -1}, "sliding_window is not a whole number"),
    ],
)
def test_refused(family: str, changes: dict[str, Any], fault: str, tmp_path: Path) -> None:
    folder = changed(tmp_path, family, **changes)
    with pytest.raises(ModelFileError, match=fault) as caught:
        logits(open_model(folder), family)
    assert caught.value.message.startswith(folder.name)


def test_a_text_model_inside_a_model_of_pictures(tmp_path: Path) -> None:
    plain = open_model(tiny.folder(tmp_path, "gemma3"))
    config = tiny.config("gemma3")
    outer = {"model_type": "gemma3", "architectures": ["Gemma3ForConditionalGeneration"], "text_config": config}
    for prefix in ("language_model.", "model.language_model."):
        tensors = {
            (prefix + name if prefix == "language_model." else name.replace("model.", prefix, 1)): stored(values)
            for name, values in tiny.weights("gemma3").items()
        }
        tensors["vision_tower.vision_model.post_layernorm.weight"] = stored(np.ones(4, np.float32))
        tensors["multi_modal_projector.mm_soft_emb_norm.weight"] = stored(np.ones(4, np.float32))
        file = open_model(write_folder(tmp_path / prefix, outer, tensors))
        assert np.array_equal(logits(plain, "gemma3"), logits(file, "gemma3"))
        assert file.unused() == []


def test_old_tables_and_copies_of_the_embedding_are_no_weights(tmp_path: Path) -> None:
    tensors = {name: stored(values) for name, values in tiny.weights("llama").items()}
    tensors["model.layers.0.self_attn.rotary_emb.inv_freq"] = stored(np.ones(16, np.float32))
    tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"]
    file = open_model(write_folder(tmp_path / "m", tiny.config("llama"), tensors))
    logits(file, "llama")
    assert file.unused() == []


def test_tensors_that_are_not_known_missing_or_of_another_type(tmp_path: Path) -> None:
    config, weights = tiny.config("llama"), {name: stored(v) for name, v in tiny.weights("llama").items()}
    gate = "model.layers.0.mlp.gate_proj.weight"
    with pytest.raises(
        ModelFileError, match=r"tensor 'model\.layers\.0\.adapter\.weight' has no meaning in a llama model"
    ):
        open_model(write_folder(tmp_path / "a", config, weights | {"model.layers.0.adapter.weight": weights[gate]}))
    file = open_model(write_folder(tmp_path / "b", config, {k: v for k, v in weights.items() if k != gate}))
    with pytest.raises(ModelFileError, match=r"b: there is no tensor blk\.0\.ffn_gate\.weight"):
        logits(file, "llama")
    integers = ("I64", (96, 64), bytes(96 * 64 * 8))
    with pytest.raises(ModelFileError, match=r"has type I64, which is not supported \(only F32, F16, BF16 are\)"):
        open_model(write_folder(tmp_path / "c", config, weights | {gate: integers}))
    with pytest.raises(ModelFileError, match=r"'model\.norm\.weight' is empty or has no dimension"):
        open_model(write_folder(tmp_path / "d", config, weights | {"model.norm.weight": ("F32", (), bytes(4))}))
    file = open_model(write_folder(tmp_path / "e", config, weights | {gate: stored(np.ones((64, 96), np.float32))}))
    with pytest.raises(ModelFileError, match=r"tensor 'blk\.0\.ffn_gate\.weight' has shape \(64, 96\), not \(96, 64\)"):
        logits(file, "llama")


def test_extra_layers_are_found_unused(tmp_path: Path) -> None:
    file = open_model(changed(tmp_path, "llama", num_hidden_layers=1))
    logits(file, "llama")
    assert "model.layers.1.mlp.gate_proj.weight" in file.unused()


def test_shards(tmp_path: Path) -> None:
    folder = tiny.folder(tmp_path, "llama", shards=3)
    (folder / "model-00002-of-00003.safetensors").unlink()
    with pytest.raises(ModelFileError, match=r"model-00002-of-00003\.safetensors: cannot be opened"):
        open_model(folder)
    (folder / "model-00002-of-00003.safetensors").write_bytes(safetensors({}))
    with pytest.raises(ModelFileError, match="which the index promises"):
        open_model(folder)
    first = (folder / "model-00001-of-00003.safetensors").read_bytes()
    (folder / "model-00002-of-00003.safetensors").write_bytes(first)
    index = json.loads((folder / "model.safetensors.index.json").read_text())
    twin = next(name for name, file in index["weight_map"].items() if "00001" in file)
    index["weight_map"] = {k: v for k, v in index["weight_map"].items() if "00002" not in v}
    index["weight_map"][twin] = "model-00002-of-00003.safetensors"
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(ModelFileError, match="is there a second time"):
        open_model(folder)


def test_what_is_no_model(tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match=r"config\.json: cannot be opened"):
        open_model(tmp_path)
    folder = tiny.folder(tmp_path, "llama")
    with pytest.raises(ModelFileError, match="give the folder that it lies in"):
        open_model(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    with pytest.raises(ModelFileError, match=r"neither model\.safetensors nor model\.safetensors\.index\.json"):
        open_model(folder)
    with pytest.raises(ModelFileError, match="cannot be opened"):
        open_model(tmp_path / "absent.gguf")


def tokenizer_json(folder: Path, vocab: Any, added: list[int]) -> None:
    tokens = [{"id": token, "content": f"<{token}>", "special": True} for token in added]
    (folder / "tokenizer.json").write_text(
        json.dumps({"model": {"type": "BPE", "vocab": vocab}, "added_tokens": tokens})
    )


@pytest.mark.parametrize(
    ("vocab", "added", "n_tokens"),
    [
        ({f"t{i}": i for i in range(200)}, [200, 203], 204),
        ([["a", 0.5]] * 100, [], 100),
        ({f"t{i}": i for i in range(256)}, [256, 300], 256),
        ({}, [], 256),
    ],
)
def test_o54_padding_behind_the_vocabulary_is_cut_off(
    vocab: Any, added: list[int], n_tokens: int, tmp_path: Path
) -> None:
    folder = tiny.folder(tmp_path, "qwen2_yarn")
    whole = forward.logits(open_model(folder), [1, 2])
    tokenizer_json(folder, vocab, added)
    file = open_model(folder)
    assert file.config.vocab == n_tokens
    assert np.array_equal(forward.logits(file, [1, 2]), whole[:, :n_tokens])


def test_a_tokenizer_that_is_none(tmp_path: Path) -> None:
    folder = tiny.folder(tmp_path, "llama")
    (folder / "tokenizer.json").write_text("[" * 1000)
    with pytest.raises(ModelFileError, match=r"tokenizer\.json: "):
        open_model(folder)


def test_o54_gguf_vocabulary_and_rows(tmp_path: Path) -> None:
    cfg = tiny.config("llama")
    tensors = tiny.gguf_tensors(cfg, tiny.weights("llama"), tiny.F32)
    path = tmp_path / "m.gguf"
    tiny.gguf_writer.write(path, tiny.gguf_metadata(cfg) | tiny.vocabulary(250), tensors)
    file = open_model(path)
    assert forward.logits(file, [1]).shape == (1, 250)
    assert file.unused() == []
    tiny.gguf_writer.write(path, tiny.gguf_metadata(cfg) | tiny.vocabulary(300), tensors)
    with pytest.raises(ModelFileError, match="the vocabulary has 300 tokens, the embedding only 256 rows"):
        open_model(path)
