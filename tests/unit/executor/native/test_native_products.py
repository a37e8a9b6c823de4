"""Packing, quantization and matrix products against NumPy."""

from __future__ import annotations

import numpy as np
import pytest

from sixfold import _native
from sixfold.executor.native import kernels, reference
from sixfold.executor.native.kernels import Matrix, ThreadPool
from sixfold.executor.native.reference import ReferenceMatrix
from sixfold.executor.native.reference_types import BF16, F16, F32, Q4_1, Q8_0, TYPES, dequantize, quantize_weights

rng = np.random.default_rng(3)


def width(name: str) -> int:
    """Three blocks of a type."""
    return 3 * (256 if name.endswith("_k") else 32)


def random_tensor(ggml_type: int, n: int, k: int) -> Matrix:
    return quantize_weights(ggml_type, rng.standard_normal((n, k)).astype(np.float32))


@pytest.mark.parametrize("name", TYPES)
def test_packing_keeps_every_value(pool: ThreadPool, name: str) -> None:
    tensors = [
        random_tensor(TYPES[name], 48, width(name)),
        random_tensor(TYPES[name], 16, width(name)),
        random_tensor(TYPES[name], 21, width(name)),
    ]
    packed = kernels.pack_matrix(pool, tensors)
    assert (packed.n, packed.k, packed.kind) == (85, width(name), "bf16" if name == "f16" else name)
    np.testing.assert_array_equal(packed.unpack(), ReferenceMatrix.of(tensors).w)


@pytest.mark.parametrize("name", TYPES)
def test_interleaving_alternates_tiles_of_16_rows(pool: ThreadPool, name: str) -> None:
    tensors = [random_tensor(TYPES[name], 32, width(name)), random_tensor(TYPES[name], 32, width(name))]
    packed = kernels.pack_matrix(pool, tensors, interleave=True)
    np.testing.assert_array_equal(packed.unpack(), ReferenceMatrix.of(tensors, interleave=True).w)


@pytest.mark.parametrize("name", TYPES)
def test_rows_are_looked_up_in_place(pool: ThreadPool, name: str) -> None:
    tensor = random_tensor(TYPES[name], 5, width(name))
    kv = kernels.KVCache(1, 1, 32, 1, False)
    program = kernels.Program(pool, kv, 8, width(name))
    program.embed(kernels.pack_embedding(tensor), 0.5)
    program.finalize()
    ids, none = np.array([4, 0, 3], np.int32), np.zeros(0, np.int32)
    positions, flags = np.arange(3, dtype=np.int32), np.zeros(0, np.uint8)
    row = np.zeros(1, np.int32)
    program.run(ids, positions, np.zeros(3, np.int32), row, row[None], none, flags, none.copy(), flags.copy())
    np.testing.assert_array_equal(program.residual(3), dequantize(tensor)[ids] / 2)


def test_float32_activations_other_neighbours_and_mixed_tiles_store_float32(pool: ThreadPool) -> None:
    tensors = [random_tensor(Q4_1, 32, 64), random_tensor(Q8_0, 32, 64)]
    for packed in (
        kernels.pack_matrix(pool, tensors, activations="float32"),
        kernels.pack_matrix(pool, tensors, interleave=True),
        kernels.pack_matrix(pool, [*tensors, random_tensor(F32, 16, 64)]),
        kernels.pack_matrix(pool, [tensors[0], random_tensor(BF16, 16, 64)]),
        kernels.pack_matrix(pool, [random_tensor(F16, 32, 64), random_tensor(F32, 16, 64)]),
        kernels.pack_matrix(pool, [random_tensor(F16, 32, 64)], activations="float32"),
    ):
        assert packed.kind == "f32"
    np.testing.assert_array_equal(
        kernels.pack_matrix(pool, tensors, interleave=True).unpack(), ReferenceMatrix.of(tensors, interleave=True).w
    )


