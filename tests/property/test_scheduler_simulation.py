"""Seeded runs of a loaded engine: small pools, many requests, everything that can happen to one; P2, P3, P4 at the end.

A failing seed is printed by its parameter's name; `run_seed(n)` repeats it.
"""

from __future__ import annotations

from random import Random

import pytest
from tests.fake_worker import VOCAB
from tests.simulation import NO_FAULT, Simulation

from sixfold.messages import EngineStats

SEEDS_PER_TEST = 40


def build(random: Random) -> Simulation:
    block_size = random.choice([2, 4, 16])
    num_blocks = random.randint(3, 30)
    return Simulation(
        num_blocks=num_blocks,
        block_size=block_size,
        max_slots=random.randint(1, 8),
        pipeline_depth=random.choice([1, 2]),
        max_model_len=num_blocks * block_size + 20,
        enable_prefix_caching=random.random() < 0.8,
        collides=random.random() < 0.3,
        max_num_seqs=random.randint(1, 8),
        max_num_batched_tokens=random.choice([1, 2, 3, 4, 7, 16, 64]),
        max_queued_requests=1000,
        scheduling_policy=random.choice(["fcfs", "priority", "shortest", "fair"]),
    )


def arrive(sim: Simulation, random: Random, stems: list[list[int]]) -> None:
    longest = min(sim.kv.capacity_tokens, 60)
    prompt = random.choice(stems) + [random.randrange(VOCAB) for _ in range(random.randint(1, 10))]
    prompt = prompt[: random.randint(1, longest)]
    pooling = random.choice([""] * 6 + ["mean", "last"])
    longest_answer = 0 if pooling else min(30, sim.kv.capacity_tokens + 20 - len(prompt))
    sim.add(
        prompt,
        random.randint(0, longest_answer),
        n=1 if pooling else random.choice([1, 1, 1, 2, 4]),
        pooling=pooling,
        seed=random.randrange(3),
        salt=random.choice([0, 0, 1]),
        stops=random.random() < 0.5,
        min_tokens=random.choice([0, 0, 3]),
        fault_at=random.choice([NO_FAULT] * 9 + [2]),
        logprobs=random.choice([None, 2]),
        prompt_logprobs=random.choice([None, None, 1]),
        priority=random.randrange(3),
        tenant=str(random.randrange(3)),
        deadline_s=random.choice([None, None, None, sim.now_s + random.randint(1, 80)]),
    )


def disturb(sim: Simulation, random: Random) -> None:
    kind = random.random()
    open_keys = [key for key, output in sim.outputs.items() if key not in sim.finishes and output]
    if kind < 0.03 and sim.requests:
        sim.abort(random.choice(list(sim.requests)))
    elif kind < 0.06 and open_keys:
        key = random.choice(open_keys)
        sim.finish_at(*key, n_tokens=len(sim.outputs[key]))
    elif kind < 0.08:
        sim.kv.reset_prefix_cache()


def run_seed(seed: int) -> EngineStats:
    random = Random(seed)
    sim = build(random)
    stems = [[random.randrange(VOCAB) for _ in range(random.randint(1, 40))] for _ in range(3)]
    n_to_come = random.randint(1, 25)
    while n_to_come or sim.scheduler.has_work:
        if n_to_come and random.random() < 0.4:
            n_to_come -= 1
            arrive(sim, random, stems)
        disturb(sim, random)
        sim.sleep(1)
        while random.random() < 0.8 and sim.launch() is not None:
            pass
        if sim.scheduler.n_outstanding:
            sim.commit()
        sim.scheduler.check()
    sim.check_finished()
    return sim.scheduler.stats()


@pytest.mark.parametrize("first_seed", range(0, 5 * SEEDS_PER_TEST, SEEDS_PER_TEST))
def test_every_promise_holds_and_none_vacuously(first_seed: int) -> None:
    runs = [run_seed(seed) for seed in range(first_seed, first_seed + SEEDS_PER_TEST)]
    for counter in ("preemptions", "cached_tokens", "wasted_rows", "mixed_steps"):
        assert sum(getattr(stats, counter) for stats in runs) > 20, counter
    finished = {reason for stats in runs for reason in stats.finished}
    assert finished == {"stop", "length", "abort", "timeout", "error"}
