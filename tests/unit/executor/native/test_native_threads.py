"""The pool under stress: more threads than cores, many short jobs, several callers."""

from __future__ import annotations

import threading

import numpy as np
import pytest
from tests.unit.executor.native.tiny_llama import Row, TinyLlama, block_tables, run

from sixfold import _native
from sixfold.executor.native import kernels
from sixfold.executor.native.kernels import ThreadPool
from sixfold.executor.native.reference_types import F32, Q8_0, quantize_weights


def test_more_threads_than_cores(isa: str) -> None:
    model = TinyLlama(Q8_0)
    ids = [int(t) for t in np.random.default_rng(0).integers(0, 70, 37)]
    want, _, _ = run(model.program(ThreadPool(1, isa), model.kv_cache()), block_tables(1, 5), [Row(ids, 0, 0)])
    program = model.program(ThreadPool(9, isa), model.kv_cache())
    for _ in range(60):
        got, _, _ = run(program, block_tables(1, 5), [Row(ids, 0, 0)])
        np.testing.assert_array_equal(got, want)


def test_callers_share_a_pool(isa: str) -> None:
    pool = ThreadPool(3, isa)
    rng = np.random.default_rng(0)
    x = rng.standard_normal((4, 64)).astype(np.float32)
    packed = kernels.pack_matrix(pool, [quantize_weights(F32, rng.standard_normal((64, 64)).astype(np.float32))])
    want = _native.matmul(pool, packed, x)
    wrong = []

    def call() -> None:
        wrong.extend(1 for _ in range(200) if not np.array_equal(_native.matmul(pool, packed, x), want))

    callers = [threading.Thread(target=call) for _ in range(4)]
    for c in callers:
        c.start()
    for c in callers:
        c.join()
    assert not wrong


def test_pools_come_and_go() -> None:
    before = threading.active_count()
    for _ in range(50):
        pool = ThreadPool(4)
        kernels.pack_matrix(pool, [quantize_weights(F32, np.ones((160, 32), np.float32))])
        del pool
    assert threading.active_count() == before


def test_what_was_packed_outlives_its_pool() -> None:
    packed = kernels.pack_matrix(ThreadPool(2), [quantize_weights(F32, np.ones((16, 32), np.float32))])
    np.testing.assert_array_equal(packed.unpack(), np.ones((16, 32), np.float32))


@pytest.mark.parametrize("n", [0, -1, 5000])
def test_impossible_numbers_of_threads_are_refused(n: int) -> None:
    with pytest.raises(ValueError, match="number of threads"):
        ThreadPool(n)


def test_an_unknown_instruction_set_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match="'mmx' is not available here"):
        ThreadPool(1, "mmx")
