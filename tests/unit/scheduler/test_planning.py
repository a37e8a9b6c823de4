"""Who gets tokens and blocks, and who has to wait or leave."""

from __future__ import annotations

from collections import Counter

import pytest
from tests.simulation import Simulation

from sixfold.messages import SAMPLE, StepPlan


def counts(plan: StepPlan | None) -> list[int]:
    assert plan is not None
    return list(plan.counts)


def run_until(sim: Simulation, n_tokens: int, uid: int) -> None:
    while len(sim.outputs[uid, 0]) < n_tokens:
        sim.step()


def test_a_long_prompt_is_computed_in_chunks_and_only_the_last_one_samples() -> None:
    sim = Simulation(max_num_batched_tokens=10)
    sim.add(range(24), 1)
    plans = [sim.launch(), sim.launch()]
    sim.commit()
    plans.append(sim.launch())
    assert [counts(plan) for plan in plans] == [[10], [10], [4]]
    assert [plan.flags for plan in plans if plan] == [[0], [0], [SAMPLE]]
    sim.run()


def test_a_decode_row_is_planned_while_its_last_one_is_in_flight() -> None:
    sim = Simulation(pipeline_depth=2)
    sim.add(range(3), 4)
    first, second = sim.launch(), sim.launch()
    assert first is not None and second is not None
    assert (first.starts, second.starts, second.counts) == ([0], [3], [1])
    assert sim.launch() is None, "two steps are outstanding"
    sim.run()


def test_the_last_token_is_drawn_and_nothing_is_computed_from_it() -> None:
    sim = Simulation(pipeline_depth=2)
    sim.add(range(3), 2)
    sim.run()
    assert sim.scheduler.stats().wasted_rows == 0
    assert max(start + count for plan in sim.plans for start, count in zip(plan.starts, plan.counts, strict=True)) == 4


def test_decode_comes_first_and_prefill_takes_the_rest() -> None:
    sim = Simulation(max_num_batched_tokens=16, pipeline_depth=1)
    for i in range(3):
        sim.add([i], 50)
    sim.step()
    sim.add(range(100), 1)
    assert counts(sim.launch()) == [1, 1, 1, 13]
    assert sim.scheduler.stats().mixed_steps == 1


def test_o40_prefill_keeps_a_quarter_of_the_budget() -> None:
    sim = Simulation(max_num_batched_tokens=8, pipeline_depth=1)
    for i in range(7):
        sim.add([i], 50)
    while len(sim.plans) < 4:
        sim.step()
    sim.add(range(40), 1)
    assert sorted(counts(sim.launch())) == [1] * 6 + [2]


@pytest.mark.parametrize("budget", [1, 2, 3])
def test_with_a_tiny_budget_decode_and_prefill_take_turns(budget: int) -> None:
    sim = Simulation(max_num_batched_tokens=budget, pipeline_depth=1)
    for i in range(4):
        sim.add([i], 200)
    while sim.scheduler.stats().running < 4:
        sim.step()
    sim.add(range(20), 1)
    n_before = len(sim.plans)
    for _ in range(80):
        sim.step()
    rows = [(start, slot) for plan in sim.plans[n_before:] for start, slot in zip(plan.starts, plan.slots, strict=True)]
    assert Counter(slot for _, slot in rows).keys() >= {0, 1, 2, 3, 4}
    assert all(key in sim.finishes for key in [(5, 0)]), "the prompt was computed beside the others"


@pytest.mark.parametrize("depth", [1, 2])
def test_more_rows_than_budget_take_turns_fairly(depth: int) -> None:
    sim = Simulation(num_blocks=800, max_num_batched_tokens=3, pipeline_depth=depth)
    uids = [sim.add([i], 300) for i in range(8)]
    while sim.scheduler.stats().running < 8:
        sim.step()
    before = {uid: len(sim.outputs[uid, 0]) for uid in uids}
    for _ in range(80):
        sim.step()
    gained = [len(sim.outputs[uid, 0]) - before[uid] for uid in uids]
    assert sum(gained) == 240 and max(gained) - min(gained) <= 1


def test_o40_long_prompts_do_not_starve_decode_nor_short_prompts() -> None:
    sim = Simulation(num_blocks=600, max_slots=32, max_num_seqs=32, max_num_batched_tokens=16)
    stream = sim.add([1], 300)
    run_until(sim, 5, stream)
    long_prompts = [sim.add([i] * 80, 1) for i in range(20)]
    sim.step()
    n_before, n_steps = len(sim.outputs[stream, 0]), len(sim.plans)
    short = sim.add([2, 3], 1)
    run_until(sim, 1, short)
    assert len(sim.plans) - n_steps <= 8
    assert sum((uid, 0) in sim.finishes for uid in long_prompts) <= 1
    for _ in range(40):
        sim.step()
    assert sum((uid, 0) in sim.finishes for uid in long_prompts) < 20, "they fill every step"
    assert len(sim.outputs[stream, 0]) - n_before >= len(sim.plans) - n_steps - 2, "a token in every step"
    sim.run()


