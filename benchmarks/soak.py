"""Half an hour of everything at once: does the server stay as large as it was, and does nothing get lost?

    python benchmarks/soak.py --minutes 30 --json soak.json

Clients of every kind ask without a pause, in random order: whole and streamed answers of all APIs, tools, schemas,
embeddings, stored and continued responses. Some leave amid an answer, some read slowly or send half a request, some
make every mistake that has a status of its own; some abort what others wait for. Every few seconds memory, descriptors
and threads of each process are written down.

Prints Markdown: per process the medians of the middle and of the last third (the first one is warm-up), and the trend
of the last. Exit status 1 where memory of a process grew by more than 2 % and 2 MiB, or descriptors or threads are more
after the run than before it, or blocks are not all free or cached at the end, or a status came that no such call may
have.

The load is niced: it stands for other machines.
"""

from __future__ import annotations

import argparse
import asyncio
import collections
import contextlib
import json
import os
import random
import re
import socket
import statistics
import sys
import time
import urllib.request
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from report import output_file
from serving import Server, rollup, served, wait_ready

NICE = 10
GROWTH_PART, GROWTH_MIB = 0.02, 2.0
QUIET_S = 10.0
"""After the last call: until then, what it left must be gone."""
WORDS = "the quick brown fox jumps over lazy dogs while seven wizards brew potions of silver and gold".split()
SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 12}, "age": {"type": "integer"}},
    "required": ["name", "age"],
    "additionalProperties": False,
}
TOOL = {
    "name": "weather",
    "description": "The weather of a city.",
    "parameters": {"type": "object", "properties": {"city": {"type": "string", "maxLength": 12}}, "required": ["city"]},
}
BUSY = {429}
"""Is right at any time: there are more clients than places."""


class Gone(Exception):
    """The client has left by itself."""


def text(n_words: int) -> str:
    return " ".join(random.choices(WORDS, k=n_words))


def chat_messages() -> list[dict[str, str]]:
    return [{"role": "system", "content": "Be brief."}, {"role": "user", "content": text(random.randint(3, 60))}]


# What is asked: path, document, statuses that are right for it.

Asked = tuple[str, dict[str, Any], set[int]]


def completion() -> Asked:
    more: dict[str, Any] = random.choice(
        ({}, {"n": 2}, {"logprobs": 2}, {"stop": ["fox"]}, {"temperature": 0}, {"presence_penalty": 0.5})
    )
    return "/v1/completions", {"prompt": text(random.randint(1, 120)), "max_tokens": 24, **more}, {200}


def chat() -> Asked:
    return "/v1/chat/completions", {"messages": chat_messages(), "max_tokens": 24}, {200}


def chat_tools() -> Asked:
    choice = random.choice(("auto", "required"))
    tools = [{"type": "function", "function": TOOL}]
    document = {"messages": chat_messages(), "max_tokens": 40, "tools": tools, "tool_choice": choice}
    return "/v1/chat/completions", document, {200}


def chat_schema() -> Asked:
    wanted = {"type": "json_schema", "json_schema": {"name": "person", "schema": SCHEMA}}
    return "/v1/chat/completions", {"messages": chat_messages(), "max_tokens": 40, "response_format": wanted}, {200}


def message() -> Asked:
    return "/v1/messages", {"messages": [{"role": "user", "content": text(20)}], "max_tokens": 24}, {200}


def response() -> Asked:
    store = random.random() < 0.5
    return "/v1/responses", {"input": text(20), "max_output_tokens": 24, "store": store}, {200}


def embedding() -> Asked:
    return "/v1/embeddings", {"input": [text(random.randint(1, 80)) for _ in range(random.randint(1, 4))]}, {200}


def tokens() -> Asked:
    return random.choice(
        (
            ("/tokenize", {"prompt": text(50)}, {200}),
            ("/v1/messages/count_tokens", {"messages": [{"role": "user", "content": text(20)}]}, {200}),
            ("/apply-template", {"messages": chat_messages()}, {200}),
        )
    )


