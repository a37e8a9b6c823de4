"""Recorded programs against the NumPy reference, and the promise that a row depends on itself alone."""

from __future__ import annotations

import numpy as np
import pytest
from tests.unit.executor.native.tiny_llama import Row, TinyLlama, block_tables, run

from sixfold.executor.native import kernels
from sixfold.executor.native.kernels import Matrix, Program, ThreadPool
from sixfold.executor.native.reference_types import F16, F32, Q4_1, Q8_0
from sixfold.sampler.kernels import find_native

rng = np.random.default_rng(5)


def prompt(n: int) -> list[int]:
    return [int(t) for t in rng.integers(0, 70, n)]


@pytest.mark.parametrize("ggml_type", [F32, F16, Q4_1, Q8_0])
@pytest.mark.parametrize("style", ["interleaved", "half"])
def test_float32_agrees_with_the_reference(pool: ThreadPool, ggml_type: int, style: str) -> None:
    model = TinyLlama(ggml_type, style=style)
    kv = model.kv_cache(dtype="float32")
    program = model.program(pool, kv, activations="float32")
    ids = prompt(40)
    logits, best, nan = run(program, block_tables(1, 5), [Row(ids, 0, 0)])
    want = model.reference(ids, activations="float32", bfloat16=False)
    assert np.abs(logits - want).max() < 1e-5 * np.abs(want).max()
    np.testing.assert_array_equal(best, logits.argmax(axis=1))
    assert not nan.any()


@pytest.mark.parametrize("ggml_type", [Q4_1, Q8_0])
def test_int8_and_bfloat16_agree_within_their_rounding(pool: ThreadPool, ggml_type: int) -> None:
    """A float32 sum in another order may round to the other int8 code or bfloat16: steps of 1/127 and 1/256."""
    model = TinyLlama(ggml_type)
    program = model.program(pool, model.kv_cache())
    ids = prompt(40)
    logits, _, _ = run(program, block_tables(1, 5), [Row(ids, 0, 0)])
    want = model.reference(ids)
    assert np.abs(logits - want).max() < 0.03 * np.abs(want).max()
    assert np.sqrt(np.mean((logits - want) ** 2)) < 0.004 * np.abs(want).max()


@pytest.mark.parametrize(
    ("heads", "kv_heads", "head_dim"), [(1, 1, 64), (3, 1, 32), (8, 1, 32), (16, 1, 32), (5, 5, 32), (2, 1, 96)]
)
def test_head_shapes(pool: ThreadPool, heads: int, kv_heads: int, head_dim: int) -> None:
    model = TinyLlama(F32, heads=heads, kv_heads=kv_heads, head_dim=head_dim)
    program = model.program(pool, model.kv_cache(dtype="float32"))
    ids = prompt(21)
    logits, _, _ = run(program, block_tables(1, 5), [Row(ids, 0, 0)])
    want = model.reference(ids, bfloat16=False)
    assert np.abs(logits - want).max() < 1e-5 * np.abs(want).max()


@pytest.mark.parametrize(("ggml_type", "dtype"), [(Q4_1, "bfloat16"), (F32, "float32")])
def test_chunks_batches_and_threads_change_no_bit(isa: str, ggml_type: int, dtype: str) -> None:
    model = TinyLlama(ggml_type)
    sequences = [prompt(n) for n in (37, 5, 19, 1)]
    tables = block_tables(4, 5)
    alone = []
    for slot, ids in enumerate(sequences):  # one token at a time, one thread
        program = model.program(ThreadPool(1, isa), model.kv_cache(dtype=dtype))
        alone.append(np.concatenate([run(program, tables, [Row([t], i, slot)])[0] for i, t in enumerate(ids)]))

    def check(rows: list[Row], logits: np.ndarray) -> None:
        at = 0
        for r in rows:
            np.testing.assert_array_equal(logits[at : at + len(r.ids)], alone[r.slot][r.start : r.start + len(r.ids)])
            at += len(r.ids)

    for threads in (1, 2, 3):
        pool = ThreadPool(threads, isa)
        for trial in range(4):
            chunks = np.random.default_rng(trial)
            program = model.program(pool, model.kv_cache(dtype=dtype))
            done = [0] * len(sequences)
            while any(d < len(s) for d, s in zip(done, sequences, strict=True)):
                rows = []
                for slot in chunks.permutation(len(sequences)):
                    left = len(sequences[slot]) - done[slot]
                    n = int(min(left, chunks.integers(0, 18)))
                    if n:
                        rows.append(Row(sequences[slot][done[slot] : done[slot] + n], done[slot], int(slot)))
                        done[slot] += n
                if rows:
                    check(rows, run(program, tables, rows)[0])


