"""Refused callers: few come at a time, however many there are, and nobody waits for nothing."""

from __future__ import annotations

import heapq

import pytest

from sixfold.api.admission.returning import MAX_RETURNING, WAIT_S_MAX, Returning


class Clock:
    now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


def test_who_is_alone_comes_when_a_place_is_free() -> None:
    clock = Clock()
    returning = Returning(1, clock)
    assert [returning.wait_s(place_s) for place_s in (0.0, 0.01, 2.5, 100.0)] == [1.0, 1.0, 2.5, WAIT_S_MAX]


@pytest.mark.parametrize(("n_callers", "place_s"), [(20, 0.5), (120, 0.07), (1000, 0.01)])
def test_twice_as_many_come_as_there_are_places(n_callers: int, place_s: float) -> None:
    """All are refused whenever they come."""
    clock = Clock()
    returning = Returning(1, clock)
    due_s = [clock.now_s + i / n_callers for i in range(n_callers)]
    heapq.heapify(due_s)
    n_came = 0
    while clock.now_s < 1200:
        clock.now_s = heapq.heappop(due_s)
        heapq.heappush(due_s, clock.now_s + returning.wait_s(place_s))
        n_came += clock.now_s >= 1100
    assert n_came / 100 * place_s == pytest.approx(2, rel=0.15)


def test_the_crowd_is_forgotten_when_it_does_not_come_again() -> None:
    clock = Clock()
    returning = Returning(2, clock)
    waits_s = [returning.wait_s(0.1) for _ in range(2 * MAX_RETURNING)]
    assert waits_s[0] == 1.0 and waits_s[-1] == WAIT_S_MAX and len(returning._due_s) == MAX_RETURNING
    clock.now_s += WAIT_S_MAX
    assert returning.wait_s(0.1) == 1.0