def mistake() -> Asked:
    many = {"prompt": "a" * 30000, "max_tokens": 4}
    return random.choice(
        (
            ("/v1/completions", {"prompt": "a", "max_tokenz": 1}, {400}),
            ("/v1/completions", {"prompt": "a", "temperature": 9}, {400}),
            ("/v1/completions", {"prompt": "a", "model": "nobody"}, {404}),
            ("/v1/completions", {"prompt": text(40), "max_tokens": 600, "timeout": 0.05}, {504, 200}),
            ("/v1/completions", {**many, "prompt": text(9000)}, {400}),
            ("/v1/chat/completions", {"messages": []}, {400}),
            ("/v1/chat/completions", {"messages": chat_messages(), "response_format": {"type": "json_schema"}}, {400}),
            ("/v1/nothing", {"a": 1}, {404}),
            ("/v1/models", {"a": 1}, {405}),
            ("/v1/abort", {"id": "nobody"}, {404}),
            ("/v1/responses", {"input": "a", "previous_response_id": "resp_nobody"}, {400}),
            ("/v1/embeddings", {"input": []}, {400}),
        )
    )


PLAIN: tuple[Callable[[], Asked], ...] = (
    completion, completion, chat, chat, chat_tools, chat_schema, message, response, embedding, tokens,
)  # fmt: skip
STREAMED: tuple[Callable[[], Asked], ...] = (completion, chat, chat_tools, chat_schema, message, response)


