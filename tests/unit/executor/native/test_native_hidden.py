"""Hidden states that a program delivers: the reference's, and a row's depend on the row alone."""

from __future__ import annotations

import numpy as np
import pytest
from tests.unit.executor.native.tiny_llama import EPS, Row, TinyLlama, block_tables, run

from sixfold.executor.native.kernels import Program, ThreadPool
from sixfold.executor.native.reference_types import F32, Q4_1, Q8_0

TABLES = block_tables(4, 5)


def prompt(n: int, seed: int = 0) -> list[int]:
    return [int(t) for t in np.random.default_rng(seed).integers(0, 70, n)]


def states(program: Program, rows: list[Row]) -> np.ndarray:
    hidden = np.full((sum(len(row.ids) for row in rows), program.hidden), np.nan, np.float32)
    run(program, TABLES, rows, greedy=True, hidden=hidden)
    return hidden


def test_they_are_the_references(pool: ThreadPool) -> None:
    model, ids = TinyLlama(F32), prompt(40)
    program = model.program(pool, model.kv_cache(dtype="float32"), activations="float32")
    reference = model.run_reference(ids, activations="float32", bfloat16=False).hidden(model.output_norm, EPS)
    assert np.abs(states(program, [Row(ids, 0, 0)]) - reference).max() < 1e-5 * np.abs(reference).max()


@pytest.mark.parametrize("ggml_type", [Q4_1, Q8_0])
def test_quantized_they_are_the_references_within_rounding(pool: ThreadPool, ggml_type: int) -> None:
    model, ids = TinyLlama(ggml_type), prompt(40)
    program = model.program(pool, model.kv_cache())
    reference = model.run_reference(ids, activations="int8", bfloat16=True).hidden(model.output_norm, EPS)
    got = states(program, [Row(ids, 0, 0)])
    assert np.sqrt(np.mean((got - reference) ** 2)) < 0.02 * np.sqrt(np.mean(reference**2))


def test_chunks_batches_and_threads_change_no_bit(isa: str) -> None:
    model = TinyLlama(Q4_1)
    sequences = [prompt(n, n) for n in (37, 5, 19, 1)]
    alone = []
    for slot, ids in enumerate(sequences):
        program = model.program(ThreadPool(1, isa), model.kv_cache())
        alone.append(np.concatenate([states(program, [Row([t], i, slot)]) for i, t in enumerate(ids)]))
    for trial in range(6):
        random = np.random.default_rng(trial)
        program = model.program(ThreadPool(1 + trial % 3, isa), model.kv_cache())
        done = [0] * len(sequences)
        while any(d < len(s) for d, s in zip(done, sequences, strict=True)):
            rows = []
            for slot in random.permutation(len(sequences)):
                n = int(min(len(sequences[slot]) - done[slot], random.integers(0, 18)))
                if n:
                    rows.append(Row(sequences[slot][done[slot] : done[slot] + n], done[slot], int(slot)))
                    done[slot] += n
            if rows:
                want = [alone[row.slot][row.start : row.start + len(row.ids)] for row in rows]
                np.testing.assert_array_equal(states(program, rows), np.concatenate(want))


def test_any_tokens_in_any_order_beside_logits(pool: ThreadPool) -> None:
    model, ids = TinyLlama(Q8_0), prompt(20)
    program = model.program(pool, model.kv_cache())
    want = states(program, [Row(ids, 0, 0)])
    logits = run(program, TABLES, [Row(ids, 0, 0)])[0]
    wanted, hidden = np.array([19, 3, 3], np.int32), np.zeros((3, program.hidden), np.float32)
    out = np.zeros((1, program.vocab), np.float32)
    program.run(
        np.array(ids, np.int32),
        np.arange(20, dtype=np.int32),
        np.zeros(20, np.int32),
        np.zeros(1, np.int32),
        TABLES,
        np.array([5], np.int32),
        np.zeros(1, np.uint8),
        np.zeros(1, np.int32),
        np.zeros(1, np.uint8),
        out,
        wanted,
        hidden,
    )
    np.testing.assert_array_equal(hidden, want[wanted])
    np.testing.assert_array_equal(out[0], logits[5])
