"""Traces of a real server: right by our own check, whole from submission to writing, and for operators alone."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from tests.e2e.serving import Server

from sixfold.api.access.keys import new_key
from sixfold.cli.main import cli
from sixfold.observability.trace_check import check_trace

SECRET = "xyzzy"
WORDS = ["a", "b", "c", "d"]


def ask(server: Server, label: str, headers: dict[str, str] | None = None, **more: Any) -> None:
    body = {"messages": [{"role": "user", "content": SECRET}], "script": WORDS, **more}
    sent = {"X-Request-Id": label, **(headers or {})}
    assert server.request("POST", "/v1/chat/completions", body, sent)[0] == 200


def document(server: Server, path: str) -> Any:
    status, headers, data = server.request("GET", path)
    assert status == 200, data.decode()
    assert headers["content-type"] == "application/json" and SECRET.encode() not in data
    found = json.loads(data)
    assert check_trace(found) == []
    return found


def processes(found: Any) -> dict[int, str]:
    return {event["pid"]: event["args"]["name"] for event in found["traceEvents"] if event["name"] == "process_name"}


def test_a_trace_of_a_server_is_right(tmp_path: Path) -> None:
    with Server("scripted", "--api-server-count", "2") as server:
        for number in range(6):
            ask(server, f"r{number}", stream=True)
        found = document(server, "/debug/trace?seconds=30")
        one = document(server, "/debug/timeline/r3")
        assert server.request("GET", "/debug/timeline/nobody")[0] == 404
        for query in ("seconds=0", "seconds=61", "seconds=nan", "seconds=", "minutes=1", "seconds=-1"):
            assert server.request("GET", f"/debug/trace?{query}")[0] == 400, query
        output = tmp_path / "trace.json"
        arguments = ["trace", "--url", server.url, "--request", "r5", "--output", str(output)]
        result = CliRunner().invoke(cli, arguments)
        assert result.exit_code == 0, result.output
        assert check_trace(json.loads(output.read_text())) == [] and "ui.perfetto.dev" in result.output

    events = found["traceEvents"]
    names = processes(found)
    roles = {name.partition(" (pid")[0] for name in names.values()}
    assert roles >= {f"Control path: {role}" for role in ("requests", "api 0", "api 1", "engine", "worker 0")}
    assert {"Data path: worker 0, computing", "Data path: KV blocks"} <= roles
    tracks = [event for event in events if event["ph"] == "b" and event["name"].startswith("r")]
    assert {f"r{number}" for number in range(6)} <= {event["name"] for event in tracks}
    assert {event["name"] for event in events if event["ph"] == "n"} >= {"first token"}
    arrows = {event["id"] for event in events if event["ph"] == "f"}
    assert {arrow.partition(" ")[0] for arrow in arrows} == {"submit", "step", "output"}

    assert next(event["name"] for event in one["traceEvents"] if event["ph"] == "b") == "r3"
    by_phase: dict[str, set[str]] = {}
    for event in one["traceEvents"]:
        if event["ph"] in "stf":
            by_phase.setdefault(event["name"], set()).add(processes(one)[event["pid"]].partition(" (pid")[0])
    assert by_phase["submit"] >= {"Control path: engine"}
    assert by_phase["step"] == {"Control path: engine", "Control path: worker 0", "Data path: worker 0, computing"}


def test_traces_are_for_operators(tmp_path: Path) -> None:
    (admin, admin_digest), (user, user_digest) = new_key(), new_key()
    keys = tmp_path / "keys.toml"
    keys.write_text(f'[a]\nsha256 = "{admin_digest}"\nscope = "admin"\n[u]\nsha256 = "{user_digest}"\n')
    with Server("scripted", "--api-key-file", str(keys)) as server:
        ask(server, "mine", {"Authorization": f"Bearer {user}"})
        for path in ("/debug/trace", "/debug/timeline/mine"):
            assert server.request("GET", path)[0] == 401
            assert server.request("GET", path, headers={"Authorization": f"Bearer {user}"})[0] == 403
            assert server.request("GET", path, headers={"Authorization": f"Bearer {admin}"})[0] == 200


@pytest.mark.parametrize("arguments", [["--seconds", "0"], ["--seconds", "61"], ["--url", "ftp://a"]])
def test_the_command_says_what_is_wrong(arguments: list[str]) -> None:
    assert CliRunner().invoke(cli, ["trace", *arguments]).exit_code != 0
