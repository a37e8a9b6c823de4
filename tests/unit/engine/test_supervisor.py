"""What the supervisor makes of signals that come at odd moments; whole servers are in `tests/e2e`."""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import select
import signal
import subprocess
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from sixfold.engine.progress import Count, Progress
from sixfold.engine.restarts import Restarts
from sixfold.engine.run_files import socket_paths
from sixfold.engine.supervisor import Child, _say, _Supervisor


class Process:
    """Notes the signals that it gets."""

    def __init__(self) -> None:
        self.signals: list[int] = []

    def send_signal(self, number: int) -> None:
        self.signals.append(number)


def supervisor(run_dir: Path) -> Any:
    """One that serves, without processes."""
    made: Any = object.__new__(_Supervisor)
    made._run_dir, made._is_announced, made._drained_s = str(run_dir), True, None
    made._children, made._told_to_leave, made._poll = {}, None, select.poll()
    made._progress, made._watchdog = Progress.private(), SimpleNamespace(ended=lambda _: None)
    for path in socket_paths(str(run_dir)):
        Path(path).touch()
    return made


def test_an_engine_is_told_once_to_make_room(tmp_path: Path) -> None:
    """While its interpreter ends, a second signal would kill it, and that would count as a crash: six of them in a row
    end an idle server."""
    server = supervisor(tmp_path)
    first, second = Process(), Process()
    server._children["engine"] = Child("engine", cast(Any, first), -1)
    server._progress.counts[Count.ENGINE_TURNS] = 1
    for _ in range(10):
        server._replace_engine()
    server._children["engine"] = Child("engine", cast(Any, second), -1)
    server._replace_engine()
    assert first.signals == second.signals == [signal.SIGUSR1]


@pytest.mark.parametrize(("number", "is_told"), [(signal.SIGUSR1, False), (signal.SIGKILL, True)])
def test_an_api_process_that_was_just_starting_when_draining_began_is_no_fault(
    number: int, is_told: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    server = supervisor(tmp_path)
    server._drained_s = 1.0
    process = subprocess.Popen(["sleep", "60"])
    child = server._children["api 0"] = Child("api 0", cast(Any, process), os.pidfd_open(process.pid))
    server._poll.register(child.pidfd)
    process.send_signal(number)
    with caplog.at_level(logging.ERROR, "sixfold.engine.supervisor"):
        assert server._on_death(child)
    assert ("unexpectedly" in caplog.text) == is_told


@pytest.mark.parametrize("how", ["read", "full", "broken", "no room"])
def test_nobody_waits_for_standard_output(how: str) -> None:
    """A supervisor that stood still here, or ended, would leave a server without one."""
    reader, writer = os.pipe()
    if how == "no room":
        os.close(writer)
        writer = os.open("/dev/full", os.O_WRONLY)
    elif how == "broken":
        os.close(reader)
    elif how == "full":
        os.set_blocking(writer, False)
        with contextlib.suppress(BlockingIOError):
            while True:
                os.write(writer, b"x" * select.PIPE_BUF)
        os.set_blocking(writer, True)
    before = os.dup(1)
    os.dup2(writer, 1)
    try:
        saying = threading.Thread(target=_say, args=("serves",), daemon=True)
        saying.start()
        saying.join(20)
        assert not saying.is_alive()
    finally:
        os.dup2(before, 1)
        os.close(before)
        os.close(writer)
    if how != "broken":
        assert how != "read" or os.read(reader, 100) == b"serves\n"
        os.close(reader)


@pytest.mark.parametrize("n_refused", [2, 9])
def test_a_process_that_the_machine_does_not_give_now_is_tried_again(
    n_refused: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = supervisor(tmp_path)
    server._restarts, server._due, server._unready = {"api 0": Restarts(0.0)}, {}, {}
    server._life_read, server._told_read, server._http = 0, 0, SimpleNamespace(fileno=lambda: 0)
    server._watchdog.started = lambda *_: None
    n_open = len(os.listdir("/proc/self/fd"))
    n_tries = 0

    def popen(*_: Any, **__: Any) -> Any:
        nonlocal n_tries
        n_tries += 1
        if n_tries <= n_refused:
            raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))
        return SimpleNamespace(pid=os.getpid())

    monkeypatch.setattr(subprocess, "Popen", popen)
    goes_on = server._start_again("api 0")
    while goes_on and "api 0" in server._due:
        assert len(os.listdir("/proc/self/fd")) == n_open
        goes_on = server._start_again(server._due.popitem()[0])
    assert goes_on == ("api 0" in server._children) == (n_refused == 2)
    if goes_on:
        os.close(server._children["api 0"].pidfd)
        os.close(*server._unready)


@pytest.mark.parametrize(
    ("n_open", "drain_s", "level", "says"),
    [
        (0, 30.0, "INFO", "nothing is in flight"),
        (0, 0.0, "INFO", "nothing is in flight"),
        (2, 30.0, "WARNING", "within 30 s"),
        (2, 0.0, "WARNING", "ends now"),
    ],
)
def test_sigterm_warns_of_what_is_in_flight_alone(
    n_open: int, drain_s: float, level: str, says: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    server = supervisor(tmp_path)
    server._signals, server._due = [signal.SIGTERM], {}
    server._config = SimpleNamespace(api=SimpleNamespace(drain_timeout_s=drain_s))
    server._progress.counts[Count.API_OPEN + 1] = n_open
    with caplog.at_level(logging.INFO, "sixfold.engine.supervisor"):
        assert server._drains_on()
    (record,) = caplog.records
    assert record.levelname == level and record.getMessage().startswith("SIGTERM: ") and says in record.getMessage()
