"""The three states of a block, and the order in which idle ones are evicted."""

from __future__ import annotations

import pytest

from sixfold.kv_cache.block_pool import BlockPool
from sixfold.messages import BlockId


def test_a_block_is_free_held_or_idle() -> None:
    pool = BlockPool(3)
    block = pool.take()
    assert (pool.n_free, pool.n_idle, pool.n_available) == (2, 0, 2)
    pool.share(block)
    pool.drop(block, retain=True)
    assert pool.refs[block] == 1
    pool.drop(block, retain=True)
    assert (pool.n_free, pool.n_idle, pool.n_available) == (2, 1, 3)
    pool.share(block)
    pool.drop(block, retain=False)
    assert (pool.n_free, pool.n_idle) == (3, 0)


def test_free_blocks_go_first_then_the_least_recently_used_idle_one() -> None:
    pool = BlockPool(3)
    first, second, third = pool.take(), pool.take(), pool.take()
    pool.drop(second, retain=True)
    pool.drop(first, retain=True)
    pool.drop(third, retain=False)
    assert [pool.take(), pool.take(), pool.take()] == [third, second, first]


def test_a_reused_idle_block_becomes_the_youngest() -> None:
    pool = BlockPool(2)
    first, second = pool.take(), pool.take()
    pool.drop(first, retain=True)
    pool.drop(second, retain=True)
    pool.share(first)
    pool.drop(first, retain=True)
    assert pool.take() == second


def test_discarding_makes_an_idle_block_free_and_leaves_a_held_one() -> None:
    pool = BlockPool(2)
    held, idle = pool.take(), pool.take()
    pool.drop(idle, retain=True)
    pool.discard(held)
    pool.discard(idle)
    assert (pool.refs[held], pool.n_free, pool.n_idle) == (1, 1, 0)


def test_a_block_cannot_be_dropped_twice() -> None:
    pool = BlockPool(1)
    block = pool.take()
    pool.drop(block, retain=False)
    with pytest.raises(AssertionError):
        pool.drop(block, retain=False)


def test_low_ids_first_so_that_an_idle_server_touches_little_memory() -> None:
    pool = BlockPool(100)
    assert [pool.take() for _ in range(3)] == [0, 1, 2]


@pytest.mark.parametrize("refs", [{}, {0: 2}, {0: 1, 1: 1}])
def test_check_finds_wrong_counts(refs: dict[BlockId, int]) -> None:
    pool = BlockPool(2)
    pool.take()
    with pytest.raises(AssertionError):
        pool.check(refs, set())
