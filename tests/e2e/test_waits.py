"""Where a request's time goes: of every request of a server under pressure, nearly all of it is in a state.

The requests are of all kinds: streams and documents, several choices, stop strings, prompts from the cache, callers
that leave, and a pool of blocks so small that choices lose their places.
"""

from __future__ import annotations

import json
import os
import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from tests.e2e.serving import Server

N_REQUESTS = 100
N_CALLERS = 12
UNCLAIMED = 0.02
"""Share of a request's wall time that may be in no state."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    script = tmp_path_factory.mktemp("waits") / "script.json"
    script.write_text(json.dumps({"step_ms": 2}))
    arguments = ("scripted", "--script", str(script), "--num-kv-blocks", "20", "--max-num-seqs", "8")
    with Server(*arguments, "--max-num-batched-tokens", "64", "--max-model-len", "512") as server:
        yield server


def body(index: int) -> dict[str, Any]:
    """One of the mixed requests."""
    pick = random.Random(index)
    prompt = ("the same beginning of all, " if index % 3 else f"number {index} is alone, ") * pick.randint(1, 4)
    fields: dict[str, Any] = {"prompt": prompt, "max_tokens": pick.randint(1, 60)}
    if index % 7 == 0:
        fields.update(n=2, temperature=1.0, seed=index)
    if index % 5 == 0:
        fields["stop"] = ["e", "a", "7"]
    return fields


def leave_early(server: Server, fields: dict[str, Any], n_events: int) -> None:
    """Read a few events, and go."""
    for number, _ in enumerate(server.stream("/v1/completions", {**fields, "max_tokens": 150})):
        if number == n_events:
            return


def call(server: Server, index: int) -> None:
    if index % 10 == 9:
        leave_early(server, body(index), n_events=index % 4)
    elif index % 2:
        list(server.stream("/v1/completions", body(index)))
    elif index % 8 == 0:
        fields = {key: value for key, value in body(index).items() if key != "prompt"}
        server.post(
            "/v1/chat/completions", {**fields, "messages": [{"role": "user", "content": body(index)["prompt"]}]}
        )
    else:
        server.post("/v1/completions", body(index))


def get(server: Server, path: str) -> Any:
    status, _, data = server.request("GET", path)
    assert status == 200, data.decode()
    return json.loads(data)


def settled(server: Server) -> list[dict[str, Any]]:
    """The latest requests, once all are over. A step that outlives its last request is waited for as well."""
    server.wait_idle()
    deadline = time.monotonic() + 60
    while True:
        found: list[dict[str, Any]] = get(server, "/debug/requests")["data"]
        if len(found) == N_REQUESTS and all(one["is_done"] for one in found):
            return found
        assert time.monotonic() < deadline, Counter(one["is_done"] for one in found)


@pytest.fixture(scope="module")
def requests(server: Server) -> list[dict[str, Any]]:
    """What the server says of them."""
    indices = iter(range(N_REQUESTS))
    lock, faults = threading.Lock(), []

    def caller() -> None:
        while True:
            with lock:
                index = next(indices, None)
            if index is None:
                return
            try:
                call(server, index)
            except BaseException as fault:  # noqa: BLE001 - looked at below
                faults.append((index, fault))

    threads = [threading.Thread(target=caller) for _ in range(N_CALLERS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not faults
    return settled(server)


def test_the_requests_are_of_all_kinds(server: Server, requests: list[dict[str, Any]]) -> None:
    metrics = server.metrics()
    assert any(value > 0 for name, value in metrics.items() if name.startswith("sixfold_num_preemptions_total"))
    assert sum(one["fault"] == "client_gone" for one in requests) >= 5
    seen = {state for one in requests for state in one["states"]}
    assert seen >= {
        "parse", "thread", "template", "tokenize", "submit", "prefill", "decode", "handed_over", "commit", "result",
        "preempted", "to_api", "deliver", "finish", "socket",
    }  # fmt: skip
    assert seen & {"queued_slots", "queued_blocks"}


def test_every_request_is_in_a_state_all_the_time(requests: list[dict[str, Any]]) -> None:
    assert all(one["is_whole"] for one in requests)
    for one in requests:
        total = sum(one["states"].values())
        assert total + one["unclaimed_us"] == pytest.approx(one["wall_us"])
        assert one["unclaimed_us"] <= UNCLAIMED * one["wall_us"], one


def test_states_are_exclusive_and_in_order(server: Server, requests: list[dict[str, Any]]) -> None:
    longest = max(requests, key=lambda one: one["wall_us"])
    found = get(server, f"/debug/requests/{longest['id']}")
    end_us = 0.0
    sums: Counter[str] = Counter()
    for part in found["timeline"]:
        assert part["end_us"] > part["start_us"] >= end_us
        end_us = part["end_us"]
        sums[part["state"]] += part["end_us"] - part["start_us"]
    assert end_us <= found["wall_us"]
    assert sums == pytest.approx(found["states"])
    assert {part["process"] for part in found["timeline"]} == {"api 0", "engine", "worker 0"}


def test_waits_are_counted(server: Server, requests: list[dict[str, Any]]) -> None:
    sites = {site["name"]: site for site in get(server, "/debug/waits")["data"]}
    assert sites["worker.step"]["count"] > 0 and sites["engine.result"]["total_us"] > 0
    waits = ("engine.step", "engine.slots", "engine.blocks", "engine.budget")
    admitted = sum(sites[name].get("count", 0) for name in waits)
    assert admitted >= sum(bool(one["states"].get("prefill")) for one in requests)
    assert sites["engine.fence"]["count"] >= N_REQUESTS - 10
    assert sites["engine.preempting"]["count"] > 0
    for site in sites.values():
        assert site.get("p50_us", 0) <= site.get("p99_us", 0) <= site.get("max_us", 0)


def test_an_unknown_request_is_404(server: Server) -> None:
    assert server.request("GET", "/debug/requests/nobody")[0] == 404


def test_the_death_of_the_engine_is_a_state(server: Server, requests: list[dict[str, Any]]) -> None:
    """Last in this file: it makes the latest requests others."""
    fields = {"prompt": "an engine that dies", "max_tokens": 150}
    streams = [server.stream("/v1/completions", fields) for _ in range(4)]
    for events in streams:
        next(events)
    [engine] = [pid for pid, command in server.children().items() if command == "sixfold: engine"]
    os.kill(engine, signal.SIGKILL)
    for events in streams:
        list(events)
    server.wait_idle()
    found = get(server, "/debug/requests")["data"][: len(streams)]
    for one in found:
        assert one["is_done"] and one["states"]["restart"] > 0 and one["states"]["decode"] > 0
        assert one["unclaimed_us"] <= UNCLAIMED * one["wall_us"], one
