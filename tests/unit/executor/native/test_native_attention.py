"""Paged attention alone: q, k and v are made exact in bfloat16, so that only the operation's own error is seen."""

from __future__ import annotations

import itertools

import numpy as np
import numpy.typing as npt
import pytest

from sixfold.executor.native import kernels, reference
from sixfold.executor.native.kernels import KVCache, Program, ThreadPool
from sixfold.executor.native.reference_types import F32, quantize_weights

VOCAB = 50


class AttentionOnly:
    """x + attention(q, k, v) with rows of +-1 as x: their RMS is exactly 1, and sparse weights in quarters keep q, k
    and v exact. Rotation is by zero."""

    def __init__(self, heads: int, kv_heads: int, d: int, seed: int = 0) -> None:
        rng = np.random.default_rng(seed)
        self.heads, self.kv_heads, self.d, self.hidden = heads, kv_heads, d, heads * d
        self.table = rng.choice(np.float32([-1, 1]), (VOCAB, self.hidden))
        n = (heads + 2 * kv_heads) * d
        self.w = np.zeros((n, self.hidden), np.float32)
        for row in self.w:
            row[rng.choice(self.hidden, 4, replace=False)] = rng.integers(-12, 13, 4) / 4
        self.scale = 3 * d**-0.5

    window, softcap = 0, 0.0

    def program(self, pool: ThreadPool, kv: KVCache, max_tokens: int) -> Program:
        p = Program(pool, kv, max_tokens, self.hidden)
        # Not looked at: a row of NaN is what one of the tests asks about.
        p.embed(kernels.pack_embedding(quantize_weights(F32, self.table), finite=True))
        rope = kernels.rope_table(1024, np.zeros(self.d // 2), "half")
        w = kernels.pack_matrix(pool, [quantize_weights(F32, self.w)])
        p.norm_qkv_rope_write(0, np.ones(self.hidden, np.float32), w, self.heads, self.kv_heads, self.d, rope, 0.0)
        p.attention(0, self.scale, window=self.window, softcap=self.softcap)
        p.proj_residual(kernels.pack_matrix(pool, [quantize_weights(F32, np.eye(self.hidden, dtype=np.float32))]))
        p.finalize()
        return p

    def qkv(self, ids: npt.NDArray[np.int32]) -> list[npt.NDArray[np.float64]]:
        y = (self.table[ids].astype(np.float64) @ self.w.T).reshape(len(ids), -1, self.d)
        return np.split(y, [self.heads, self.heads + self.kv_heads], axis=1)


def forward(
    p: Program, ids: npt.NDArray[np.int32], start: int, table: npt.NDArray[np.int32]
) -> npt.NDArray[np.float32]:
    n = len(ids)
    none = np.zeros(0, np.int32)
    flags = np.zeros(0, np.uint8)
    positions = np.arange(start, start + n, dtype=np.int32)
    p.run(
        ids,
        positions,
        np.zeros(n, np.int32),
        np.zeros(1, np.int32),
        table[None],
        none,
        flags,
        none.copy(),
        flags.copy(),
    )
    return p.residual(n)


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize(("heads", "kv_heads", "d"), [(3, 1, 64), (4, 2, 32), (6, 3, 96), (8, 1, 32), (2, 2, 128)])
def test_attention_matches(pool: ThreadPool, heads: int, kv_heads: int, d: int, dtype: str) -> None:
    case = AttentionOnly(heads, kv_heads, d)
    ids = np.random.default_rng(1).integers(0, VOCAB, 600).astype(np.int32)
    kv = KVCache(1, kv_heads, d, 45, dtype == "float32")
    program = case.program(pool, kv, 300)
    table = np.random.default_rng(2).permutation(45)[:38].astype(np.int32)
    # Ends of blocks, of segments of 256 keys, and an odd start within a pair and a tile.
    cuts = [0, 1, 15, 16, 17, 255, 256, 257, 511, 512, 513, 600]
    x = np.concatenate([forward(program, ids[a:b], a, table) for a, b in itertools.pairwise(cuts)])
    got = x.astype(np.float64) - case.table[ids]
    q, k, v = case.qkv(ids)
    keys, values = kv.read_block(0, int(table[3]), kv_heads - 1)
    np.testing.assert_array_equal(keys, k[48:64, kv_heads - 1])
    np.testing.assert_array_equal(values, v[48:64, kv_heads - 1])
    for t in [*range(0, 40), *range(250, 262), *range(508, 516), 599]:
        want = reference.attention(q[t], k[: t + 1], v[: t + 1], case.scale, bfloat16=dtype == "bfloat16").ravel()
        error = np.linalg.norm(got[t] - want) / max(np.linalg.norm(want), 1e-3)
        assert error < 1e-5, (t, error)


def test_prefill_and_decode_give_the_same_bits(pool: ThreadPool) -> None:
    case = AttentionOnly(3, 1, 64)
    ids = np.random.default_rng(1).integers(0, VOCAB, 530).astype(np.int32)
    results = []
    for step in (1, 7, 64, 265):
        program = case.program(pool, KVCache(1, 1, 64, 40, False), 300)
        table = np.arange(40, dtype=np.int32)
        results.append(
            np.concatenate([forward(program, ids[a : a + step], a, table) for a in range(0, len(ids), step)])
        )
    for other in results[1:]:
        np.testing.assert_array_equal(results[0], other)


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize(
    ("window", "heads", "kv_heads"), [(1, 2, 1), (2, 3, 1), (3, 4, 2), (33, 3, 1), (256, 2, 1), (300, 3, 1)]
)
def test_windows(isa: str, window: int, heads: int, kv_heads: int, dtype: str) -> None:
    case = AttentionOnly(heads, kv_heads, 64)
    case.window = window
    ids = np.random.default_rng(1).integers(0, VOCAB, 790).astype(np.int32)
    results = []
    for threads, step in ((1, 1), (3, 1), (2, 7), (3, 265)):
        program = case.program(ThreadPool(threads, isa), KVCache(1, kv_heads, 64, 50, dtype == "float32"), 300)
        table = np.arange(50, dtype=np.int32)
        results.append(
            np.concatenate([forward(program, ids[a : a + step], a, table) for a in range(0, len(ids), step)])
        )
    for other in results[1:]:
        np.testing.assert_array_equal(results[0], other)
    q, k, v = case.qkv(ids)
    got = results[0].astype(np.float64) - case.table[ids]
    for t in [*range(0, 40), *range(250, 300), *range(500, 560), 789]:
        want = reference.attention(
            q[t], k[: t + 1], v[: t + 1], case.scale, window=window, bfloat16=dtype == "bfloat16"
        ).ravel()
        assert np.linalg.norm(got[t] - want) / max(np.linalg.norm(want), 1e-3) < 1e-5, t


def test_what_lies_before_a_window_reaches_nobody(pool: ThreadPool) -> None:
    case = AttentionOnly(3, 1, 64)
    case.window = 21
    ids = np.random.default_rng(1).integers(0, VOCAB, 330).astype(np.int32)
    table = np.arange(50, dtype=np.int32)
    results = []
    for spoil in (False, True):
        kv = KVCache(1, 1, 64, 50, False)
        program = case.program(pool, kv, 300)
        forward(program, ids[:300], 0, table)
        for block in range(17 if spoil else 0):  # tokens from 272 on stay: the last that token 300 does not see is 279
            kv.fill_block(block, 0xFF)
        results.append(np.concatenate([forward(program, ids[a:b], a, table) for a, b in ((300, 301), (301, 330))]))
    np.testing.assert_array_equal(*results)
    assert np.isfinite(results[0]).all()


@pytest.mark.parametrize("window", [1, 5, 16, 21])
def test_one_key_before_a_window_reaches_nobody(isa: str, window: int) -> None:
    """Also where it shares a block, a pair of values or a tile with keys that are seen."""
    case = AttentionOnly(3, 1, 64)
    case.window = window
    case.table[0] = np.nan
    clean = np.random.default_rng(1).integers(1, VOCAB, 300).astype(np.int32)
    table = np.arange(20, dtype=np.int32)
    pool = ThreadPool(2, isa)
    for poisoned in (*range(30, 49), *range(254, 259)):
        ids = clean.copy()
        ids[poisoned] = 0
        behind = slice(poisoned + window, None)
        for step in (1, 7, 300):
            program = case.program(pool, KVCache(1, 1, 64, 20, False), 300)
            forward(program, ids[: poisoned - 20], 0, table)
            cuts = [*range(poisoned - 20, 300, step), 300]
            rest = [forward(program, ids[a:b], a, table) for a, b in itertools.pairwise(cuts)]
            got = np.concatenate([np.empty((poisoned - 20, case.hidden), np.float32), *rest])
            assert np.isnan(got[poisoned]).any() and np.isfinite(got[behind]).all()
        program = case.program(pool, KVCache(1, 1, 64, 20, False), 300)
        np.testing.assert_array_equal(got[behind], forward(program, clean, 0, table)[behind])


def test_capped_scores(pool: ThreadPool) -> None:
    case = AttentionOnly(3, 1, 64)
    case.softcap = 2.5
    ids = np.random.default_rng(1).integers(0, VOCAB, 290).astype(np.int32)
    program = case.program(pool, KVCache(1, 1, 64, 50, True), 300)
    got = forward(program, ids, 0, np.arange(50, dtype=np.int32)).astype(np.float64) - case.table[ids]
    q, k, v = case.qkv(ids)
    for t in (0, 1, 17, 254, 289):
        want = reference.attention(q[t], k[: t + 1], v[: t + 1], case.scale, softcap=2.5, bfloat16=False).ravel()
        assert np.linalg.norm(got[t] - want) / max(np.linalg.norm(want), 1e-3) < 1e-5


def test_extreme_scores_stay_finite(pool: ThreadPool) -> None:
    case = AttentionOnly(3, 1, 64)
    case.scale = 1e4  # differences of exponents far beyond float32's range
    ids = np.arange(40, dtype=np.int32)
    program = case.program(pool, KVCache(1, 1, 64, 40, False), 300)
    x = forward(program, ids, 0, np.arange(40, dtype=np.int32))
    q, k, v = case.qkv(ids)
    for t in range(40):
        want = reference.attention(q[t], k[: t + 1], v[: t + 1], case.scale).ravel()
        np.testing.assert_allclose(x[t] - case.table[ids[t]], want, atol=1e-4)


@pytest.mark.parametrize(
    ("layers", "heads", "d", "blocks"), [(0, 1, 32, 1), (1, 0, 32, 1), (1, 1, 40, 1), (1, 1, 1024, 1), (1, 1, 32, 0)]
)
def test_impossible_caches_are_refused(layers: int, heads: int, d: int, blocks: int) -> None:
    with pytest.raises(ValueError):
        KVCache(layers, heads, d, blocks, False)
