"""What is printed at which level: a line per request, reasons of refusals, never a text."""

from __future__ import annotations

import json
import logging
import os
import re
import signal
from pathlib import Path
from typing import Any
from urllib.parse import urlparse

import pytest
from tests.e2e.serving import Server

from sixfold.api import call_log
from sixfold.api.access.keys import new_key
from sixfold.api.call_log import PROBES
from sixfold.logs import message_with_fields
from sixfold.text import byte_tokenizer

from .conftest import Target, eventually, post_bytes
from .fake_engine import FakeEngine

SECRET = "xyzzy"
NAME = "sixfold.api.requests"


def lines(caplog: pytest.LogCaptureFixture, level: int = logging.INFO) -> list[str]:
    return [message_with_fields(record) for record in caplog.records if record.name == NAME and record.levelno == level]


@pytest.mark.parametrize("stream", [False, True])
def test_a_line_per_finished_request(serve: Any, caplog: pytest.LogCaptureFixture, stream: bool) -> None:
    caplog.set_level(logging.INFO, logger="sixfold")
    target, _ = serve()
    document = {"prompt": [SECRET, "b"], "script": list(SECRET), "stream": stream}
    assert target.post("/v1/completions", document, **{"X-Request-Id": "mine"}).status == 200
    eventually(lambda: len(lines(caplog)) == 1)
    pattern = (
        r"POST /v1/completions request_id=mine status=200 duration_ms=\d+\.\d model=fake ttft_ms=\d+\.\d "
        r"prompt_tokens=6 cached_tokens=\d+ completion_tokens=\d+ finish=\w+,\w+"
    )
    assert re.fullmatch(pattern, lines(caplog)[0]), lines(caplog)
    target.get("/v1/models")
    eventually(lambda: len(lines(caplog)) == 2)
    assert re.fullmatch(r"GET /v1/models request_id=req-[0-9a-f]+ status=200 duration_ms=\d+\.\d", lines(caplog)[1])
    assert SECRET not in caplog.text


@pytest.mark.parametrize("path", sorted(PROBES))
def test_probes_have_their_lines_at_debug(serve: Any, caplog: pytest.LogCaptureFixture, path: str) -> None:
    caplog.set_level(logging.INFO, logger="sixfold")
    target, _ = serve()
    target.get(path)
    target.get("/v1/models")
    eventually(lambda: len(lines(caplog)) == 1)
    assert "/v1/models" in lines(caplog)[0] and not lines(caplog, logging.DEBUG)
    caplog.set_level(logging.DEBUG, logger="sixfold")
    target.get(path)
    eventually(lambda: len(lines(caplog, logging.DEBUG)) == 1)


def test_requests_are_printed_where_it_is_asked_for(serve: Any, caplog: pytest.LogCaptureFixture) -> None:
    target, _ = serve(enable_log_requests=True)
    assert target.complete(SECRET, temperature=0.25, script=["a"]).status == 200
    assert target.complete("ab" * 100 + "\r\nFORGED", max_tokens=1).status == 200
    told = [record.args for record in caplog.records if record.name == "sixfold.api.prompts"]
    assert len(told) == 2 and all(isinstance(fields, dict) for fields in told)
    first, second = told
    assert first["prompt"] == SECRET and first["temperature"] == 0.25 and first["prompt_tokens"] == len(SECRET)
    assert second["prompt"].endswith("FORGED") and second["request_id"].startswith("req-")


