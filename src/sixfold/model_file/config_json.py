"""A folder's config.json: typed access, and its numbers as a `ModelConfig`."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from sixfold.errors import ModelFileError
from sixfold.model_file.architectures import Architecture, FolderKind, of_model_type
from sixfold.model_file.gguf_model import all_but_every_nth
from sixfold.model_file.model_config import ModelConfig, RopeScaling
from sixfold.model_file.regular_file import naming_faults, read_whole
from sixfold.model_file.rope import llama3_factors, longrope_attention_factor, single, yarn_attention_factor

__all__ = ["ConfigJson", "folder_config"]

_BYTES_MAX = 4 << 20
_ACTIVATIONS = {"silu": "silu", "swish": "silu", "gelu_pytorch_tanh": "gelu", "gelu_new": "gelu"}
_NOT_SUPPORTED = (
    "attention_multiplier",
    "clip_qkv",
    "compression_config",
    "dual_chunk_attention_config",
    "embedding_multiplier",
    "logits_scaling",
    "n_shared_experts",
    "num_shared_experts",
    "quantization",
    "quantization_config",
    "residual_multiplier",
    "shared_expert_intermediate_size",
    "use_bidirectional_attention",
)
"""Entries that would change what is computed; null, 0 and false are the same as none."""
_ROPE_ENTRIES = {
    "attention_factor",
    "beta_fast",
    "beta_slow",
    "factor",
    "finetuned",
    "full_attention",
    "high_freq_factor",
    "long_factor",
    "low_freq_factor",
    "mscale",
    "mscale_all_dim",
    "original_max_position_embeddings",
    "partial_rotary_factor",
    "rope_theta",
    "rope_type",
    "short_factor",
    "sliding_attention",
    "truncate",
    "type",
}
"""What is understood of a section of rotary positions, whatever its kind."""


class ConfigJson:
    """One JSON object; messages name its keys."""

    def __init__(self, values: Mapping[str, Any], defaults: Mapping[str, Any] | None = None) -> None:
        self._values = values
        self._defaults = defaults or {}

    @classmethod
    def read(cls, path: Path) -> ConfigJson:
        """
        Raises:
            ModelFileError: it cannot be read or is not a JSON object.
        """
        raw = read_whole(path, bytes_max=_BYTES_MAX)
        try:
            return cls(msgspec.json.decode(raw, type=dict[str, Any]))
        except (ValueError, RecursionError) as error:
            raise ModelFileError(f"{path.name}: {error}") from error

    def with_defaults(self, defaults: Mapping[str, Any]) -> ConfigJson:
        return ConfigJson(self._values, defaults)

    def has(self, key: str) -> bool:
        """Present, and neither null, false, 0 nor empty."""
        return bool(self._values.get(key))

    def get(self, key: str, default: Any = None) -> Any:
        """An entry; its default where it is left out; `default` where it is null or there is neither."""
        value = self._values[key] if key in self._values else self._defaults.get(key)
        return default if value is None else value

    def section(self, key: str) -> ConfigJson:
        """An object within; an empty one if there is none."""
        value = self.get(key, {})
        if not isinstance(value, dict):
            raise ModelFileError(f"{key} is not an object")
        return ConfigJson(value)

    def refuse(self, keys: Iterable[str]) -> None:
        """Raises: ModelFileError: one of the entries is there, and neither null, false, 0 nor empty."""
        for key in keys:
            if self.has(key):
                raise ModelFileError(f"{key} is not supported")

    def unknown(self, keys: Collection[str]) -> list[str]:
        """Entries of other names that are not null."""
        return sorted(key for key, value in self._values.items() if key not in keys and value is not None)

    def integer(self, key: str, default: int | None = None) -> int:
        """A number from 0 to 2**31."""
        value = self._value(key, default)
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= 1 << 31:
            raise ModelFileError(f"{key} is not a whole number from 0 to {1 << 31}")
        return value

    def number(self, key: str, default: float | None = None) -> float:
        """A number, and not an absurd one."""
        value = self._value(key, default)
        if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < 1e30:
            raise ModelFileError(f"{key} is not a number below 1e30")
        return float(value)

    def single(self, key: str, default: float | None = None) -> float:
        """A finite number in single precision, as GGUF keeps it: both kinds of file then give the same results."""
        return single(self.number(key, default))

    def text(self, key: str, default: str | None = None) -> str:
        value = self._value(key, default)
        if not isinstance(value, str):
            raise ModelFileError(f"{key} is not a string")
        return value

    def flag(self, key: str, default: bool) -> bool:
        value = self._value(key, default)
        if not isinstance(value, bool):
            raise ModelFileError(f"{key} is not a truth value")
        return value

    def numbers(self, key: str) -> tuple[float, ...]:
        """A list of numbers, in single precision; empty if there is none."""
        value = self.get(key, [])
        plain = isinstance(value, list) and len(value) <= 4096
        if not plain or not all(type(entry) in (int, float) and abs(entry) < 1e30 for entry in value):
            raise ModelFileError(f"{key} is not a list of numbers")
        return tuple(map(single, value))

    def _value(self, key: str, default: Any) -> Any:
        value = self.get(key, default)
        if value is None:
            raise ModelFileError(f"{key} is missing")
        return value


def folder_config(
    path: Path, has_tensor: Callable[[str], bool], vocab: Callable[[], int]
) -> tuple[Architecture, ModelConfig]:
    """The numbers of a folder, from its config.json.

    Args:
        has_tensor: whether there is a tensor of that (GGUF) name in a layer 0.
        vocab: rows of the embedding.

    Raises:
        ModelFileError: another family; an entry is missing, absurd, or asks for something that is not supported.
    """
    outer = ConfigJson.read(path)
    with naming_faults(path):
        entry = architecture_of(outer)
        kind = entry.folders[outer.text("model_type")]
        inner = outer.section("text_config") if outer.has("text_config") else outer
        outer.refuse(_NOT_SUPPORTED)
        inner.refuse(_NOT_SUPPORTED)
        return entry, _config(inner.with_defaults(kind.defaults), entry, kind, has_tensor, vocab())


def architecture_of(config: ConfigJson) -> Architecture:
    """Raises: ModelFileError: another family, or one that needs code of its own."""
    if config.has("auto_map") and not config.has("model_type"):
        raise ModelFileError("the model needs code of its own, which is never run")
    return of_model_type(config.text("model_type"))


def _config(
    c: ConfigJson, entry: Architecture, kind: FolderKind, has_tensor: Callable[[str], bool], vocab: int
) -> ModelConfig:
    n_layers, hidden, n_heads = (
        c.integer("num_hidden_layers"),
        c.integer("hidden_size"),
        c.integer("num_attention_heads"),
    )
    head_dim = c.integer("head_dim", hidden // n_heads if n_heads else 0)
    n_experts = c.integer("num_local_experts", c.integer("num_experts", 0))
    if n_experts and (c.integer("decoder_sparse_step", 1) != 1 or c.has("mlp_only_layers")):
        raise ModelFileError("dense layers among layers of experts are not supported")
    ffn = c.integer("intermediate_size")
    rotated = _rotated(c, entry, n_layers)
    rope, rope_local = _ropes(c, entry, head_dim)
    partial = _rope_section(c).number("partial_rotary_factor", c.number("partial_rotary_factor", 1.0))
    scalar = c.number("query_pre_attn_scalar", float(head_dim))
    config = ModelConfig(
        architecture=entry.name,
        n_layers=n_layers,
        hidden=hidden,
        n_heads=n_heads,
        n_kv_heads=c.integer("num_key_value_heads", n_heads),
        head_dim=head_dim,
        ffn=ffn,
        vocab=vocab,
        context=c.integer("max_position_embeddings"),
        eps=c.single("rms_norm_eps"),
        tied=c.flag("tie_word_embeddings", False),
        activation=_activation(c, entry),
        attention_scale=scalar**-0.5 if scalar > 0 else 0.0,
        embedding_scale=float(hidden) ** 0.5 if entry.scaled_embedding else 1.0,
        final_softcap=c.single("final_logit_softcapping", 0.0),
        attention_softcap=c.single("attn_logit_softcapping", 0.0),
        windows=_windows(c, entry, kind, rotated),
        rotated=rotated,
        rope_style=entry.rope_style,
        rope_dims=int(head_dim * partial) if 0 < partial <= 1 else 0,
        rope=rope,
        rope_local=rope_local,
        n_experts=n_experts,
        n_experts_used=c.integer("num_experts_per_tok") if n_experts else 0,
        expert_ffn=c.integer("moe_intermediate_size", ffn) if n_experts else 0,
        renormalize_experts=n_experts > 0 and c.flag("norm_topk_prob", True),
        qk_norm=entry.qk_norm,
        qkv_bias=has_tensor("attn_q.bias") or has_tensor("attn_qkv.bias"),
        output_bias=has_tensor("attn_output.bias"),
    )
    config.check()
    if c.integer("vocab_size", vocab) != vocab:
        raise ModelFileError(f"vocab_size is {c.integer('vocab_size')}, but the embedding has {vocab} rows")
    if config.rope_style == "interleaved" and config.rope_dims != head_dim:
        raise ModelFileError(f"rotary positions over a part of the head are not supported in a {entry.name} folder")
    return config


def _activation(c: ConfigJson, entry: Architecture) -> Any:
    name = c.get("hidden_activation") or c.get("hidden_act")
    if name is None:
        return entry.activation
    if not isinstance(name, str) or name not in _ACTIVATIONS:
        raise ModelFileError(f"the activation {str(name)[:40]!r} is not supported")
    return _ACTIVATIONS[name]


def _windows(c: ConfigJson, entry: Architecture, kind: FolderKind, rotated: tuple[bool, ...]) -> tuple[int, ...]:
    n_layers = len(rotated)
    window = c.integer("sliding_window", 0) if c.flag("use_sliding_window", True) else 0
    if kind.windows == "never":
        window = 0
    if kind.windows != "by layer":
        usual = (window,) * n_layers
    elif entry.unrotated_every:
        usual = tuple(0 if turned else window for turned in rotated)
    elif c.get("max_window_layers") is not None:
        first = c.integer("max_window_layers")
        usual = tuple(window if i >= first else 0 for i in range(n_layers))
    else:
        pattern = c.integer("sliding_window_pattern", c.integer("_sliding_window_pattern", entry.full_every))
        usual = tuple(window if local else 0 for local in all_but_every_nth(pattern, n_layers))
    types = c.get("layer_types")
    if types is None:
        return usual
    if not isinstance(types, list) or len(types) != n_layers:
        raise ModelFileError(f"layer_types is not a list of {n_layers} entries")
    known = {"sliding_attention": window, "full_attention": 0}
    if not all(isinstance(name, str) and name in known for name in types):
        raise ModelFileError("layer_types holds more than sliding_attention and full_attention")
    listed = tuple(known[name] for name in types)
    if kind.windows != "by layer" and listed != usual:
        raise ModelFileError(f"layer_types of both kinds are not supported in a {c.text('model_type')} folder")
    return listed


# --- rotary positions -----------------------------------------------------------------------------------------------


def _rotated(c: ConfigJson, entry: Architecture, n_layers: int) -> tuple[bool, ...]:
    """layer -> its q and k are rotated."""
    if not entry.unrotated_every:
        return all_but_every_nth(0, n_layers)
    listed = c.get("no_rope_layers")
    if listed is None:
        return all_but_every_nth(c.integer("no_rope_layer_interval", entry.unrotated_every), n_layers)
    if not isinstance(listed, list) or len(listed) < n_layers or not all(flag in (0, 1) for flag in listed):
        raise ModelFileError(f"no_rope_layers is not a list of {n_layers} zeros and ones")
    return tuple(bool(flag) for flag in listed[:n_layers])


def _rope_section(c: ConfigJson) -> ConfigJson:
    """Rotary positions of full layers: `rope_parameters` of today, `rope_scaling` of before."""
    if c.has("rope_parameters") and c.has("rope_scaling"):
        raise ModelFileError("rope_parameters and rope_scaling are both there; only one of them may be")
    section = c.section("rope_parameters") if c.has("rope_parameters") else c.section("rope_scaling")
    full = section.section("full_attention") if section.has("full_attention") else section
    for part in (section, full, section.section("sliding_attention")):
        if unknown := part.unknown(_ROPE_ENTRIES):
            raise ModelFileError(f"{unknown[0][:80]!r} of rotary positions is not supported")
    return full


def _ropes(c: ConfigJson, entry: Architecture, head_dim: int) -> tuple[RopeScaling, RopeScaling]:
    """-> (of full layers, of layers with a window)."""
    section = _rope_section(c)
    base = section.single("rope_theta", c.single("rope_theta", 10000.0))
    rope = _scaling(c, section, base, head_dim)
    if entry.local_rope == "same":
        return rope, rope
    local = c.section("rope_parameters").section("sliding_attention")
    if local.text("rope_type", "default") != "default":
        raise ModelFileError("scaled rotary positions in layers with a window are not supported")
    named = c.single("rope_local_base_freq", entry.local_rope_base or base)
    return rope, RopeScaling(base=local.single("rope_theta", named))


def _scaling(c: ConfigJson, s: ConfigJson, base: float, head_dim: int) -> RopeScaling:
    kind = s.text("rope_type", s.text("type", "default"))
    context = c.integer("max_position_embeddings")
    original = c.integer("original_max_position_embeddings", s.integer("original_max_position_embeddings", context))
    match kind:
        case "default":
            return RopeScaling(base=base)
        case "linear":
            return RopeScaling(base=base, kind="linear", factor=s.single("factor"))
        case "llama3":
            low, high = s.number("low_freq_factor"), s.number("high_freq_factor")
            factors = llama3_factors(head_dim, base, s.single("factor"), low, high, original)
            return RopeScaling(base=base, kind="llama3", factor=s.single("factor"), factors=factors)
        case "yarn":
            if s.has("mscale") or s.has("mscale_all_dim") or not s.flag("truncate", True):
                raise ModelFileError("this variant of yarn is not supported")
            factor = s.single("factor")
            return RopeScaling(
                base=base,
                kind="yarn",
                factor=factor,
                original_context=original,
                attention_factor=s.single("attention_factor", yarn_attention_factor(factor)),
                beta_fast=s.single("beta_fast", 32.0),
                beta_slow=s.single("beta_slow", 1.0),
            )
        case "longrope" | "su":
            short, long = s.numbers("short_factor"), s.numbers("long_factor")
            if not (short and long):
                raise ModelFileError("longrope needs short_factor and long_factor")
            factor = s.number("factor", context / max(original, 1))
            return RopeScaling(
                base=base,
                kind="longrope",
                original_context=original,
                factors=short,
                long_factors=long,
                attention_factor=s.single("attention_factor", longrope_attention_factor(factor, original)),
            )
    raise ModelFileError(f"rope scaling of type {kind[:40]!r} is not supported")
