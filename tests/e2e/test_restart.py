"""Boundaries that survive faults: whatever dies, streams go on as if nothing had been, or end once and say why."""

from __future__ import annotations

import os
import signal
import subprocess
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


def adopted(server: Server) -> tuple[float, float]:
    """KV blocks that restarted engines took over, and those that they did not believe."""
    metrics = server.metrics()
    names = ("sixfold_kv_blocks_adopted_total", "sixfold_kv_blocks_rejected_total")
    took, rejected = (sum(v for k, v in metrics.items() if k.startswith(name)) for name in names)
    return took, rejected


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
        restarts = {k: v for k, v in server.metrics().items() if k.startswith("sixfold_process_restarts_total")}
        assert sum(restarts.values()) == (2 if role == "engine" else 4)  # an engine without its worker ends as well
    assert server.output.count("starting it again") == 2


def test_the_api_process_dies_alone(slow: Callable[..., Server]) -> None:
    with slow("--api-server-count", "2") as server:
        streams = Streams(server, with_model(server, BODIES[:1] * 8))
        streams.wait_events(4)
        kill(server, "api 0")
        for thread in streams._threads:
            thread.join(60)
        complete = [fault is None for fault in streams.faults]
        for events, is_whole in zip(streams.events, complete, strict=True):
            if is_whole:
                answer(events)
            else:  # it broke, and does not look like an end
                assert all(choice["finish_reason"] is None for event in events for choice in event["choices"])
        server.wait_idle()
        assert pid_of(server, "api 0")
        assert server.post("/v1/completions", {"model": "scripted", "prompt": "x", "max_tokens": 1})["choices"]


def test_callers_wait_for_an_api_process_that_is_started_again(slow: Callable[..., Server]) -> None:
    with slow() as server:
        for _ in range(2):
            kill(server, "api 0")
            while any(title == "sixfold: api 0" for title in server.children().values()):
                pass
            assert server.post("/v1/completions", {"model": "scripted", "prompt": "x", "max_tokens": 1})["choices"]


@pytest.mark.parametrize("crash", [-2, -3, -4])
def test_a_poisonous_request_is_failed_and_nobody_else(crash: int, slow: Callable[..., Server]) -> None:
    """-4 hangs."""
    poison = {"model": "scripted", "prompt": "x", "script": ["a", "b", crash], "max_tokens": 9}
    with slow("--hang-timeout-s", "1") as server:
        bodies = with_model(server, BODIES)
        undisturbed = Streams(server, bodies).join()
        streams = Streams(server, bodies)
        streams.wait_events(4)
        for _ in range(2):  # the second time it is refused: nothing crashes any more
            status, _, data = server.request("POST", "/v1/completions", poison)
            assert status == 500 and b'"poisoned"' in data
        assert streams.join() == undisturbed
        assert not any(streams.faults)
        server.wait_idle()
        assert sum(v for k, v in server.metrics().items() if k.startswith("sixfold_engine_epoch")) == 3


def test_a_poisonous_request_is_refused_by_all_processes(slow: Callable[..., Server]) -> None:
    """Also by one that was not there when it crashed the engine."""
    poison = {"model": "scripted", "prompt": "x", "script": ["a", "b", -2], "max_tokens": 9}

    def epoch(server: Server) -> float:
        return sum(v for k, v in server.metrics().items() if k.startswith("sixfold_engine_epoch"))

    with slow("--api-server-count", "4") as server:
        assert server.request("POST", "/v1/completions", poison)[0] == 500
        server.wait_idle()
        assert epoch(server) == 3
        killed = {pid_of(server, role) for role in ("api 0", "api 1")}
        for pid in killed:
            os.kill(pid, signal.SIGKILL)
        while killed & set(server.children()):
            pass
        for _ in range(24):  # connections of their own: whichever process takes them
            status, _, data = server.request("POST", "/v1/completions", poison)
            assert status == 500 and b'"poisoned"' in data
        assert epoch(server) == 3


def test_new_requests_wait_for_the_engine_and_probes_do_not(slow: Callable[..., Server]) -> None:
    with slow() as server:
        os.kill(pid_of(server, "worker 0"), signal.SIGSTOP)  # so that the next engine is not soon ready
        kill(server, "engine")
        while server.request("GET", "/readyz")[0] == 200:
            pass
        assert server.request("GET", "/livez")[0] == 200
        assert server.request("GET", "/health")[0] == 503
        status, headers, data = server.request("POST", "/v1/completions", {"model": "scripted", "prompt": "x"})
        assert status == 503 and headers["retry-after"] and b"restarted" in data
        waiting = Streams(server, with_model(server, BODIES[:1]))
        kill(server, "worker 0", signal.SIGCONT)
        waiting.join()
        server.wait_idle()


@pytest.mark.parametrize("role", ["engine", "worker 0"])
def test_a_process_that_hangs_is_replaced(role: str, slow: Callable[..., Server]) -> None:
    with slow("--hang-timeout-s", "1") as server:
        bodies = with_model(server, BODIES)
        undisturbed = Streams(server, bodies).join()
        streams = Streams(server, bodies)
        streams.wait_events(4)
        kill(server, role, signal.SIGSTOP)
        assert streams.join() == undisturbed
        server.wait_idle()
    assert f"{role} did nothing" in server.output


