"""Keys, TLS and draining, with all processes."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import signal
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlparse

import pytest
from tests.e2e.serving import Server
from tests.unit.api.test_exposure import make_certificate

from sixfold.api.access.keys import load_keys, new_key


def test_a_server_with_keys_from_the_command_line(tmp_path: Path) -> None:
    """`sixfold key new` makes what `--api-key-file` takes; the key is in no process's arguments and in no output."""
    file = tmp_path / "keys.toml"
    made = [
        subprocess.run(
            [sys.executable, "-m", "sixfold", "key", "new", *arguments], capture_output=True, text=True, check=True
        )
        for arguments in (["alice"], ["root", "--admin"])
    ]
    user, admin = (result.stdout.strip() for result in made)
    file.write_text("".join(result.stderr for result in made))
    os.chmod(file, 0o600)
    assert user not in file.read_text()
    with Server("scripted", "--api-key-file", str(file), "--log-level", "debug") as server:
        body = {"prompt": "x", "max_tokens": 2}
        for path, key, status in (
            ("/v1/completions", None, 401),
            ("/v1/completions", user + "x", 401),
            ("/v1/completions", user, 200),
        ):
            headers = {"Authorization": f"Bearer {key}"} if key else {}
            assert server.request("POST", path, body, headers)[0] == status
        for key, status in ((user, 403), (admin, 200)):
            assert server.request("GET", "/metrics", headers={"X-Api-Key": key})[0] == status
        assert server.request("GET", "/readyz")[0] == 200
        processes = [server.process.pid, *server.children()]
        shown = [Path(f"/proc/{pid}/{name}").read_bytes() for pid in processes for name in ("cmdline", "environ")]
        server.stop()
    for key in (user, admin):
        assert key not in server.output and not any(key.encode() in text for text in shown)


def test_threat_18_a_handshake_that_never_ends_is_cut_off(tmp_path: Path) -> None:
    cert, key = make_certificate(tmp_path)
    with Server("scripted", "--tls-cert", cert, "--tls-key", key, "--header-timeout-s", "0.5") as server:
        address = ("127.0.0.1", urlparse(server.url).port)
        with socket.create_connection(address, timeout=20) as silent, socket.create_connection(address, 20) as slow:
            slow.sendall(b"\x16\x03\x01")
            with contextlib.suppress(ConnectionResetError):
                assert silent.recv(1) == b""
            with contextlib.suppress(ConnectionResetError):
                assert slow.recv(1) == b""


def test_threat_4_new_files_with_keys_are_their_owners(tmp_path: Path) -> None:
    """The shell makes them readable by all; and one that holds something already is told of."""
    command = f"umask 022; '{sys.executable}' -m sixfold key new"
    file, key = tmp_path / "keys.toml", tmp_path / "alice.key"
    subprocess.run(f"{command} alice 2>>'{file}' >'{key}'", shell=True, check=True)
    assert {path.stat().st_mode & 0o777 for path in (file, key)} == {0o600}
    os.chmod(file, 0o644)
    subprocess.run(f"{command} bob 2>>'{file}' >/dev/null", shell=True, check=True)
    assert file.stat().st_mode & 0o777 == 0o644 and "chmod 600" in file.read_text()
    assert list(load_keys(str(file))) == ["alice", "bob"]


def test_threat_3_a_server_for_everybody_must_be_wanted() -> None:
    command = [sys.executable, "-m", "sixfold", "serve", "scripted", "--host", "0.0.0.0", "--port", "0"]
    result = subprocess.run(command, capture_output=True, text=True, timeout=30)
    assert result.returncode == 2 and "--insecure-no-auth" in result.stderr and "Traceback" not in result.stderr


