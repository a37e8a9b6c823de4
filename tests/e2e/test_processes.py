"""Processes of a server: their names, their one end, whatever is killed, and nothing left behind. No model needed."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.e2e.serving import Server


def wait_gone(pids: list[int], timeout_s: float = 5.0) -> None:
    deadline = time.monotonic() + timeout_s
    left = pids
    while left and time.monotonic() < deadline:
        left = [pid for pid in left if is_alive(pid)]
        time.sleep(0.02)
    assert not left, f"still alive: {left}"


def is_alive(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as f:
            return f.read().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_names_and_a_private_run_directory(runtime_dir: Path) -> None:
    with Server("scripted", "--api-server-count", "2") as server:
        titles = sorted(server.children().values())
        assert titles == ["sixfold: api 0", "sixfold: api 1", "sixfold: engine", "sixfold: worker 0"]
        (run_dir,) = runtime_dir.iterdir()
        assert run_dir.stat().st_mode & 0o777 == 0o700
        assert {p.stat().st_mode & 0o777 for p in run_dir.iterdir()} == {0o600}
        assert server.post("/v1/completions", {"model": "scripted", "prompt": "x", "max_tokens": 1})["choices"]
    assert not list(runtime_dir.iterdir())


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT])
def test_a_signal_stops_everything_within_two_seconds(number: int, runtime_dir: Path) -> None:
    with Server("scripted") as server:
        children = list(server.children())
        started = time.monotonic()
        assert server.stop(number) == 0
        assert time.monotonic() - started < 2.5
        wait_gone(children, 0.5)
    assert not list(runtime_dir.iterdir())
    assert "Traceback" not in server.output


def test_ctrl_c_in_a_terminal_reaches_the_supervisor_only(runtime_dir: Path) -> None:
    """The terminal signals the whole foreground group; children must leave the end to the supervisor."""
    with Server("scripted") as server:
        os.killpg(server.process.pid, signal.SIGINT)
        assert server.process.wait(5) == 0
    assert "Traceback" not in server.output and "unexpectedly" not in server.output


@pytest.mark.parametrize("role", ["api 0", "engine", "worker 0"])
def test_a_crash_loop_ends_the_server_with_a_status(role: str, runtime_dir: Path) -> None:
    """Killed again and again, and nothing done between."""
    with Server("scripted") as server:
        deadline = time.monotonic() + 30
        while server.process.poll() is None and time.monotonic() < deadline:
            for pid, title in server.children().items():
                if title == f"sixfold: {role}":
                    with contextlib.suppress(ProcessLookupError):  # it has had the signal of the round before
                        os.kill(pid, signal.SIGKILL)
            time.sleep(0.02)
        assert server.process.wait(5) == 4
    assert "again and again" in server.output
    assert not list(runtime_dir.iterdir())


def test_a_child_that_dies_at_the_start_ends_the_server(
    runtime_dir: Path, tmp_path_factory: pytest.TempPathFactory, model_path: Path
) -> None:
    """The worker has no token for its script; nothing is gained by starting it again."""
    script = tmp_path_factory.mktemp("script") / "s.json"
    script.write_text('{"script": [99999]}')
    arguments = ["--executor", "scripted", "--port", "0", "--script", str(script)]
    result = subprocess.run(
        [sys.executable, "-m", "sixfold", "serve", str(model_path), *arguments],
        capture_output=True,
        text=True,
        timeout=30,
    )
    assert result.returncode == 4 and "unexpectedly" in result.stderr and "again" not in result.stderr
    assert not list(runtime_dir.iterdir())


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("{", "truncated"),
        ('{"script": [99999]}', "script[0] has no token"),
        ('{"tokens": [""]}', "not empty"),
        ('{"other": 1}', "other"),
        (None, "No such file"),
    ],
)
def test_a_script_that_cannot_be_used_is_one_sentence_and_a_wrong_setting(
    content: str | None, said: str, runtime_dir: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    script = tmp_path_factory.mktemp("script") / "s.json"
    if content is not None:
        script.write_text(content)
    result = subprocess.run(
        [sys.executable, "-m", "sixfold", "serve", "scripted", "--port", "0", "--script", str(script)],
        capture_output=True,
        text=True,
        timeout=30,
    )
    assert result.returncode == 2
    assert len(result.stderr.splitlines()) == 1 and str(script) in result.stderr and said in result.stderr
    assert not list(runtime_dir.iterdir())


def test_o43_no_orphans_and_no_files_when_the_supervisor_is_killed(runtime_dir: Path) -> None:
    with Server("scripted") as server:
        children = list(server.children())
        assert len(children) == 3
        server.process.kill()
        wait_gone(children, 2.0)
    assert not list(runtime_dir.iterdir())


def test_a_taken_port_is_one_sentence() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        result = subprocess.run(
            [sys.executable, "-m", "sixfold", "serve", "scripted", "--port", port],
            capture_output=True,
            text=True,
            timeout=30,
        )
    assert result.returncode != 0
    assert "--port" in result.stderr and port in result.stderr and "Traceback" not in result.stderr


def test_an_open_stream_ends_when_the_server_stops(tmp_path: Path) -> None:
    script = tmp_path / "slow.json"
    script.write_text('{"step_ms": 20}')
    with Server("scripted", "--script", str(script), "--drain-timeout-s", "0") as server:
        body = {"model": "scripted", "prompt": "x", "max_tokens": 1000, "stream": True}
        connection = server.connection(timeout=10)
        connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
        response = connection.getresponse()
        assert response.readline().startswith(b"data: ")
        started = time.monotonic()
        assert server.stop(signal.SIGTERM) == 0
        assert time.monotonic() - started < 2.5
        events = [line for line in response.read().split(b"\n") if line.startswith(b"data: ")]
        connection.close()
    assert events[-1] == b"data: [DONE]"
    error = json.loads(events[-2].removeprefix(b"data: "))["error"]
    assert error["code"] == "draining" and error["message"]


def test_an_embedding_that_is_not_in_time_is_504(tmp_path: Path) -> None:
    script = tmp_path / "slow.json"
    script.write_text('{"step_ms": 20}')
    with Server("scripted", "--script", str(script), "--max-num-seqs", "2") as server:
        texts = [f"{i} " * 50 for i in range(60)]
        status, _, data = server.request("POST", "/v1/embeddings", {"input": texts, "timeout": 0.1})
        assert status == 504 and b"deadline_exceeded" in data
        server.wait_idle()
        assert server.post("/v1/embeddings", {"input": "a", "timeout": 60})["data"]


def test_a_useless_runtime_directory_is_passed_by(monkeypatch: pytest.MonkeyPatch) -> None:
    for directory in ("/nonexistent", "/" + "x" * 120):
        monkeypatch.setenv("XDG_RUNTIME_DIR", directory)
        with Server("scripted") as server:
            assert server.request("GET", "/health")[0] == 200
