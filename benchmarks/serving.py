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
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

__all__ = ["Answer", "free_port", "served", "stream"]

STARTED_S = 60.0


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


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port: int = sock.getsockname()[1]
        return port


@contextlib.contextmanager
def served(*arguments: str) -> Iterator[str]:
    """Run `sixfold serve` with these arguments until the block ends; gives its URL at once, before it is ready."""
    port = free_port()
    command = [sys.executable, "-m", "sixfold", "serve", *arguments, "--port", str(port)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


async def stream(url: str, body: dict[str, Any], key: str = "") -> Answer:
    """POST a streaming completion and time it. Never raises for what the server does."""
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
            "POST /v1/completions HTTP/1.1",
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
    times: list[float] = []
    usage: dict[str, Any] = {}
    error, ended = "", False
    async for line in reader:
        if not line.startswith(b"data:"):
            continue  # a chunk header, an empty line or a keep-alive comment
        payload = line[5:].strip()
        if payload == b"[DONE]":
            ended = True
            break
        event = json.loads(payload)
        error = error or json.dumps(event.get("error", ""))[:300].strip('"')
        usage = event.get("usage") or usage
        if any(choice.get("text") for choice in event.get("choices") or []):
            times.append(time.perf_counter())
    n_tokens = usage.get("completion_tokens") or len(times)
    if not error and not ended:
        error = "the stream ended without [DONE]"
    if not error and body.get("ignore_eos") and n_tokens != body["max_tokens"]:
        error = f"{n_tokens} tokens instead of {body['max_tokens']}"
    first, last = (times[0], times[-1]) if times else (started, started)
    return Answer(
        200, error, first - started, time.perf_counter() - started, (last - first) / max(1, n_tokens - 1), n_tokens
    )