def test_threat_16_tls(tmp_path: Path) -> None:
    cert, key = make_certificate(tmp_path)
    with Server("scripted", "--tls-cert", cert, "--tls-key", key) as server:
        assert server.url.startswith("https://")
        port = urlparse(server.url).port
        context = ssl.create_default_context(cafile=cert)
        connection = http.client.HTTPSConnection("127.0.0.1", port, context=context, timeout=20)
        connection.request(
            "POST",
            "/v1/completions",
            json.dumps({"prompt": "x", "max_tokens": 5, "stream": True}),
            {"Content-Type": "application/json"},
        )
        response = connection.getresponse()
        assert response.status == 200 and response.read().endswith(b"data: [DONE]\n\n")
        connection.close()
        for sent in (b"GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n", b"\x00" * 64, b""):
            with socket.create_connection(("127.0.0.1", port), timeout=20) as plain:
                plain.sendall(sent)
                answer = b""
                with contextlib.suppress(ConnectionError):  # closed, or reset: both will do
                    plain.shutdown(socket.SHUT_WR)
                    answer = plain.recv(1000)
                assert b"HTTP" not in answer
        with context.wrap_socket(
            socket.create_connection(("127.0.0.1", port), timeout=20), server_hostname="127.0.0.1"
        ) as tls:
            tls.sendall(b"BROKEN\r\n\r\n")
            assert tls.recv(12) == b"HTTP/1.1 400"
        old = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        old.check_hostname, old.verify_mode = False, ssl.CERT_NONE
        with pytest.warns(DeprecationWarning):
            old.maximum_version = ssl.TLSVersion.TLSv1_1
        with socket.create_connection(("127.0.0.1", port), timeout=20) as sock, pytest.raises((ssl.SSLError, OSError)):
            old.wrap_socket(sock)
        server.stop()
    assert "Traceback" not in server.output


@contextlib.contextmanager
def draining(
    tmp_path: Path, *, max_tokens: int, step_ms: int, timeout_s: int, n_processes: int = 1
) -> Iterator[tuple[Server, http.client.HTTPResponse]]:
    """A server that was told to end in the middle of a stream, which is given, too."""
    script = tmp_path / "slow.json"
    script.write_text(json.dumps({"step_ms": step_ms}))
    arguments = ("--drain-timeout-s", str(timeout_s), "--api-server-count", str(n_processes))
    with Server("scripted", "--script", str(script), *arguments) as server:
        connection = server.connection(timeout=30)
        body = {"prompt": "x", "max_tokens": max_tokens, "stream": True, "ignore_eos": True}
        connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
        response = connection.getresponse()
        assert response.readline().startswith(b"data: ")
        server.process.send_signal(signal.SIGTERM)
        end = time.monotonic() + 10
        while server.request("GET", "/readyz")[0] != 503:
            assert time.monotonic() < end
        yield server, response
        connection.close()


@pytest.mark.parametrize("n_processes", [1, 3])
def test_sigterm_drains(tmp_path: Path, n_processes: int) -> None:
    """What is in flight ends as it should, in whichever process; new work is refused; the exit status is that of an
    orderly end."""
    with draining(tmp_path, max_tokens=150, step_ms=10, timeout_s=60, n_processes=n_processes) as (server, response):
        for _ in range(2 * n_processes):
            status, headers, data = server.request("POST", "/v1/completions", {"prompt": "x", "max_tokens": 1})
            assert status == 503 and headers["retry-after"] and json.loads(data)["error"]["code"] == "draining"
        assert server.request("GET", "/livez")[0] == 200
        events = [line for line in response.read().split(b"\n") if line.startswith(b"data: ")]
        assert server.process.wait(10) == 0
    assert events[-1] == b"data: [DONE]" and b'"error"' not in events[-2]
    assert json.loads(events[-2][6:])["choices"][0]["finish_reason"] == "length"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_second_signal_ends_the_draining(tmp_path: Path, number: signal.Signals) -> None:
    with draining(tmp_path, max_tokens=2000, step_ms=20, timeout_s=300) as (server, response):
        assert server.stop(number) == 0
        events = [line for line in response.read().split(b"\n") if line.startswith(b"data: ")]
    assert json.loads(events[-2][6:])["error"]["code"] == "draining" and events[-1] == b"data: [DONE]"


def test_a_hash_is_no_key() -> None:
    key, digest = new_key()
    assert digest not in key and len(digest) == 64
