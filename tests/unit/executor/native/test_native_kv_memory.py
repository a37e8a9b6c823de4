"""The KV cache's memory, which comes with its first use or ahead of it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tests.unit.executor.native.tiny_llama import Row, TinyLlama, run

from sixfold.executor.native.kernels import KVCache, ThreadPool
from sixfold.executor.native.reference_types import Q8_0

MB = 1 << 20
N_LAYERS, BLOCK_BYTES = 4, 2 * 2 * 16 * 64 * 2
"""Of one layer: keys and values of two heads."""
AHEAD, AT_ONCE = 256 * MB // (N_LAYERS * BLOCK_BYTES), 32 * MB // (N_LAYERS * BLOCK_BYTES)


def cache(n_blocks: int) -> KVCache:
    return KVCache(N_LAYERS, 2, 64, n_blocks, is_float=False)


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def give_all(kv: KVCache, n_used: int) -> int:
    """How many calls it took."""
    n_calls = 1
    while kv.give_memory(n_used):
        n_calls += 1
    return n_calls


@pytest.fixture
def populates() -> None:
    """Linux 5.14 and later."""
    if not cache(2 * AT_ONCE).give_memory(0):
        pytest.skip("this system gives memory with its use only")


@pytest.mark.usefixtures("populates")
def test_memory_is_given_in_parts_and_not_to_all_of_a_large_cache() -> None:
    kv = cache(4 * AHEAD)
    before = resident_bytes()
    assert give_all(kv, 0) == AHEAD // AT_ONCE
    assert 250 * MB < resident_bytes() - before < 300 * MB, "ahead, and what rounding to large pages adds"
    assert not kv.give_memory(0), "nothing is left"
    assert give_all(kv, AT_ONCE) == 1, "as much as has been used"
    assert give_all(kv, 3 * AT_ONCE) == 2


@pytest.mark.usefixtures("populates")
def test_a_small_cache_gets_all_of_it() -> None:
    kv = cache(AT_ONCE + 1)
    assert give_all(kv, 0) == 2
    assert give_all(kv, AT_ONCE + 1) == 1
    assert not cache(1).give_memory(-1)


def test_what_blocks_hold_stays() -> None:
    kv = cache(2 * AT_ONCE)
    for block in (0, 1, AT_ONCE - 1, AT_ONCE, 2 * AT_ONCE - 1):
        kv.fill_block(block, 0x3F)
    give_all(kv, 0)
    for block in (0, 1, AT_ONCE - 1, AT_ONCE, 2 * AT_ONCE - 1):
        for layer in range(N_LAYERS):
            for numbers in kv.read_block(layer, block, 1):
                np.testing.assert_array_equal(numbers, np.float32(0.74609375))
    assert not np.any(kv.read_block(0, 2, 0)[0])


def test_the_program_says_which_blocks_it_has_written(pool: ThreadPool) -> None:
    model = TinyLlama(Q8_0)
    program = model.program(pool, model.kv_cache())
    assert program.blocks_used == 0
    tables = np.array([[5, 40, 3], [7, 60, 61]], np.int32)
    run(program, tables, [Row([1] * 20, 0, 0)])
    assert program.blocks_used == 41
    run(program, tables, [Row([1] * 3, 0, 1)])
    assert program.blocks_used == 41, "a block that is only in the table is none"
    run(program, tables, [Row([1] * 17, 3, 1)])
    assert program.blocks_used == 61
