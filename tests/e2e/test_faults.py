"""Reported faults of other servers (the ids in the names), asked of a whole server: what dies, hangs or talks nonsense.

`test_restart.py` compares whole answers around a death; here is what a caller and a probe see while it lasts.
"""

from __future__ import annotations

import json
import os
import pickle
import signal
import socket
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from tests.e2e.serving import Server
from tests.e2e.test_processes import wait_gone
from tests.e2e.test_restart import BODIES, Streams, kill, with_model

from sixfold.text.script import ENGINE_CRASH, FAULT

PLAIN = {"model": "scripted", "prompt": "plain", "max_tokens": 40, "temperature": 0, "return_token_ids": True}


@pytest.fixture
def slow(tmp_path: Path) -> Iterator[Callable[..., Server]]:
    """Servers whose steps take a while."""
    script = tmp_path / "slow.json"
    script.write_text('{"step_ms": 10}')
    yield lambda *more: Server("scripted", "--script", str(script), *more)


def events_of(server: Server, body: dict[str, Any]) -> list[Any]:
    return list(server.stream("/v1/completions", {"model": "scripted", **body}))


def choices_of(answer: Any) -> Any:
    return [(choice["token_ids"], choice["finish_reason"]) for choice in answer["choices"]]


def until(true: Callable[[], bool], timeout_s: float = 30.0) -> None:
    end_s = time.monotonic() + timeout_s
    while not true():
        assert time.monotonic() < end_s, "it did not come true"
        time.sleep(0.002)


# ---- O03, O42: deaths ------------------------------------------------------------------------------------------------


def test_O03_a_refused_recovery_is_one_error_event_then_done(slow: Callable[..., Server]) -> None:
    """The request that crashed two engines: what it had is told, then an error in the one shape, then the end."""
    poison = {"prompt": "x", "script": ["a", "b", ENGINE_CRASH], "max_tokens": 9}
    with slow() as server:
        alone = choices_of(server.post("/v1/completions", PLAIN))
        with ThreadPoolExecutor(3) as pool:
            others = [pool.submit(server.post, "/v1/completions", PLAIN) for _ in range(3)]
            *chunks, last = events_of(server, poison)  # `stream` has seen `[DONE]`, once and last
            assert [choices_of(other.result()) for other in others] == [alone] * 3
        assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == "ab"
        assert all(chunk["choices"][0]["finish_reason"] is None for chunk in chunks)
        assert set(last) == {"error"} and set(last["error"]) == {"message", "type", "param", "code"}
        assert (last["error"]["type"], last["error"]["code"]) == ("server_error", "poisoned")
        server.wait_idle()


def test_O42_health_is_red_while_the_engine_is_dead_and_nobody_loses_anything(slow: Callable[..., Server]) -> None:
    with slow() as server:
        undisturbed = Streams(server, with_model(server, BODIES)).join()
        alone = choices_of(server.post("/v1/completions", PLAIN))
        with ThreadPoolExecutor(3) as pool:
            streams = Streams(server, with_model(server, BODIES))
            calls = [pool.submit(server.post, "/v1/completions", PLAIN) for _ in range(3)]
            streams.wait_events(4)
            kill(server, "worker 0", signal.SIGSTOP)  # so that the next engine is not soon ready
            kill(server, "engine")
            until(lambda: server.request("GET", "/health")[0] == 503, 5.0)
            assert server.request("GET", "/livez")[0] == 200
            kill(server, "worker 0", signal.SIGCONT)
            until(lambda: server.request("GET", "/health")[0] == 200)
            assert streams.join() == undisturbed
            assert [choices_of(call.result()) for call in calls] == [alone] * 3
        assert not any(streams.faults)
        server.wait_idle()


def test_O42_a_stopped_engine_is_replaced_and_health_was_red(slow: Callable[..., Server]) -> None:
    with slow("--hang-timeout-s", "0.5") as server:
        alone = choices_of(server.post("/v1/completions", PLAIN))
        seen: set[int] = set()
        with ThreadPoolExecutor(6) as pool:
            streams = Streams(server, with_model(server, BODIES[:1] * 3))
            streams.wait_events(4)
            calls = [pool.submit(server.post, "/v1/completions", PLAIN) for _ in range(3)]
            kill(server, "engine", signal.SIGSTOP)
            while not all(call.done() for call in calls):
                seen.add(server.request("GET", "/health")[0])
            assert [choices_of(call.result()) for call in calls] == [alone] * 3
            streams.join()
        assert seen == {200, 503} and server.request("GET", "/health")[0] == 200
    assert "engine did nothing" in server.output


