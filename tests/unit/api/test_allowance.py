"""Limits of API keys, with a clock of the test's own."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sixfold.api.admission.allowance import Allowance, Bucket
from sixfold.api.admission.tallies import Tallies, Tally
from sixfold.errors import Overloaded


@dataclass
class Limits:
    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    tokens_per_day: int | None = None
    max_concurrent: int | None = None


class Clock:
    now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


def made(clock: Clock, tally: Tally | None = None, **limits: int) -> Allowance:
    allowance = Allowance.of(Limits(**limits), tally, clock)
    assert allowance is not None
    return allowance


def refused(allowance: Allowance, n_tokens: int | None = None) -> tuple[str | None, float]:
    with pytest.raises(Overloaded) as caught:
        if n_tokens is None:
            allowance.begin()
        else:
            allowance.check_tokens(n_tokens)
    assert caught.value.retry_after_s is not None
    return caught.value.code, caught.value.retry_after_s


def test_no_limit_costs_nothing() -> None:
    assert Allowance.of(Limits()) is None


def test_requests_come_back_steadily() -> None:
    clock = Clock()
    allowance = made(clock, requests_per_minute=3)
    for _ in range(3):
        allowance.begin()
        allowance.end()
    code, wait_s = refused(allowance)
    assert code == "requests_per_minute_exceeded" and wait_s == pytest.approx(20)
    clock.now_s += 20
    allowance.begin()
    assert refused(allowance)[1] == pytest.approx(20)


def test_a_refused_call_is_not_charged() -> None:
    clock = Clock()
    allowance = made(clock, requests_per_minute=1, max_concurrent=5)
    allowance.begin()
    for _ in range(10):
        refused(allowance)
    assert allowance.n_running == 1
    clock.now_s += 60
    allowance.begin()


def test_concurrency() -> None:
    allowance = made(Clock(), max_concurrent=2)
    allowance.begin()
    allowance.begin()
    assert refused(allowance) == ("max_concurrent_exceeded", 1.0)
    allowance.end()
    allowance.begin()


def test_tokens_go_into_debt_and_it_is_paid_by_waiting() -> None:
    clock = Clock()
    allowance = made(clock, tokens_per_minute=60)
    allowance.check_tokens(60)
    allowance.take_tokens(60)
    allowance.take_tokens(30)  # an answer longer than was left
    assert refused(allowance, 1) == ("tokens_per_minute_exceeded", pytest.approx(31))
    clock.now_s += 31
    allowance.check_tokens(1)


def test_what_was_not_used_comes_back() -> None:
    allowance = made(Clock(), tokens_per_minute=60)
    allowance.take_tokens(60)
    allowance.take_tokens(-50)
    allowance.check_tokens(50)
    refused(allowance, 51)


def test_a_request_larger_than_the_bucket_goes_when_it_is_full() -> None:
    clock = Clock()
    allowance = made(clock, tokens_per_minute=60)
    allowance.check_tokens(1000)
    allowance.take_tokens(1000)
    clock.now_s += 900
    refused(allowance, 1000)
    clock.now_s += 101
    allowance.check_tokens(1000)


def test_a_day_begins_with_its_first_token() -> None:
    clock = Clock()
    allowance = made(clock, tokens_per_day=100)
    allowance.take_tokens(100)
    clock.now_s += 86399
    assert refused(allowance, 1) == ("tokens_per_day_exceeded", pytest.approx(1))
    clock.now_s += 1
    allowance.check_tokens(100)


def test_several_processes_share_a_limit(tmp_path: Path) -> None:
    """However calls are spread among them. Whoever is started again finds what was used, but no calls of its own."""
    clock = Clock()
    limits = {"requests_per_minute": 6, "tokens_per_minute": 100, "tokens_per_day": 150, "max_concurrent": 4}

    def process(own: int) -> Allowance:
        return made(clock, Tallies.open(str(tmp_path), ["a", "b"], n_processes=3, own=own)[1], **limits)

    processes = [process(own) for own in range(3)]
    for i in (0, 0, 1, 2):
        processes[i].begin()
    assert {refused(one)[0] for one in processes} == {"max_concurrent_exceeded"}
    processes[0] = process(0)
    assert processes[1]._tally.n_running_everywhere == 2
    processes[2].begin()
    processes[2].end()
    processes[0].begin()
    processes[0].end()
    assert [refused(one) for one in processes] == [("requests_per_minute_exceeded", pytest.approx(10))] * 3
    clock.now_s += 10
    processes[0].take_tokens(60)
    processes[1].take_tokens(40)
    assert {refused(one, 1)[0] for one in processes} == {"tokens_per_minute_exceeded"}
    clock.now_s += 60
    processes[2].take_tokens(50)
    assert {refused(one, 1)[0] for one in processes} == {"tokens_per_day_exceeded"}
    other = made(clock, Tallies.open(str(tmp_path), ["a", "b"], n_processes=3, own=0)[0], **limits)
    other.begin()


@given(st.lists(st.tuples(st.floats(0, 30), st.integers(1, 40)), max_size=80))
def test_a_bucket_never_lets_more_through_than_its_rate(steps: list[tuple[float, int]]) -> None:
    bucket, now_s, taken = Bucket(60, 60.0, [0.0, 0.0]), 0.0, 0.0
    for pause_s, cost in steps:
        now_s += pause_s
        wait_s = bucket.wait_s(cost, now_s)
        if wait_s == 0:
            bucket.take(cost, now_s)
            taken += cost
        else:
            assert bucket.wait_s(cost, now_s + wait_s + 1e-6) == 0
            bucket.take(0, now_s)
        assert taken <= 60 + now_s + 1e-6


@given(st.floats(-100, 100))
def test_a_clock_that_goes_back_gives_nothing_away(shift_s: float) -> None:
    bucket = Bucket(60, 60.0, [0.0, 0.0])
    bucket.take(60, 100.0)
    assert bucket.wait_s(1, min(100.0, 100.0 + shift_s)) > 0
