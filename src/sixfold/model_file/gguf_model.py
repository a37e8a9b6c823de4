"""A GGUF file as a `ModelFile`: its metadata as a `ModelConfig`."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

from sixfold.errors import ModelFileError
from sixfold.model_file.architectures import Architecture, of_gguf
from sixfold.model_file.gguf import GGUFFile, StringArray
from sixfold.model_file.model_config import ModelConfig, RopeScaling
from sixfold.model_file.model_file import ModelFile, Stored
from sixfold.model_file.quantize import FLOAT_TYPES, to_float32
from sixfold.model_file.rope import longrope_attention_factor, yarn_attention_factor

__all__ = ["GGUFModel", "gguf_config"]

_ROPE_TENSORS = ("rope_freqs.weight", "rope_factors_short.weight", "rope_factors_long.weight")
"""Read into the configuration, never asked for by name."""
_WITHOUT_EFFECT = ("rope.scaling.finetuned", "tensor_data_layout", "vocab_size")
"""Keys of a family that say nothing about what is computed."""
_WITHOUT_EFFECT_AT: dict[str, tuple[float, ...]] = {
    "attention.causal": (True,),
    "expert_weights_scale": (0, 1),
    "logit_scale": (0, 1),
    "residual_scale": (0, 1),
    "rope.scaling.yarn_ext_factor": (1,),
}
"""Keys with the values that change nothing; of others those are 0, false and empty."""
_SOFTMAX = 1
"""`expert_gating_func`."""


class GGUFModel(ModelFile):
    """A GGUF file, or the parts of a split one."""

    def __init__(self, gguf: GGUFFile, quantize: str | None = None) -> None:
        self.gguf = gguf
        """For the vocabulary and the chat template."""
        with gguf.naming_faults():
            tensors = {
                name: [Stored(name, info.ggml_type, info.shape, partial(gguf.data, name))]
                for name, info in gguf.tensors.items()
                if name not in _ROPE_TENSORS
            }
            super().__init__(gguf.path, gguf_config(gguf), gguf.maps, tensors, quantize)

    @classmethod
    def open(cls, path: Path, quantize: str | None = None) -> GGUFModel:
        """Raises: ModelFileError: the file is broken, or not a model of a family that is known here."""
        return cls(GGUFFile.open(path), quantize)


def gguf_config(file: GGUFFile) -> ModelConfig:
    """The numbers of a GGUF file.

    Raises:
        ModelFileError: another architecture; a number is missing, absurd, or asks for something that is not supported.
    """
    entry = of_gguf(file.text("general.architecture"))
    key = f"{entry.name}.".__add__
    for name in entry.gguf_required:
        if key(name) not in file.metadata:
            raise ModelFileError(f"{key(name)} is missing from the metadata")
    hidden, n_heads = file.u32(key("embedding_length")), file.u32(key("attention.head_count"))
    head_dim = file.u32(key("attention.key_length"), hidden // n_heads if n_heads else 0)
    if file.u32(key("attention.value_length"), head_dim) != head_dim:
        raise ModelFileError("keys and values of different lengths are not supported")
    n_layers, ffn = file.u32(key("block_count")), file.u32(key("feed_forward_length"), 0)
    n_experts = file.u32(key("expert_count"), 0)
    if n_experts and file.u32(key("expert_gating_func"), _SOFTMAX) != _SOFTMAX:
        raise ModelFileError("experts that are chosen by another function than softmax are not supported")
    expert_ffn = file.u32(key("expert_feed_forward_length"), ffn)
    rope = _rope(file, entry)
    config = ModelConfig(
        architecture=entry.name,
        n_layers=n_layers,
        hidden=hidden,
        n_heads=n_heads,
        n_kv_heads=file.u32(key("attention.head_count_kv"), n_heads),
        head_dim=head_dim,
        ffn=ffn or expert_ffn,
        vocab=_vocab(file),
        context=file.u32(key("context_length")),
        eps=file.f32(key("attention.layer_norm_rms_epsilon")),
        tied="output.weight" not in file.tensors,
        activation=entry.activation,
        attention_scale=file.f32(key("attention.scale"), 0.0)
        or _attention_scale(entry, n_layers, hidden, n_heads, head_dim),
        embedding_scale=file.f32(key("embedding_scale"), hidden**0.5 if entry.scaled_embedding else 1.0),
        final_softcap=file.f32(key("final_logit_softcapping"), 0.0),
        attention_softcap=file.f32(key("attn_logit_softcapping"), 0.0),
        windows=_windows(file, entry, n_layers),
        rotated=all_but_every_nth(entry.unrotated_every, n_layers),
        rope_style=entry.rope_style,
        rope_dims=file.u32(key("rope.dimension_count"), head_dim),
        rope=rope,
        rope_local=_local_rope(file, entry, rope),
        n_experts=n_experts,
        n_experts_used=file.u32(key("expert_used_count"), 0) if n_experts else 0,
        expert_ffn=expert_ffn if n_experts else 0,
        renormalize_experts=n_experts > 0 and file.flag(key("expert_weights_norm"), True),
        qk_norm=entry.qk_norm,
        qkv_bias=_has_bias(file, "attn_q") or _has_bias(file, "attn_qkv"),
        output_bias=_has_bias(file, "attn_output"),
    )
    config.check()
    _refuse_unread(file, entry)
    return config


def _refuse_unread(file: GGUFFile, entry: Architecture) -> None:
    """Raises: ModelFileError: a number of the family that nobody has asked for would change what is computed."""
    for key in sorted(file.metadata.keys() - file.asked):
        name = key.removeprefix(f"{entry.name}.")
        if name == key or name in _WITHOUT_EFFECT:
            continue
        value: Any = file.metadata[key]
        if name in _WITHOUT_EFFECT_AT:
            changes = value not in _WITHOUT_EFFECT_AT[name]
        else:
            changes = any(value) if isinstance(value, memoryview) else bool(value)
        if changes:
            raise ModelFileError(f"{key[:200]} is not supported")


def _vocab(file: GGUFFile) -> int:
    """Tokens of the tokenizer, or rows of the embedding where the file has no tokenizer."""
    rows = file.tensor("token_embd.weight").shape[0]
    tokens = file.metadata.get("tokenizer.ggml.tokens")
    if not isinstance(tokens, StringArray):
        return rows
    if len(tokens) > rows:
        raise ModelFileError(f"the vocabulary has {len(tokens)} tokens, the embedding only {rows} rows")
    return len(tokens)


def _has_bias(file: GGUFFile, module: str) -> bool:
    return f"blk.0.{module}.bias" in file.tensors


def _attention_scale(entry: Architecture, n_layers: int, hidden: int, n_heads: int, head_dim: int) -> float:
    if not (n_heads and head_dim):
        raise ModelFileError(f"{n_heads} heads of dimension {head_dim} are not supported")
    if n_layers == entry.width_scaled_layers:
        return float((hidden / n_heads) ** -0.5)
    return float(head_dim**-0.5)


def _windows(file: GGUFFile, entry: Architecture, n_layers: int) -> tuple[int, ...]:
    window = file.u32(f"{entry.name}.attention.sliding_window", 0)
    pattern_key = f"{entry.name}.attention.sliding_window_pattern"
    if isinstance(file.metadata.get(pattern_key), memoryview):
        pattern = file.numbers(pattern_key)
        if len(pattern) != n_layers:
            raise ModelFileError(f"{pattern_key} has {len(pattern)} entries for {n_layers} layers")
        return tuple(window if local else 0 for local in pattern)
    full_every = file.u32(pattern_key, entry.full_every)
    return tuple(window if local else 0 for local in all_but_every_nth(full_every, n_layers))


def all_but_every_nth(n: int, n_layers: int) -> tuple[bool, ...]:
    """layer -> whether it is none of the n-th, 2n-th, ...; n 0: every layer."""
    # Compared with the bound of `ModelConfig.check` first: the tuple must not be made of an absurd number.
    return tuple(n == 0 or (i + 1) % n != 0 for i in range(min(n_layers, 1 << 16)))


def _rope(file: GGUFFile, entry: Architecture) -> RopeScaling:
    key = f"{entry.name}.rope.".__add__
    base = file.f32(key("freq_base"), 10000.0)
    short, long = _factors(file, "rope_factors_short.weight"), _factors(file, "rope_factors_long.weight")
    factor = file.f32(key("scaling.factor"), file.f32(key("scale_linear"), 1.0)) or 1.0
    kind = file.text(key("scaling.type"), "longrope" if long else "none" if factor == 1 else "linear")
    original = file.u32(key("scaling.original_context_length"), 0)
    given = file.f32(key("scaling.attn_factor"), 0.0) or file.f32(key("scaling.yarn_attn_factor"), 0.0)
    if plain := _factors(file, "rope_freqs.weight"):
        if kind != "none":
            raise ModelFileError(f"rope_freqs together with rope scaling of type {kind!r} is not supported")
        return RopeScaling(base=base, kind="llama3", factors=plain)
    context = file.u32(f"{entry.name}.context_length")
    match kind:
        case "none":
            return RopeScaling(base=base)
        case "linear":
            return RopeScaling(base=base, kind="linear", factor=factor)
        case "yarn":
            return RopeScaling(
                base=base,
                kind="yarn",
                factor=factor,
                original_context=original or context,
                attention_factor=(given or 1.0) * yarn_attention_factor(factor),
                beta_fast=file.f32(key("scaling.yarn_beta_fast"), 32.0),
                beta_slow=file.f32(key("scaling.yarn_beta_slow"), 1.0),
            )
        case "longrope" if short and long:
            original = original or context
            return RopeScaling(
                base=base,
                kind="longrope",
                original_context=original,
                factors=short,
                long_factors=long,
                attention_factor=given or longrope_attention_factor(context / max(original, 1), original),
            )
    raise ModelFileError(f"rope scaling of type {kind!r} is not supported, or its factors are missing")


def _local_rope(file: GGUFFile, entry: Architecture, rope: RopeScaling) -> RopeScaling:
    if entry.local_rope == "same":
        return rope
    return RopeScaling(base=file.f32(f"{entry.name}.rope.freq_base_swa", entry.local_rope_base or rope.base))


def _factors(file: GGUFFile, name: str) -> tuple[float, ...]:
    info = file.tensors.get(name)
    if info is None:
        return ()
    if len(info.shape) != 1 or info.ggml_type not in FLOAT_TYPES or info.shape[0] > 4096:
        raise ModelFileError(f"tensor {name} is not a small vector of floating-point values")
    values: Any = to_float32(file.data(name), info.ggml_type)
    return tuple(values.tolist())
