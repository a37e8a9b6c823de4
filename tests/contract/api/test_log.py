"""What is printed at which level: a line per request, reasons of refusals, never a text."""

from __future__ import annotations

import json
import logging
import re
from pathlib import Path
from typing import Any
from urllib.parse import urlparse

import pytest
from tests.e2e.serving import Server

from sixfold.text import byte_tokenizer

from .conftest import Target, eventually, post_bytes
from .fake_engine import FakeEngine

SECRET = "xyzzy"
NAME = "sixfold.api.requests"


def lines(caplog: pytest.LogCaptureFixture, level: int = logging.INFO) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name == NAME and record.levelno == level]


@pytest.mark.parametrize("stream", [False, True])
def test_a_line_per_finished_request(serve: Any, caplog: pytest.LogCaptureFixture, stream: bool) -> None:
    caplog.set_level(logging.INFO, logger="sixfold")
    target, _ = serve()
    document = {"prompt": [SECRET, "b"], "script": list(SECRET), "stream": stream}
    assert target.post("/v1/completions", document, **{"X-Request-Id": "mine"}).status == 200
    eventually(lambda: len(lines(caplog)) == 1)
    pattern = r"id=mine POST /v1/completions status=200 ms=\d+\.\d prompt_tokens=6 completion_tokens=\d+"
    assert re.fullmatch(pattern, lines(caplog)[0]), lines(caplog)
    target.get("/livez")
    eventually(lambda: len(lines(caplog)) == 2)
    assert re.fullmatch(r"id=req-[0-9a-f]+ GET /livez status=200 ms=\d+\.\d", lines(caplog)[1])
    assert SECRET not in caplog.text


def test_a_line_says_how_a_request_failed(serve: Any, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="sixfold")
    target, _ = serve()
    for answer, line in (
        (target.chat(foo=1), "status=400 .* fault=unknown_field"),
        (target.chat(temperature=9), "status=400 .* fault=invalid_request_error"),
        (target.get("/a%0Ab c?d=e".replace(" ", "%20")), "GET /a%0Ab%20c status=404 .* fault=not_found"),
        (target.get("/livez", Host="evil.example"), "status=403 .* fault=host_not_allowed"),
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
    assert len(logged) == 3, server.output
    assert re.search(r"INFO api 0 sixfold.api.process: serving scripted on 127\.0\.0\.1 port \d+$", logged[0])
    assert re.search(rf"INFO api 0 {NAME}: id=\S+ POST /v1/chat/completions status=200 ms=", logged[1])
    assert logged[2].endswith("INFO api 0 sixfold.api.process: stopped")
    assert SECRET not in server.output