def test_what_is_printed_of_a_request_has_a_bound(
    serve: Any, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(call_log, "MAX_LOGGED_CHARS", 8)
    target, _ = serve(enable_log_requests=True)
    assert target.complete("0123456789", logit_bias={str(i): 1 for i in range(9)}, max_tokens=1).status == 200
    (fields,) = [record.args for record in caplog.records if record.name == "sixfold.api.prompts"]
    assert fields["prompt"] == "01234567…" and len(fields["logit_bias"]) == 9


def test_a_line_says_how_a_request_failed(serve: Any, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="sixfold")
    target, _ = serve()
    for answer, line in (
        (target.chat(foo=1), "status=400 .* fault=unknown_field"),
        (target.chat(temperature=9), "status=400 .* fault=invalid_request_error"),
        (target.get("/a%0Ab c?d=e".replace(" ", "%20")), "GET /a%0Ab%20c .*status=404 .* fault=not_found"),
        (target.get("/v1/models", Host="evil.example"), "status=403 .* fault=host_not_allowed"),
        (target.chat(script=["a", -1], stream=True), "status=200 .*completion_tokens=.* fault=request_failed"),
    ):
        assert answer.status
        eventually(lambda line=line: any(re.search(line, got) for got in lines(caplog)))
    assert len(lines(caplog)) == 5
    assert not lines(caplog, logging.DEBUG)


def test_a_client_that_leaves_has_its_line(serve: Any, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="sixfold")
    fake = FakeEngine()
    fake.step_s = 0.02
    target, _ = serve(fake)
    for stream in (False, True):
        caplog.clear()
        with target.connect() as sock:
            sock.sendall(post_bytes("/v1/completions", {"prompt": "a", "script": ["x"] * 90, "stream": stream}))
            eventually(lambda: bool(fake.live))
            if stream:
                assert sock.recv(100)
        eventually(lambda: len(lines(caplog)) == 1)
        assert re.search(rf"status={'200' if stream else '-'} .* fault=client_gone", lines(caplog)[0])


def test_reasons_are_told_at_debug_and_nothing_at_warning(serve: Any, caplog: pytest.LogCaptureFixture) -> None:
    target, _ = serve()
    caplog.set_level(logging.WARNING, logger="sixfold")
    assert target.chat(SECRET, temperature=9).status == 400
    assert target.chat(SECRET, script=["a"]).status == 200
    assert not lines(caplog) and not lines(caplog, logging.DEBUG)
    caplog.set_level(logging.DEBUG, logger="sixfold")
    target.chat(SECRET, temperature=9)
    eventually(lambda: bool(lines(caplog)))
    assert "'temperature must be at least 0 and at most 2, not 9' (param 'temperature')" in lines(caplog, 10)[0]
    assert SECRET not in caplog.text


@pytest.mark.parametrize("level", ["info", "warning"])
def test_the_level_of_a_server(tmp_path: Path, level: str) -> None:
    script = tmp_path / "script.json"
    script.write_text(json.dumps({"tokens": []}))
    with Server("scripted", "--executor", "scripted", "--script", str(script), "--log-level", level) as server:
        target = Target(urlparse(server.url).port or 0, "scripted", byte_tokenizer(()))
        assert target.chat(SECRET, script=["a"]).status == 200
        server.stop()
    logged = [line for line in server.output.splitlines() if " INFO " in line]
    if level == "warning":
        assert "sixfold.api" not in server.output
        return
    logged.remove(next(line for line in logged if "SIGTERM: nothing is in flight" in line))
    assert len(logged) == 3, server.output
    assert re.search(r"INFO api 0 sixfold.api.process: serving scripted on 127\.0\.0\.1 port \d+$", logged[0])
    assert re.search(rf"INFO api 0 {NAME}: POST /v1/chat/completions request_id=\S+ status=200 ", logged[1])
    assert logged[2].endswith("INFO api 0 sixfold.api.process: stopped")
    assert SECRET not in server.output


def test_every_line_of_a_server_is_json_where_that_is_wanted(tmp_path: Path) -> None:
    """Its own, of each process, of an end that was not wanted; with the caller's label and the key's name."""
    key, digest = new_key()
    keys = tmp_path / "keys.toml"
    keys.write_text(f'[alice]\nsha256 = "{digest}"\n')
    arguments = ("scripted", "--log-level", "info", "--log-format", "json", "--api-key-file", str(keys))
    with Server(*arguments, "--num-kv-blocks", "4") as server:
        sent = {"Authorization": f"Bearer {key}", "X-Request-Id": "mine"}
        body = {"prompt": SECRET, "script": ["a"], "max_tokens": 2}
        assert server.request("POST", "/v1/completions", body, sent)[0] == 200
        (worker,) = [pid for pid, line in server.children().items() if "worker 0" in line]
        os.kill(worker, signal.SIGKILL)
        eventually(lambda: "worker 0 ended unexpectedly" in server.output)
        eventually(lambda: server.request("POST", "/v1/completions", body, sent)[0] == 200)
        server.stop()
    documents = [json.loads(line) for line in server.output.splitlines()]
    assert all({"time", "level", "logger", "role", "pid", "message"} <= set(document) for document in documents)
    by_logger = {document["logger"]: document for document in documents}
    assert by_logger["sixfold.ready"]["url"] == server.url and by_logger["sixfold.ready"]["role"] == "supervisor"
    (death,) = [document for document in documents if "ended unexpectedly" in document["message"]]
    assert (death["child"], death["cause"], death["child_pid"]) == ("worker 0", "signal 9", worker)
    line = by_logger[NAME]
    for name, value in {
        "request_id": "mine",
        "key": "alice",
        "status": 200,
        "role": "api 0",
        "cached_tokens": 0,
    }.items():
        assert line[name] == value, line
    assert line["method"] == "POST" and line["path"] == "/v1/completions" and line["prompt_tokens"] == len(SECRET)
    assert any("the KV cache holds" in document["message"] for document in documents)
    assert SECRET not in server.output and key not in server.output
