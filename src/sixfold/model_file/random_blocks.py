"""Random weights in the blocks of any type, fast: the speed of a model does not depend on what its weights say.

Codes are uniformly random; scales are constant, and such that the values have a mean near zero and the wanted standard
deviation.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sixfold.model_file.tensor_types import TENSOR_TYPES

__all__ = ["RANDOM_TYPES", "random_blocks"]

Bytes = npt.NDArray[np.uint8]

_PIECE_BYTES = 8 << 20


@dataclass(frozen=True, slots=True)
class _Layout:
    """How a block of one type is filled."""

    spread: float
    """Standard deviation of the values where the scale is 1."""
    set_scales: Callable[[Bytes, float], None]
    """(blocks [n, bytes] with random codes, scale) -> writes the scales into them."""


def _half(value: float) -> Bytes:
    return np.array([value], "<f2").view(np.uint8)


def _scale_first(blocks: Bytes, d: float) -> None:
    blocks[:, :2] = _half(d)


def _scale_and_minimum(largest_code: int) -> Callable[[Bytes, float], None]:
    def set_scales(blocks: Bytes, d: float) -> None:
        blocks[:, :2], blocks[:, 2:4] = _half(d), _half(-d * largest_code / 2)

    return set_scales


_K_SCALE = 32
"""Scale and minimum of every sub-block in the K types: 6 bits, and this is the highest of them alone."""
_K_SCALES = np.array([_K_SCALE | _K_SCALE >> 4 << 6] * 8 + [0] * 4, np.uint8)
"""Eight scales and eight minima as Q4_K and Q5_K pack them: the upper two bits of four belong to the four others."""


def _k_scales(largest_code: int) -> Callable[[Bytes, float], None]:
    def set_scales(blocks: Bytes, d: float) -> None:
        blocks[:, :2], blocks[:, 2:4] = _half(d), _half(d * largest_code / 2)
        blocks[:, 4:16] = _K_SCALES

    return set_scales


def _q6_k_scales(blocks: Bytes, d: float) -> None:
    blocks[:, 192:208], blocks[:, 208:] = _K_SCALE, _half(d)


def _uniform(n_codes: int) -> float:
    """Standard deviation of a uniformly random code."""
    return float(((n_codes**2 - 1) / 12) ** 0.5)


_LAYOUTS: dict[str, _Layout] = {
    "Q4_0": _Layout(_uniform(16), _scale_first),
    "Q4_1": _Layout(_uniform(16), _scale_and_minimum(15)),
    "Q5_0": _Layout(_uniform(32), _scale_first),
    "Q5_1": _Layout(_uniform(32), _scale_and_minimum(31)),
    "Q8_0": _Layout(_uniform(256), _scale_first),
    "Q4_K": _Layout(_uniform(16) * _K_SCALE, _k_scales(15)),
    "Q5_K": _Layout(_uniform(32) * _K_SCALE, _k_scales(31)),
    "Q6_K": _Layout(_uniform(64) * _K_SCALE, _q6_k_scales),
}
_FLOATS = ("F32", "F16", "BF16")

RANDOM_TYPES = {
    kind.name.lower(): number for number, kind in TENSOR_TYPES.items() if kind.name in (*_LAYOUTS, *_FLOATS)
}
"""Name -> number of the types that random weights can be made in."""


def random_blocks(name: str, ggml_type: int, n_values: int, deviation: float) -> Iterator[Bytes]:
    """Bytes of a tensor, piece by piece. The name is the seed: it is the same in every file and on every machine."""
    kind = TENSOR_TYPES[ggml_type]
    seed = int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "little")
    bits = np.random.PCG64(seed)
    left, step = n_values // kind.block_values, _PIECE_BYTES // kind.block_bytes
    while left:
        n_blocks = min(left, step)
        left -= n_blocks
        if kind.name in _FLOATS:
            yield _floats(bits, n_blocks, kind.name, deviation)
            continue
        layout = _LAYOUTS[kind.name]
        blocks = _random_bytes(bits, n_blocks * kind.block_bytes).reshape(n_blocks, kind.block_bytes)
        layout.set_scales(blocks, deviation / layout.spread)
        yield blocks.reshape(-1)


def _random_bytes(bits: np.random.PCG64, n: int) -> Bytes:
    return bits.random_raw(-(-n // 8)).astype("<u8", copy=False).view(np.uint8)[:n]


def _floats(bits: np.random.PCG64, n: int, kind: str, deviation: float) -> Bytes:
    codes = _random_bytes(bits, n).view(np.int8).astype(np.float32)
    values = (codes + np.float32(0.5)) * np.float32(deviation / _uniform(256))
    if kind == "BF16":
        return (values.view("<u4") >> np.uint32(16)).astype("<u2").view(np.uint8)
    return values.astype("<f4" if kind == "F32" else "<f2").view(np.uint8)
