"""Whether a call may come in: the order of the questions, and what it gives back."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from sixfold.api.admission import admission as module
from sixfold.api.admission.admission import Admission, Permit
from sixfold.api.admission.allowance import Allowance
from sixfold.errors import EngineDead, InvalidRequest, NotReady, Overloaded, SixfoldError


class Bench:
    """An engine that takes everything, until a test changes it."""

    def __init__(self) -> None:
        self.stats = SimpleNamespace(queued_tokens=0, queue_wait_s=0.0, run_s=0.0, place_s=0.0)
        self.client: Any = SimpleNamespace(
            dead=None,
            ready=True,
            restarting=False,
            max_outstanding=4,
            n_open_elsewhere=0,
            max_queued_tokens=100,
            max_queue_wait_s=5.0,
            stats=self.stats,
        )
        self.admission = Admission(self.client)
        limits = SimpleNamespace(
            requests_per_minute=None, tokens_per_minute=1000, tokens_per_day=None, max_concurrent=1
        )
        self.allowance = Allowance.of(limits)

    def refusal(self, *, generates: bool = True) -> SixfoldError:
        with pytest.raises(SixfoldError) as caught, self.preparing(generates=generates):
            pass
        return caught.value

    def preparing(self, *, generates: bool = True) -> Any:
        return Permit(self.admission).preparing(self.allowance, generates=generates)


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Iterator[Bench]:
    monkeypatch.setattr(module, "MAX_PREPARING", 2)
    yield Bench()


def test_the_first_question_that_says_no_is_the_answer(bench: Bench) -> None:
    """Each fault is mended in turn: the next one is found."""
    bench.allowance.begin()  # type: ignore[union-attr]
    bench.admission.n_preparing = 2
    bench.stats.queue_wait_s = 6.0
    bench.stats.queued_tokens = 101
    bench.admission.in_flight = 4
    bench.admission.draining = True
    bench.client.dead = "it broke"
    assert isinstance(bench.refusal(), EngineDead)
    bench.client.dead = None
    assert bench.refusal().code == "draining"
    bench.admission.draining = False
    bench.client.ready = False
    assert isinstance(bench.refusal(), NotReady)
    bench.client.restarting = True  # it will be back soon, and is waited for
    assert "choices are in flight" in bench.refusal().message
    bench.admission.in_flight = 0
    assert "prompt tokens wait" in bench.refusal().message
    bench.stats.queued_tokens = 0
    assert bench.refusal().code == "queue_too_slow"
    bench.stats.queue_wait_s = 0.0
    assert "being prepared" in bench.refusal().message
    bench.admission.n_preparing = 0
    assert bench.refusal().code == "max_concurrent_exceeded"
    bench.allowance.end()  # type: ignore[union-attr]
    with bench.preparing():
        assert bench.admission.n_preparing == 1


def test_a_call_that_generates_nothing_does_not_ask_the_queue(bench: Bench) -> None:
    bench.admission.in_flight = 4
    bench.stats.queue_wait_s = 6.0
    with bench.preparing(generates=False):
        assert bench.admission.n_preparing == 1


def test_a_refused_call_leaves_nothing(bench: Bench) -> None:
    permit = Permit(bench.admission)
    with pytest.raises(Overloaded), permit.preparing(bench.allowance, generates=True):
        permit.reserve(3, 40, None)
        assert bench.admission.in_flight == 3
        bench.client.n_open_elsewhere = 2  # another process was faster
        permit.take(3)
    assert bench.admission.in_flight == 0
    permit.close()
    assert bench.admission.n_preparing == 0
    assert bench.allowance.n_running == 0  # type: ignore[union-attr]
    bench.allowance.check_tokens(1000)  # type: ignore[union-attr]


def test_places_are_taken_once_and_left_once(bench: Bench) -> None:
    permit = Permit(bench.admission)
    permit.reserve(3, 40, None)
    with pytest.raises(InvalidRequest):
        permit.reserve(5, 40, None)
    places = permit.take(3, 7)
    assert (bench.admission.in_flight, bench.admission.scored, bench.admission.n_free) == (3, 7, 1)
    permit.close()
    assert bench.admission.in_flight == 3, "the engine has them"
    places.leave()
    places.leave()
    assert (bench.admission.in_flight, bench.admission.scored) == (0, 0)


def test_tokens_that_were_reserved_are_not_counted_again(bench: Bench) -> None:
    permit = Permit(bench.admission)
    with permit.preparing(bench.allowance, generates=True):
        permit.reserve(1, 4 * 600, None)
        permit.use_tokens(500)
        with pytest.raises(Overloaded):
            bench.allowance.check_tokens(600)  # type: ignore[union-attr]
    permit.use_tokens(200)  # of the answer: the last 100 of the 600 first
    permit.close()
    bench.allowance.check_tokens(300)  # type: ignore[union-attr]
    with pytest.raises(Overloaded):
        bench.allowance.check_tokens(500)  # type: ignore[union-attr]
