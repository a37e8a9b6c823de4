"""Boundaries that survive faults: whatever dies, streams go on as if nothing had been, or end once and say why."""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.e2e.serving import Server

Body = dict[str, Any]


class Streams:
    """Requests under way in threads; `tokens` counts what all of them have got so far."""

    def __init__(self, server: Server, bodies: list[Body], path: str = "/v1/completions") -> None:
        self.events: list[list[Any]] = [[] for _ in bodies]
        self.faults: list[BaseException | None] = [None] * len(bodies)
        self._news = threading.Condition()
        self._threads = [
            threading.Thread(target=self._follow, args=(server, path, i, body)) for i, body in enumerate(bodies)
        ]
        for thread in self._threads:
            thread.start()

    def _follow(self, server: Server, path: str, i: int, body: Body) -> None:
        try:
            for event in server.stream(path, body):
                with self._news:
                    self.events[i].append(event)
                    self._news.notify_all()
        except BaseException as fault:  # noqa: BLE001 - looked at by the test
            self.faults[i] = fault
        with self._news:
            self._news.notify_all()

    def wait_events(self, n: int) -> None:
        """Until each stream has had `n` more events than it has now, or has ended."""
        wanted = [len(events) + n for events in self.events]

        def there() -> bool:
            return all(
                len(events) >= n or not thread.is_alive()
                for events, n, thread in zip(self.events, wanted, self._threads, strict=True)
            )

        with self._news:
            assert self._news.wait_for(there, 30)

    def join(self) -> list[Any]:
        """Per stream and choice: what its caller has got."""
        for thread in self._threads:
            thread.join(60)
            assert not thread.is_alive()
        return [answer(events) for events in self.events]


def answer(events: list[Any]) -> dict[int, Any]:
    """Choice -> (text, token ids, log-probabilities, finish reason)."""
    choices: dict[int, list[Any]] = {}
    for event in events:
        assert "error" not in event, event
        for choice in event["choices"]:
            got = choices.setdefault(choice["index"], ["", [], [], None])
            assert got[3] is None, "something after the end"
            got[0] += choice["text"]
            got[1] += choice.get("token_ids") or []
            got[2] += (choice.get("logprobs") or {}).get("token_logprobs") or []
            got[3] = choice["finish_reason"]
    assert all(got[3] is not None for got in choices.values())
    return {index: tuple(map(repr, got)) for index, got in choices.items()}


BODIES: list[Body] = [
    {"prompt": "greedy", "max_tokens": 60, "temperature": 0, "return_token_ids": True},
    {"prompt": "seeded", "max_tokens": 60, "temperature": 1, "seed": 5, "n": 2, "return_token_ids": True},
    {"prompt": "scores", "max_tokens": 60, "seed": 2, "logprobs": 2, "presence_penalty": 0.5, "return_token_ids": True},
    {"prompt": "stopped", "max_tokens": 80, "script": [*"a long way to the end of it, STOP and on"], "stop": ["STOP"]},
]


def pid_of(server: Server, role: str) -> int:
    (pid,) = [pid for pid, title in server.children().items() if title == f"sixfold: {role}"]
    return pid


def kill(server: Server, role: str, number: int = signal.SIGKILL) -> None:
    os.kill(pid_of(server, role), number)


@pytest.fixture
def slow(tmp_path: Path) -> Iterator[Callable[..., Server]]:
    """Servers whose steps take a while."""
    script = tmp_path / "slow.json"
    script.write_text('{"step_ms": 10}')
    yield lambda *more: Server("scripted", "--script", str(script), *more)


def with_model(server: Server, bodies: list[Body]) -> list[Body]:
    return [{"model": "scripted", **body} for body in bodies]


@pytest.mark.parametrize("role", ["engine", "worker 0"])
def test_a_crash_is_a_pause(role: str, slow: Callable[..., Server]) -> None:
    with slow() as server:
        bodies = with_model(server, BODIES)
        undisturbed = Streams(server, bodies).join()
        streams = Streams(server, bodies)
        for _ in range(2):
            streams.wait_events(8)
            kill(server, role)
        assert streams.join() == undisturbed
        assert not any(streams.faults)
        server.wait_idle()
        assert server.request("GET", "/health")[0] == 200
    assert server.output.count("starting it again") == 2
