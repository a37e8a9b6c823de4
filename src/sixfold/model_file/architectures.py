"""What the files of a family do not say: how a folder's names and conventions differ from GGUF's, and defaults.

GGUF's names and conventions are the ones that the rest of the program uses. A new family of decoders begins here: one
entry of `ARCHITECTURES`, and names in `_LAYER_NAMES` if its folders have modules that no other family has.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from sixfold.errors import ModelFileError

__all__ = ["ARCHITECTURES", "Architecture", "FolderKind", "TensorName", "of_gguf", "of_model_type", "tensor_name"]


@dataclass(frozen=True, slots=True, kw_only=True)
class FolderKind:
    """What the name of a `model_type` settles in a folder's config.json."""

    defaults: Mapping[str, Any] = field(default_factory=dict)
    """Values of the entries that it may leave out; an entry that is null has none."""
    windows: Literal["never", "always", "by layer"] = "never"
    """Which layers `sliding_window` holds for: none, whatever it says; all; or those that `layer_types` or, without
    one, `max_window_layers` or the family's pattern names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Architecture:
    """One family."""

    name: str
    """`general.architecture` in GGUF."""
    folders: Mapping[str, FolderKind]
    """`model_type` in a folder's config.json -> what it settles."""
    rope_style: Literal["interleaved", "half"] = "half"
    """In GGUF. Folders always pair (i, i + d/2): where GGUF interleaves, a folder's q and k rows are reordered."""
    qk_norm: Literal["none", "head", "projection"] = "none"
    post_norms: bool = False
    """Norms behind attention and feed-forward; a folder's `post_attention_layernorm` is then that, not `ffn_norm`."""
    norm_shift: float = 0.0
    """What GGUF has added to a folder's norm weights."""
    activation: Literal["silu", "gelu"] = "silu"
    scaled_embedding: bool = False
    """The embedding is multiplied by sqrt(hidden)."""
    full_every: int = 0
    """In a model with a window every n-th layer has none; 0: all have it. A file that says it itself wins."""
    unrotated_every: int = 0
    """Every n-th layer has no rotary positions; 0: all have them. A folder that says it itself wins."""
    local_rope: Literal["same", "unscaled"] = "same"
    """Layers with a window: the same rotary positions, or without the scaling."""
    local_rope_base: float = 0.0
    """Their base, if the file does not say it; 0: the same."""
    width_scaled_layers: int = 0
    """The one model of the family, by its number of layers, whose queries are scaled by hidden / heads instead of the
    head's dimension; GGUF does not say it. 0: there is none."""
    gguf_required: tuple[str, ...] = ()
    """Metadata without which a file is refused: to leave them out does not mean that there is none."""


_GEMMA = {
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "rms_norm_eps": 1e-6,
    "query_pre_attn_scalar": 256,
    "sliding_window": 4096,
    "tie_word_embeddings": True,
}
_GEMMA2 = _GEMMA | {
    "max_position_embeddings": 8192,
    "attn_logit_softcapping": 50.0,
    "final_logit_softcapping": 30.0,
}
_GEMMA3 = _GEMMA | {"max_position_embeddings": 131072, "rope_theta": 1e6}
_QWEN = {"use_sliding_window": False, "max_window_layers": 28}

ARCHITECTURES: dict[str, Architecture] = {
    entry.name: entry
    for entry in (
        Architecture(
            name="llama",
            folders={
                "llama": FolderKind(),
                "mistral": FolderKind(defaults={"sliding_window": 4096}, windows="always"),
                "mixtral": FolderKind(defaults={"rope_theta": 1e6}, windows="always"),
            },
            rope_style="interleaved",
        ),
        Architecture(name="qwen2", folders={"qwen2": FolderKind(defaults=_QWEN, windows="by layer")}),
        Architecture(
            name="qwen3",
            folders={"qwen3": FolderKind(defaults=_QWEN | {"head_dim": 128}, windows="by layer")},
            qk_norm="head",
        ),
        Architecture(
            name="qwen3moe",
            folders={
                "qwen3_moe": FolderKind(
                    defaults={"use_sliding_window": False, "norm_topk_prob": False}, windows="always"
                )
            },
            qk_norm="head",
        ),
        Architecture(
            name="gemma2",
            folders={"gemma2": FolderKind(defaults=_GEMMA2, windows="by layer")},
            post_norms=True,
            norm_shift=1.0,
            activation="gelu",
            scaled_embedding=True,
            full_every=2,
            width_scaled_layers=46,
            gguf_required=("attention.sliding_window", "attn_logit_softcapping", "final_logit_softcapping"),
        ),
        Architecture(
            name="gemma3",
            folders=dict.fromkeys(("gemma3_text", "gemma3"), FolderKind(defaults=_GEMMA3, windows="by layer")),
            qk_norm="head",
            post_norms=True,
            norm_shift=1.0,
            activation="gelu",
            scaled_embedding=True,
            full_every=6,
            local_rope="unscaled",
            local_rope_base=10000.0,
            width_scaled_layers=62,
        ),
        Architecture(
            name="phi3",
            folders={"phi3": FolderKind(defaults={"original_max_position_embeddings": 4096}, windows="always")},
        ),
        Architecture(
            name="olmo2",
            folders={
                "olmo2": FolderKind(),
                "olmo3": FolderKind(defaults={"sliding_window": 4096, "rope_theta": 5e5}, windows="by layer"),
            },
            qk_norm="projection",
            post_norms=True,
            full_every=4,
            local_rope="unscaled",
        ),
        Architecture(
            name="smollm3",
            folders={
                "smollm3": FolderKind(
                    defaults={"rope_theta": 2e6, "tie_word_embeddings": True, "use_sliding_window": False},
                    windows="by layer",
                )
            },
            rope_style="interleaved",
            unrotated_every=4,
        ),
    )
}
"""`general.architecture` -> the family."""


