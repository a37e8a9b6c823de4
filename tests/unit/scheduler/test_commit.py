"""From results to deltas: endings, faults, late rows, and results that answer nothing."""

from __future__ import annotations

import msgspec
import pytest
from tests.fake_worker import END_ID
from tests.simulation import EPOCH, Simulation

from sixfold.errors import ProtocolError
from sixfold.messages import PROMPT_LOGPROBS, StepResult
from sixfold.scheduler.planner import MAX_SCORED_TOKENS


def stopping_request(sim: Simulation, n_tokens_min: int, **fields: object) -> int:
    """A request whose own draws end it with the stop id after at least `n_tokens_min` tokens, before its length."""
    for seed in range(1000):
        uid = sim.add([1, 2, 3], 60, seed=seed, stops=True, **fields)  # type: ignore[arg-type]
        sim.run()
        if n_tokens_min <= len(sim.outputs[uid, 0]) < 60:
            return uid
    raise AssertionError("no seed draws a stop id")


def test_a_stop_id_ends_the_choice_and_is_its_last_token() -> None:
    sim = Simulation()
    uid = stopping_request(sim, 2)
    assert sim.outputs[uid, 0][-1] == END_ID and END_ID not in sim.outputs[uid, 0][:-1]
    assert sim.finishes[uid, 0] == "stop"


def test_rows_in_flight_behind_a_stop_id_are_dropped_and_counted() -> None:
    sim = Simulation(pipeline_depth=2)
    stopping_request(sim, 2)
    assert sim.scheduler.stats().wasted_rows >= 1


def test_a_stop_id_does_not_end_what_must_be_longer() -> None:
    sim = Simulation()
    uid = stopping_request(sim, 1)
    n_alone = len(sim.outputs[uid, 0])
    longer = sim.add([1, 2, 3], 60, seed=sim.requests[uid].sampling.seed, stops=True, min_tokens=n_alone)
    sim.run()
    assert len(sim.outputs[longer, 0]) > n_alone


def test_at_the_same_token_stop_wins_over_length() -> None:
    sim = Simulation()
    uid = stopping_request(sim, 2)
    request = sim.requests[uid]
    again = sim.add([1, 2, 3], len(sim.outputs[uid, 0]), seed=request.sampling.seed, stops=True)
    sim.run()
    assert sim.finishes[again, 0] == "stop"


def test_o55_unusable_logits_end_one_choice_and_its_blocks_are_not_reused() -> None:
    sim = Simulation()
    bad, good = sim.add(range(12), 8, fault_at=5), sim.add([5, 6], 8)
    sim.run()
    assert sim.finishes == {(bad, 0): "error", (good, 0): "length"}
    again = sim.add(range(12), 8)
    sim.run()
    assert sim.first_deltas[again, 0].n_cached == 0


def test_a_stop_string_ends_a_choice_silently_and_frees_its_blocks() -> None:
    sim = Simulation(pipeline_depth=2)
    uid = sim.add(range(9), 50)
    while len(sim.outputs[uid, 0]) < 3:
        sim.step()
    sim.finish_at(uid, 0, 3)
    sim.finish_at(uid, 0, 3)
    sim.finish_at(uid, 7, 3)
    sim.finish_at(999, 0, 3)
    sim.run()
    assert len(sim.outputs[uid, 0]) == 3 and sim.scheduler.stats().finished == {"stop": 1}


def test_nothing_is_given_back_before_the_fence() -> None:
    sim = Simulation(pipeline_depth=2, enable_prefix_caching=False)
    uid = sim.add(range(9), 50)
    sim.launch()
    sim.launch()
    sim.abort(uid)
    assert sim.kv.n_held == 3
    sim.commit()
    assert sim.kv.n_held == 3
    sim.commit()
    assert sim.kv.n_held == 0
    sim.run()


def test_scoring_a_prompt_computes_it_all_and_draws_nothing() -> None:
    sim = Simulation(max_num_batched_tokens=5)
    warm = sim.add(range(13), 1)
    sim.run()
    uid = sim.add(range(13), 0, n=2, prompt_logprobs=1)
    n_before = sim.scheduler.stats().generated_tokens
    sim.run()
    scored = sim.first_deltas[uid, 0].prompt_logprobs
    assert scored is not None and len(scored) == 12
    assert sim.outputs[uid, 0] == sim.outputs[uid, 1] == []
    assert sim.finishes[uid, 0] == sim.finishes[uid, 1] == "length"
    assert sim.scheduler.stats().generated_tokens == n_before and sim.first_deltas[uid, 0].n_cached == 0
    assert sim.finishes[warm, 0] == "length"


