"""Float matrices to 8 and 4 bits while a model is loaded: `--quantize`.

The arithmetic is that of ggml's reference quantizers, in float32 and in their order, so a folder quantized here has the
bytes that a GGUF file converted without an importance matrix would have.

Source: the block layouts of ggml (Q8_0, Q4_1).
"""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from sixfold.errors import ModelFileError
from sixfold.lazy_numpy import np, npt
from sixfold.model_file.tensor_types import BF16, F16, F32, Q4_1, Q8_0

__all__ = ["FLOAT_TYPES", "QUANTIZED_TYPES", "quantize", "to_float32"]

if TYPE_CHECKING:
    Float32 = npt.NDArray[np.float32]
    Bytes = npt.NDArray[np.uint8]

FLOAT_TYPES = {F32: "<f4", F16: "<f2", BF16: "<u2"}
QUANTIZED_TYPES = {"q8_0": Q8_0, "q4_1": Q4_1}
"""What `--quantize` names -> type of the layers' matrices."""

_BLOCK = 32
_CHUNK_VALUES = 1 << 18
"""Values at a time: temporaries of 1 MB stay in the second-level cache."""


def to_float32(raw: Bytes, ggml_type: int) -> Float32:
    """Bytes of F32, F16 or BF16 as float32, flat."""
    values = raw.view(FLOAT_TYPES[ggml_type])
    if ggml_type == BF16:
        wide: Float32 = (values.astype(np.uint32) << np.uint32(16)).view(np.float32)
        return wide
    same: Float32 = values.astype(np.float32)
    return same


def quantize(raw: Bytes, ggml_type: int, n_rows: int, k: int, to: int) -> Bytes:
    """A float matrix [n_rows, k] as Q8_0 or Q4_1 blocks, flat bytes.

    Raises:
        ModelFileError: a value is not finite, or too large for a 16-bit scale.
    """
    if k % _BLOCK:
        raise ValueError(f"rows of {k} values do not divide into blocks of {_BLOCK}")
    encode, block_bytes = (_q8_0, 34) if to == Q8_0 else (_q4_1, 20)
    width = np.dtype(FLOAT_TYPES[ggml_type]).itemsize
    n_blocks = n_rows * k // _BLOCK
    out = np.empty((n_blocks, block_bytes), np.uint8)
    step = _CHUNK_VALUES // _BLOCK

    def quantize_piece(begin: int) -> None:
        end = min(begin + step, n_blocks)
        values = to_float32(raw[begin * _BLOCK * width : end * _BLOCK * width], ggml_type)
        encode(values.reshape(-1, _BLOCK), out[begin:end])

    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as threads:
        for _ in threads.map(quantize_piece, range(0, n_blocks, step)):
            pass  # the first fault is raised here
    return out.reshape(-1)


def _scale(values: Float32) -> npt.NDArray[np.float16]:
    with np.errstate(over="ignore", invalid="ignore"):
        scale = values.astype(np.float16)
    if not np.isfinite(scale).all():
        raise ModelFileError("a weight is not finite, or too large to be quantized")
    return scale


def _inverse(d: Float32) -> Float32:
    """1 / d; 0 where that is infinite: the 16-bit scale is 0 there, and the codes do not matter."""
    with np.errstate(divide="ignore", over="ignore"):
        inverse = np.float32(1) / d
    return np.where(np.isfinite(inverse), inverse, np.float32(0))


def _q8_0(x: Float32, out: Bytes) -> None:
    """Block: float16 d, int8[32]; x = d * q."""
    with np.errstate(invalid="ignore", over="ignore"):
        d = np.abs(x).max(axis=1) / np.float32(127)
        out[:, :2] = _scale(d)[:, None].view(np.uint8)
        y = x * _inverse(d)[:, None]
    # Halves away from zero, as C's roundf: NumPy's rint takes them to even.
    q = np.trunc(y)
    rest = y - q
    q += rest >= 0.5
    q -= rest <= -0.5
    out[:, 2:] = q.astype(np.int8).view(np.uint8)


def _q4_1(x: Float32, out: Bytes) -> None:
    """Block: float16 d, float16 m, 16 bytes of two codes (j and j + 16); x = d * q + m."""
    with np.errstate(invalid="ignore", over="ignore"):
        low, high = x.min(axis=1), x.max(axis=1)
        d = (high - low) / np.float32(15)
        out[:, :2] = _scale(d)[:, None].view(np.uint8)
        out[:, 2:4] = _scale(low)[:, None].view(np.uint8)
        y = (x - low[:, None]) * _inverse(d)[:, None]
    q = np.minimum(y + np.float32(0.5), np.float32(15)).astype(np.uint8)
    out[:, 4:] = q[:, :16] | q[:, 16:] << 4
