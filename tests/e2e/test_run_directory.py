"""What happens to the run directory and the files beside it while a server lives: full disks, cleaners, edited keys."""

from __future__ import annotations

import hashlib
import resource
import signal
from pathlib import Path

import pytest
from tests.e2e.serving import Server
from tests.e2e.test_restart import BODIES, Streams, kill, pid_of, with_model


@pytest.fixture
def run_root(runtime_dir: Path) -> Path:
    (runtime_dir / "slow.json").write_text('{"step_ms": 10}')
    (runtime_dir / "run").mkdir()
    return runtime_dir / "run"


def slow(run_root: Path, *more: str) -> Server:
    script = str(run_root.parent / "slow.json")
    return Server("scripted", "--script", script, "--response-store", "off", *more, run_root=run_root)


def test_on_a_full_disk_all_that_dies_is_started_again_and_streams_go_on(run_root: Path) -> None:
    """No process can make a file longer from the middle of the streams on."""
    with slow(run_root, "--api-server-count", "2") as server:
        bodies = with_model(server, BODIES)
        undisturbed = Streams(server, bodies).join()
        streams = Streams(server, bodies)
        streams.wait_events(2)
        for pid in (server.process.pid, *server.children()):
            resource.prlimit(pid, resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))
        for role in ("engine", "engine"):
            streams.wait_events(4)
            kill(server, role)
        assert streams.join() == undisturbed
        before = pid_of(server, "api 1")
        kill(server, "api 1")
        while all(pid == before or title != "sixfold: api 1" for pid, title in server.children().items()):
            assert server.process.poll() is None
        assert Streams(server, bodies * 2).join() == undisturbed * 2
        server.wait_idle()


def test_without_the_files_of_its_run_directory_a_server_ends_instead_of_refusing_for_ever(run_root: Path) -> None:
    with slow(run_root) as server:
        (run_dir,) = run_root.iterdir()
        (run_dir / "engine.sock").unlink()
        assert server.request("GET", "/readyz")[0] == 200  # nobody needs it now
        kill(server, "engine")
        assert server.process.wait(20) == 4
    assert "files of the run directory have been removed" in server.output and "Traceback" not in server.output
    assert not list(run_root.iterdir())


def test_a_broken_key_file_keeps_nobody_from_being_started_again(run_root: Path) -> None:
    keys = run_root.parent / "keys.toml"
    keys.write_text(f'[a]\nsha256 = "{hashlib.sha256(b"secret").hexdigest()}"\n')
    keys.chmod(0o600)
    with slow(run_root, "--api-key-file", str(keys)) as server:
        keys.write_text("[a\nhalf saved")
        kill(server, "api 0", signal.SIGKILL)
        body = {"model": "scripted", "prompt": "x", "max_tokens": 1}
        status, _, _ = server.request("POST", "/v1/completions", body, {"Authorization": "Bearer secret"})
        assert status == 200
        assert server.request("GET", "/v1/models")[0] == 401
    assert server.output.count("starting it again") == 1
