"""Which process hangs, told from counters and from outside, on a clock of the test's own."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator

import pytest

from sixfold.engine.progress import Count, Progress
from sixfold.engine.unread import has_unread
from sixfold.engine.watchdog import AwakeClock, Sight, Watchdog, see

TIMEOUT_S = 10.0
LOOK_S = 0.25
PIDS = {"worker 0": 1, "engine": 2, "api 0": 3}
STILL, STOPPED = Sight(False, 0), Sight(True, 0)


class Bench:
    """A watchdog over a server that is ready and idle; all its processes stand still unless told otherwise."""

    def __init__(self) -> None:
        self.progress = Progress.private()
        self.counts = self.progress.counts
        self.sights = dict.fromkeys(PIDS.values(), STILL)
        self.turning = {Count.ENGINE_TURNS, Count.API_TURNS}
        self.computing: set[str] = set()
        self.unread = False
        self.now_s = 0.0
        self.dog = Watchdog(
            self.progress, TIMEOUT_S, has_unread=lambda pid: self.unread, see=lambda pid: self.sights[pid]
        )
        for role, pid in PIDS.items():
            self.dog.started(role, pid)
        self.dog.is_ready("api 0")
        for count in (Count.WORKER_LOADED, Count.ENGINE_TURNS, Count.WORKER_SERVES, Count.API_TURNS):
            self.counts[count] = 1

    def found(self, within_s: float) -> str | None:
        """Look until something hangs."""
        end_s = self.now_s + within_s
        while self.now_s < end_s:
            self.now_s += LOOK_S
            for count in self.turning:
                self.counts[count] += 1
            for role in self.computing:
                is_stopped, activity = self.sights[PIDS[role]]
                self.sights[PIDS[role]] = Sight(is_stopped, activity + 1)
            role = self.dog.hanging(self.now_s)
            if role is not None:
                return role
        return None

    def stop(self, role: str) -> None:
        self.sights[PIDS[role]] = STOPPED
        self.turning.discard({"engine": Count.ENGINE_TURNS, "api 0": Count.API_TURNS}.get(role, Count.WORKER_TURNS))


@pytest.fixture
def bench() -> Bench:
    return Bench()


def test_nobody_waits_and_nobody_hangs(bench: Bench) -> None:
    bench.turning.clear()
    for role in PIDS:
        bench.stop(role)
    assert bench.found(10 * TIMEOUT_S) is None


@pytest.mark.parametrize("role", ["engine", "api 0"])
def test_a_loop_that_does_not_turn_while_a_request_is_open(role: str, bench: Bench) -> None:
    bench.counts[Count.API_OPEN] = 1
    bench.turning -= {Count.ENGINE_TURNS if role == "engine" else Count.API_TURNS}
    assert bench.found(0.9 * TIMEOUT_S) is None
    assert bench.found(0.3 * TIMEOUT_S) == role
    assert not bench.dog.is_stopped


def test_waiting_begins_with_the_request(bench: Bench) -> None:
    bench.turning.clear()
    assert bench.found(5 * TIMEOUT_S) is None
    bench.counts[Count.API_OPEN] = 1
    assert bench.found(0.9 * TIMEOUT_S) is None
    assert bench.found(0.3 * TIMEOUT_S) is not None


@pytest.mark.parametrize("role", list(PIDS))
def test_a_stopped_process_is_found_sooner(role: str, bench: Bench) -> None:
    bench.counts[Count.API_OPEN] = bench.counts[Count.ENGINE_BUSY] = 1
    bench.counts[Count.ENGINE_OUTSTANDING] = 2
    bench.turning |= {Count.WORKER_TURNS}
    assert bench.found(TIMEOUT_S) is None
    bench.stop(role)
    assert bench.found(0.7 * TIMEOUT_S) == role
    assert bench.dog.is_stopped


def test_a_process_that_was_stopped_for_a_moment_is_left_alone(bench: Bench) -> None:
    bench.counts[Count.API_OPEN] = 1
    bench.turning -= {Count.ENGINE_TURNS}
    for _ in range(4):
        bench.sights[PIDS["engine"]] = STOPPED
        assert bench.found(2.0) is None
        bench.sights[PIDS["engine"]] = STILL
        bench.counts[Count.ENGINE_TURNS] += 1
        assert bench.found(2.0) is None


def test_a_stopped_engine_is_not_the_workers_fault(bench: Bench) -> None:
    """The worker has done all of its steps, and nobody has taken the results."""
    bench.counts[Count.API_OPEN] = bench.counts[Count.ENGINE_BUSY] = 1
    bench.counts[Count.ENGINE_OUTSTANDING] = 2
    bench.stop("engine")
    assert bench.found(2 * TIMEOUT_S) == "engine"


def test_a_worker_that_takes_no_step(bench: Bench) -> None:
    bench.counts[Count.API_OPEN] = bench.counts[Count.ENGINE_BUSY] = bench.counts[Count.ENGINE_OUTSTANDING] = 1
    assert bench.found(0.9 * TIMEOUT_S) is None
    assert bench.found(0.3 * TIMEOUT_S) == "worker 0"


def test_a_step_that_computes_may_take_long_and_not_for_ever(bench: Bench) -> None:
    bench.counts[Count.API_OPEN] = bench.counts[Count.ENGINE_BUSY] = bench.counts[Count.ENGINE_OUTSTANDING] = 1
    bench.counts[Count.WORKER_TURNS] = 1
    bench.computing.add("worker 0")
    assert bench.found(9 * TIMEOUT_S) is None
    assert bench.found(2 * TIMEOUT_S) == "worker 0"


def test_a_long_prefill_of_many_steps(bench: Bench) -> None:
    bench.counts[Count.API_OPEN] = bench.counts[Count.ENGINE_BUSY] = bench.counts[Count.ENGINE_OUTSTANDING] = 1
    for _ in range(20):
        bench.counts[Count.WORKER_TURNS] += 1
        assert bench.found(0.9 * TIMEOUT_S) is None


def test_a_slow_load_and_one_that_hangs(bench: Bench) -> None:
    bench.counts[Count.WORKER_LOADED] = bench.counts[Count.ENGINE_TURNS] = 0
    bench.turning -= {Count.ENGINE_TURNS}
    bench.counts[Count.ENGINE_ATTACHING] = 1
    bench.counts[Count.WORKER_SERVES] = 0
    bench.dog.started("api 0", PIDS["api 0"])
    bench.computing.add("worker 0")
    assert bench.found(50 * TIMEOUT_S) is None
    bench.computing.clear()
    assert bench.found(1.2 * TIMEOUT_S) == "worker 0"


def test_an_engine_that_hangs_before_it_knocks(bench: Bench) -> None:
    bench.counts[Count.ENGINE_TURNS] = 0
    bench.turning -= {Count.ENGINE_TURNS}
    assert bench.found(1.2 * TIMEOUT_S) == "engine"


def test_a_worker_that_does_not_answer_the_engines_greeting(bench: Bench) -> None:
    bench.counts[Count.ENGINE_TURNS] = 0
    bench.turning -= {Count.ENGINE_TURNS}
    bench.counts[Count.ENGINE_ATTACHING], bench.counts[Count.WORKER_SERVES] = 2, 1
    assert bench.found(0.9 * TIMEOUT_S) is None
    assert bench.found(0.3 * TIMEOUT_S) == "worker 0"


def test_an_engine_stopped_while_it_greets(bench: Bench) -> None:
    bench.counts[Count.ENGINE_TURNS] = 0
    bench.counts[Count.ENGINE_ATTACHING], bench.counts[Count.WORKER_SERVES] = 2, 1
    bench.stop("engine")
    assert bench.found(2 * TIMEOUT_S) == "engine"


def test_callers_of_whom_a_stopped_api_process_does_not_know(bench: Bench) -> None:
    bench.stop("api 0")
    assert bench.found(3 * TIMEOUT_S) is None
    bench.unread = True
    assert bench.found(0.7 * TIMEOUT_S) == "api 0"


def test_an_api_process_that_never_becomes_ready(bench: Bench) -> None:
    bench.dog.started("api 0", PIDS["api 0"])
    bench.stop("api 0")
    assert bench.found(TIMEOUT_S) == "api 0"


def test_nothing_hangs_without_a_timeout() -> None:
    progress = Progress.private()
    progress.counts[Count.API_OPEN] = progress.counts[Count.ENGINE_TURNS] = 1
    dog = Watchdog(progress, 0.0)
    assert [dog.hanging(float(now_s)) for now_s in range(1000)] == [None] * 1000


def test_a_successor_begins_anew(bench: Bench) -> None:
    bench.counts[Count.API_OPEN] = 1
    bench.turning -= {Count.ENGINE_TURNS}
    assert bench.found(0.9 * TIMEOUT_S) is None
    bench.dog.ended("engine")
    bench.dog.started("engine", PIDS["engine"])
    assert bench.found(0.9 * TIMEOUT_S) is None


def test_a_suspended_machine_is_nobodys_fault() -> None:
    clock = AwakeClock(100.0)
    assert clock.at(100.25) == pytest.approx(0.25)
    assert clock.at(90_000.0) == pytest.approx(1.25)
    assert clock.at(90_000.25) == pytest.approx(1.5)


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE) as process:
        yield process
        process.kill()


def test_a_stopped_process_looks_stopped(sleeper: subprocess.Popen[bytes]) -> None:
    assert not see(sleeper.pid).is_stopped
    os.kill(sleeper.pid, signal.SIGSTOP)
    os.waitid(os.P_PID, sleeper.pid, os.WSTOPPED)
    assert see(sleeper.pid).is_stopped
    assert see(os.getpid()).activity > 0
    sleeper.kill()
    sleeper.wait()
    assert see(sleeper.pid) == STILL


def test_what_the_kernel_holds_for_a_process() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        assert not has_unread(os.getpid(), port)
        with socket.create_connection(("127.0.0.1", port)) as client:
            assert has_unread(os.getpid(), port)
            with listener.accept()[0] as server:
                assert not has_unread(os.getpid(), port)
                client.sendall(b"x")
                assert has_unread(os.getpid(), port)
                assert not has_unread(1, port)  # somebody else's
                server.recv(1)
                assert not has_unread(os.getpid(), port)
