"""The picture of the engine: it agrees with the numbers, tells why somebody waits, and looks without touching."""

from __future__ import annotations

from array import array

import pytest
from tests.simulation import Simulation

from sixfold.kv_cache import KVCacheManager
from sixfold.kv_cache.block_map import MAP_CELLS, BlockMap
from sixfold.messages import ChoiceView, EngineView
from sixfold.messages.view import CACHED, FREE, HELD, SHARED
from sixfold.scheduler.view import MAX_RUNNING, MAX_WAITING


def cells(view: EngineView) -> list[int]:
    return array("H", view.cells).tolist()


def states(view: EngineView) -> list[tuple[int, str, str]]:
    return [(choice.uid, choice.state, choice.reason) for choice in view.choices]


def check(view: EngineView) -> None:
    """Map, choices and counters say the same."""
    seen, stats = cells(view), view.stats
    assert (seen.count(FREE), seen.count(CACHED)) == (stats.blocks_free, stats.blocks_cached)
    assert len(seen) == stats.blocks_total
    for choice in view.choices:
        own = seen.count(HELD + choice.slot) if choice.slot >= 0 else 0
        assert own <= choice.n_blocks <= own + seen.count(SHARED), choice
        assert 0 <= choice.n_cached <= choice.n_prompt and choice.n_computed <= choice.n_prompt + choice.n_output


def test_blocks_are_free_cached_shared_or_somebodys() -> None:
    sim = Simulation(num_blocks=32, block_size=4)
    sim.add(range(10), 3)
    sim.run()
    view = sim.scheduler.view(0)
    assert set(cells(view)) == {FREE, CACHED} and not view.choices
    check(view)
    sim.add(range(10), 20)
    sim.add([*range(8), 90, 91], 20)
    for _ in range(4):
        sim.step()
    view = sim.scheduler.view(5)
    assert cells(view).count(SHARED) == 2, "both hold the first eight tokens"
    assert {choice.slot + HELD for choice in view.choices} < set(cells(view))
    assert view.time_ns == 5 and view.blocks_per_cell == 1
    check(view)
    sim.run()


@pytest.mark.parametrize("seed", range(5))
def test_the_picture_agrees_with_the_numbers_at_every_step(seed: int) -> None:
    sim = Simulation(num_blocks=24, block_size=4, max_num_seqs=4, max_num_batched_tokens=12)
    for index in range(12):
        sim.add(range(seed, seed + 3 + (index * 7) % 30), 3 + (index * 5) % 11)
    for _ in range(200):
        check(sim.scheduler.view(0))
        sim.step()
    sim.run()


def test_a_picture_that_is_kept_agrees_with_a_new_one() -> None:
    sim = Simulation(num_blocks=96, block_size=4, max_num_seqs=6, max_num_batched_tokens=24)
    kv = sim.kv
    for index in range(28):
        sim.add([*range(12), index, index], 3 + (index * 5) % 31)
    for step in range(300):
        sim.step()
        if step % 4 < 3:  # what happens between two looks is seen too
            holders = [(slot, table) for slot, table in enumerate(sorted(kv._open, key=id))]
            assert kv.block_map(holders) == BlockMap(kv._pool).look(holders)
        if step == 150:
            kv.reset_prefix_cache()
    sim.run()


def test_what_is_noted_for_a_picture_is_bounded_and_nothing_is_while_nobody_looks() -> None:
    sim = Simulation(num_blocks=32, block_size=4, max_num_seqs=4)
    look = sim.kv._map
    for index in range(30):
        sim.add([index] * 9, 5)
        sim.run()
        assert look._noted is None
    sim.kv.block_map([])
    sim.add([90] * 9, 5)
    sim.run()
    assert look._noted, "somebody looked"
    for index in range(30):
        sim.add([index] * 9, 5)
        sim.run()
        assert look._noted is None or sum(map(len, look._noted)) <= 16
    assert look._noted is None


def test_why_somebody_waits() -> None:
    sim = Simulation(num_blocks=64, block_size=4, max_num_seqs=2)
    for first in range(4):
        sim.add([first] * 6, 30)
    assert states(sim.scheduler.view(0))[0][1:] == ("waiting", "step")
    sim.step()
    waiting = [reason for _, state, reason in states(sim.scheduler.view(0)) if state == "waiting"]
    assert waiting == ["slots", "slots"]
    sim.run()
    sim = Simulation(num_blocks=8, block_size=4)
    sim.add(range(20), 8)
    sim.step()
    sim.add(range(50, 70), 4)
    sim.add(range(80, 90), 4)
    sim.step()
    waiting = [reason for _, state, reason in states(sim.scheduler.view(0)) if state == "waiting"]
    assert waiting == ["blocks", "order"]
    sim.run()


def test_choices_that_share_a_prompt_wait_for_it() -> None:
    sim = Simulation(num_blocks=64, block_size=4)
    sim.add(range(10), 3, n=3)
    found = states(sim.scheduler.view(0))
    assert [state for _, state, _ in found] == ["waiting", "held", "held"]
    assert [reason for _, _, reason in found][1:] == ["leader", "leader"]
    sim.run()


def test_a_view_is_bounded_however_many_there_are() -> None:
    sim = Simulation(num_blocks=2000, max_slots=300, max_num_seqs=300, max_num_batched_tokens=4000)
    for index in range(500):
        sim.add([index, index + 1], 2)
    sim.step()
    view = sim.scheduler.view(0)
    assert len(view.choices) == MAX_RUNNING + MAX_WAITING and view.stats.running == 300
    sim.run()


@pytest.mark.parametrize(("n_blocks", "per_cell"), [(MAP_CELLS, 1), (MAP_CELLS + 1, 2), (10 * MAP_CELLS, 10)])
def test_a_large_pool_has_a_map_of_bounded_size(n_blocks: int, per_cell: int) -> None:
    kv = KVCacheManager(n_blocks, 16)
    stride, packed = kv.block_map([])
    assert stride == per_cell and len(packed) == 2 * -(-n_blocks // per_cell) <= 2 * MAP_CELLS


def test_looking_changes_nothing() -> None:
    runs = []
    for looks in (False, True):
        sim = Simulation(num_blocks=16, block_size=4, max_num_seqs=3)
        for index in range(6):
            sim.add(range(index, index + 9), 6)
        for _ in range(60):
            if looks:
                sim.scheduler.view(0)
            sim.step()
        runs.append(([(plan.starts, plan.counts) for plan in sim.plans], sim.outputs))
    assert runs[0] == runs[1]


def test_a_choice_is_an_array_on_the_wire() -> None:
    assert ChoiceView.__struct_config__.array_like
