"""NumPy truth of the tensor types: bytes to values, and values to bytes for tests that make their own models.

Source of the block layouts: the GGUF specification, ggml's block types.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sixfold.executor.native.kernels import Matrix

__all__ = [
    "BF16",
    "F16",
    "F32",
    "Q4_0",
    "Q4_1",
    "Q4_K",
    "Q5_0",
    "Q5_1",
    "Q5_K",
    "Q6_K",
    "Q8_0",
    "TYPES",
    "Numbers",
    "dequantize",
    "numbers",
    "quantize_weights",
    "to_bfloat16",
]

Float32 = npt.NDArray[np.float32]
Bytes = npt.NDArray[np.uint8]

F32, F16, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q4_K, Q5_K, Q6_K, BF16 = 0, 1, 2, 3, 6, 7, 8, 12, 13, 14, 30
TYPES = {
    "f32": F32,
    "f16": F16,
    "bf16": BF16,
    "q4_0": Q4_0,
    "q4_1": Q4_1,
    "q5_0": Q5_0,
    "q5_1": Q5_1,
    "q8_0": Q8_0,
    "q4_k": Q4_K,
    "q5_k": Q5_K,
    "q6_k": Q6_K,
}
"""The name of a type -> GGUF's number."""
_BITS = {Q4_0: 4, Q4_1: 4, Q5_0: 5, Q5_1: 5, Q4_K: 4, Q5_K: 5}
_BLOCK_BYTES = {Q4_0: 18, Q4_1: 20, Q5_0: 22, Q5_1: 24, Q8_0: 34, Q4_K: 144, Q5_K: 176, Q6_K: 210}


@dataclass(frozen=True, slots=True)
class Numbers:
    """Values as d * code + m [n_rows, k], as the integer kernels see them: codes are relative to the type's middle one.

    `width` values in a row share d and m.
    """

    d: Float32
    code: Float32
    m: Float32
    width: int


def dequantize(tensor: Matrix) -> Float32:
    """[n_rows, k] of a tensor's bytes."""
    kind, shape = tensor.ggml_type, (tensor.n_rows, tensor.k)
    if kind == F32:
        return tensor.data.view(np.float32).reshape(shape).copy()
    if kind == F16:
        return tensor.data.view(np.float16).reshape(shape).astype(np.float32)
    if kind == BF16:
        return (tensor.data.view(np.uint16).astype(np.uint32) << np.uint32(16)).view(np.float32).reshape(shape)
    if kind not in _BLOCK_BYTES:
        raise ValueError(f"tensor type {kind} has no kernel")
    d, code, m, _ = _parts(tensor)
    return np.asarray(d * code + m, np.float32).reshape(shape)


def numbers(tensor: Matrix) -> Numbers:
    """Of a tensor of integers. What Q4_1 and Q5_1 add to a code in the middle is bfloat16, as packed."""
    shape, kind = (tensor.n_rows, tensor.k), tensor.ggml_type
    d, code, m, middle = _parts(tensor)
    m = m + np.float32(middle) * d
    if kind in (Q4_1, Q5_1):
        m = to_bfloat16(m)
    d, code, m = (np.broadcast_to(x, code.shape).reshape(shape) for x in (d, code - np.float32(middle), m))
    return Numbers(d, code, m, 16 if kind == Q6_K else 32)


def to_bfloat16(x: npt.NDArray[np.floating]) -> Float32:
    """The nearest bfloat16 (ties to even), as float32."""
    bits = np.ascontiguousarray(x, np.float32).view(np.uint32).astype(np.uint64)
    rounded = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16 << 16).astype(np.uint32).view(np.float32)
    return np.where(np.isnan(x), np.float32(np.nan), rounded)


