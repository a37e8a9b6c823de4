"""The numbers of a model under one set of names, whichever kind of file they came from."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from sixfold.errors import ModelFileError
from sixfold.lazy_numpy import np, npt

__all__ = ["ModelConfig", "RopeKind", "RopeScaling"]

RopeKind = Literal["none", "linear", "llama3", "yarn", "longrope"]

_LAYERS_MAX = 4096
_SIZE_MAX = 1 << 24
"""Of any width, and of the context: far above every known model, and small enough to multiply two of them safely."""
_EXPERTS_MAX = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class RopeScaling:
    """Rotary positions: the base, and how the frequencies are changed for contexts beyond the one of training.

    Sources: RoFormer (arXiv 2104.09864); YaRN (arXiv 2309.00071); LongRoPE (arXiv 2402.13753).
    """

    base: float
    kind: RopeKind = "none"
    factor: float = 1.0
    """linear and yarn: how many times longer the context is made."""
    original_context: int = 0
    """Positions of the training before it was made longer; 0 where it does not matter."""
    factors: tuple[float, ...] = ()
    """Divisors of the frequencies, one for each pair: llama3's, longrope's for short contexts."""
    long_factors: tuple[float, ...] = ()
    """longrope: divisors for contexts beyond `original_context`."""
    attention_factor: float = 1.0
    """Cosines and sines are multiplied by it."""
    beta_fast: float = 32.0
    beta_slow: float = 1.0

    def inverse_frequencies(self, dims: int, context: int = 0) -> npt.NDArray[np.float64]:
        """Angle per position of each pair, [dims / 2], with everything applied but `attention_factor`.

        Args:
            dims: rotated dimensions of a head.
            context: positions that will be served. Beyond `original_context` longrope takes its long factors: once for
                all requests, since a token's keys must not depend on how long its request becomes.

        Raises:
            ModelFileError: the file has another number of factors.
        """
        frequencies = self.base ** (-np.arange(0, dims, 2, dtype=np.float64) / dims)
        if self.kind == "linear":
            return frequencies / self.factor
        if self.kind == "yarn":
            ramp = self._yarn_ramp(dims)
            return frequencies / self.factor * ramp + frequencies * (1 - ramp)
        factors = self.long_factors if self.kind == "longrope" and context > self.original_context else self.factors
        if not factors:
            return frequencies
        if len(factors) != dims // 2:
            raise ModelFileError(f"there are {len(factors)} rope factors for {dims // 2} pairs")
        return frequencies / np.array(factors, np.float64)

    def _yarn_ramp(self, dims: int) -> npt.NDArray[np.float64]:
        """0: the frequency is kept (it turns often within the original context), 1: it is divided by `factor`."""

        def pair(turns: float) -> float:
            return dims * math.log(self.original_context / (turns * 2 * math.pi)) / (2 * math.log(self.base))

        low = max(math.floor(pair(self.beta_fast)), 0)
        high = min(math.ceil(pair(self.beta_slow)), dims - 1)
        ramp: npt.NDArray[np.float64] = (np.arange(dims // 2, dtype=np.float64) - low) / max(high - low, 0.001)
        return ramp.clip(0, 1)

    def check(self) -> None:
        """Raises: ModelFileError: the numbers cannot be computed with."""
        if not (1.0 < self.base < 1e12 and 0 < self.factor < 1e6 and 0 < self.attention_factor < 1e3):
            raise ModelFileError(
                f"rotary positions of base {self.base}, scaling factor {self.factor} and attention factor"
                f" {self.attention_factor} are not supported"
            )
        if not all(math.isfinite(f) and f > 0 for f in (*self.factors, *self.long_factors)):
            raise ModelFileError("a rope factor is not a positive number")
        if self.kind == "yarn" and not (self.original_context > 0 and self.beta_fast > self.beta_slow > 0):
            raise ModelFileError("yarn needs the original context and beta_fast above beta_slow")


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """Numbers of a decoder, every default applied. Widths are counted in values."""

    architecture: str
    n_layers: int
    hidden: int
    n_heads: int
    n_kv_heads: int
    head_dim: int
    ffn: int
    """Inner width of a dense feed-forward layer."""
    vocab: int
    """Ids: what the head computes. Rows of the files behind these are padding."""
    context: int
    """Positions that the model was made for."""
    eps: float
    """Of every RMSNorm."""
    tied: bool
    """The head is the embedding."""
    activation: Literal["silu", "gelu"]
    """Of the gate; gelu in its tanh form."""
    attention_scale: float
    embedding_scale: float
    final_softcap: float
    """cap * tanh(logits / cap); 0: none."""
    attention_softcap: float
    windows: tuple[int, ...]
    """layer -> a token sees keys at distances below this; 0: all."""
    rotated: tuple[bool, ...]
    """layer -> q and k are rotated; a layer without knows of positions only what comes before what."""
    rope_style: Literal["interleaved", "half"]
    """Rotation pairs: (2i, 2i + 1), or (i, i + rope_dims / 2)."""
    rope_dims: int
    """Rotated dimensions of a head, its first ones."""
    rope: RopeScaling
    """Of layers without a window."""
    rope_local: RopeScaling
    """Of layers with a window."""
    n_experts: int
    """0: dense."""
    n_experts_used: int
    expert_ffn: int
    renormalize_experts: bool
    """The weights of the chosen experts are made to sum to one (of a softmax over all experts)."""
    qk_norm: Literal["none", "head", "projection"]
    """RMSNorm of q and k: none, each head on its own, or the whole projection."""
    qkv_bias: bool
    output_bias: bool
    """Of the attention's output projection."""
    absent_ids: tuple[int, ...] = ()
    """Ids below `vocab` that the tokenizer leaves out: never drawn."""

    @property
    def q_size(self) -> int:
        return self.n_heads * self.head_dim

    @property
    def kv_size(self) -> int:
        return self.n_kv_heads * self.head_dim

    def check(self) -> None:
        """Raises: ModelFileError: numbers that are absurd or do not fit together."""
        if not 1 <= self.n_layers <= _LAYERS_MAX:
            raise ModelFileError(f"a model of {self.n_layers} layers is not supported")
        for what in ("hidden", "n_heads", "n_kv_heads", "head_dim", "ffn", "vocab"):
            if not 1 <= getattr(self, what) <= _SIZE_MAX:
                raise ModelFileError(f"{what} is {getattr(self, what)}; 1 to {_SIZE_MAX} are supported")
        if self.context < 1:  # however large: a claim costs nothing, and `engine/resolve.py` cuts it
            raise ModelFileError("the model has no context")
        if self.n_heads % self.n_kv_heads:
            raise ModelFileError(f"{self.n_heads} heads cannot share {self.n_kv_heads} KV heads evenly")
        if not 2 <= self.rope_dims <= self.head_dim or self.rope_dims % 2:
            raise ModelFileError(f"{self.rope_dims} rotated dimensions do not fit a head of {self.head_dim}")
        if not 0 < self.eps < 1:
            raise ModelFileError(f"an RMSNorm epsilon of {self.eps} is not supported")
        if not (0 < self.attention_scale < 1e3 and 0 < self.embedding_scale < 1e4):
            raise ModelFileError("the scale of attention or embedding is not a positive number")
        if not (0 <= self.final_softcap < 1e6 and 0 <= self.attention_softcap < 1e6):
            raise ModelFileError("a soft cap is negative")
        if not len(self.windows) == len(self.rotated) == self.n_layers:
            raise ModelFileError(f"{len(self.windows)} windows for {self.n_layers} layers")
        if not 0 <= min(self.windows) <= max(self.windows) < 1 << 31:
            raise ModelFileError(f"a window of {max(self.windows)} tokens is not supported")
        if self.n_experts and not (
            1 <= self.n_experts_used <= self.n_experts <= _EXPERTS_MAX and 1 <= self.expert_ffn <= _SIZE_MAX
        ):
            raise ModelFileError(f"{self.n_experts_used} of {self.n_experts} experts cannot be used")
        self.rope.check()
        self.rope_local.check()
