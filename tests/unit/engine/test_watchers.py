"""How often the engine is looked at: not more often than asked for, and never for much of its time."""

from __future__ import annotations

import pytest

from sixfold.engine.watchers import COST_FACTOR, IDLE_PERIOD_NS, MIN_PERIOD_MS, Watchers
from sixfold.messages import EngineStats, EngineView, Watch

MS = 1_000_000


class Engine:
    """A clock, and views that take `cost_ns` each."""

    def __init__(self, cost_ns: int = 0) -> None:
        self.now = 1000 * MS
        self.cost_ns = cost_ns
        self.n_views = 0
        self.watchers = Watchers(self.view, lambda: self.now)

    def view(self, now_ns: int) -> EngineView:
        self.now += self.cost_ns
        self.n_views += 1
        return EngineView(
            engine_epoch=1, step_id=0, time_ns=now_ns, outstanding=0, stats=EngineStats(), choices=[],
            blocks_per_cell=1, cells=b"",
        )  # fmt: skip

    def run(self, ms: int, *, busy: bool = True) -> int:
        """Turns of a millisecond each; the views that were made."""
        before, end = self.n_views, self.now + ms * MS
        turn = 0
        while self.now < end:
            turn += 1
            self.watchers.take(turn if busy else "idle")
            self.now += MS
        return self.n_views - before


def test_nobody_watches_and_nothing_is_asked() -> None:
    engine = Engine()
    assert not engine.watchers and engine.watchers.wait_s(0.25, 1) == 0.25


@pytest.mark.parametrize(("asked", "period"), [(1, MIN_PERIOD_MS), (16, 16), (100, 100)])
def test_views_keep_the_distance_that_was_asked_for(asked: int, period: int) -> None:
    engine = Engine()
    engine.watchers.set(1, Watch(asked))
    assert abs(engine.run(1000) - 1000 // period) <= 1


def test_the_most_eager_of_several_sets_the_pace_and_the_last_one_ends_it() -> None:
    engine = Engine()
    engine.watchers.set(1, Watch(100))
    engine.watchers.set(2, Watch(20))
    assert engine.run(1000) == 50
    engine.watchers.set(2, Watch(0))
    assert engine.run(1000) <= 11 and 1 in engine.watchers
    engine.watchers.drop(1)
    assert not engine.watchers
    engine.watchers.drop(1)


def test_costly_views_come_less_often() -> None:
    engine = Engine(cost_ns=10 * MS)
    engine.watchers.set(1, Watch(16))
    n_views = engine.run(4000)
    assert 1 <= n_views * 10 <= 4000 / COST_FACTOR + 10, "one part in COST_FACTOR of the time"


def test_while_nothing_happens_a_view_comes_now_and_then() -> None:
    engine = Engine()
    engine.watchers.set(1, Watch(16))
    assert engine.run(1000, busy=False) == 1000 * MS // IDLE_PERIOD_NS


def test_what_happened_last_is_seen_soon() -> None:
    engine = Engine()
    engine.watchers.set(1, Watch(50))
    assert engine.watchers.take("a") is not None
    engine.now += 10 * MS
    assert engine.watchers.take("b") is None
    assert engine.watchers.wait_s(0.25, "b") == pytest.approx(0.04), "the loop wakes up for it"
    assert engine.watchers.wait_s(0.25, "a") == 0.25
    engine.now += 40 * MS
    assert engine.watchers.take("b") is not None


def test_who_comes_later_gets_a_view_at_once() -> None:
    engine = Engine()
    engine.watchers.set(1, Watch(16))
    engine.run(100, busy=False)
    engine.now += 20 * MS
    engine.watchers.set(2, Watch(16))
    assert engine.watchers.take("idle") is not None
