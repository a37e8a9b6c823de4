"""A real server for tests: `sixfold serve` as a user starts it, on a free port, stopped at the end."""

from __future__ import annotations

import http.client
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlparse

__all__ = ["Server", "children_of"]

START_S = 60.0


def children_of(parent: int) -> dict[int, str]:
    """Process id -> command line."""
    found = {}
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/stat") as f:
                ancestor = int(f.read().rpartition(")")[2].split()[1])
            if ancestor == parent:
                with open(f"/proc/{pid}/cmdline") as f:
                    found[int(pid)] = f.read().replace("\0", " ").strip()
        except OSError:
            continue
    return found


class Server:
    """Starts on entry, waits until it announces its address, stops on exit.

    Args:
        arguments: of `sixfold serve`.
        run_root: where its run directory is made; default: as the environment says.
        port: 0 is any free one.
    """

    def __init__(self, *arguments: str, run_root: Path | None = None, port: int = 0) -> None:
        self._arguments = (*arguments, "--port", str(port))
        self._run_root = run_root
        self.output = ""

    def __enter__(self) -> Server:
        self.launch()
        if not self.wait_announced():
            self.stop(signal.SIGKILL)
            raise AssertionError(f"the server did not start:\n{self.output}")
        return self

    def launch(self) -> None:
        """Start, and wait for nothing."""
        more = {"PYTHONUNBUFFERED": "1"} | ({"XDG_RUNTIME_DIR": str(self._run_root)} if self._run_root else {})
        self.process = subprocess.Popen(
            [sys.executable, "-m", "sixfold", "serve", *self._arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
            env={**os.environ, **more},
        )
        self._announced = threading.Event()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def wait_announced(self, timeout_s: float = START_S) -> bool:
        """Whether it serves; False: it has ended, or needs longer."""
        self._announced.wait(timeout_s)
        found = re.search(r"https?://127\.0\.0\.1:\d+", self.output)
        self.url = found.group() if found else ""
        return found is not None

    def __exit__(self, *_: object) -> None:
        self.stop(signal.SIGINT)

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.output += line
            if "://127.0.0.1" in line:
                self._announced.set()
        self._announced.set()

    def stop(self, number: int = signal.SIGTERM) -> int:
        """Signal the supervisor and wait for it; its exit status."""
        if self.process.poll() is None:
            self.process.send_signal(number)
        status = self.process.wait(10)
        self._reader.join(5)
        if self.process.stdout is not None and not self._reader.is_alive():  # an orphan still holds the other end
            self.process.stdout.close()
        return status

    def children(self) -> dict[int, str]:
        """Process id -> command line of the supervisor's children."""
        return children_of(self.process.pid)

    # -- HTTP -----------------------------------------------------------------------------------------------------

    def connection(self, timeout: float = 60.0) -> http.client.HTTPConnection:
        address = urlparse(self.url)
        return http.client.HTTPConnection(str(address.hostname), address.port, timeout=timeout)

    def request(
        self, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None
    ) -> tuple[int, dict[str, str], bytes]:
        """Status, headers (lower case) and body. `body` may be bytes or anything that JSON can hold."""
        connection = self.connection()
        try:
            data = body if isinstance(body, bytes | None) else json.dumps(body).encode()
            sent = {"Content-Type": "application/json"} if data is not None else {}
            connection.request(method, path, data, {**sent, **(headers or {})})
            response = connection.getresponse()
            return response.status, {k.lower(): v for k, v in response.getheaders()}, response.read()
        finally:
            connection.close()

    def post(self, path: str, body: Any) -> Any:
        """The JSON answer of a request that must succeed."""
        status, _, data = self.request("POST", path, body)
        assert status == 200, data.decode()
        return json.loads(data)

    def stream(self, path: str, body: dict[str, Any]) -> Iterator[Any]:
        """The events of a streamed answer, `[DONE]` checked and left out."""
        connection = self.connection()
        try:
            connection.request("POST", path, json.dumps({**body, "stream": True}), {"Content-Type": "application/json"})
            response = connection.getresponse()
            assert response.status == 200, response.read().decode()
            ended = False
            for line in response:
                if line.startswith(b"data: "):
                    assert not ended, "an event after [DONE]"
                    payload = line[6:].strip()
                    if payload == b"[DONE]":
                        ended = True
                    else:
                        yield json.loads(payload)
            assert ended, "the stream has no [DONE]"
        finally:
            connection.close()

    def metrics(self) -> dict[str, float]:
        """Sample name with labels -> value."""
        _, _, data = self.request("GET", "/metrics")
        lines = (line.rsplit(" ", 1) for line in data.decode().splitlines() if line and not line.startswith("#"))
        return {name: float(value) for name, value in lines}

    def wait_idle(self, timeout_s: float = 5.0) -> None:
        """Nothing runs, nothing waits, and every block is free or cached."""
        deadline = time.monotonic() + timeout_s
        while True:
            metrics = self.metrics()
            total = sum(v for k, v in metrics.items() if k.startswith("sixfold_kv_blocks{"))
            busy = {
                k: v
                for k, v in metrics.items()
                if v
                and (
                    k.startswith(("sixfold_num_requests_running", "sixfold_num_requests_waiting"))
                    or 'state="held"' in k
                )
            }
            if not busy and total:
                return
            assert time.monotonic() < deadline, f"not idle: {busy}"
            time.sleep(0.1)