def _parts(tensor: Matrix) -> tuple[Float32, Float32, Float32, int]:
    """d, codes and m of d * code + m, [..., 1 or width], and the type's middle code unless codes are relative to it."""
    kind = tensor.ggml_type
    blocks = tensor.data.reshape(-1, _BLOCK_BYTES[kind])
    zero = np.zeros((1, 1), np.float32)
    if kind == Q8_0:  # d f16, 32 int8
        return _half(blocks, 0), blocks[:, 2:].view(np.int8).astype(np.float32), zero, 0
    if kind == Q6_K:
        return *_q6_k(blocks), zero, 0
    if kind in (Q4_K, Q5_K):
        return *_k_values(blocks, kind), 1 << (_BITS[kind] - 1)
    # d f16, for Q4_1 and Q5_1 m f16, for Q5 4 bytes of fifth bits, 16 bytes: low nibbles are the first 16 values
    codes = np.concatenate([blocks[:, -16:] & 15, blocks[:, -16:] >> 4], axis=1)
    if _BITS[kind] == 5:
        codes |= np.unpackbits(blocks[:, -20:-16], axis=1, bitorder="little") << 4
    middle = 1 << (_BITS[kind] - 1)
    if kind in (Q4_1, Q5_1):
        return _half(blocks, 0), codes.astype(np.float32), _half(blocks, 2), middle
    return _half(blocks, 0), codes.astype(np.float32) - np.float32(middle), zero, 0


def quantize_weights(ggml_type: int, w: Float32) -> Matrix:
    """A tensor of a type near w [n_rows, k]; scales by the range of each block, nothing is searched for."""
    n_rows, k = w.shape
    if ggml_type == F32:
        raw = w.astype(np.float32).tobytes()
    elif ggml_type == F16:
        raw = w.astype(np.float16).tobytes()
    elif ggml_type == BF16:
        raw = (w.astype(np.float32).view(np.uint32) + 0x8000 >> 16).astype(np.uint16).tobytes()
    elif ggml_type in (Q4_K, Q5_K):
        raw = _to_k(w.reshape(-1, 8, 32).astype(np.float32), ggml_type).tobytes()
    elif ggml_type == Q6_K:
        raw = _to_q6_k(w.reshape(-1, 16, 16).astype(np.float32)).tobytes()
    elif ggml_type in _BLOCK_BYTES:
        raw = _to_small(w.reshape(-1, 32).astype(np.float32), ggml_type).tobytes()
    else:
        raise ValueError(f"tensor type {ggml_type} has no kernel")
    return Matrix(ggml_type, np.frombuffer(raw, np.uint8), n_rows, k)


def _half(blocks: Bytes, at: int) -> Float32:
    """[blocks, 1] the float16 at a byte."""
    return blocks[:, at : at + 2].copy().view(np.float16).astype(np.float32)


def _k_scales(packed: Bytes) -> tuple[Bytes, Bytes]:
    """8 scales and 8 minima of 6 bits from 12 bytes: [blocks, 8] each."""
    low, high, rest = packed[:, 0:4], packed[:, 4:8], packed[:, 8:12]
    scales = np.concatenate([low & 63, rest & 15 | low >> 6 << 4], axis=1)
    minima = np.concatenate([high & 63, rest >> 4 | high >> 6 << 4], axis=1)
    return scales, minima


def _k_values(blocks: Bytes, kind: int) -> tuple[Float32, Float32, Float32]:
    """d f16, e f16, 12 bytes of scales, for Q5_K 32 bytes of fifth bits, 128 bytes of nibbles: 256 values."""
    scales, minima = (part.astype(np.float32) for part in _k_scales(blocks[:, 4:16]))
    nibbles = blocks[:, -128:].reshape(-1, 4, 1, 32)
    codes = np.concatenate([nibbles & 15, nibbles >> 4], axis=2).reshape(-1, 8, 32)
    if kind == Q5_K:
        codes |= (blocks[:, 16:48, None] >> np.arange(8, dtype=np.uint8) & 1).swapaxes(1, 2) << 4
    d, low = (_half(blocks, 0) * scales)[:, :, None], (_half(blocks, 2) * minima)[:, :, None]
    return d, codes.astype(np.float32), -low


def _q6_k(blocks: Bytes) -> tuple[Float32, Float32]:
    """128 bytes of low nibbles, 64 bytes of high bits, 16 int8 scales, d f16: 256 values."""
    low = blocks[:, :128].reshape(-1, 2, 1, 64)
    codes = np.concatenate([low & 15, low >> 4], axis=2).reshape(-1, 2, 4, 32)
    high = blocks[:, 128:192].reshape(-1, 2, 1, 32) >> np.arange(0, 8, 2, dtype=np.uint8)[:, None] & 3
    values = (codes | high << 4).astype(np.float32) - np.float32(32)
    scales = blocks[:, 192:208].view(np.int8).astype(np.float32)
    return (_half(blocks, 208) * scales)[:, :, None], values.reshape(-1, 16, 16)