def test_O42_steps_that_take_half_the_watchdogs_time_are_no_hang(tmp_path: Path) -> None:
    """Prefill in chunks of a quarter of a second each, four times as long as may be hung in."""
    script = tmp_path / "slow.json"
    script.write_text('{"step_ms": 250}')
    with Server(
        "scripted", "--script", str(script), "--hang-timeout-s", "1", "--max-num-batched-tokens", "16"
    ) as server:
        answer = server.post("/v1/completions", {"model": "scripted", "prompt": "x" * 200, "max_tokens": 1})
        assert answer["usage"]["prompt_tokens"] == 200
        assert sum(v for k, v in server.metrics().items() if k.startswith("sixfold_process_restarts_total")) == 0


# ---- O43: the supervisor dies ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_O43_with_a_call_in_flight_nothing_is_left_and_the_port_is_free(
    number: int, tmp_path_factory: pytest.TempPathFactory, slow: Callable[..., Server], monkeypatch: pytest.MonkeyPatch
) -> None:
    run_root = tmp_path_factory.mktemp("run")
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(run_root))
    shared = set(os.listdir("/dev/shm"))
    with slow("--drain-timeout-s", "0") as server:
        children = list(server.children())
        streams = Streams(server, with_model(server, [{"prompt": "x", "max_tokens": 1900}]))
        streams.wait_events(2)
        assert streams.events[0]
        server.stop(number)
        wait_gone(children, 5.0)
    assert not list(run_root.iterdir())
    assert not [name for name in set(os.listdir("/dev/shm")) - shared if "sixfold" in name]
    with socket.create_server(("127.0.0.1", int(server.url.rpartition(":")[2]))):
        pass  # nobody holds it
    with Server("scripted") as again:
        assert again.request("GET", "/health")[0] == 200


# ---- O46: what listens, and what it is told --------------------------------------------------------------------------


