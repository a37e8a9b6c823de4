"""When a process that died is started again, after which pause, and when no more."""

from __future__ import annotations

import signal

import pytest

from sixfold.engine.restarts import MAX_FRUITLESS, PAUSES_S, QUIET_S, Restarts, is_own_fault


@pytest.mark.parametrize(
    ("status", "own"),
    [
        (0, True),
        (1, True),
        (5, True),
        (-signal.SIGSEGV, True),
        (-signal.SIGABRT, True),
        (-signal.SIGBUS, True),
        (-signal.SIGFPE, True),
        (-signal.SIGKILL, False),
        (-signal.SIGTERM, False),
        (-signal.SIGINT, False),
        (-signal.SIGHUP, False),
        (-signal.SIGQUIT, False),
        (-signal.SIGUSR1, False),
        (-signal.SIGUSR2, False),
        (-signal.SIGALRM, False),
    ],
)
def test_whose_fault_an_end_was(status: int, own: bool) -> None:
    assert is_own_fault(status) is own


def test_a_first_crash_costs_no_pause_and_those_without_work_wait_longer() -> None:
    restarts = Restarts(0.0)
    pauses = [restarts.crashed(1.0, 7) for _ in range(MAX_FRUITLESS)]
    assert pauses == list(PAUSES_S) and pauses[0] == 0.0
    assert restarts.total == MAX_FRUITLESS


def test_after_as_many_fruitless_crashes_it_gives_up_and_counts_no_start() -> None:
    restarts = Restarts(0.0)
    for _ in range(MAX_FRUITLESS):
        assert restarts.crashed(1.0, 0) is not None
    assert restarts.crashed(1.0, 0) is None
    assert restarts.total == MAX_FRUITLESS


def test_work_between_two_crashes_begins_anew() -> None:
    restarts = Restarts(0.0)
    for n in range(1, 50):
        assert restarts.crashed(1.0, n) == 0.0
    assert restarts.crashed(1.0, 49) == PAUSES_S[1]


def test_work_before_the_first_crash_counts() -> None:
    assert Restarts(0.0).crashed(1.0, 3) == 0.0


def test_a_process_that_lived_long_begins_anew_without_any_work() -> None:
    restarts = Restarts(0.0)
    now_s = 0.0
    for _ in range(3 * MAX_FRUITLESS):
        now_s += QUIET_S + 0.1
        assert restarts.crashed(now_s, 0) == 0.0


def test_a_life_is_counted_from_the_start_after_the_pause() -> None:
    """The pause before a start is not part of a life."""
    restarts = Restarts(0.0)
    for _ in range(MAX_FRUITLESS):
        pause_s = restarts.crashed(100.0, 0)
    assert pause_s == PAUSES_S[-1]
    assert restarts.crashed(100.0 + PAUSES_S[-1] + QUIET_S, 0) is None, "it did not live longer than the limit"
    restarts = Restarts(0.0)
    for _ in range(MAX_FRUITLESS):
        restarts.crashed(100.0, 0)
    assert restarts.crashed(100.1 + PAUSES_S[-1] + QUIET_S, 0) == 0.0
