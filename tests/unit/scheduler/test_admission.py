"""What is refused, and with which words; identity of requests; deadlines."""

from __future__ import annotations

import msgspec
import pytest
from tests.simulation import Simulation

from sixfold.errors import ContextLengthExceeded, DeadlineExceeded, InvalidRequest, Overloaded
from sixfold.scheduler.admission import FinishPace


def test_o39_a_prompt_larger_than_the_pool_is_refused_with_the_true_capacity() -> None:
    sim = Simulation(num_blocks=4, block_size=4)
    with pytest.raises(ContextLengthExceeded, match=r"17 tokens.*holds 16 \(4 blocks of 4\)") as caught:
        sim.add(range(17), 1)
    assert caught.value.code == "context_length_exceeded"
    sim.add(range(5), 3)
    sim.run()


def test_o39_max_tokens_beyond_the_pool_end_with_length_when_it_is_full() -> None:
    sim = Simulation(num_blocks=4, block_size=4)
    uid = sim.add(range(10), 100)
    sim.run()
    assert len(sim.outputs[uid, 0]) == 7, "positions 10..15 are computed from, and one more token is drawn"
    assert sim.finishes[uid, 0] == "length" and sim.scheduler.stats().preemptions == 0


def test_a_prompt_that_fills_the_pool_draws_one_token() -> None:
    sim = Simulation(num_blocks=4, block_size=4)
    uid = sim.add(range(16), 5)
    sim.run()
    assert len(sim.outputs[uid, 0]) == 1


def test_prompt_and_max_tokens_beyond_the_context_are_refused_naming_both() -> None:
    sim = Simulation(max_model_len=20)
    with pytest.raises(ContextLengthExceeded, match=r"15 tokens and max_tokens is 6.*20 tokens"):
        sim.add(range(15), 6)
    sim.add(range(15), 5)
    sim.run()


@pytest.mark.parametrize("prompt", [[], [-1], [2**31]])
def test_o17_impossible_prompts_are_refused(prompt: list[int]) -> None:
    sim = Simulation()
    with pytest.raises(InvalidRequest) as caught:
        sim.add(prompt)
    assert caught.value.param == "prompt"
    assert not sim.scheduler.has_work


def test_o41_the_queue_is_bounded_and_every_choice_counts() -> None:
    sim = Simulation(max_num_seqs=2, max_queued_requests=4)
    sim.add([1], n=3)
    with pytest.raises(Overloaded):
        sim.add([2], n=4)
    sim.add([2], n=3)
    for n in (1, 4):
        with pytest.raises(Overloaded) as caught:
            sim.add([3], n=n)
        assert caught.value.retry_after_s is not None and 1 <= caught.value.retry_after_s <= 30
    assert sim.scheduler.n_open == 6
    sim.run()
    sim.add([4], n=6)
    sim.run()


def test_more_choices_than_places_can_never_be_taken() -> None:
    sim = Simulation(max_num_seqs=2, max_queued_requests=4)
    with pytest.raises(InvalidRequest) as caught:
        sim.add([1], n=7)
    assert caught.value.param == "n"


def test_queued_prompt_tokens_are_bounded() -> None:
    sim = Simulation(max_queued_tokens=10)
    sim.add(range(30))
    with pytest.raises(Overloaded, match="10 prompt tokens"):
        sim.add([1])
    sim.step()
    sim.add(range(10))
    sim.run()


def test_a_replay_is_not_refused_for_overload() -> None:
    sim = Simulation(max_num_seqs=1, max_queued_requests=1)
    sim.add([1])
    sim.add([2])
    request = msgspec.structs.replace(sim.requests[2], uid=9, attempt=1)
    sim.submit_request(request)
    sim.run()


def test_the_wait_that_a_refused_caller_is_told_follows_the_pace() -> None:
    pace = FinishPace()
    for now_s in range(0, 400, 4):
        pace.record(float(now_s), 1, is_busy=True)
    assert pace.retry_after_s(1) == pytest.approx(4, rel=0.01)
    assert pace.retry_after_s(3) == pytest.approx(12, rel=0.01)
    assert pace.retry_after_s(1000) == 30
    pace.record(1000.0, 1, is_busy=False)
    pace.record(9000.0, 1, is_busy=True)
    assert pace.retry_after_s(1) < 70, "an idle night is not a slow pace"


def test_o33_the_same_request_twice_is_one_request() -> None:
    sim = Simulation()
    uid = sim.add([1, 2, 3])
    sim.scheduler.add(sim.requests[uid], 0.0)
    assert sim.scheduler.n_open == 1
    sim.run()
    sim.scheduler.add(sim.requests[uid], 0.0)
    assert not sim.scheduler.has_work, "nor after its end"


def test_a_newer_attempt_takes_the_older_ones_place() -> None:
    sim = Simulation()
    uid = sim.add([1, 2, 3], 6)
    sim.step()
    sim.step()
    old = sim.requests[uid]
    delivered = (tuple(sim.outputs[uid, 0]),)
    sim.submit_request(msgspec.structs.replace(old, attempt=1, delivered=delivered))
    sim.scheduler.add(old, 0.0)
    assert sim.scheduler.n_open == 1
    sim.run()


def test_a_request_that_was_aborted_before_it_came_is_refused() -> None:
    sim = Simulation()
    uid = sim.add([1])
    late = msgspec.structs.replace(sim.requests[uid], uid=50)
    sim.abort(50)
    with pytest.raises(InvalidRequest) as caught:
        sim.submit_request(late)
    assert caught.value.code == "aborted"
    sim.run()


def test_aborting_is_idempotent_at_every_age() -> None:
    sim = Simulation(max_slots=1, max_num_seqs=1)
    running, waiting = sim.add(range(5)), sim.add(range(5))
    sim.step()
    for _ in range(2):
        sim.abort(running)
        sim.abort(waiting)
    sim.run()
    sim.abort(running)
    assert set(sim.finishes.values()) == {"abort"}
    assert sim.scheduler.stats().finished == {"abort": 2}


def test_o51_aborted_choices_leave_the_gauges_at_once() -> None:
    sim = Simulation()
    uids = [sim.add([i, i], n=2) for i in range(3)]
    sim.step()
    for uid in uids:
        sim.abort(uid)
    stats = sim.scheduler.stats()
    assert (stats.running, stats.waiting, stats.finished["abort"]) == (0, 0, 6)
    sim.run()


def test_deadlines_end_what_waits_and_what_runs() -> None:
    sim = Simulation(max_num_seqs=1)
    running = sim.add([1], 50, deadline_s=3.0)
    waiting = sim.add([2], 50, deadline_s=2.0)
    patient = sim.add([3], 5, deadline_s=500.0)
    sim.step()
    sim.sleep(2.0)
    assert sim.finishes == {(waiting, 0): "timeout"}
    sim.step()
    sim.sleep(1.0)
    assert sim.finishes[running, 0] == "timeout"
    sim.run()
    assert sim.finishes[patient, 0] == "length"


def test_a_deadline_in_the_past_is_refused() -> None:
    sim = Simulation()
    sim.sleep(5)
    with pytest.raises(DeadlineExceeded):
        sim.add([1], deadline_s=5.0)
    assert not sim.scheduler.has_work