def test_argmax_equals_the_logits_and_writes_none(pool: ThreadPool) -> None:
    model = TinyLlama(Q8_0)
    ids = prompt(20)
    program = model.program(pool, model.kv_cache())
    logits, best, _ = run(program, block_tables(1, 5), [Row(ids, 0, 0)])
    _, greedy, nan = run(program, block_tables(1, 5), [Row(ids, 0, 0)], greedy=True)
    np.testing.assert_array_equal(best, logits.argmax(axis=1))
    np.testing.assert_array_equal(greedy, best)
    assert not nan.any()


def test_ties_go_to_the_lowest_id(pool: ThreadPool) -> None:
    model = TinyLlama(F32)
    table = np.array(model.embedding.data).view(np.float32).reshape(70, 64).copy()
    table[[17, 33, 69]] = table[3] * 50
    table[3] *= 50
    model.embedding = model.head = type(model.embedding)(F32, table.view(np.uint8).ravel(), 70, 64)
    program = model.program(pool, model.kv_cache())
    logits, _, _ = run(program, block_tables(1, 5), [Row([3], 0, 0)])
    assert logits[0, 3] == logits[0, 17] == logits[0, 69] == logits[0].max()
    for _ in range(500):  # now and then a thread takes another's chunks behind its own: lower ids after higher ones
        _, ids, _ = run(program, block_tables(1, 5), [Row([3], 0, 0)], greedy=True)
        assert ids[0] == 3


def test_a_row_with_nan_is_reported_and_harms_no_other(pool: ThreadPool) -> None:
    model = TinyLlama(Q8_0)
    table = np.array(model.embedding.data).reshape(70, -1)
    clean = model.program(pool, model.kv_cache())
    want, _, _ = run(clean, block_tables(2, 5), [Row([1, 2, 3], 0, 0)])
    table[69, :2] = np.frombuffer(np.float16(np.nan).tobytes(), np.uint8)
    model.embedding = type(model.embedding)(Q8_0, table.ravel(), 70, 64)
    program = model.program(pool, model.kv_cache())
    rows = [Row([1, 2, 3], 0, 0), Row([4, 69, 5], 0, 1)]
    logits, _, nan = run(program, block_tables(2, 5), rows)
    np.testing.assert_array_equal(logits[:3], want)
    assert nan.tolist() == [0, 0, 0, 0, 1, 1]
    assert np.isfinite(logits[:4]).all()
    assert np.isnan(logits[4:]).all()


