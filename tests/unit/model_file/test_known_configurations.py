"""Numbers of well-known models, from configurations as their folders have them (shortened to what is read)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from sixfold.model_file import ModelConfig
from sixfold.model_file.config_json import folder_config

COMMON: dict[str, Any] = {"hidden_act": "silu", "rms_norm_eps": 1e-5, "torch_dtype": "bfloat16", "use_cache": True}

SMOLLM2 = COMMON | {
    "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 576, "intermediate_size": 1536,
    "num_attention_heads": 9, "num_key_value_heads": 3, "num_hidden_layers": 30, "max_position_embeddings": 8192,
    "rope_theta": 100000, "rope_scaling": None, "rope_interleaved": False, "tie_word_embeddings": True,
    "vocab_size": 49152, "attention_bias": False, "mlp_bias": False, "pretraining_tp": 1,
}  # fmt: skip
LLAMA_3_2_1B = COMMON | {
    "model_type": "llama", "head_dim": 64, "hidden_size": 2048, "intermediate_size": 8192, "num_attention_heads": 32,
    "num_key_value_heads": 8, "num_hidden_layers": 16, "max_position_embeddings": 131072, "rope_theta": 500000.0,
    "rope_scaling": {"factor": 32.0, "high_freq_factor": 4.0, "low_freq_factor": 1.0, "rope_type": "llama3",
                     "original_max_position_embeddings": 8192},
    "tie_word_embeddings": True, "vocab_size": 128256, "eos_token_id": [128001, 128008, 128009],
}  # fmt: skip
MISTRAL_7B_V0_1 = COMMON | {
    "model_type": "mistral", "hidden_size": 4096, "intermediate_size": 14336, "num_attention_heads": 32,
    "num_key_value_heads": 8, "num_hidden_layers": 32, "max_position_embeddings": 32768, "rope_theta": 10000.0,
    "sliding_window": 4096, "tie_word_embeddings": False, "vocab_size": 32000,
}  # fmt: skip
QWEN2_5_0_5B = COMMON | {
    "model_type": "qwen2", "hidden_size": 896, "intermediate_size": 4864, "num_attention_heads": 14,
    "num_key_value_heads": 2, "num_hidden_layers": 24, "max_position_embeddings": 32768, "max_window_layers": 21,
    "rope_theta": 1000000.0, "sliding_window": 32768, "use_sliding_window": False, "use_mrope": False,
    "tie_word_embeddings": True, "vocab_size": 151936, "rms_norm_eps": 1e-6,
}  # fmt: skip
QWEN3_30B_A3B = COMMON | {
    "model_type": "qwen3_moe", "head_dim": 128, "hidden_size": 2048, "intermediate_size": 6144,
    "num_attention_heads": 32, "num_key_value_heads": 4, "num_hidden_layers": 48, "max_position_embeddings": 40960,
    "max_window_layers": 48, "sliding_window": None, "use_sliding_window": False, "rope_theta": 1000000.0,
    "rope_scaling": None, "decoder_sparse_step": 1, "mlp_only_layers": [], "moe_intermediate_size": 768,
    "norm_topk_prob": True, "num_experts": 128, "num_experts_per_tok": 8, "tie_word_embeddings": False,
    "vocab_size": 151936,
}  # fmt: skip
GEMMA_3_4B = {
    "model_type": "gemma3", "architectures": ["Gemma3ForConditionalGeneration"], "eos_token_id": [1, 106],
    "text_config": {"hidden_size": 2560, "intermediate_size": 10240, "model_type": "gemma3_text",
                    "num_hidden_layers": 34, "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
                    "sliding_window": 1024},
    "vision_config": {"hidden_size": 1152},
}  # fmt: skip
PHI_3_MINI_4K = COMMON | {
    "model_type": "phi3", "auto_map": {"AutoModelForCausalLM": "modeling_phi3.Phi3ForCausalLM"}, "hidden_size": 3072,
    "intermediate_size": 8192, "num_attention_heads": 32, "num_key_value_heads": 32, "num_hidden_layers": 32,
    "max_position_embeddings": 4096, "original_max_position_embeddings": 4096, "rope_theta": 10000.0,
    "rope_scaling": None, "sliding_window": 2047, "tie_word_embeddings": False, "vocab_size": 32064,
}  # fmt: skip
PHI_4_MINI = PHI_3_MINI_4K | {
    "num_attention_heads": 24, "num_key_value_heads": 8, "max_position_embeddings": 131072,
    "partial_rotary_factor": 0.75, "sliding_window": 262144, "tie_word_embeddings": True, "vocab_size": 200064,
    "rope_scaling": {"type": "longrope", "short_factor": [1] * 48, "long_factor": [1, 1.5] * 24},
}  # fmt: skip
OLMO_2_1B = COMMON | {
    "model_type": "olmo2", "hidden_size": 2048, "intermediate_size": 8192, "num_attention_heads": 16,
    "num_key_value_heads": 16, "num_hidden_layers": 16, "max_position_embeddings": 4096, "rope_theta": 500000,
    "rope_scaling": None, "tie_word_embeddings": False, "vocab_size": 100352, "rms_norm_eps": 1e-6,
}  # fmt: skip
GEMMA_2_2B = {
    "model_type": "gemma2", "hidden_act": "gelu_pytorch_tanh", "hidden_activation": "gelu_pytorch_tanh",
    "cache_implementation": "hybrid", "attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0, "head_dim": 256,
    "hidden_size": 2304, "intermediate_size": 9216, "max_position_embeddings": 8192, "num_attention_heads": 8,
    "num_hidden_layers": 26, "num_key_value_heads": 4, "query_pre_attn_scalar": 256, "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0, "sliding_window": 4096, "vocab_size": 256000,
}  # fmt: skip
SMOLLM3_3B = COMMON | {
    "model_type": "smollm3", "hidden_size": 2048, "intermediate_size": 11008, "num_attention_heads": 16,
    "num_key_value_heads": 4, "num_hidden_layers": 36, "max_position_embeddings": 65536, "max_window_layers": 28,
    "layer_types": ["full_attention"] * 36, "no_rope_layer_interval": 4, "no_rope_layers": [1, 1, 1, 0] * 9,
    "rope_scaling": None, "rope_theta": 5000000.0, "sliding_window": None, "use_sliding_window": False,
    "attention_bias": False, "mlp_bias": False, "pretraining_tp": 2, "vocab_size": 128256,
}  # fmt: skip


@pytest.fixture
def read(tmp_path: Path) -> Any:
    def _read(config: dict[str, Any], vocab: int) -> ModelConfig:
        path = tmp_path / "config.json"
        path.write_text(json.dumps(config))
        return folder_config(path, lambda name: False, lambda: vocab)[1]

    return _read


def test_smollm2(read: Any) -> None:
    c = read(SMOLLM2, 49152)
    assert (c.architecture, c.head_dim, c.q_size, c.kv_size, c.tied, c.rope.base) == ("llama", 64, 576, 192, True, 1e5)
    assert c.windows == (0,) * 30


def test_llama_3_2(read: Any) -> None:
    c = read(LLAMA_3_2_1B, 128256)
    factors = c.rope.factors
    assert c.rope.kind == "llama3" and len(factors) == 32 and factors[0] == 1 and factors[-1] == 32
    assert sorted(factors) == list(factors)


def test_mistral(read: Any) -> None:
    c = read(MISTRAL_7B_V0_1, 32000)
    assert (c.architecture, c.windows, c.rope_local) == ("llama", (4096,) * 32, c.rope)


def test_qwen(read: Any) -> None:
    c = read(QWEN2_5_0_5B, 151936)
    assert (c.windows, c.eps, c.rope_style) == ((0,) * 24, pytest.approx(1e-6), "half")
    c = read(QWEN3_30B_A3B, 151936)
    assert (c.n_experts, c.n_experts_used, c.expert_ffn, c.renormalize_experts) == (128, 8, 768, True)
    assert (c.q_size, c.qk_norm, c.windows[0]) == (4096, "head", 0)


def test_gemma(read: Any) -> None:
    c = read(GEMMA_3_4B, 262208)
    assert c.windows == ((1024,) * 5 + (0,)) * 5 + (1024,) * 4
    assert (c.n_heads, c.n_kv_heads, c.head_dim, c.tied, c.activation) == (8, 4, 256, True, "gelu")
    assert (c.rope.kind, c.rope.factor, c.rope.base) == ("linear", 8, 1e6)
    assert (c.rope_local.kind, c.rope_local.base) == ("none", 1e4)
    assert c.embedding_scale == pytest.approx(2560**0.5)


def test_phi(read: Any) -> None:
    c = read(PHI_3_MINI_4K, 32064)
    assert (c.head_dim, c.rope_dims, c.windows[0], c.rope.kind) == (96, 96, 2047, "none")
    c = read(PHI_4_MINI, 200064)
    assert (c.head_dim, c.rope_dims, c.rope.original_context) == (128, 96, 4096)
    assert c.rope.attention_factor == pytest.approx(1.1902, abs=1e-4)
    assert (c.rope.inverse_frequencies(96, 4096) != c.rope.inverse_frequencies(96, 4097)).any()


def test_olmo(read: Any) -> None:
    c = read(OLMO_2_1B, 100352)
    assert (c.qk_norm, c.windows, c.tied) == ("projection", (0,) * 16, False)


def test_gemma_2(read: Any) -> None:
    c = read(GEMMA_2_2B, 256000)
    assert (c.windows, c.tied, c.activation) == ((4096, 0) * 13, True, "gelu")
    assert (c.attention_softcap, c.final_softcap, c.attention_scale) == (50, 30, 1 / 16)
    assert c.rope == c.rope_local


def test_smollm3(read: Any) -> None:
    c = read(SMOLLM3_3B, 128256)
    assert (c.rotated, c.windows, c.tied) == ((True, True, True, False) * 9, (0,) * 36, True)
    assert (c.rope.base, c.rope_style) == (5e6, "interleaved")


def test_what_transformers_takes_for_granted(read: Any) -> None:
    """Entries that a folder left out because they have the values of its model type."""

    def without(config: dict[str, Any], *keys: str) -> dict[str, Any]:
        return {key: value for key, value in config.items() if key not in keys}

    assert read(without(MISTRAL_7B_V0_1, "sliding_window"), 32000).windows == (4096,) * 32
    assert read(MISTRAL_7B_V0_1 | {"sliding_window": None}, 32000).windows == (0,) * 32
    assert read(without(QWEN2_5_0_5B, "use_sliding_window"), 151936).windows == (0,) * 24
    sliding = QWEN2_5_0_5B | {"use_sliding_window": True}
    assert read(sliding, 151936).windows == (0,) * 21 + (32768,) * 3
    assert read(without(sliding, "max_window_layers"), 151936).windows == (0,) * 24
    assert not read(without(QWEN3_30B_A3B, "norm_topk_prob"), 151936).renormalize_experts
    assert read(QWEN3_30B_A3B | {"use_sliding_window": True, "sliding_window": 9}, 151936).windows == (9,) * 48
    c = read(without(GEMMA_2_2B, "attn_logit_softcapping", "final_logit_softcapping", "sliding_window"), 256000)
    assert c == read(GEMMA_2_2B, 256000)
    assert read(GEMMA_2_2B | {"final_logit_softcapping": None}, 256000).final_softcap == 0
    assert read(OLMO_2_1B | {"sliding_window": 64}, 100352).windows == (0,) * 16
    olmo3 = without(OLMO_2_1B, "rope_theta") | {"model_type": "olmo3"}
    c = read(olmo3, 100352)
    assert (c.windows, c.rope.base, c.rope_local.base) == ((4096, 4096, 4096, 0) * 4, 5e5, 5e5)
    c = read(without(SMOLLM3_3B, "no_rope_layers", "layer_types", "rope_theta", "use_sliding_window"), 128256)
    assert (c.rotated, c.rope.base) == ((True, True, True, False) * 9, 2e6)
    nope_sliding = without(SMOLLM3_3B, "layer_types") | {"use_sliding_window": True, "sliding_window": 9}
    assert read(nope_sliding, 128256).windows == (0, 0, 0, 9) * 9


def test_quantization_beside_the_text_part_is_refused(read: Any) -> None:
    with pytest.raises(Exception, match="quantization_config is not supported"):
        read(GEMMA_3_4B | {"quantization_config": {"quant_method": "gptq"}}, 262208)


def test_attention_in_both_directions_is_refused(read: Any) -> None:
    with pytest.raises(Exception, match="use_bidirectional_attention is not supported"):
        read(GEMMA_3_4B | {"text_config": GEMMA_3_4B["text_config"] | {"use_bidirectional_attention": True}}, 262208)  # type: ignore[operator]
