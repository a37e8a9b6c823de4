"""Numbers of a file that are none: found while a tensor is packed, whatever its type, and named (NaN scales)."""

from __future__ import annotations

import numpy as np
import pytest

from sixfold.executor.native import kernels
from sixfold.executor.native.kernels import Matrix, ThreadPool
from sixfold.executor.native.reference_types import BF16, F16, F32, TYPES, quantize_weights

N_ROWS, K = 40, 512
SCALES_AT = {
    "q4_0": (18, 0), "q4_1": (20, 0, 2), "q5_0": (22, 0), "q5_1": (24, 0, 2), "q8_0": (34, 0), "q4_k": (144, 0, 2),
    "q5_k": (176, 0, 2), "q6_k": (210, 208),
}  # fmt: skip
"""Bytes of a block, and where its float16 numbers lie."""
SPECIAL = {
    F16: ("<u2", (0x7C00, 0xFC00, 0x7E00, 0xFC01, 0x7FFF)),
    BF16: ("<u2", (0x7F80, 0xFF80, 0x7FC0, 0xFF81)),
    F32: ("<u4", (0x7F800000, 0xFF800000, 0x7FC00000, 0xFF800001)),
}
"""Infinities and numbers that are none, as bits."""
LARGEST = {F16: 0xFBFF, BF16: 0xFF7F, F32: 0xFF7FFFFF}


def sound(kind: str, name: str) -> Matrix:
    values = np.random.default_rng(1).standard_normal((N_ROWS, K)).astype(np.float32)
    packed = quantize_weights(TYPES[kind], values)
    return Matrix(packed.ggml_type, packed.data, N_ROWS, K, name)


def with_bits(tensor: Matrix, at: int, bits: int, dtype: str) -> Matrix:
    raw = tensor.data.copy()
    raw[at : at + np.dtype(dtype).itemsize] = np.array([bits], dtype).view(np.uint8)
    return Matrix(tensor.ggml_type, raw, tensor.n_rows, tensor.k, tensor.name)


def check(pool: ThreadPool, tensor: Matrix, place: str) -> None:
    """Refused alone, as the second of several, beside one that it alternates with, and as an embedding."""
    fault = rf"^tensor 'bad': a number is not finite \({place}\)$"
    other = Matrix(
        tensor.ggml_type, sound(kind_of(tensor), "good").data[: len(tensor.data) // N_ROWS * 32], 32, K, "good"
    )
    top = Matrix(tensor.ggml_type, tensor.data[: len(tensor.data) // N_ROWS * 32], 32, K, "bad")
    with pytest.raises(ValueError, match=fault):
        kernels.pack_matrix(pool, [tensor])
    with pytest.raises(ValueError, match=fault):
        kernels.pack_matrix(pool, [tensor], activations="float32")
    with pytest.raises(ValueError, match=fault):
        kernels.pack_matrix(pool, [other, tensor])
    with pytest.raises(ValueError, match=fault):
        kernels.pack_matrix(pool, [other, top], interleave=True)
    with pytest.raises(ValueError, match=fault):
        kernels.pack_embedding(tensor)


def kind_of(tensor: Matrix) -> str:
    return next(kind for kind, number in TYPES.items() if number == tensor.ggml_type)


@pytest.mark.parametrize("kind", SCALES_AT)
def test_scales_and_minima(pool: ThreadPool, kind: str) -> None:
    tensor = sound(kind, "bad")
    kernels.pack_matrix(pool, [tensor])
    n_bytes, *places = SCALES_AT[kind]
    width = 256 if kind.endswith("k") else 32
    per_row = K // width
    for number, at in enumerate(places):
        for bits in SPECIAL[F16][1]:
            row, block = (5, 0) if number else (31, per_row - 1)
            bad = with_bits(tensor, (row * per_row + block) * n_bytes + at, bits, "<u2")
            check(pool, bad, f"row {row}, the block at {block * width}")
        largest = with_bits(tensor, at, LARGEST[F16], "<u2")
        kernels.pack_matrix(pool, [largest])
        kernels.pack_embedding(largest)


@pytest.mark.parametrize("kind", ["f32", "f16", "bf16"])
def test_values(pool: ThreadPool, kind: str) -> None:
    tensor = sound(kind, "bad")
    dtype, special = SPECIAL[TYPES[kind]]
    width = np.dtype(dtype).itemsize
    for i, bits in enumerate(special):
        row, column = (0, 0) if i % 2 else (31, K - 1)
        bad = with_bits(tensor, (row * K + column) * width, bits, dtype)
        check(pool, bad, f"row {row}, the block at {column // 32 * 32}")
    largest = with_bits(tensor, 7 * width, LARGEST[TYPES[kind]], dtype)
    kernels.pack_matrix(pool, [largest])
    kernels.pack_embedding(largest)


def test_the_last_row_is_looked_at_and_what_pads_it_is_not(pool: ThreadPool) -> None:
    tensor = with_bits(sound("f32", "bad"), (N_ROWS * K - 1) * 4, 0x7FC00000, "<u4")
    with pytest.raises(ValueError, match=f"row {N_ROWS - 1}, the block at {K - 32}"):
        kernels.pack_matrix(pool, [tensor])


def test_an_embedding_that_is_packed_too_is_not_looked_at_again(pool: ThreadPool) -> None:
    tensor = with_bits(sound("f32", "bad"), 0, 0x7FC00000, "<u4")
    assert kernels.pack_embedding(tensor, finite=True).n_rows == N_ROWS