def test_o30_prompt_logprobs_are_complete_with_a_warm_cache_and_after_preemption() -> None:
    sim = Simulation(num_blocks=9, max_num_batched_tokens=3)
    sim.add(range(12), 1)
    sim.run()
    sim.add(range(4), 20)
    scored = sim.add(range(12), 4, prompt_logprobs=0)
    sim.run()
    entries = sim.first_deltas[scored, 0].prompt_logprobs
    assert entries is not None and len(entries) == 11


def test_a_prompt_of_one_token_has_no_scores() -> None:
    sim = Simulation()
    uid = sim.add([4], 1, prompt_logprobs=2)
    sim.run()
    assert sim.first_deltas[uid, 0].prompt_logprobs == []


def test_what_most_tokens_do_not_have_is_not_sent() -> None:
    sim = Simulation()
    uid = sim.add([4], 3)
    sim.launch()
    sim.commit()
    sim.launch()
    [delta] = sim.scheduler.commit(sim.worker.collect(), 0.0)
    sent = set(msgspec.msgpack.decode(msgspec.msgpack.encode(delta)))
    assert sent <= {"uid", "choice", "attempt", "first_index", "token_ids"}
    sim.outputs[uid, 0] += delta.token_ids
    sim.run()


def test_logprobs_come_with_their_token() -> None:
    sim = Simulation()
    uid = sim.add([4], 2, logprobs=1)
    sim.launch()
    delta = sim.scheduler.commit(sim.worker.collect(), 0.0)[0]
    assert delta.logprobs is not None and len(delta.logprobs) == len(delta.token_ids) == 1
    sim.outputs[uid, 0] += delta.token_ids
    sim.run()


def broken(result: StepResult, **changes: object) -> StepResult:
    return msgspec.structs.replace(result, **changes)


@pytest.mark.parametrize(
    "changes",
    [
        {"engine_epoch": EPOCH + 1},
        {"step_id": 5},
        {"slots": [3]},
        {"generations": [1]},
        {"incarnations": [1]},
        {"slots": [], "generations": [], "incarnations": [], "token_ids": [], "status": []},
        {"token_ids": []},
        {"token_ids": [-1]},
        {"status": [0, 0]},
    ],
    ids=str,
)
def test_a_result_that_does_not_answer_the_step_breaks_the_protocol(changes: dict[str, object]) -> None:
    sim = Simulation()
    sim.add([1, 2], 2)
    sim.launch()
    with pytest.raises(ProtocolError):
        sim.scheduler.commit(broken(sim.worker.collect(), **changes), 0.0)


def test_a_result_without_an_outstanding_step_breaks_the_protocol() -> None:
    sim = Simulation()
    sim.add([1, 2], 2)
    sim.launch()
    result = sim.worker.collect()
    sim.scheduler.commit(result, 0.0)
    with pytest.raises(ProtocolError):
        sim.scheduler.commit(result, 0.0)


def test_missing_prompt_scores_break_the_protocol() -> None:
    sim = Simulation()
    sim.add([1, 2, 3], 2, prompt_logprobs=0)
    sim.launch()
    with pytest.raises(ProtocolError):
        sim.scheduler.commit(broken(sim.worker.collect(), prompt_logprobs={}), 0.0)


def test_o50_counters_add_up_to_what_was_delivered() -> None:
    sim = Simulation(num_blocks=12, pipeline_depth=2)
    for i in range(6):
        sim.add(range(8), 12, seed=i, stops=True)
    sim.run()
    stats = sim.scheduler.stats()
    assert stats.generated_tokens == sum(len(output) for output in sim.outputs.values())
    assert stats.prompt_tokens == 48
    assert stats.cached_tokens == sum(delta.n_cached for delta in sim.first_deltas.values())


def test_a_step_scores_a_bounded_number_of_prompt_tokens() -> None:
    """The worker holds a row of logits for each. Other prompts take what the budget has left."""
    sim = Simulation(num_blocks=900, max_num_batched_tokens=1024)
    scored = [sim.add(range(start, start + 700), 2, prompt_logprobs=1) for start in (0, 1000)]
    plain = sim.add(range(2000, 2700), 2)
    sim.run()
    per_step = [
        (sum(n for n, flags in zip(step.counts, step.flags, strict=True) if flags & PROMPT_LOGPROBS), step.n_tokens)
        for step in sim.plans
    ]
    assert max(n for n, _ in per_step) == MAX_SCORED_TOKENS
    assert any(n_tokens > MAX_SCORED_TOKENS for _, n_tokens in per_step)
    for uid in (*scored, plain):
        entries = sim.first_deltas[uid, 0].prompt_logprobs
        assert (entries is not None and len(entries) == 699) is (uid != plain)