class Soak:
    """The clients, and what they saw."""

    def __init__(self, url: str, end_s: float) -> None:
        self._host, self._port = str(urlsplit(url).hostname), int(urlsplit(url).port or 0)
        self._end_s = end_s
        self.seen: collections.Counter[str] = collections.Counter()
        self.wrong: collections.Counter[str] = collections.Counter()
        self._labels: collections.deque[str] = collections.deque(maxlen=32)
        self._stored: collections.deque[str] = collections.deque(maxlen=32)

    async def run(self, n_clients: int) -> None:
        kinds: list[Callable[[], Awaitable[None]]] = [
            self.plain, self.plain, self.streamed, self.streamed, self.leaves, self.leaves, self.errs, self.slow,
            self.half, self.aborts, self.continues, self.kept_alive,
        ]  # fmt: skip
        await asyncio.gather(*(self._client(kinds[i % len(kinds)], kinds) for i in range(n_clients)))

    async def _client(self, first: Callable[[], Awaitable[None]], kinds: list[Callable[[], Awaitable[None]]]) -> None:
        kind = first
        while time.monotonic() < self._end_s:
            try:
                async with asyncio.timeout(120):
                    await kind()
            except Gone:
                pass
            except TimeoutError:
                self.wrong[f"{kind.__name__}: no answer within 120 s"] += 1
            except (OSError, asyncio.IncompleteReadError) as error:
                self.wrong[f"{kind.__name__}: {error!r}"[:120]] += 1
            self.seen[kind.__name__] += 1
            kind = random.choice(kinds)

    # kinds of clients

    async def plain(self) -> None:
        await self._ask(random.choice(PLAIN)())

    async def streamed(self) -> None:
        path, document, right = random.choice(STREAMED)()
        await self._ask((path, {**document, "stream": True}, right))

    async def leaves(self) -> None:
        """Away at some time: before the answer, amid it, at its end."""
        path, document, right = random.choice(STREAMED)()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(random.choice((0.0, 0.01, 0.1, 0.5, 1.0))):
                await self._ask((path, {**document, "stream": random.random() < 0.7}, right), reset=True)

    async def errs(self) -> None:
        if random.random() < 0.7:
            await self._ask(mistake())
            return
        head, right = random.choice(
            (
                (b"GET / HTTP/1.1\r\n\r\n", {400}),
                (b"nonsense\r\n\r\n", {400}),
                (b"GET / HTTP/1.1\r\nHost: evil.example\r\n\r\n", {403}),
                (b"GET / HTTP/1.1\r\nHost: localhost\r\nX: " + b"x" * 40000 + b"\r\n\r\n", {431}),
                (self._head("/v1/completions", 1 << 30), {413}),
                (self._head("/v1/completions", 3, "text/plain") + b"abc", {415}),
                (self._head("/v1/completions", 3) + b"{{{", {400}),
            )
        )
        async with self._connection() as (reader, writer):
            writer.write(head)
            status = int((await reader.readline()).split()[1])
            self._check("raw", status, right | BUSY)

    async def slow(self) -> None:
        """Reads a few bytes at a time, from a small buffer."""
        path, document, right = completion()
        document = {"prompt": document["prompt"], "max_tokens": 200, "stream": True, "logprobs": 5, "ignore_eos": True}
        async with self._connection(receive_bytes=2048) as (reader, writer):
            writer.write(self._request(path, document))
            self._check(path, int((await reader.readline()).split()[1]), right | BUSY)
            for _ in range(random.randint(1, 60)):
                if not await reader.read(random.randint(1, 2000)):
                    return
                await asyncio.sleep(0.05)

    async def half(self) -> None:
        """A head or a body that never ends."""
        path, document, _ = chat()
        whole = self._request(path, document)
        async with self._connection() as (_, writer):
            writer.write(whole[: random.randrange(len(whole))])
            await asyncio.sleep(random.choice((0.0, 0.1, 2.0)))

    async def aborts(self) -> None:
        """Ends what somebody waits for, by its label."""
        if not self._labels:
            return await self.plain()
        await self._ask(("/v1/abort", {"id": random.choice(self._labels)}, {200, 404, 409}))

    async def continues(self) -> None:
        """Stored responses: read, continued, deleted."""
        document = {"input": text(10), "max_output_tokens": 16}
        if self._stored:
            document["previous_response_id"] = random.choice(self._stored)
        status, body = await self._ask(("/v1/responses", document, {200, 400}))
        if status == 200:
            self._stored.append(json.loads(body)["id"])
            await self._ask((f"/v1/responses/{self._stored[-1]}", {}, {200, 404}), method="GET")
        if len(self._stored) > 24:
            await self._ask((f"/v1/responses/{self._stored.popleft()}", {}, {200, 404}), method="DELETE")

    async def kept_alive(self) -> None:
        """Several calls on one connection."""
        async with self._connection() as (reader, writer):
            for _ in range(random.randint(2, 6)):
                path, document, right = random.choice(PLAIN)()
                writer.write(self._request(path, document))
                status, headers, _ = await self._answer(reader)
                self._check(path, status, right | BUSY)
                if headers.get("connection") == "close":
                    return

    # HTTP

    async def _ask(self, asked: Asked, *, reset: bool = False, method: str = "POST") -> tuple[int, bytes]:
        path, document, right = asked
        async with self._connection(reset=reset) as (reader, writer):
            label = f"soak-{random.getrandbits(40):x}"
            self._labels.append(label)
            writer.write(self._request(path, document, label, method))
            status, headers, body = await self._answer(reader)
            self._check(path, status, right | BUSY | {499}, body)
            if status == 429:
                left_s = max(0.0, self._end_s - time.monotonic())
                await asyncio.sleep(min(int(headers["retry-after-ms"]) / 1e3, left_s))
            return status, body

    def _check(self, path: str, status: int, right: set[int], body: bytes = b"") -> None:
        self.seen[f"status {status}"] += 1
        if status not in right:
            self.wrong[f"{path}: {status} {body[:300].decode(errors='replace')}".rstrip()] += 1

    def _head(
        self, path: str, size: int, kind: str = "application/json", more: str = "", method: str = "POST"
    ) -> bytes:
        top = f"{method} {path} HTTP/1.1\r\nHost: localhost\r\n{more}"
        return (top + (f"Content-Type: {kind}\r\nContent-Length: {size}\r\n\r\n" if size else "\r\n")).encode()

    def _request(self, path: str, document: dict[str, Any], label: str = "", method: str = "POST") -> bytes:
        body = json.dumps(document).encode() if method == "POST" else b""
        more = f"X-Request-Id: {label}\r\n" if label else ""
        return self._head(path, len(body), more=more, method=method) + body

    async def _answer(self, reader: asyncio.StreamReader) -> tuple[int, dict[str, str], bytes]:
        top = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in top[1:])}
        if "content-length" in headers:
            body = await reader.readexactly(int(headers["content-length"]))
        else:
            body = await self._chunks(reader)
        return int(top[0].split()[1]), headers, body

    async def _chunks(self, reader: asyncio.StreamReader) -> bytes:
        body = b""
        while size := int(await reader.readline(), 16):
            body += (await reader.readexactly(size + 2))[:-2]
        await reader.readline()
        return body

    @contextlib.asynccontextmanager
    async def _connection(self, *, reset: bool = False, receive_bytes: int = 0) -> Any:
        sock = socket.socket()
        sock.setblocking(False)
        if receive_bytes:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
        await asyncio.get_running_loop().sock_connect(sock, (self._host, self._port))
        reader, writer = await asyncio.open_connection(sock=sock, limit=1 << 16)
        try:
            yield reader, writer
        finally:
            if reset and random.random() < 0.5:
                writer.transport.abort()
            writer.close()