def test_greedy_rows_and_the_sampler_refuse_the_same_rows(pool: ThreadPool) -> None:
    """Logits of 1, and of both infinities: float32 overflows on the way."""
    hidden, vocab = 32, 70
    for low, high in ((0, 0), (5, 0), (0, 1), (vocab, 0), (3, 2)):
        weights = np.full((vocab, hidden), 1 / hidden, np.float32)
        weights[:low] = -3e38
        weights[vocab - high :] = 3e38
        matrix = Matrix(F32, weights.view(np.uint8).ravel(), vocab, hidden)
        ones = Matrix(F32, np.ones(hidden, np.float32).view(np.uint8), 1, hidden)
        program = kernels.Program(pool, kernels.KVCache(1, 1, 32, 2, False), 8, hidden)
        program.embed(kernels.pack_embedding(ones))
        program.final_norm_head(np.ones(hidden, np.float32), kernels.pack_matrix(pool, [matrix]), 1e-6)
        program.finalize()
        logits, _, _ = run(program, block_tables(1, 1), [Row([0], 0, 0)])
        _, ids, unusable = run(program, block_tables(1, 1), [Row([0], 0, 0)], greedy=True)
        native = find_native(pool)
        assert native is not None
        assert (np.isneginf(logits).sum(), np.isposinf(logits).sum()) == (low, high)
        assert unusable[0] == 1 - native.usable_rows(logits)[0] == (high > 0 or low == vocab)
        if not unusable[0]:
            assert ids[0] == low


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_what_a_freed_block_holds_reaches_nobody(pool: ThreadPool, dtype: str) -> None:
    model = TinyLlama(Q8_0)
    ids = prompt(37)
    tables = block_tables(1, 5)
    results = []
    for fill in (0x00, 0xFF):
        kv = model.kv_cache(dtype=dtype)
        for block in range(kv.n_blocks):
            kv.fill_block(block, fill)
        program = model.program(pool, kv)
        chunks = [run(program, tables, [Row(ids[a:b], a, 0)])[0] for a, b in ((0, 5), (5, 6), (6, 23), (23, 37))]
        results.append(np.concatenate(chunks))
    assert np.isfinite(results[1]).all()
    np.testing.assert_array_equal(results[0], results[1])


def test_copied_blocks_continue_alike(pool: ThreadPool) -> None:
    model = TinyLlama(Q8_0)
    ids = prompt(20)
    kv = model.kv_cache()
    program = model.program(pool, kv)
    tables = np.array([[0, 1, 2], [0, 5, 6]], np.int32)
    run(program, tables, [Row(ids, 0, 0)])
    kv.copy_blocks(np.array([[1, 5]], np.int32))
    logits, _, _ = run(program, tables, [Row([7], 20, 0), Row([7], 20, 1)])
    np.testing.assert_array_equal(logits[0], logits[1])
    keys, values = kv.read_block(1, 5, 0)
    np.testing.assert_array_equal(keys, kv.read_block(1, 1, 0)[0])
    np.testing.assert_array_equal(values, kv.read_block(1, 1, 0)[1])
    with pytest.raises(ValueError, match="not in the cache"):
        kv.copy_blocks(np.array([[0, 80]], np.int32))