def test_o40_the_oldest_prompt_gets_on_in_a_stream_of_short_ones() -> None:
    sim = Simulation(
        num_blocks=400,
        max_num_batched_tokens=8,
        scheduling_policy="shortest",
        pipeline_depth=1,
        max_queued_requests=400,
        enable_prefix_caching=False,
    )
    long_prompt = sim.add([9] * 160, 1)
    for i in range(200):
        sim.add([i % 20] * 8, 1)  # as much as a step computes
        sim.step()
        if (long_prompt, 0) in sim.finishes:
            break
    assert (long_prompt, 0) in sim.finishes


def test_the_newest_loses_its_place_and_never_an_older_one() -> None:
    sim = Simulation(num_blocks=9, pipeline_depth=1, enable_prefix_caching=False)
    old, new = sim.add(range(8), 20), sim.add(range(50, 58), 20)
    while not sim.scheduler.stats().preemptions:
        sim.step()
    assert sim.scheduler.stats().running == 1
    assert (old, 0) not in sim.finishes
    run_until(sim, 20, old)
    assert (new, 0) not in sim.finishes
    sim.run()
    assert sim.scheduler.stats().preemptions == 1


@pytest.mark.parametrize("num_blocks", range(8, 14))
def test_an_older_choice_keeps_its_place_even_when_it_has_no_row_in_the_step(num_blocks: int) -> None:
    sim = Simulation(num_blocks=num_blocks, pipeline_depth=1, max_num_batched_tokens=1, enable_prefix_caching=False)
    sim.add(range(8), 20)
    sim.add(range(50, 54), 40)
    sim.run()
    resumed = {admit.token_ids[0] for plan in sim.plans for admit in plan.admits if admit.incarnation}
    assert resumed <= {50}


def test_priority_decides_who_loses_its_place() -> None:
    sim = Simulation(num_blocks=9, pipeline_depth=1, scheduling_policy="priority", enable_prefix_caching=False)
    careless = sim.add(range(8), 20, priority=5)
    sim.step()
    urgent = sim.add(range(50, 58), 20, priority=0)
    run_until(sim, 20, urgent)
    assert sim.scheduler.stats().preemptions == 1 and (careless, 0) not in sim.finishes
    sim.run()


def test_a_preempted_choice_resumes_from_the_prefix_cache_before_others_are_admitted() -> None:
    sim = Simulation(num_blocks=12, pipeline_depth=2)
    old, new = sim.add(range(8), 24), sim.add(range(50, 58), 24)
    while not sim.scheduler.stats().preemptions:
        sim.step()
    late = sim.add([70], 1)
    run_until(sim, 24, new)
    assert sim.finishes[old, 0] == "length"
    resumed = [admit for plan in sim.plans for admit in plan.admits if admit.incarnation == 1]
    assert len(resumed) == 1 and len(resumed[0].token_ids) > 8 and resumed[0].n_prompt_original == 8
    sim.run()
    assert sim.finishes[late, 0] == "length"


def test_blocks_of_a_victim_in_flight_come_back_at_its_fence() -> None:
    sim = Simulation(num_blocks=9, pipeline_depth=2, enable_prefix_caching=False)
    sim.add(range(8), 20)
    sim.add(range(50, 58), 20)
    sim.run()
    assert sim.scheduler.stats().preemptions >= 1


def test_a_prompt_waits_until_it_fits_beside_a_spare_block_per_running_choice() -> None:
    sim = Simulation(num_blocks=8, pipeline_depth=1, enable_prefix_caching=False)
    sim.add(range(4), 16)
    sim.step()
    sim.add(range(24), 1)
    sim.step()
    assert (sim.scheduler.stats().running, sim.scheduler.stats().waiting) == (1, 1), "6 of 7 blocks, but none spare"
    sim.run()
    assert sim.scheduler.stats().preemptions == 0


def test_the_head_of_the_queue_is_not_skipped_for_want_of_blocks() -> None:
    sim = Simulation(num_blocks=8, pipeline_depth=1, enable_prefix_caching=False)
    first = sim.add(range(16), 12)
    sim.step()
    big, small = sim.add(range(50, 70), 1), sim.add([1], 1)
    run_until(sim, 1, small)
    assert (first, 0) in sim.finishes and (big, 0) in sim.finishes
    sim.run()


def test_an_idle_worker_is_told_which_slots_are_free() -> None:
    sim = Simulation()
    sim.add([1], 1)
    sim.run()
    assert sim.plans[-1].n_rows == 0 and sim.plans[-1].frees == [(0, 0)]
    sim.add([1], 1)
    sim.run()
    assert sim.plans[-1].frees == [(0, 1)], "the slot's generation has moved on"


@pytest.mark.parametrize(
    ("sizes", "admitted"),
    [
        ([100] * 20, [8, 8, 4]),
        ([4000, 4000, 4000], [2, 1]),
        ([50_000, 100, 50_000], [1, 1, 1]),
        ([0] * 20, [20]),
    ],
)
def test_O23_few_grammars_are_admitted_in_one_step(sizes: list[int], admitted: list[int]) -> None:
    """The step waits until the worker has built them."""
    sim = Simulation(max_num_batched_tokens=256, max_num_seqs=32, max_slots=32, num_blocks=200, pipeline_depth=1)
    for i, size in enumerate(sizes):
        sim.add([i], 4, grammar="x" * size)
    sim.run()
    assert [len(plan.admits) for plan in sim.plans if plan.admits] == admitted