def _to_small(blocks: Float32, kind: int) -> Bytes:
    if kind == Q8_0:
        d = (np.abs(blocks).max(axis=1, keepdims=True) / 127).astype(np.float16)
        codes = np.rint(blocks / _nonzero(d)).clip(-127, 127).astype(np.int8)
        return np.concatenate([d.view(np.uint8), codes.view(np.uint8)], axis=1)
    top = (1 << _BITS[kind]) - 1
    if kind in (Q4_1, Q5_1):
        low = blocks.min(axis=1, keepdims=True)
        d, m = ((blocks.max(axis=1, keepdims=True) - low) / top).astype(np.float16), low.astype(np.float16)
        head = [d.view(np.uint8), m.view(np.uint8)]
        codes8 = np.rint((blocks - m.astype(np.float32)) / _nonzero(d)).clip(0, top).astype(np.uint8)
    else:
        zero = (top + 1) // 2
        d = (np.abs(blocks).max(axis=1, keepdims=True) / zero).astype(np.float16)
        head = [d.view(np.uint8)]
        codes8 = (np.rint(blocks / _nonzero(d)) + zero).clip(0, top).astype(np.uint8)
    if _BITS[kind] == 5:
        head.append(np.packbits(codes8 >> 4, axis=1, bitorder="little"))
    return np.concatenate([*head, codes8[:, :16] & 15 | codes8[:, 16:] << 4], axis=1)


def _to_k(parts: Float32, kind: int) -> Bytes:
    """parts: [blocks, 8, 32]"""
    top = (1 << _BITS[kind]) - 1
    low = -np.minimum(parts.min(axis=2), 0)
    step = (parts.max(axis=2) + low).clip(0) / top
    d, e = ((x.max(axis=1, keepdims=True) / 63).astype(np.float16) for x in (step, low))
    scales = np.rint(step / _nonzero(d)).clip(0, 63).astype(np.uint8)
    minima = np.rint(low / _nonzero(e)).clip(0, 63).astype(np.uint8)
    packed = np.concatenate(
        [
            scales[:, :4] | scales[:, 4:] >> 4 << 6,
            minima[:, :4] | minima[:, 4:] >> 4 << 6,
            scales[:, 4:] & 15 | minima[:, 4:] << 4,
        ],
        axis=1,
    )
    scale, shift = (d.astype(np.float32) * scales)[:, :, None], (e.astype(np.float32) * minima)[:, :, None]
    codes = np.rint((parts + shift) / np.maximum(scale, 1e-10)).clip(0, top).astype(np.uint8)
    fifth = [] if kind == Q4_K else [np.packbits((codes >> 4).swapaxes(1, 2), axis=2, bitorder="little")[:, :, 0]]
    nibbles = (codes[:, 0::2] & 15 | codes[:, 1::2] << 4).reshape(-1, 128)
    return np.concatenate([d.view(np.uint8), e.view(np.uint8), packed, *fifth, nibbles], axis=1)


def _to_q6_k(parts: Float32) -> Bytes:
    """parts: [blocks, 16, 16]"""
    step = np.abs(parts).max(axis=2) / 31
    d = (step.max(axis=1, keepdims=True) / 127).astype(np.float16)
    scales = np.rint(step / _nonzero(d)).clip(1, 127).astype(np.int8)
    scales[:, ::3] *= -1  # they are signed
    scale = (d.astype(np.float32) * scales)[:, :, None]
    codes = (np.rint(parts / np.where(scale == 0, 1, scale)) + 32).clip(0, 63).astype(np.uint8).reshape(-1, 2, 4, 32)
    low = codes & 15
    nibbles = (low[:, :, :2] | low[:, :, 2:] << 4).reshape(-1, 128)
    high = codes >> 4
    top = (high[:, :, 0] | high[:, :, 1] << 2 | high[:, :, 2] << 4 | high[:, :, 3] << 6).reshape(-1, 64)
    return np.concatenate([nibbles, top, scales.view(np.uint8), d.view(np.uint8)], axis=1)


def _nonzero(scale: npt.NDArray[np.float16]) -> Float32:
    return np.maximum(scale.astype(np.float32), np.float32(1e-10))