def test_a_stopped_engine_that_nobody_waits_for_is_left_alone(slow: Callable[..., Server]) -> None:
    with slow("--hang-timeout-s", "0.5") as server:
        stopped = pid_of(server, "engine")
        os.kill(stopped, signal.SIGSTOP)
        with pytest.raises(subprocess.TimeoutExpired):
            server.process.wait(2)
        os.kill(stopped, signal.SIGCONT)
        assert pid_of(server, "engine") == stopped
        Streams(server, with_model(server, BODIES[:1])).join()


def test_a_stopped_api_process_is_replaced_for_a_caller_of_whom_it_does_not_know(slow: Callable[..., Server]) -> None:
    """Nothing but a connection that nobody accepts says that somebody waits; the successor accepts it."""
    with slow("--hang-timeout-s", "0.5") as server:
        bodies = with_model(server, BODIES[:1])
        undisturbed = Streams(server, bodies).join()
        kill(server, "api 0", signal.SIGSTOP)
        assert Streams(server, bodies).join() == undisturbed
    assert "api 0 did nothing" in server.output


def test_embeddings_and_scored_prompts_are_computed_again(slow: Callable[..., Server]) -> None:
    scored = {"model": "scripted", "prompt": "scored", "max_tokens": 40, "prompt_logprobs": 1, "temperature": 0}
    with slow("--max-num-batched-tokens", "16") as server:
        texts = {"model": "scripted", "input": ["x" * 200, "y" * 300]}
        expected = server.post("/v1/embeddings", texts)["data"], server.post("/v1/completions", scored)["choices"]
        got: list[Any] = [None, None]
        threads = [
            threading.Thread(target=lambda: got.__setitem__(0, server.post("/v1/embeddings", texts)["data"])),
            threading.Thread(target=lambda: got.__setitem__(1, server.post("/v1/completions", scored)["choices"])),
        ]
        stream = Streams(server, with_model(server, BODIES[:1]))
        stream.wait_events(1)
        for thread in threads:
            thread.start()
        stream.wait_events(2)
        kill(server, "engine")
        for thread in threads:
            thread.join(60)
        stream.join()
        assert tuple(got) == expected
        server.wait_idle()


def test_a_structured_answer_goes_on(slow: Callable[..., Server]) -> None:
    """A structured answer goes on in the middle of its grammar."""
    body = {"prompt": "n", "max_tokens": 60, "structured_outputs": {"regex": "[a-f]{50}"}, "temperature": 1, "seed": 3}
    with slow() as server:
        bodies = with_model(server, [{**body, "return_token_ids": True}])
        undisturbed = Streams(server, bodies).join()
        streams = Streams(server, bodies)
        streams.wait_events(10)
        kill(server, "engine")
        assert streams.join() == undisturbed


def test_streams_of_a_model_survive_engine_and_worker() -> None:
    common = {"model": "smollm2", "max_tokens": 48, "return_token_ids": True, "ignore_eos": True}
    bodies = [
        {**common, "prompt": "The capital of France is", "temperature": 0},
        {**common, "prompt": "Once upon a time", "temperature": 0.8, "seed": 7, "n": 2, "frequency_penalty": 0.5},
        {**common, "prompt": "A list of colours:" * 20, "temperature": 0, "logprobs": 1},
        {**common, "prompt": "Numbers:", "temperature": 1, "seed": 1, "structured_outputs": {"regex": "([0-9]+, ){9}"}},
    ]
    del bodies[3]["ignore_eos"]
    with Server("smollm2", "--max-model-len", "1024") as server:
        undisturbed = Streams(server, bodies).join()
        n_prompt_blocks = 80 // 16  # of the third alone
        for role, number, took in (
            ("engine", signal.SIGKILL, True),
            ("engine", signal.SIGSEGV, True),  # and tries the suspects one at a time
            ("worker 0", signal.SIGKILL, False),  # its memory is gone, and so is what was in it
        ):
            before, _ = adopted(server)
            streams = Streams(server, bodies)
            streams.wait_events(6)
            kill(server, role, number)
            assert streams.join() == undisturbed
            server.wait_idle()
            after, n_rejected = adopted(server)
            assert (after - before >= n_prompt_blocks) if took else after == before
            assert n_rejected == 0


@pytest.mark.parametrize("caching", [True, False])
def test_the_engine_is_replaced_on_request(caching: bool, slow: Callable[..., Server]) -> None:
    bodies = [{**body, "prompt": f"{body['prompt']} " * 20} for body in BODIES]
    with slow(*([] if caching else ["--no-enable-prefix-caching"])) as server:
        bodies = with_model(server, bodies)
        undisturbed = Streams(server, bodies).join()
        streams = Streams(server, bodies)
        for _ in range(2):
            streams.wait_events(8)
            old = pid_of(server, "engine")
            os.kill(server.process.pid, signal.SIGUSR1)
            streams.wait_events(8)
            assert pid_of(server, "engine") != old
        assert streams.join() == undisturbed
        assert not any(streams.faults)
        server.wait_idle()
        metrics = server.metrics()
        assert sum(v for k, v in metrics.items() if k.startswith("sixfold_engine_epoch")) == 3
        took, n_rejected = adopted(server)
        assert bool(took) == caching and not n_rejected
    assert "unexpectedly" not in server.output and server.output.count("SIGUSR1") == 2
