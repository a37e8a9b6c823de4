"""Each wait of a request in the scheduler protects something: without it, a promise of the simulation breaks.

Every test runs the same requests twice: with the wait, when all ends well, and with the wait taken out.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.simulation import Simulation

from sixfold.scheduler.planner import Planner
from sixfold.scheduler.scheduler import Scheduler
from sixfold.scheduler.sequence import Sequence, State
from sixfold.scheduler.slots import SlotTable

Run = Callable[[], None]


def breaks(run: Run) -> None:
    """Without the wait, a check of the simulation, of the worker or of the memory fails."""
    with pytest.raises((AssertionError, IndexError, KeyError)):
        run()


def end_early_and_let_others_in() -> None:
    """A choice ends while a step that uses its blocks is in flight, and the pool is full."""
    sim = Simulation(num_blocks=8, block_size=2, pipeline_depth=2, enable_prefix_caching=False)
    first = sim.add(range(10), 6)
    sim.launch()
    sim.commit()
    sim.launch()
    sim.launch()
    sim.abort(first)
    sim.add(range(20, 30), 4)
    sim.run()


def outgrow_the_pool() -> None:
    """Four choices need more blocks than there are: newer ones lose their places with a step in flight."""
    sim = Simulation(num_blocks=12, block_size=2, pipeline_depth=2, enable_prefix_caching=False)
    for n_prompt in (5, 4, 3, 2):
        sim.add(range(10 * n_prompt, 11 * n_prompt), 9)
    sim.run()
    assert sim.scheduler.stats().preemptions, "the test is about them"


def ask_for_more_than_there_is() -> None:
    sim = Simulation(num_blocks=6, block_size=2, max_slots=8, enable_prefix_caching=False)
    for first in range(4):
        sim.add(range(first, first + 8), 3)
    sim.run()


def ask_for_more_slots_than_there_are() -> None:
    sim = Simulation(num_blocks=64, block_size=2, max_slots=2, max_num_seqs=2, enable_prefix_caching=False)
    for first in range(4):
        sim.add([first], 3)
    sim.run()


def test_without_the_fence_a_step_in_flight_uses_blocks_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    end_early_and_let_others_in()
    honest = Scheduler._pass_fence

    def at_once(self: Scheduler, sequence: Sequence) -> None:
        fence, sequence.last_step = sequence.last_step, -1
        honest(self, sequence)
        sequence.last_step = fence

    monkeypatch.setattr(Scheduler, "_pass_fence", at_once)
    breaks(end_early_and_let_others_in)


def test_without_the_drain_a_preempted_choice_frees_blocks_in_use(monkeypatch: pytest.MonkeyPatch) -> None:
    outgrow_the_pool()
    honest = Scheduler._pass_fence

    def at_once(self: Scheduler, sequence: Sequence) -> None:
        if sequence.state is State.PREEMPTING:
            fence, sequence.last_step = sequence.last_step, -1
            honest(self, sequence)
            sequence.last_step = fence
        else:
            honest(self, sequence)

    monkeypatch.setattr(Scheduler, "_pass_fence", at_once)
    breaks(outgrow_the_pool)


def test_without_the_wait_for_blocks_the_pool_is_overdrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    ask_for_more_than_there_is()
    honest = Planner._admissible

    def all_of_them(self: Planner, draft: object, prefilling: list[Sequence]) -> list[Sequence]:
        honest(self, draft, prefilling)  # type: ignore[arg-type]
        return list(self._queue)[: max(0, self._n_places())]

    monkeypatch.setattr(Planner, "_admissible", all_of_them)
    breaks(ask_for_more_than_there_is)


def test_without_the_wait_for_a_slot_two_choices_would_share_one(monkeypatch: pytest.MonkeyPatch) -> None:
    ask_for_more_slots_than_there_are()
    monkeypatch.setattr(Planner, "_n_places", lambda self: len(self._queue))
    breaks(ask_for_more_slots_than_there_are)
    honest = SlotTable.take

    def any_slot(self: SlotTable) -> tuple[int, int]:
        return honest(self) if self.n_free else (0, 0)

    monkeypatch.setattr(SlotTable, "take", any_slot)
    breaks(ask_for_more_slots_than_there_are)