def test_types_may_differ_one_below_the_other(pool: ThreadPool) -> None:
    tensors = [random_tensor(t, n, 96) for t, n in ((Q4_1, 32), (Q4_1, 16), (Q8_0, 48), (Q4_1, 5))]
    packed = kernels.pack_matrix(pool, tensors)
    assert packed.kind == "q4_1+q8_0+q4_1"
    np.testing.assert_array_equal(packed.unpack(), ReferenceMatrix.of(tensors).w)
    halves = [random_tensor(t, 32, 96) for t in (F16, BF16)]
    assert kernels.pack_matrix(pool, halves).kind == "bf16"
    x = rng.standard_normal((9, 96)).astype(np.float32)
    want = ReferenceMatrix.of(tensors, bf16_sums=pool.bf16_sums)(x)
    assert np.abs(_native.matmul(pool, packed, x) - want).max() < 2e-5 * np.abs(want).max()


def test_every_half_is_converted(pool: ThreadPool) -> None:
    halves = np.arange(1 << 16, dtype=np.uint16)
    halves[~np.isfinite(halves.view(np.float16))] = 0  # they are refused
    tensor = Matrix(F16, halves.view(np.uint8), 1024, 64)
    values = halves.view(np.float16).astype(np.float32).reshape(1024, 64)
    exact = kernels.pack_matrix(pool, [tensor], activations="float32").unpack()
    np.testing.assert_array_equal(exact, values)
    rounded = kernels.pack_matrix(pool, [tensor]).unpack()
    np.testing.assert_array_equal(rounded, reference.to_bfloat16(values))
    unit = np.eye(64, dtype=np.float32)
    for activations, want in (("float32", values), ("int8", reference.to_bfloat16(values))):
        packed = kernels.pack_matrix(pool, [quantize_weights(F16, values)], activations=activations)
        np.testing.assert_array_equal(_native.matmul(pool, packed, unit).T, want)


