"""NumPy truth of every native operation: slow, plain, float64 where the kernels round only by order of summation.

What a kernel rounds on purpose is rounded here too: activations to int8 per 32 values or to bfloat16, sums of blocks in
some builds, q, k and v, attention's weights and weights of 16 bits to bfloat16. The tests compare every build of the
kernels with this file.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from sixfold.executor.native.kernels import Matrix
from sixfold.executor.native.reference_types import (
    BF16,
    F16,
    F32,
    Q4_1,
    Q5_1,
    Numbers,
    dequantize,
    numbers,
    to_bfloat16,
)

__all__ = [
    "ReferenceMatrix",
    "ReferenceProgram",
    "attention",
    "int8_matmul",
    "quantize_activations",
    "rms_norm",
    "rotate",
    "silu",
    "to_bfloat16",
]

Float32 = npt.NDArray[np.float32]
Float64 = npt.NDArray[np.float64]

BLOCK = 32
"""Values that share a scale."""

SEGMENT_KEYS = 256
"""As `kSegmentKeys` of native/kernels/layout.h."""

_ACTIVATIONS = {F32: "float32", F16: "bfloat16", BF16: "bfloat16"}
"""What weights of a type are multiplied with; the others see int8."""


def quantize_activations(x: Float32) -> tuple[npt.NDArray[np.int8], Float32]:
    """int8 codes [rows, k] and float32 scales [rows, k / 32], bit for bit as the kernels round.

    A scale is amax / 127 rounded to bfloat16, and zero where that is no normal number.
    """
    blocks = x.reshape(x.shape[0], -1, BLOCK)
    exact = (np.abs(blocks).max(axis=2) / np.float32(127)).astype(np.float32)
    scales = np.where(exact < np.finfo(np.float32).tiny, np.float32(0), to_bfloat16(exact))
    inverse = np.divide(np.float32(1), scales, out=np.zeros_like(scales), where=scales != 0)
    codes = np.rint(blocks * inverse[:, :, None]).astype(np.int8)
    return codes.reshape(x.shape), scales


def int8_matmul(w: Numbers, x: Float32, *, bf16_sums: bool) -> Float64:
    """x [rows, k], rounded to int8, times w [n, k] transposed.

    `bf16_sums`: the sum of a block times its d, its m, and the sum of its activations are rounded to bfloat16 before
    the scale of the activations meets them, as in builds with products of bfloat16.
    """
    codes, scales = quantize_activations(x)
    rounded = to_bfloat16 if bf16_sums else np.asarray
    per_group = BLOCK // w.width
    scale = np.repeat(scales, per_group, axis=1)  # [rows, groups]
    a = codes.reshape(len(x), -1, w.width).astype(np.float64)
    code = w.code.reshape(len(w.code), -1, w.width).astype(np.float64)
    sums = np.einsum("rgi,ngi->rng", a, code) * w.d[:, :: w.width]
    scaled_sums = rounded(scale * a.sum(axis=2).astype(np.float32))
    products = np.einsum("rng,rg->rn", rounded(sums).astype(np.float64), scale.astype(np.float64))
    middles = scaled_sums.astype(np.float64) @ rounded(w.m[:, :: w.width]).astype(np.float64).T
    return np.asarray(products + middles)


def rms_norm(x: Float32, weight: Float32, eps: float) -> Float32:
    """x / sqrt(mean(x^2) + eps) * weight over the last axis. Source: arXiv 1910.07467."""
    wide = x.astype(np.float64)
    norm = np.sqrt((wide * wide).mean(axis=-1, keepdims=True) + eps)
    return np.asarray(wide / norm * weight, np.float32)


def silu(x: Float64) -> Float64:
    """x * sigmoid(x)."""
    return np.asarray(x / (1 + np.exp(-x)))


def rotate(x: Float64, cos: Float32, sin: Float32, style: str) -> Float64:
    """Rotary positions on x [tokens, heads, d] with tables [tokens, d / 2]."""
    half = x.shape[-1] // 2
    a, b = (x[..., 0::2], x[..., 1::2]) if style == "interleaved" else (x[..., :half], x[..., half:])
    c, s = cos[:, None, :].astype(np.float64), sin[:, None, :].astype(np.float64)
    out = np.empty_like(x)
    if style == "interleaved":
        out[..., 0::2], out[..., 1::2] = a * c - b * s, b * c + a * s
    else:
        out[..., :half], out[..., half:] = a * c - b * s, b * c + a * s
    return out


def attention(
    q: Float64, k: Float64, v: Float64, scale: float, *, window: int = 0, softcap: float = 0.0, bfloat16: bool = True
) -> Float64:
    """One token's q [n_heads, d] over k and v [keys, n_kv_heads, d]; query head h reads KV head h // group.

    The token is the last key's. With a window it sees the last `window` keys. Weights meet values of `bfloat16` as
    bfloat16, each relative to the largest of its segment of 256 keys; their sum is one of weights that are not rounded.
    """
    n, group = len(k), q.shape[0] // k.shape[1]
    first = max(0, n - window) if window else 0
    out = np.empty_like(q)
    for h in range(q.shape[0]):
        scores = k[:, h // group] @ q[h]
        if bfloat16:  # to which of them a weight is rounded depends on the last bits of a float32 score
            scores = (scores.astype(np.float32) * np.float32(scale)).astype(np.float64)
        else:
            scores = scores * scale
        if softcap:
            scores = np.tanh(scores / softcap) * softcap
        top, total, weighed = scores[first:].max(), 0.0, np.zeros(q.shape[1])
        for begin in range(first // SEGMENT_KEYS * SEGMENT_KEYS, n, SEGMENT_KEYS):
            keys = slice(max(begin, first), begin + SEGMENT_KEYS)
            highest = scores[keys].max()
            p = np.exp(scores[keys] - highest)
            share = np.exp(highest - top)
            total += share * p.sum()
            weighed += share * ((to_bfloat16(p) if bfloat16 else p) @ v[keys, h // group])
        out[h] = weighed / total
    return out


@dataclass(frozen=True, slots=True)
class ReferenceMatrix:
    """A packed matrix's values, and the activations that it sees."""

    w: Float32
    activations: str
    parts: Sequence[Numbers] = ()
    """The tensors, where int8 meets them."""
    interleave: bool = False
    bf16_sums: bool = False

    @classmethod
    def of(
        cls, tensors: Sequence[Matrix], *, interleave: bool = False, activations: str = "int8", bf16_sums: bool = False
    ) -> ReferenceMatrix:
        """As `kernels.pack_matrix`. `bf16_sums`: see `int8_matmul`."""
        values = [dequantize(t) for t in tensors]
        types = {t.ggml_type for t in tensors}
        [seen, *others] = {_ACTIVATIONS.get(t, "int8") for t in types}
        if others or activations == "float32" or (interleave and len(types) > 1):
            seen = "float32"
        if seen == "bfloat16":
            values = [to_bfloat16(v) for v in values]
        parts = [numbers(t) for t in tensors] if seen == "int8" else []
        for i, part in enumerate(parts):
            if tensors[i].ggml_type in (Q4_1, Q5_1):
                values[i] = part.d * part.code + part.m
        return cls(_rows_of(values, interleave), seen, parts, interleave, bf16_sums)

    def __call__(self, x: Float32) -> Float64:
        """x [rows, k], rounded to what the matrix sees, times it: [rows, n]."""
        if self.activations == "int8":
            columns = [int8_matmul(part, x, bf16_sums=self.bf16_sums).T for part in self.parts]
            return np.asarray(_rows_of(columns, self.interleave).T)
        rounded = to_bfloat16(x) if self.activations == "bfloat16" else x
        return np.asarray(rounded.astype(np.float64) @ self.w.astype(np.float64).T)


