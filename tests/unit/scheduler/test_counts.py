"""What the scheduler tells of itself: why choices wait, what a step was made of, when a request began."""

from __future__ import annotations

from tests.garbage import garbage_of
from tests.simulation import Simulation

from sixfold.scheduler.sequence import Request, Sequence


def test_why_choices_wait() -> None:
    sim = Simulation(max_num_seqs=1)
    sim.add(range(3), 20)
    sim.add(range(100, 103), 5)
    assert sim.scheduler.stats().waiting_for == {"step": 2}
    sim.step()
    assert sim.scheduler.stats().waiting_for == {"slots": 1}
    sim.run()
    assert sim.scheduler.stats().waiting_for == {}


def test_nothing_that_has_ended_is_left_to_the_garbage_collector() -> None:
    sim = Simulation(max_num_seqs=2)
    with garbage_of(Sequence, Request) as left:
        sim.add(range(3), 20)
        sim.add(range(100, 103), 5, n=3)
        assert len(left()) == 6
        sim.run()
        assert not left()


def test_a_choice_waits_for_blocks() -> None:
    sim = Simulation(num_blocks=8, enable_prefix_caching=False)
    sim.add(range(20), 8)
    sim.add(range(100, 120), 8)
    sim.step()
    assert sim.scheduler.stats().waiting_for == {"blocks": 1}
    sim.run()


def test_choices_wait_for_their_leader() -> None:
    sim = Simulation(max_num_batched_tokens=4, pipeline_depth=1)
    sim.add(range(10), 4, n=3)
    sim.step()
    assert sim.scheduler.stats().waiting_for == {"leader": 2}
    sim.run()


def test_a_preempted_choice_says_so_and_all_reasons_add_up() -> None:
    sim = Simulation(num_blocks=8, enable_prefix_caching=False)
    for start in range(0, 300, 100):
        sim.add(range(start, start + 8), 16)
    seen: set[str] = set()
    while sim.scheduler.has_work:
        sim.step()
        stats = sim.scheduler.stats()
        seen |= set(stats.waiting_for)
        assert sum(stats.waiting_for.values()) == stats.waiting
    assert "preempted" in seen


def test_what_a_step_is_made_of() -> None:
    sim = Simulation(pipeline_depth=1)
    sim.add(range(6), 4)
    sim.step()
    stats = sim.scheduler.stats()
    assert (stats.step_prefill_tokens, stats.step_decode_rows) == (6, 0)
    sim.add(range(100, 103), 4)
    sim.step()
    stats = sim.scheduler.stats()
    assert (stats.step_prefill_tokens, stats.step_decode_rows) == (3, 1)
    sim.run()
    stats = sim.scheduler.stats()
    assert (stats.prefilled_tokens, stats.decode_rows) == (9, 6)


def test_the_first_delta_says_when_the_request_began() -> None:
    sim = Simulation(max_num_seqs=1)
    first, second = sim.add(range(3), 4), sim.add(range(100, 103), 4)
    sim.sleep(2.0)
    while (first, 0) not in sim.finishes:
        sim.step()
    sim.sleep(3.0)
    sim.run()
    assert sim.first_deltas[first, 0].started_s == 2.0
    assert sim.first_deltas[second, 0].started_s >= 2.0