def of_gguf(name: str) -> Architecture:
    """Raises: ModelFileError: no such family here."""
    if name not in ARCHITECTURES:
        raise ModelFileError(f"models of architecture {name[:80]!r} are not supported; {_list(ARCHITECTURES)} are")
    return ARCHITECTURES[name]


def of_model_type(name: str) -> Architecture:
    """Raises: ModelFileError: no such family here."""
    by_type = {model_type: entry for entry in ARCHITECTURES.values() for model_type in entry.folders}
    if name not in by_type:
        raise ModelFileError(f"models of type {name[:80]!r} are not supported; {_list(by_type)} are")
    return by_type[name]


def _list(names: Mapping[str, object]) -> str:
    return ", ".join(f"`{name}`" for name in names)


# --- names ----------------------------------------------------------------------------------------------------------

_TOP_NAMES = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
}
_LAYER_NAMES = {
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.qkv_proj": "attn_qkv",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.gate_up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "mlp.gate": "ffn_gate_inp",
    "block_sparse_moe.gate": "ffn_gate_inp",
}
_POST_NORM_NAMES = {
    "post_attention_layernorm": "post_attention_norm",
    "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
}
_EXPERT_NAMES = {
    "gate_proj": "ffn_gate_exps",
    "up_proj": "ffn_up_exps",
    "down_proj": "ffn_down_exps",
    "w1": "ffn_gate_exps",
    "w3": "ffn_up_exps",
    "w2": "ffn_down_exps",
}
_NOT_TEXT = re.compile(r"(model\.)?(vision_tower|vision_model|multi_modal_projector)\.")
"""Parts of a model that reads pictures too; its text part is what is served."""
_NOT_WEIGHTS = re.compile(r".*\.rotary_emb\.inv_freq")
"""Old folders carry a table that follows from the configuration."""
_LAYER = re.compile(r"model\.layers\.(\d{1,5})\.(.+)\.(weight|bias)")
_EXPERT = re.compile(r"(?:mlp|block_sparse_moe)\.experts\.(\d{1,5})\.(\w+)")


@dataclass(frozen=True, slots=True)
class TensorName:
    """GGUF's name of a folder's tensor."""

    name: str
    expert: int | None = None
    """A folder keeps experts apart; GGUF stacks them into one tensor."""


def tensor_name(entry: Architecture, name: str) -> TensorName | None:
    """None: the tensor is no part of the text model.

    Raises:
        ModelFileError: the name has no meaning here.
    """
    if _NOT_TEXT.match(name) or _NOT_WEIGHTS.fullmatch(name):
        return None
    plain = name.removeprefix("language_model.").replace("model.language_model.", "model.", 1)
    if plain in _TOP_NAMES:
        return TensorName(_TOP_NAMES[plain])
    if match := _LAYER.fullmatch(plain):
        layer, module, kind = match.groups()
        if (expert := _EXPERT.fullmatch(module)) and expert[2] in _EXPERT_NAMES:
            return TensorName(f"blk.{int(layer)}.{_EXPERT_NAMES[expert[2]]}.{kind}", int(expert[1]))
        known = (_LAYER_NAMES | _POST_NORM_NAMES) if entry.post_norms else _LAYER_NAMES
        if module in known:
            return TensorName(f"blk.{int(layer)}.{known[module]}.{kind}")
    raise ModelFileError(f"tensor {name[:200]!r} has no meaning in a {entry.name} model")