# what is measured


def look(server: Server) -> dict[str, dict[str, float]]:
    """Process -> resident memory and its part that belongs to no file, in MiB; descriptors; threads. One that ends
    meanwhile is left out."""
    found = {}
    for pid in [server.pid, *Path(f"/proc/{server.pid}/task/{server.pid}/children").read_text().split()]:
        with contextlib.suppress(OSError, AttributeError):
            title = Path(f"/proc/{pid}/cmdline").read_bytes().partition(b"\0")[0].decode().removeprefix("sixfold: ")
            memory = dict(re.findall(r"^(Rss|Anonymous): +(\d+)", rollup(pid), re.MULTILINE))
            found[title] = {
                "pid": float(pid or 0),
                "rss": int(memory["Rss"]) / 1024,
                "anonymous": int(memory["Anonymous"]) / 1024,
                "descriptors": len(os.listdir(f"/proc/{pid}/fd")),
                "threads": len(os.listdir(f"/proc/{pid}/task")),
            }
    return found


def blocks(url: str) -> dict[str, float]:
    with urllib.request.urlopen(url + "/metrics", timeout=10) as answer:
        lines = answer.read().decode().splitlines()
    found = {}
    for line in lines:
        if state := re.match(r'sixfold_kv_blocks\{.*state="(\w+)"\} (\S+)', line):
            found[state[1]] = float(state[2])
    return found


