"""`sixfold batch` with its own server and with others: answers, faults, resuming, putting off."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from tests.e2e.serving import Server, children_of

from sixfold.cli.batch_lines import Index, InputLine, check, read_lines
from sixfold.cli.batch_results import Results
from sixfold.cli.batch_run import Batch, Endpoint, ServerGone
from sixfold.errors import ConfigError

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
SLOW = {"step_ms": 20}


def line(custom_id: str, url: str = TEXT, **body: Any) -> dict[str, Any]:
    return {"custom_id": custom_id, "method": "POST", "url": url, "body": body}


def chat(custom_id: str, **body: Any) -> dict[str, Any]:
    return line(custom_id, CHAT, messages=[{"role": "user", "content": custom_id}], **body)


def write(path: Path, lines: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(entry) + "\n" for entry in lines))
    return path


def read(path: Path) -> dict[str, Any]:
    entries = [json.loads(text) for text in path.read_text().splitlines()]
    found = {entry["custom_id"]: entry for entry in entries}
    assert len(found) == len(entries)
    return found


def command(*arguments: object) -> list[str]:
    return [sys.executable, "-m", "sixfold", "batch", *map(str, arguments)]


def batch(*arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command(*arguments), capture_output=True, text=True, timeout=120, check=False)


def scripted(tmp_path: Path, **script: Any) -> tuple[str, ...]:
    (tmp_path / "script.json").write_text(json.dumps(script))
    return ("--executor", "scripted", "--script", str(tmp_path / "script.json"))


def wait_for_lines(path: Path, n: int, process: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + 60
    while not path.exists() or path.read_bytes().count(b"\n") < n:
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.01)


def without_ids(body: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in body.items() if key not in ("id", "created")}


def test_answers_are_those_of_the_server(tmp_path: Path) -> None:
    good = [line(f"t{i}", prompt=f"number {i}", max_tokens=4 + i, seed=i) for i in range(20)]
    good += [chat(f"c{i}", script=["fine", str(i)], n=1 + i % 2) for i in range(20)]
    bad = [
        line("negative", prompt="x", max_tokens=-1),
        line("unknown", prompt="x", maxtokens=1),
        line("broken", prompt="x", script=["a", -1]),
        line("model", prompt="x", model="another"),
        line("typed", prompt=True),
    ]
    path, out = write(tmp_path / "in.jsonl", good[:20] + bad + good[20:]), tmp_path / "out.jsonl"
    flags = scripted(tmp_path)
    done = batch("scripted", path, "-o", out, *flags)
    assert done.returncode == 1, done.stderr
    assert done.stdout == f"{out}: 45 requests are answered, 5 of them failed (--retry-failed does those again)\n"
    found = read(out)
    assert all(set(entry) == {"id", "custom_id", "response", "error"} for entry in found.values())
    statuses = {entry["custom_id"]: entry["response"]["status_code"] for entry in found.values()}
    wrong = {"negative": 400, "unknown": 400, "broken": 500, "model": 404, "typed": 400}
    assert statuses == {entry["custom_id"]: 200 for entry in good} | wrong
    with Server("scripted", *flags) as server:
        for entry in good + bad:
            status, _, data = server.request("POST", entry["url"], entry["body"])
            answer = found[entry["custom_id"]]["response"]
            assert status == answer["status_code"]
            assert without_ids(json.loads(data)) == without_ids(answer["body"])


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_a_run_that_was_stopped_is_gone_on_with(tmp_path: Path, number: signal.Signals) -> None:
    lines = [line(f"{i}", prompt=f"{i}", max_tokens=3 + i % 5, seed=1) for i in range(60)]
    path, out = write(tmp_path / "in.jsonl", lines), tmp_path / "out.jsonl"
    flags = scripted(tmp_path, **SLOW)
    arguments = ("scripted", path, "-o", out, "--concurrency", 4, *flags)
    with subprocess.Popen(command(*arguments), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        wait_for_lines(out, 5, process)
        process.send_signal(number)
        _, said = process.communicate(timeout=60)
    if number == signal.SIGINT:
        assert process.returncode == 130
        n = out.read_text().count("\n")
        assert f"{out}: {n} of 60 requests are answered; the same command goes on" in said
        assert out.read_bytes().endswith(b"\n")
    before = out.read_bytes()
    whole = before[: before.rindex(b"\n") + 1]
    assert 5 <= whole.count(b"\n") < 60
    out.write_bytes(whole + b'{"id":"batch_req_00","custom_id":"5')
    done = batch(*arguments)
    assert done.returncode == 0, done.stderr
    assert out.read_bytes().startswith(whole)
    assert set(read(out)) == {entry["custom_id"] for entry in lines}
    assert all(entry["response"]["status_code"] == 200 for entry in read(out).values())
    done = batch(*arguments)
    assert done.returncode == 0
    assert done.stdout == f"{out}: 60 requests are answered\n"


@contextmanager
def running(tmp_path: Path, out: Path) -> Iterator[subprocess.Popen[str]]:
    """A run over 40 lines that has answered some of them."""
    path = write(tmp_path / "in.jsonl", [line(f"{i}", prompt=f"{i}", max_tokens=20) for i in range(40)])
    arguments = command("scripted", path, "-o", out, "--concurrency", 4, *scripted(tmp_path, **SLOW))
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        wait_for_lines(out, 1, process)
        yield process


def test_the_death_of_a_process_of_the_server_is_a_pause(tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    with running(tmp_path, out) as process:
        (worker,) = [pid for pid, name in children_of(process.pid).items() if "worker 0" in name]
        os.kill(worker, signal.SIGKILL)
        _, said = process.communicate(timeout=60)
    assert process.returncode == 0
    assert "worker 0 ended unexpectedly" in said
    assert len(read(out)) == 40 and all(entry["response"]["status_code"] == 200 for entry in read(out).values())


def test_the_death_of_the_server_ends_the_run(tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    with running(tmp_path, out) as process:
        while process.poll() is None:  # no worker lives long enough to do anything: the server gives up
            for pid, name in children_of(process.pid).items():
                if "worker" in name:
                    with suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
            time.sleep(0.01)
        _, said = process.communicate(timeout=60)
    assert process.returncode == 4
    assert "again and again" in said
    assert "of 40 requests are answered; the same command goes on" in said
    assert all(entry["response"]["status_code"] == 200 for entry in read(out).values())


def test_a_server_that_runs_already_and_failed_requests_again(tmp_path: Path) -> None:
    path, out = write(tmp_path / "in.jsonl", [chat("a"), line("b", prompt="x", script=[-1])]), tmp_path / "out.jsonl"
    script = scripted(tmp_path, script=["yes"])
    with Server("scripted", *script) as server:
        for url in (server.url, f"{server.url}/v1/"):
            assert batch(path, "-o", out, "--url", url, "--retry-failed").returncode == 1
        assert read(out)["a"]["response"]["body"]["choices"][0]["message"]["content"] == "yes"
        done = {name: n for name, n in server.metrics().items() if name.startswith("sixfold_request_success_total{")}
        assert sum(n for name, n in done.items() if 'finished_reason="stop"' in name) == 1  # the second run left it
        refused = batch("scripted", path, "-o", out, "--url", server.url)
        assert refused.returncode == 2
        assert "neither a model nor a setting" in refused.stderr
    out.unlink()
    assert batch(path, "-o", out, "--url", "ftp://x").returncode == 2


# -- against servers that behave badly ---------------------------------------------------------------------------------

Reply = Callable[[BaseHTTPRequestHandler, dict[str, Any]], None]


def send(handler: BaseHTTPRequestHandler, status: int, body: bytes = b'{"ok":true}', **headers: str) -> None:
    handler.send_response(status)
    for name, value in {"Content-Length": str(len(body)), "X-Request-Id": "r", **headers}.items():
        handler.send_header(name.replace("_", "-"), value)
    handler.end_headers()
    handler.wfile.write(body)


@pytest.fixture
def serve() -> Iterator[Callable[[Reply], Endpoint]]:
    """Starts servers that answer as told."""
    servers: list[ThreadingHTTPServer] = []

    def start(reply: Reply) -> Endpoint:
        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                reply(self, json.loads(self.rfile.read(int(self.headers["Content-Length"]))))

            def log_message(self, *_: Any) -> None:
                pass

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        servers.append(server)
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        return Endpoint(f"http://127.0.0.1:{server.server_port}")

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


def run(
    tmp_path: Path, endpoint: Endpoint, n: int, *, concurrency: int = 4, max_retries: int = 20
) -> tuple[Batch, dict[str, Any]]:
    path = write(tmp_path / "in.jsonl", [line(f"{i}", i=i) for i in range(n)])
    with closing(Index()) as index:
        check(path, index)
        with closing(Results(tmp_path / "out.jsonl", index)) as results:
            work = Batch(read_lines(path, index), results, concurrency=concurrency, max_retries=max_retries)
            work.run(endpoint)
    return work, read(tmp_path / "out.jsonl")


@pytest.mark.parametrize("status", [429, 503])
def test_what_is_put_off_is_tried_again(tmp_path: Path, serve: Any, status: int) -> None:
    seen: dict[int, int] = {}

    def reply(handler: BaseHTTPRequestHandler, body: dict[str, Any]) -> None:
        seen[body["i"]] = seen.get(body["i"], 0) + 1
        if seen[body["i"]] <= 2:
            send(handler, status, Retry_After="0")
        else:
            send(handler, 200)

    work, found = run(tmp_path, serve(reply), 5)
    assert work.finished
    assert {entry["response"]["status_code"] for entry in found.values()} == {200}
    assert seen == dict.fromkeys(range(5), 3)


def test_what_is_put_off_too_often_has_failed(tmp_path: Path, serve: Any) -> None:
    work, found = run(tmp_path, serve(lambda handler, _: send(handler, 429, Retry_After="0")), 1, max_retries=2)
    assert work.finished
    assert found["0"]["response"]["status_code"] == 429


def test_other_faults_are_not_tried_again(tmp_path: Path, serve: Any) -> None:
    seen: list[int] = []

    def reply(handler: BaseHTTPRequestHandler, body: dict[str, Any]) -> None:
        seen.append(body["i"])
        bodies = {0: b"<html>Bad gateway", 1: b'{"error": {\n"message": "x"}}', 2: b"\xff", 3: b""}
        send(handler, 502, bodies[body["i"]])

    work, found = run(tmp_path, serve(reply), 4)
    assert work.finished
    assert sorted(seen) == [0, 1, 2, 3]
    assert found["0"]["error"] == {
        "code": "not_json",
        "message": "the answer with status 502 is not JSON: <html>Bad gateway",
    }
    assert found["1"]["response"]["body"] == {"error": {"message": "x"}}
    assert {found["2"]["error"]["code"], found["3"]["error"]["code"]} == {"not_json"}


def test_a_connection_that_was_closed_in_between_is_made_again(tmp_path: Path, serve: Any) -> None:
    hung_up: list[int] = []

    def reply(handler: BaseHTTPRequestHandler, body: dict[str, Any]) -> None:
        if body["i"] in (1, 2) and body["i"] not in hung_up:
            hung_up.append(body["i"])
            handler.close_connection = True  # without a word
            return
        send(handler, 200)

    work, found = run(tmp_path, serve(reply), 4, concurrency=1)
    assert work.finished
    assert len(found) == 4
    assert hung_up == [1, 2]


def test_a_server_that_is_gone_ends_the_run(tmp_path: Path, serve: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sixfold.cli.batch_run.CONNECT_TRIES", 2)

    def reply(handler: BaseHTTPRequestHandler, body: dict[str, Any]) -> None:
        if body["i"] >= 3:
            handler.close_connection = True
        else:
            send(handler, 200)

    work, found = run(tmp_path, serve(reply), 10, concurrency=1)
    assert isinstance(work.error, ServerGone)
    assert not work.finished
    assert set(found) == {"0", "1", "2"}


def test_no_more_lines_are_taken_than_are_in_flight(tmp_path: Path, serve: Any) -> None:
    taken: list[str] = []
    arrived = threading.Semaphore(0)
    go = threading.Event()

    def reply(handler: BaseHTTPRequestHandler, _: dict[str, Any]) -> None:
        arrived.release()
        go.wait(30)
        send(handler, 200)

    endpoint = serve(reply)
    path = write(tmp_path / "in.jsonl", [line(f"{i}") for i in range(100)])

    def counted(lines: Iterator[InputLine]) -> Iterator[InputLine]:
        for entry in lines:
            taken.append(entry.custom_id)
            yield entry

    with closing(Index()) as index:
        check(path, index)
        with closing(Results(tmp_path / "out.jsonl", index)) as results:
            work = Batch(counted(read_lines(path, index)), results, concurrency=3, max_retries=0)
            thread = threading.Thread(target=work.run, args=(endpoint,))
            thread.start()
            for _ in range(3):
                assert arrived.acquire(timeout=30)
            assert taken == ["0", "1", "2"]
            go.set()
            thread.join(30)
    assert work.finished
    assert len(read(tmp_path / "out.jsonl")) == 100


@pytest.mark.parametrize("url", ["", "127.0.0.1:8000", "http://", "http://x:y", "ftp://x", "http://x/?a=b"])
def test_an_url_that_is_none(url: str) -> None:
    with pytest.raises(ConfigError, match="--url must be like"):
        Endpoint(url)