def listening_tcp(pids: list[int]) -> set[int]:
    """Ports on which these processes listen."""
    inodes = set()
    for pid in pids:
        for fd in os.listdir(f"/proc/{pid}/fd"):
            try:
                target = os.readlink(f"/proc/{pid}/fd/{fd}")
            except OSError:
                continue
            if target.startswith("socket:["):
                inodes.add(target[8:-1])
    ports = set()
    for table in ("tcp", "tcp6", "udp", "udp6"):
        for line in Path(f"/proc/self/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            is_open = fields[3] == "0A" or table.startswith("udp")
            if is_open and fields[9] in inodes:
                ports.add(int(fields[1].rpartition(":")[2], 16))
    return ports


class Touch:
    """What would run if anybody unpickled it."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self._path,)


def test_O46_internal_sockets_are_private_and_nonsense_on_them_is_dropped(
    tmp_path_factory: pytest.TempPathFactory, slow: Callable[..., Server], monkeypatch: pytest.MonkeyPatch
) -> None:
    run_root = tmp_path_factory.mktemp("run")
    touched = run_root.parent / f"{run_root.name}-touched"
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(run_root))
    nonsense = [
        b"\x00" * 4096,
        os.urandom(4096),
        pickle.dumps(Touch(touched)),
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        b"SXFL",
        b"",
    ]
    with slow() as server:
        pids = [server.process.pid, *server.children()]
        assert listening_tcp(pids) == {int(server.url.rpartition(":")[2])}
        sockets = [path for path in run_root.rglob("*") if path.is_socket()]
        assert {path.stat().st_mode & 0o777 for path in sockets} == {0o600} and len(sockets) == 2
        undisturbed = Streams(server, with_model(server, BODIES)).join()
        streams = Streams(server, with_model(server, BODIES))
        streams.wait_events(2)
        for path in sockets:
            for data in nonsense:
                with socket.socket(socket.AF_UNIX) as sock:
                    sock.connect(str(path))
                    sock.sendall(data)
        streams.wait_events(2)
        # The worker has one caller at a time: it meets the others when its engine is gone.
        kill(server, "engine")
        assert streams.join() == undisturbed
        assert not any(streams.faults) and not touched.exists()
        restarts = {k: v for k, v in server.metrics().items() if k.startswith("sixfold_process_restarts_total")}
        assert sum(restarts.values()) == 1, "the engine that was killed, and nobody else"
        server.wait_idle()
    assert "Traceback" not in server.output


# ---- O55, O51: what is counted ---------------------------------------------------------------------------------------


def test_O55_a_row_without_logits_ends_alone_and_is_not_found_again(slow: Callable[..., Server]) -> None:
    prompt = "a prompt of three blocks and a bit more, so that something could be found."
    broken = {"model": "scripted", "prompt": prompt, "script": [*"abcd", FAULT], "max_tokens": 9}
    with slow() as server:
        undisturbed = Streams(server, with_model(server, BODIES)).join()
        streams = Streams(server, with_model(server, BODIES))
        streams.wait_events(2)
        *chunks, last = events_of(server, broken)
        assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == "abcd"
        assert last["error"]["type"] == "server_error"
        assert streams.join() == undisturbed
        again = server.post("/v1/completions", {**broken, "script": ["z"]})
        assert again["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
        warm = server.post("/v1/completions", {**broken, "script": ["z"]})
        assert warm["usage"]["prompt_tokens_details"]["cached_tokens"] > 0, "a healthy one is found"
        failed = [v for k, v in server.metrics().items() if 'finished_reason="error"' in k]
        assert failed == [1.0]
        server.wait_idle()


def test_O51_gauges_follow_when_all_callers_leave_at_once(slow: Callable[..., Server]) -> None:
    with slow() as server:
        body = json.dumps({"model": "scripted", "prompt": "x", "max_tokens": 1900, "stream": True})
        open_: list[Any] = []
        for _ in range(10):
            connection = server.connection()
            connection.request("POST", "/v1/completions", body, {"Content-Type": "application/json"})
            answer = connection.getresponse()
            assert answer.readline().startswith(b"data: ")
            open_ += [answer, connection]
        running = "sixfold_num_requests_running"
        until(lambda: sum(v for k, v in server.metrics().items() if k.startswith(running)) == 10)
        before = server.metrics()
        for one in open_:
            one.close()
        server.wait_idle()
        after = server.metrics()
        aborted = [k for k in after if k.startswith("sixfold_request_success_total") and 'reason="abort"' in k]
        assert sum(after[k] - before.get(k, 0) for k in aborted) == 10


# ---- O23: a compiler at work -----------------------------------------------------------------------------------------


def test_O23_others_go_on_while_hostile_schemas_are_compiled(slow: Callable[..., Server]) -> None:
    """Neither the event loop nor the step loop compiles: a stream's events go on between asking and being refused."""
    letters = "abcdefghijklmnopqrstuvwxyz"
    hostile = [
        {"type": "string", "pattern": "(" + "|".join(a + b + ".{1,40}" for a in letters for b in letters) + "){1,30}"},
        {"allOf": [{"type": "string", "pattern": f".*{letter}.{{9}}"} for letter in letters[:7]]},
        {"type": "object", "properties": {f"p{i}": {"type": "string", "pattern": f"^({i}.)*$"} for i in range(400)}},
    ]
    with slow() as server:
        undisturbed = Streams(server, with_model(server, BODIES[:1])).join()
        streams = Streams(server, with_model(server, BODIES[:1]))
        streams.wait_events(4)
        refused = 0
        with ThreadPoolExecutor(3) as pool:
            asked = [
                pool.submit(
                    server.request,
                    "POST",
                    "/v1/completions",
                    {
                        "model": "scripted",
                        "prompt": "x",
                        "max_tokens": 2,
                        "response_format": {"type": "json_schema", "json_schema": {"name": "s", "schema": schema}},
                    },
                )
                for schema in hostile
            ]
            for answer in asked:
                streams.wait_events(1)
                status, _, data = answer.result()
                assert status in (200, 400), data
                if status == 400:
                    refused += 1
                    assert json.loads(data)["error"]["param"].startswith("response_format")
        assert refused
        assert streams.join() == undisturbed
        server.wait_idle()