def test_tables_may_be_a_view_and_logits_a_choice(pool: ThreadPool) -> None:
    model = TinyLlama(Q8_0)
    program = model.program(pool, model.kv_cache())
    wide = np.full((4, 9), -1, np.int32)  # entries behind a row's tokens may hold anything
    wide[2, 2:4] = [8, 3]
    view = wide[:, 2:]
    ids = prompt(20)
    want, _, _ = run(program, np.array([[8, 3]], np.int32), [Row(ids, 0, 0)])
    out_ids, nan, logits = np.zeros(3, np.int32), np.zeros(3, np.uint8), np.zeros((1, 70), np.float32)
    args = [
        np.array(ids, np.int32),
        np.arange(20, dtype=np.int32),
        np.zeros(20, np.int32),
        np.array([2], np.int32),
        view,
    ]
    program.run(*args, np.array([19, 4, 4], np.int32), np.array([1, 0, 1], np.uint8), out_ids, nan, logits)
    np.testing.assert_array_equal(logits[0], want[4])
    np.testing.assert_array_equal(out_ids, want[[19, 4, 4]].argmax(axis=1))
    none = np.zeros(0, np.int32)
    program.run(*args, none, np.zeros(0, np.uint8), none.copy(), np.zeros(0, np.uint8))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"token_ids": [70, 1]}, "not in the vocabulary"),
        ({"token_ids": [-1, 1]}, "not in the vocabulary"),
        ({"positions": [-1, 0]}, "beyond the tables"),
        ({"positions": [79, 80]}, "beyond the tables"),
        ({"positions": [3, 5]}, "without gaps"),
        ({"row_of_token": [0, 1]}, "belongs to no row"),
        ({"slot_of_row": [1]}, "no block table"),
        ({"tables": [[80] * 5]}, "not in the cache"),
        ({"tables": [[-1] * 5]}, "not in the cache"),
        ({"logit_tokens": [2]}, "not in the step"),
        ({"logit_tokens": [-1]}, "not in the step"),
        ({"token_ids": [1], "row_of_token": [0, 0]}, "differ in length"),
        ({"greedy": [1, 1]}, "differ in length"),
        ({"logits": (0, 70)}, "too few rows"),
        ({"logits": (1, 69)}, "one column per"),
        ({"hidden_tokens": [2]}, "not in the step"),
        ({"hidden_tokens": [-1]}, "not in the step"),
        ({"hidden_tokens": [0, 1, 1], "hidden": (3, 64)}, "more hidden states"),
        ({"hidden": (2, 64)}, "differ in length"),
        ({"hidden": (1, 63)}, "one column per"),
    ],
)
def test_run_refuses_before_it_computes(pool: ThreadPool, change: dict[str, object], words: str) -> None:
    model = TinyLlama(Q8_0)
    program = model.program(pool, model.kv_cache())

    def i32(name: str, default: list[object]) -> np.ndarray:
        return np.array(change.get(name, default), np.int32)

    with pytest.raises(ValueError, match=words):
        program.run(
            i32("token_ids", [1, 2]),
            i32("positions", [0, 1]),
            i32("row_of_token", [0, 0]),
            i32("slot_of_row", [0]),
            i32("tables", [[0, 1, 2, 3, 4]]),
            i32("logit_tokens", [1]),
            np.array(change.get("greedy", [0]), np.uint8),
            np.zeros(len(change.get("greedy", [0])), np.int32),  # type: ignore[arg-type]
            np.zeros(len(change.get("greedy", [0])), np.uint8),  # type: ignore[arg-type]
            np.zeros(change.get("logits", (1, 70)), np.float32),  # type: ignore[call-overload]
            i32("hidden_tokens", [1]),
            np.zeros(change.get("hidden", (1, 64)), np.float32),  # type: ignore[call-overload]
        )


def test_run_refuses_wrong_element_types(pool: ThreadPool) -> None:
    model = TinyLlama(Q8_0)
    program = model.program(pool, model.kv_cache())
    good = np.zeros(1, np.int32)
    with pytest.raises(TypeError):
        program.run(
            good.astype(np.int64),
            good,
            good,
            good,
            np.zeros((1, 1), np.int32),
            good,
            np.zeros(1, np.uint8),
            good,
            np.zeros(1, np.uint8),
        )


def test_more_tokens_than_recorded_are_refused(pool: ThreadPool) -> None:
    model = TinyLlama(Q8_0)
    program = model.program(pool, model.kv_cache(), max_tokens=8)
    with pytest.raises(ValueError, match="9 tokens in a step"):
        run(program, block_tables(1, 5), [Row(prompt(9), 0, 0)])


def test_recording_refuses_what_does_not_fit(pool: ThreadPool) -> None:
    from sixfold.executor.native import kernels

    model = TinyLlama(F32)
    layer = model.layers[0]
    program = Program(pool, model.kv_cache(), 8, 64)
    with pytest.raises(ValueError, match="begins with embed"):
        program.finalize()
    qkv = kernels.pack_matrix(pool, layer.qkv)
    with pytest.raises(ValueError, match="follows attention"):
        program.proj_residual(qkv)
    with pytest.raises(ValueError, match="32 values, not 64"):
        program.norm_qkv_rope_write(0, layer.attn_norm[:32], qkv, 4, 2, 32, model.rope, 1e-5)
    with pytest.raises(ValueError, match="layer 2"):
        program.norm_qkv_rope_write(2, layer.attn_norm, qkv, 4, 2, 32, model.rope, 1e-5)
    with pytest.raises(ValueError, match="rope style"):
        kernels.rope_table(4, model.frequencies, "sideways")
    with pytest.raises(ValueError, match="q, k and v rows"):
        program.norm_qkv_rope_write(0, layer.attn_norm, qkv, 2, 2, 32, model.rope, 1e-5)
    with pytest.raises(ValueError, match="is not finalized"):
        run(program, block_tables(1, 5), [Row([1], 0, 0)], greedy=True)
