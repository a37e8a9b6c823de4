"""Several API processes of one server, each addressed by a port of its own: what belongs to the server is one."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from sixfold.engine.run_files import ServerStart

from .conftest import Answer, LiveServer, Target, eventually
from .fake_engine import FakeEngine
from .test_abort import Pending
from .test_keys import Keys, code


class Process(NamedTuple):
    target: Target
    live: LiveServer


@pytest.fixture(params=[2, 4])
def start(
    request: pytest.FixtureRequest, serve: Callable[..., tuple[Target, LiveServer]], tmp_path: Path
) -> Callable[..., list[Process]]:
    """Starts all processes; with `only`, one of them again."""
    run_dir = tmp_path / "run"
    run_dir.mkdir(0o700)

    def started(only: int | None = None, **config: Any) -> list[Process]:
        numbers = range(request.param) if only is None else [only]
        processes = []
        for number in numbers:
            fake = FakeEngine(max_model_len=1 << 20)
            fake.step_s = 0.01
            place = {"run_dir": str(run_dir), "api_server": number, "api_server_count": request.param}
            processes.append(Process(*serve(fake, **place, **config)))
        return processes

    return started


@pytest.fixture
def processes(start: Callable[..., list[Process]]) -> Iterator[list[Process]]:
    yield (found := start())
    for process in found:
        context = process.live.server.app.context
        eventually(lambda context=context: not context.admission.in_flight and not len(context.open_requests))  # type: ignore[misc]


def long(target: Target, label: str) -> Pending:
    document = {"prompt": "a", "max_tokens": 100_000, "stream": True, "ignore_eos": True}
    pending = Pending(target, "/v1/completions", document, label)
    pending.event()
    return pending


def error_of(answer: Answer) -> str:
    events = [json.loads(line[6:]) for line in answer.body.split(b"\n") if line.startswith(b"data: {")]
    return str(events[-1]["error"]["code"])


@pytest.mark.parametrize("by", ["label", "id"])
def test_each_process_ends_what_any_of_them_answers(processes: list[Process], by: str) -> None:
    for asked in processes:
        pending = long(processes[-1].target, "mine")
        name = "mine" if by == "label" else pending.event()["id"]
        assert asked.target.post("/v1/abort", {"id": name}).status == 200
        assert error_of(pending.answer()) == "aborted"
        assert asked.target.post("/v1/abort", {"id": name}).status == 404


def test_a_label_that_two_processes_know_is_ambiguous(processes: list[Process]) -> None:
    pending = [long(process.target, "same") for process in processes[:2]]
    for asked in processes:
        answer = asked.target.post("/v1/abort", {"id": "same"})
        assert answer.status == 409 and code(answer) == "ambiguous_id"
    assert processes[-1].target.post("/v1/abort", {"id": pending[0].event()["id"]}).status == 200
    assert processes[0].target.post("/v1/abort", {"id": "same"}).status == 200
    assert [error_of(one.answer()) for one in pending] == ["aborted"] * 2


def test_threat_20_another_tenants_request_stays(start: Callable[..., list[Process]], tmp_path: Path) -> None:
    keys = Keys(tmp_path)
    first, second, *_ = start(api_key_file=str(keys.path))
    document = {"prompt": "a", "max_tokens": 100_000, "stream": True, "ignore_eos": True}
    body = json.dumps(document).encode()
    connection = first.target.connect()
    connection.sendall(
        f"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {keys.key['alice']}\r\n"
        f"X-Request-Id: hers\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n".encode()
        + body
    )
    assert connection.recv(100)
    for name, status in (("bob", 404), ("alice2", 200)):
        assert second.target.post("/v1/abort", {"id": "hers"}, **keys.bearer(name)).status == status
    connection.close()
    eventually(lambda: not first.live.server.app.context.admission.in_flight)


def test_metrics_are_of_all_processes(processes: list[Process]) -> None:
    for number, process in enumerate(processes):
        for _ in range(number + 1):
            assert process.target.complete(max_tokens=1).status == 200
        assert process.target.complete(max_tokens=-1).status == 400
    texts = [process.target.get("/metrics").body.decode() for process in processes]
    for text in texts:
        told = re.findall(r'request_success_total\{api_server="(\d)",finished_reason="length".*\} (\S+)', text)
        assert told == [(str(number), f"{number + 1}.0") for number in range(len(processes))]
        assert len(re.findall(r'http_errors_total\{.*status="400"\} 1.0', text)) == len(processes)
        assert text.count("# TYPE sixfold_request_success_total counter") == 1
        assert len(re.findall(r"sixfold_engine_epoch\{", text)) == 1


def test_a_process_that_is_gone_is_not_waited_for(processes: list[Process]) -> None:
    """What it had counted is shown as it was."""
    first, *others = processes
    others[-1].live.stop()
    text = first.target.get("/metrics").body.decode()
    told = set(re.findall(r'api_server="(\d)"', text))
    assert told == {str(number) for number in range(len(processes))}
    assert first.target.post("/v1/abort", {"id": "nobody"}).status == 404


@pytest.mark.parametrize("limit", ["requests_per_minute", "tokens_per_day", "max_concurrent"])
def test_a_keys_limit_is_one(start: Callable[..., list[Process]], tmp_path: Path, limit: str) -> None:
    """Whichever process a client meets; one that is started again knows what was used."""
    keys = Keys(tmp_path, **{limit: 3 if limit != "tokens_per_day" else 30})
    processes = start(api_key_file=str(keys.path))
    document = {"prompt": "a", "max_tokens": 8}

    def post(process: Process) -> Answer:
        return process.target.post("/v1/completions", document, **keys.bearer("alice"))

    if limit == "max_concurrent":
        for process in (processes[0], processes[0], processes[1]):
            process.live.server.app.context.keys._callers[0][1].allowance.begin()  # type: ignore[union-attr]
    else:
        for process in (processes[0], processes[0], processes[1]):
            assert post(process).status == 200
    for process in processes:
        answer = post(process)
        assert answer.status == 429 and code(answer) == f"{limit}_exceeded"
    processes[0].live.stop()
    [again] = start(0, api_key_file=str(keys.path))
    assert post(again).status == (200 if limit == "max_concurrent" else 429)


def test_stored_responses_are_everybodys(start: Callable[..., list[Process]], tmp_path: Path) -> None:
    processes = start(response_store=str(tmp_path / "responses.sqlite"))
    first, last = processes[0].target, processes[-1].target
    id = first.post("/v1/responses", {"input": "a", "max_output_tokens": 16}).json["id"]
    for process in processes:
        assert process.target.get(f"/v1/responses/{id}").status == 200
    document = {"input": "b", "max_output_tokens": 16, "previous_response_id": id}
    following = last.post("/v1/responses", document).json["id"]
    assert last.request("DELETE", f"/v1/responses/{following}").status == 200
    for process in processes:
        assert process.target.get(f"/v1/responses/{following}").status == 404


def test_the_server_has_one_age(start: Callable[..., list[Process]]) -> None:
    """Of all processes, and of one that is started again: not of whoever answers, nor from the first question on."""
    born = ServerStart(monotonic_s=time.monotonic() - 5000.0, unix_s=1_700_000_000)
    processes = start(start=born)
    processes[0].live.stop()
    for target, _ in [*processes[1:], *start(only=0, start=born)]:
        assert target.get("/debug/health").json["uptime_s"] >= 5000.0
        assert target.get("/v1/models").json["data"][0]["created"] == born.unix_s