def judged(samples: list[tuple[float, dict[str, dict[str, float]]]]) -> dict[str, dict[str, dict[str, float]]]:
    """Process -> figure -> medians of the middle and last third, and the slope of the last one, per hour."""
    third = len(samples) // 3
    verdicts: dict[str, dict[str, dict[str, float]]] = {}
    for title in samples[-1][1]:
        for figure in ("rss", "anonymous", "descriptors", "threads"):
            points = [(at_s, sample[title][figure]) for at_s, sample in samples[third:] if title in sample]
            middle, last = points[: len(points) // 2], points[len(points) // 2 :]
            slope = statistics.linear_regression(*zip(*last, strict=True)).slope
            verdicts.setdefault(title, {})[figure] = {
                "middle": round(statistics.median(value for _, value in middle), 1),
                "last": round(statistics.median(value for _, value in last), 1),
                "per_hour": round(3600 * slope, 2),
            }
    return verdicts


def faults_of(
    verdicts: dict[str, dict[str, dict[str, float]]],
    before: dict[str, dict[str, float]],
    after: dict[str, dict[str, float]],
    left: dict[str, float],
    soak: Soak,
) -> list[str]:
    faults = [f"{what}: {count} times" for what, count in soak.wrong.items()]
    for title, figures in verdicts.items():
        for figure in ("rss", "anonymous"):
            grown = figures[figure]["last"] - figures[figure]["middle"]
            if grown > max(GROWTH_MIB, GROWTH_PART * figures[figure]["middle"]):
                faults.append(f"{title}: {figure} grew by {grown:.1f} MiB between the thirds")
        for figure in ("descriptors", "threads"):
            if after[title][figure] > before[title][figure]:
                faults.append(f"{title}: {after[title][figure]} {figure} after, {before[title][figure]} before")
    faults += [
        f"{title} was started again" for title in before if after.get(title, {}).get("pid") != before[title]["pid"]
    ]
    if left.get("held", 1):
        faults.append(f"blocks at the end: {left}")
    return faults


def markdown(verdicts: dict[str, dict[str, dict[str, float]]], before: Any, after: Any, left: Any, soak: Soak) -> str:
    lines = [
        "| process | RSS, MiB: middle third | last third | an hour | descriptors before, after | threads |",
        "|---|---|---|---|---|---|",
    ]
    for title, figures in verdicts.items():
        rss, old, new = figures["rss"], before[title], after[title]
        lines.append(
            f"| {title} | {rss['middle']} | {rss['last']} | {rss['per_hour']:+} | {old['descriptors']:.0f}, "
            f"{new['descriptors']:.0f} | {old['threads']:.0f}, {new['threads']:.0f} |"
        )
    lines += ["", f"Blocks at the end: {left}. Calls: {dict(sorted(soak.seen.items()))}."]
    return "\n".join(lines)


async def soaked(server: Server, options: argparse.Namespace) -> tuple[Soak, list[Any]]:
    soak = Soak(server.url, time.monotonic() + 60 * options.minutes)
    samples = []

    async def watch() -> None:
        began_s = time.monotonic()
        while True:
            await asyncio.sleep(options.every)
            samples.append((time.monotonic() - began_s, look(server)))

    watching = asyncio.ensure_future(watch())
    await soak.run(options.clients)
    watching.cancel()
    return soak, samples


def warm(url: str) -> None:
    """Each thread pool and each path once, so that what comes with the first use is there before the run."""
    soak = Soak(url, time.monotonic() + 5)
    asyncio.run(soak.run(24))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--clients", type=int, default=48)
    parser.add_argument("--every", type=float, default=5.0, help="seconds between two samples")
    parser.add_argument("--api-server-count", type=int, default=1)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=output_file, help="a file for all figures")
    options = parser.parse_args()
    random.seed(options.seed)
    arguments = ["--max-num-seqs", "8", "--num-kv-blocks", "640", "--max-model-len", "2048"]
    arguments += ["--api-server-count", str(options.api_server_count), "--response-store-bytes", str(16 << 20)]
    with served(options.model, *arguments) as server:
        wait_ready(server.url)
        os.nice(NICE)
        warm(server.url)
        time.sleep(QUIET_S)
        before = look(server)
        soak, samples = asyncio.run(soaked(server, options))
        time.sleep(QUIET_S)
        after, left = look(server), blocks(server.url)
    verdicts = judged(samples)
    faults = faults_of(verdicts, before, after, left, soak)
    print(markdown(verdicts, before, after, left, soak))
    print("\n" + "\n".join(f"- {fault}" for fault in faults) if faults else "\nNothing grew, nothing was lost.")
    if options.json:
        figures = {"verdicts": verdicts, "before": before, "after": after, "blocks": left, "seen": soak.seen}
        Path(options.json).write_text(json.dumps({**figures, "faults": faults, "samples": samples}))
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