def _rows_of(parts: Sequence[npt.NDArray[Any]], interleave: bool) -> npt.NDArray[Any]:
    """Rows of all parts, one below the other or alternating by tiles of 16."""
    if not interleave:
        return np.concatenate(parts)
    width = parts[0].shape[1]
    return np.stack([p.reshape(-1, 16, width) for p in parts], axis=1).reshape(-1, width)


@dataclass(slots=True)
class ReferenceProgram:
    """The operations of `kernels.Program` on one sequence, whole prompt at once, keeping what flows between them."""

    x: Float32 = field(default_factory=lambda: np.zeros((0, 0), np.float32))
    """[tokens, hidden] residual stream."""
    q: Float64 = field(default_factory=lambda: np.zeros((0, 0, 0)))
    k: Float64 = field(default_factory=lambda: np.zeros((0, 0, 0)))
    v: Float64 = field(default_factory=lambda: np.zeros((0, 0, 0)))
    a: Float32 = field(default_factory=lambda: np.zeros((0, 0), np.float32))
    h: Float32 = field(default_factory=lambda: np.zeros((0, 0), np.float32))
    bfloat16: bool = True
    """The type of the KV cache."""

    def embed(self, table: Matrix, token_ids: Sequence[int]) -> None:
        self.x = dequantize(table)[np.asarray(token_ids)]

    def norm_qkv_rope_write(
        self,
        norm: Float32,
        w: ReferenceMatrix,
        n_heads: int,
        n_kv_heads: int,
        cos: Float32,
        sin: Float32,
        style: str,
        eps: float,
        *,
        bfloat16: bool = True,
    ) -> None:
        """Tokens are at positions 0, 1, ..."""
        tokens = len(self.x)
        y = w(rms_norm(self.x, norm, eps)).astype(np.float32).astype(np.float64)
        y = y.reshape(tokens, n_heads + 2 * n_kv_heads, -1)
        q, k, self.v = np.split(y, [n_heads, n_heads + n_kv_heads], axis=1)
        self.q, self.k = (rotate(t, cos[:tokens], sin[:tokens], style) for t in (q, k))
        self.bfloat16 = bfloat16
        if bfloat16:
            self.q, self.k, self.v = (to_bfloat16(t).astype(np.float64) for t in (self.q, self.k, self.v))

    def attention(self, scale: float) -> None:
        rows = [
            attention(self.q[t], self.k[: t + 1], self.v[: t + 1], scale, bfloat16=self.bfloat16)
            for t in range(len(self.q))
        ]
        self.a = np.stack(rows).reshape(len(rows), -1).astype(np.float32)

    def proj_residual(self, w: ReferenceMatrix) -> None:
        self.x = (self.x + w(self.a)).astype(np.float32)

    def norm_gateup_act(self, norm: Float32, w: ReferenceMatrix, eps: float) -> None:
        y = w(rms_norm(self.x, norm, eps))
        tiles = y.reshape(len(y), -1, 2, 16)
        self.h = (silu(tiles[:, :, 0]) * tiles[:, :, 1]).reshape(len(y), -1).astype(np.float32)

    def down_residual(self, w: ReferenceMatrix) -> None:
        self.x = (self.x + w(self.h)).astype(np.float32)

    def final_norm_head(self, norm: Float32, w: ReferenceMatrix, eps: float) -> Float64:
        """Logits [tokens, vocabulary]."""
        return w(self.hidden(norm, eps))

    def hidden(self, norm: Float32, eps: float) -> Float32:
        """Hidden states [tokens, hidden] that meet the head."""
        return rms_norm(self.x, norm, eps)