@pytest.mark.parametrize(
    ("tensor", "words"),
    [
        (Matrix(10, np.zeros(84, np.uint8), 1, 256), "type 10 has no kernel"),
        (Matrix(12, np.zeros(144, np.uint8), 1, 32), "whole blocks"),
        (Matrix(F32, np.zeros(40 * 4, np.uint8), 1, 40), "multiple of 32"),
        (Matrix(Q8_0, np.zeros(33, np.uint8), 1, 32), "34 bytes, not 33"),
        (Matrix(F32, np.zeros(0, np.uint8), 0, 32), "at least one row"),
        (Matrix(F32, np.zeros(0, np.uint8), -1, 32), "at least one row"),
        (Matrix(F32, np.zeros(0, np.uint8), 1 << 40, 32), "at least one row"),
    ],
)
def test_packing_refuses(pool: ThreadPool, tensor: Matrix, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        kernels.pack_matrix(pool, [tensor])
    with pytest.raises(ValueError, match=words):
        kernels.pack_embedding(tensor)


def test_packing_refuses_sources_that_do_not_fit(pool: ThreadPool) -> None:
    a = random_tensor(F32, 16, 32)
    for others, interleave in [
        ([], False),
        ([a, random_tensor(F32, 16, 64)], False),
        ([random_tensor(F32, 9, 32), a], False),
        ([a, random_tensor(F32, 32, 32)], True),
        ([random_tensor(F32, 9, 32), random_tensor(F32, 9, 32)], True),
    ]:
        with pytest.raises(ValueError):
            kernels.pack_matrix(pool, others, interleave=interleave)


def test_activations_are_quantized_bit_for_bit(pool: ThreadPool) -> None:
    x = rng.standard_normal((7, 256)).astype(np.float32) * np.float32(10) ** rng.integers(-20, 20, (7, 1)).astype(
        np.float32
    )
    x[0, :32] = 0
    x[1, :32] = np.arange(32) - 16 + 0.5  # ties
    x[2, :32] = 3e38
    x[3, 5] = 1e-44  # subnormal beside normal
    codes, scales = _native.quantize(pool, x)
    want_codes, want_scales = reference.quantize_activations(x)
    np.testing.assert_array_equal(scales, want_scales)
    np.testing.assert_array_equal(codes, want_codes)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_value_that_is_not_finite_reaches_the_result(pool: ThreadPool, bad: float) -> None:
    for name in TYPES:
        x = np.ones((3, width(name)), np.float32)
        x[1, 40] = bad
        y = _native.matmul(pool, kernels.pack_matrix(pool, [random_tensor(TYPES[name], 16, width(name))]), x)
        assert np.isfinite(y[[0, 2]]).all(), name
        assert not np.isfinite(y[1]).any(), name


@pytest.mark.parametrize("name", TYPES)
@pytest.mark.parametrize("blocks", [1, 3, 18])
def test_products_match(pool: ThreadPool, name: str, blocks: int) -> None:
    k = width(name) // 3 * blocks
    tensors = [random_tensor(TYPES[name], 48, k), random_tensor(TYPES[name], 5, k)]
    x = rng.standard_normal((19, k)).astype(np.float32)
    got = _native.matmul(pool, kernels.pack_matrix(pool, tensors), x)
    want = ReferenceMatrix.of(tensors, bf16_sums=pool.bf16_sums)(x)
    assert np.abs(got - want).max() < 2e-6 * np.abs(want).max() * k**0.5


@pytest.mark.parametrize("name", TYPES)
def test_a_row_does_not_depend_on_the_rows_beside_it(isa: str, name: str) -> None:
    pools = [ThreadPool(n, isa) for n in (1, 2, 3)]
    tensor = random_tensor(TYPES[name], 160, 2 * width(name))
    packed = kernels.pack_matrix(pools[1], [tensor])
    x = rng.standard_normal((33, 2 * width(name))).astype(np.float32)
    alone = np.concatenate([_native.matmul(pools[0], packed, x[i : i + 1]) for i in range(len(x))])
    for n_rows in (2, 3, 4, 5, 6, 7, 8, 9, 16, 17, 33):
        for pool in pools:
            np.testing.assert_array_equal(_native.matmul(pool, packed, x[-n_rows:]), alone[-n_rows:])


def test_largest_codes_do_not_overflow(pool: ThreadPool) -> None:
    """u8 255 times s8 -127 over the longest sum: saturation or 16-bit overflow would show."""
    w = np.full((16, 1536), 127.0, np.float32)
    x = np.full((2, 1536), -1.0, np.float32)
    for name in ("q8_0", "q4_1"):
        tensor = quantize_weights(TYPES[name], w if name == "q8_0" else np.tile(np.float32([0, 15]), (16, 768)))
        got = _native.matmul(pool, kernels.pack_matrix(pool, [tensor]), x)
        np.testing.assert_allclose(got, ReferenceMatrix.of([tensor], bf16_sums=pool.bf16_sums)(x), rtol=1e-6)


@pytest.mark.parametrize(
    ("name", "codes", "byte"),
    [
        ("q4_0", slice(2, None), 0xFF),
        ("q4_1", slice(4, None), 0xFF),
        ("q5_0", slice(2, None), 0xFF),
        ("q5_1", slice(4, None), 0xFF),
        ("q8_0", slice(2, None), 0x80),
        ("q4_k", slice(16, None), 0xFF),
        ("q5_k", slice(16, None), 0xFF),
        ("q6_k", slice(0, 192), 0xFF),
    ],
)
def test_the_largest_codes_of_a_type_fit_every_sum(pool: ThreadPool, name: str, codes: slice, byte: int) -> None:
    tensor = random_tensor(TYPES[name], 16, 512)
    blocks = np.array(tensor.data).reshape(-1, len(tensor.data) * (256 if name.endswith("_k") else 32) // (16 * 512))
    blocks[:, codes] = byte
    tensor = Matrix(tensor.ggml_type, blocks.ravel(), 16, 512)
    for sign in (1, -1):
        x = np.full((5, 512), sign, np.float32)
        got, want = (
            _native.matmul(pool, kernels.pack_matrix(pool, [tensor]), x),
            ReferenceMatrix.of([tensor], bf16_sums=pool.bf16_sums)(x),
        )
        np.testing.assert_allclose(got, want, atol=1e-5 * np.abs(want).max())


def test_measured_limits_are_positive(pool: ThreadPool) -> None:
    limits = kernels.measure_limits(pool, 1 << 20)
    assert limits.bytes_read_per_s > 0
    assert limits.int8_macs_per_s > 0
