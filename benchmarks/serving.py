"""Starting `sixfold serve` for a benchmark, and one streamed request against any OpenAI-compatible server."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

__all__ = ["Answer", "Server", "cpu_s", "free_port", "rollup", "served", "stream", "wait_ready"]

STARTED_S = 60.0
COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"


@dataclass(frozen=True)
class Answer:
    """What came of one request; times in seconds from its first byte sent."""

    status: int
    """HTTP status; 0 when the connection failed."""
    error: str = ""
    """Empty when the answer is whole."""
    ttft_s: float = 0.0
    total_s: float = 0.0
    itl_s: float = 0.0
    """Mean time between tokens after the first."""
    n_tokens: int = 0


@dataclass(frozen=True)
class Server:
    """A server under load."""

    url: str
    pid: int | None = None
    """Of the supervisor, where the server was started here."""

    def cpu_s(self) -> dict[str, float]:
        """CPU seconds used so far by each role: `api`, `engine`, `worker`; empty for a server started elsewhere."""
        if self.pid is None:
            return {}
        seconds: dict[str, float] = {}
        for pid in Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text().split():
            # A child is called `sixfold: api 0`.
            title = Path(f"/proc/{pid}/cmdline").read_bytes().partition(b"\0")[0].decode()
            role = title.removeprefix("sixfold: ").partition(" ")[0]
            seconds[role] = seconds.get(role, 0.0) + cpu_s(int(pid))
        return seconds


def cpu_s(pid: int) -> float:
    """CPU seconds that the threads of a process have used so far, to the nanosecond; those that ended do not count."""
    return sum(int(path.read_text().split()[0]) for path in Path(f"/proc/{pid}/task").glob("*/schedstat")) / 1e9


def rollup(pid: int | str) -> str:
    """What `/proc/PID/smaps_rollup` says of a process's memory.

    Raises:
        OSError: it has ended.
    """
    return Path(f"/proc/{pid}/smaps_rollup").read_text()


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port: int = sock.getsockname()[1]
        return port


@contextlib.contextmanager
def served(*arguments: str) -> Iterator[Server]:
    """Run `sixfold serve` with these arguments until the block ends; gives it at once, before it is ready."""
    port = free_port()
    command = [sys.executable, "-m", "sixfold", "serve", *arguments, "--port", str(port)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    try:
        yield Server(f"http://127.0.0.1:{port}", process.pid)
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def wait_ready(url: str) -> None:
    """Raises: SystemExit: it takes more than STARTED_S."""
    end_s = time.monotonic() + STARTED_S
    while time.monotonic() < end_s:
        with contextlib.suppress(OSError):
            urllib.request.urlopen(url + "/readyz", timeout=5).close()
            return
        time.sleep(0.05)
    raise SystemExit("the server did not start")


async def stream(url: str, body: dict[str, Any], key: str = "") -> Answer:
    """POST a streaming chat or completion and time it. Never raises for what the server does."""
    started = time.perf_counter()
    try:
        return await _stream(urlsplit(url), body, key, started)
    except (OSError, asyncio.IncompleteReadError, ValueError, IndexError) as error:
        return Answer(0, repr(error), total_s=time.perf_counter() - started)


async def _stream(url: Any, body: dict[str, Any], key: str, started: float) -> Answer:
    reader, writer = await asyncio.open_connection(url.hostname, url.port or 80, limit=1 << 22)
    try:
        data = json.dumps(body).encode()
        lines = [
            f"POST {CHAT if 'messages' in body else COMPLETIONS} HTTP/1.1",
            f"Host: {url.netloc}",
            "Content-Type: application/json",
            f"Content-Length: {len(data)}",
            "Connection: close",
            *([f"Authorization: Bearer {key}"] if key else []),
        ]
        writer.write("\r\n".join(lines).encode() + b"\r\n\r\n" + data)
        await writer.drain()
        status = int((await reader.readline()).split()[1])
        while (await reader.readline()).strip():
            pass
        if status != 200:
            return Answer(status, (await reader.read()).decode(errors="replace")[:300])
        return await _events(reader, body, started)
    finally:
        writer.close()


async def _events(reader: asyncio.StreamReader, body: dict[str, Any], started: float) -> Answer:
    """Read a stream to its end. Few events are parsed, for the clients share the machine with the server: those up to
    the first text, and those that tell of usage or of an error (a quote within text is escaped)."""
    first = last = started
    n_events, usage, error, ended = 0, {}, "", False
    async for line in reader:
        if not line.startswith(b"data:"):
            continue  # a chunk header, an empty line or a keep-alive comment
        payload = line[5:].strip()
        if payload == b"[DONE]":
            ended = True
            break
        if n_events and b'"completion_tokens"' not in payload and b'"error"' not in payload:
            last = time.perf_counter()
            n_events += 1
            continue
        event = json.loads(payload)
        error = error or json.dumps(event.get("error", ""))[:300].strip('"')
        usage = event.get("usage") or usage
        if any(choice.get("text") or choice.get("delta", {}).get("content") for choice in event.get("choices") or []):
            first = last = time.perf_counter()
            n_events = 1
    n_tokens = usage.get("completion_tokens") or n_events
    if not error and not ended:
        error = "the stream ended without [DONE]"
    if not error and body.get("ignore_eos") and n_tokens != body["max_tokens"]:
        error = f"{n_tokens} tokens instead of {body['max_tokens']}"
    itl_s = (last - first) / max(1, n_tokens - 1)
    return Answer(200, error, first - started, time.perf_counter() - started, itl_s, n_tokens)
