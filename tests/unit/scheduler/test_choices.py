"""Several choices of one prompt, and choices that are replayed."""

from __future__ import annotations

import msgspec
import pytest
from tests.simulation import Simulation


@pytest.mark.parametrize("n_prompt", [1, 2, 8, 9, 11])
@pytest.mark.parametrize("depth", [1, 2])
def test_choices_share_the_prompt_and_compute_only_its_last_token(n_prompt: int, depth: int) -> None:
    sim = Simulation(pipeline_depth=depth, enable_prefix_caching=False)
    uid = sim.add(range(n_prompt), 6, n=3)
    sim.run()
    prompt_rows = [
        (start, count)
        for plan in sim.plans
        for start, count in zip(plan.starts, plan.counts, strict=True)
        if start < n_prompt
    ]
    assert prompt_rows == [(0, n_prompt), (n_prompt - 1, 1), (n_prompt - 1, 1)]
    assert len({tuple(sim.outputs[uid, choice]) for choice in range(3)}) == 3, "each draws its own tokens"
    n_copies = sum(len(plan.copies) for plan in sim.plans)
    assert n_copies == (2 if (n_prompt - 1) % 4 else 0)


def test_choices_wait_until_the_prompt_is_launched() -> None:
    sim = Simulation(max_num_batched_tokens=4, pipeline_depth=1)
    sim.add(range(10), 4, n=2)
    sim.step()
    sim.step()
    assert (sim.scheduler.stats().running, sim.scheduler.stats().waiting) == (1, 1)
    sim.step()
    sim.step()
    assert sim.scheduler.stats().running == 2
    sim.run()


def test_choices_go_on_when_the_first_fails() -> None:
    sim = Simulation(pipeline_depth=2)
    uid = sim.add(range(9), 6, n=3)
    sim.step()
    sim.finish_at(uid, 0, 1)
    sim.run()
    assert [sim.finishes[uid, choice] for choice in range(3)] == ["stop string", "length", "length"]


def test_the_next_choice_computes_the_prompt_when_its_leader_leaves_early() -> None:
    sim = Simulation(max_num_batched_tokens=4, pipeline_depth=1)
    uid = sim.add(range(10), 4, n=3)
    sim.step()
    sim.finish_at(uid, 0, 0)
    assert sim.scheduler.stats().waiting == 2
    sim.run()
    assert [sim.finishes[uid, choice] for choice in range(3)] == ["stop string", "length", "length"]


def test_aborting_ends_every_choice_wherever_it_is() -> None:
    sim = Simulation(max_num_batched_tokens=4)
    uid = sim.add(range(10), 4, n=3)
    sim.step()
    sim.abort(uid)
    sim.run()
    assert set(sim.finishes.values()) == {"abort"} and len(sim.finishes) == 3


def test_only_the_first_choice_reports_cached_tokens() -> None:
    sim = Simulation()
    sim.add(range(9), 1)
    sim.run()
    uid = sim.add(range(9), 2, n=2)
    sim.run()
    assert [sim.first_deltas[uid, choice].n_cached for choice in range(2)] == [8, 0]


def replay(sim: Simulation, uid: int, delivered: tuple[tuple[int, ...], ...]) -> int:
    again = msgspec.structs.replace(sim.requests[uid], uid=uid + 100, attempt=1, delivered=delivered)
    sim.submit_request(again)
    sim.run()
    return again.uid


@pytest.mark.parametrize("n_delivered", [0, 1, 5, 9])
def test_a_replay_goes_on_where_its_client_is(n_delivered: int) -> None:
    sim = Simulation()
    uid = sim.add(range(6), 10, n=2)
    sim.run()
    first, second = sim.outputs[uid, 0], sim.outputs[uid, 1]
    again = replay(Simulation() if n_delivered < 0 else sim, uid, (tuple(first[:n_delivered]), tuple(second[:3])))
    assert (sim.outputs[again, 0], sim.outputs[again, 1]) == (first, second)


def test_a_replayed_choice_that_had_ended_only_ends() -> None:
    sim = Simulation()
    uid = sim.add(range(6), 4, n=2)
    sim.run()
    first, second = sim.outputs[uid, 0], sim.outputs[uid, 1]
    n_steps = len(sim.plans)
    again = replay(sim, uid, (tuple(first), tuple(second)))
    assert sim.finishes[again, 0] == sim.finishes[again, 1] == "length"
    assert len(sim.plans) == n_steps
    again = replay(sim, again, (tuple(first), tuple(second[:1])))
    assert sim.outputs[again, 1] == second
