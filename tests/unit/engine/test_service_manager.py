"""What a service manager is told: a socket of our own listens where systemd's would."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from sixfold.engine.service_manager import ServiceManager


class Manager:
    """Reads what it is sent."""

    def __init__(self, address: str) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.sock.bind("\0" + address[1:] if address.startswith("@") else address)
        self.sock.settimeout(60)
        self.environment = {"NOTIFY_SOCKET": address}

    def heard(self) -> str:
        return self.sock.recv(4096).decode()


@pytest.fixture(params=["path", "abstract"])
def manager(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Manager]:
    address = str(tmp_path / "notify") if request.param == "path" else f"@sixfold-test-{os.getpid()}"
    manager = Manager(address)
    yield manager
    manager.sock.close()


def test_ready_alive_and_stopping(manager: Manager) -> None:
    told = ServiceManager(manager.environment)
    told.ready("serving m on http://127.0.0.1:8000")
    assert manager.heard().split("\n") == ["READY=1", "STATUS=serving m on http://127.0.0.1:8000"]
    told.alive()
    assert manager.heard() == "WATCHDOG=1"
    told.stopping()
    assert manager.heard() == "STOPPING=1"


def test_the_watchdogs_period_is_half_of_what_is_allowed(manager: Manager) -> None:
    environment = {**manager.environment, "WATCHDOG_USEC": "10000000"}
    assert ServiceManager(environment).period_s == 5.0
    assert ServiceManager({**environment, "WATCHDOG_PID": str(os.getpid())}).period_s == 5.0


@pytest.mark.parametrize(
    "changes",
    [
        {"WATCHDOG_USEC": ""},
        {"WATCHDOG_USEC": "0"},
        {"WATCHDOG_USEC": "-5"},
        {"WATCHDOG_USEC": "soon"},
        {"WATCHDOG_PID": "1"},
        {"NOTIFY_SOCKET": ""},
    ],
)
def test_no_watchdog_without_a_period_for_this_process(manager: Manager, changes: dict[str, str]) -> None:
    environment = {**manager.environment, "WATCHDOG_USEC": "10000000", **changes}
    assert ServiceManager(environment).period_s is None


def test_nobody_asked_and_a_manager_that_is_gone_are_no_faults(tmp_path: Path) -> None:
    for environment in ({}, {"NOTIFY_SOCKET": ""}, {"NOTIFY_SOCKET": str(tmp_path / "gone")}):
        told = ServiceManager(environment)
        told.ready("x")
        told.alive()
        told.stopping()


def test_a_manager_that_does_not_read_is_not_waited_for(manager: Manager) -> None:
    told = ServiceManager(manager.environment)
    for _ in range(5000):
        told.alive()
    assert manager.heard() == "WATCHDOG=1"
