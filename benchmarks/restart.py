"""How long streams pause when the engine process dies, and what of the pause is what.

    python benchmarks/restart.py [--model smollm2] [--streams 16] [--context 1000] [--rounds 5] [--signal KILL]
                                 [--json result.json] [-- MORE ARGUMENTS OF `sixfold serve`]

All streams decode; the engine gets the signal; each stream's gap is the longest time between two of its tokens of which
the second came after the signal. Every stream must have the tokens of an undisturbed run, else the status is 1.

    KILL   from outside: nobody's fault. With `-- --no-enable-prefix-caching` everything is computed anew
    SEGV   a crash of the engine's own making: its requests are suspects, and tried one at a time
    USR1   to the supervisor: a planned restart

The pause in parts, each from the end of the one before, as the server's own counters tell (they are looked at every
millisecond):

    death       the signal, until the process is gone and the supervisor has seen it (USR1: the step is drained)
    start       the next one's birth and imports, until it knocks at the worker
    attach      the worker ends its step and answers
    adopt       journal read, scheduler and KV cache manager made
    replay      API processes greet, the first request is here again
    step        until the first step is committed
    token       until the median stream has its next token
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import statistics
import sys
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from report import header, output_file, table
from serving import served

from sixfold.engine.progress import Count, Progress

PARTS = ("death", "start", "attach", "adopt", "replay", "step", "token")
BEFORE, LATER = 20, 5
"""Tokens that each stream has when the signal of the first round is sent, and how many more in each that follows: what
is not in a full block yet is computed anew, between nothing and 16 tokens."""


@dataclass
class Stream:
    """What came of one request, and when."""

    tokens: list[int] = field(default_factory=list)
    times_s: list[float] = field(default_factory=list)
    cached: int = 0
    error: str = ""

    def gap_s(self, signal_s: float) -> tuple[float, float]:
        """(longest gap that ends after the signal, when it ended)."""
        pairs = zip(self.times_s, self.times_s[1:], strict=False)
        return max((later - earlier, later) for earlier, later in pairs if later > signal_s)


async def follow(url: Any, body: dict[str, Any], stream: Stream) -> None:
    reader, writer = await asyncio.open_connection(url.hostname, url.port, limit=1 << 22)
    try:
        data = json.dumps(body).encode()
        head = f"POST /v1/completions HTTP/1.1\r\nHost: {url.netloc}\r\nContent-Type: application/json\r\n"
        writer.write(f"{head}Content-Length: {len(data)}\r\nConnection: close\r\n\r\n".encode() + data)
        async for line in reader:
            if not line.startswith(b"data: {"):
                continue
            now_s = time.monotonic()
            event = json.loads(line[6:])
            stream.error = stream.error or json.dumps(event.get("error", ""))[:200].strip('"')
            if usage := event.get("usage"):
                stream.cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens", 0)
            for choice in event.get("choices") or []:
                if ids := choice.get("token_ids"):
                    stream.tokens += ids
                    stream.times_s.append(now_s)
    finally:
        writer.close()


class Server:
    """Of the server under test: its processes, and its counters from outside."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.run_dir = ""
        for line in Path(f"/proc/{self.engine()}/maps").read_text().splitlines():
            if line.endswith("/progress"):
                self.run_dir = str(Path(line.split()[-1]).parent)
        self.progress = Progress.open(self.run_dir)

    def engine(self) -> int:
        """Its process id, once it has its name."""
        while True:
            for pid in Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text().split():
                if Path(f"/proc/{pid}/cmdline").read_bytes().startswith(b"sixfold: engine"):
                    return int(pid)
            time.sleep(0.005)

    def watch(self, marks: dict[str, float]) -> threading.Thread:
        """Note, in a thread, when the counters say that a part of the restart is over."""
        counts = self.progress.counts
        restarts, committed = counts[Count.RESTARTS_ENGINE], -1
        over = {
            "death": lambda: counts[Count.RESTARTS_ENGINE] > restarts,
            "start": lambda: counts[Count.ENGINE_ATTACHING] or counts[Count.ENGINE_TURNS],
            "attach": lambda: not counts[Count.ENGINE_ATTACHING],
            "adopt": lambda: counts[Count.ENGINE_TURNS],
            "replay": lambda: counts[Count.ENGINE_BUSY] or counts[Count.ENGINE_COMMITTED] > committed,
            "step": lambda: counts[Count.ENGINE_COMMITTED] > committed,
        }

        def look() -> None:
            nonlocal committed
            for part, is_over in over.items():
                while not is_over():
                    time.sleep(0.001)
                marks[part] = time.monotonic()
                if part == "death":
                    committed = counts[Count.ENGINE_COMMITTED]

        thread = threading.Thread(target=look, daemon=True)
        thread.start()
        return thread


async def run_streams(url: Any, bodies: list[dict[str, Any]]) -> tuple[list[Stream], asyncio.Future[Any]]:
    streams = [Stream() for _ in bodies]
    done = asyncio.gather(*(follow(url, body, stream) for body, stream in zip(bodies, streams, strict=True)))
    return streams, done


async def measure(server: Server, url: Any, args: argparse.Namespace) -> tuple[list[dict[str, Any]], bool]:
    bodies = [
        {
            "model": args.model,
            "prompt": [1000 + (7919 * i + 31 * k) % 20000 for k in range(args.context)],
            "max_tokens": args.tokens,
            "ignore_eos": True,
            "temperature": 0.8 * (i % 2),
            "seed": i,
            "stream": True,
            "stream_options": {"include_usage": True},
            "return_token_ids": True,
        }
        for i in range(args.streams)
    ]
    for _ in range(2):  # the second one has what the rounds have: its prompts in the prefix cache
        expected, done = await run_streams(url, bodies)
        await done
    number = getattr(signal, f"SIG{args.signal}")
    rounds, is_right = [], all(not stream.error and len(stream.tokens) == args.tokens for stream in expected)
    for index in range(args.rounds):
        streams, done = await run_streams(url, bodies)
        while min(len(stream.tokens) for stream in streams) < (BEFORE + LATER * index) % (args.tokens - 16):
            await asyncio.sleep(0.002)
        marks: dict[str, float] = {}
        engine = server.engine()
        watcher = server.watch(marks)
        signal_s = time.monotonic()
        os.kill(server.pid if args.signal == "USR1" else engine, number)
        await done
        watcher.join(5)
        await _counters(url)  # those of each engine are added up where somebody asks
        gaps = [stream.gap_s(signal_s) for stream in streams]
        marks["token"] = statistics.median(end_s for _, end_s in gaps)
        is_right &= all(
            (one.tokens, one.cached, one.error) == (other.tokens, other.cached, "")
            for one, other in zip(streams, expected, strict=True)
        )
        last_s, parts = signal_s, {}
        for part in PARTS:
            parts[part], last_s = marks[part] - last_s, marks[part]
        rounds.append({"gaps_s": [gap_s for gap_s, _ in gaps], "parts_s": parts})
    return rounds, is_right


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--streams", type=int, default=16)
    parser.add_argument("--context", type=int, default=1000, help="tokens of each prompt")
    parser.add_argument("--tokens", type=int, default=96, help="tokens of each answer")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--signal", choices=("KILL", "SEGV", "USR1"), default="KILL")
    parser.add_argument("--json", type=output_file, default="", help="write every gap to this file")
    parser.add_argument("more", nargs="*", help="arguments of `sixfold serve`")
    args = parser.parse_args()
    with served(args.model, *args.more) as process:
        url = urlsplit(process.url)
        assert process.pid is not None
        asyncio.run(_ready(url))
        rounds, is_right = asyncio.run(measure(Server(process.pid), url, args))
        adopted = asyncio.run(_counters(url))
    print(header())
    every = sorted(gap_s for one in rounds for gap_s in one["gaps_s"])
    row = (f"SIG{args.signal}", len(rounds), every[0], statistics.median(every), every[-1])
    print(table(("signal", "rounds", "gap s: best", "median", "worst"), [row]))
    print()
    medians = [1e3 * statistics.median(one["parts_s"][part] for one in rounds) for part in PARTS]
    print(table(("ms, medians", *PARTS), [("", *medians)]))
    print("\nblocks adopted, rejected: {}, {}; ".format(*adopted) + ("tokens equal" if is_right else "TOKENS DIFFER"))
    if args.json:
        result = {"header": header(), "signal": args.signal, "tokens_equal": is_right, "rounds": rounds}
        Path(args.json).write_text(json.dumps({**result, "blocks_adopted_rejected": adopted}, indent=1))
    return 0 if is_right else 1


async def _get(url: Any, path: str) -> bytes:
    reader, writer = await asyncio.open_connection(url.hostname, url.port)
    try:
        writer.write(f"GET {path} HTTP/1.1\r\nHost: {url.netloc}\r\nConnection: close\r\n\r\n".encode())
        return await reader.read()
    finally:
        writer.close()


async def _ready(url: Any) -> None:
    while True:
        try:
            if b" 200 " in (await _get(url, "/readyz")).partition(b"\r\n")[0]:
                return
        except OSError:
            pass
        await asyncio.sleep(0.02)


async def _counters(url: Any) -> list[int]:
    lines = (await _get(url, "/metrics")).decode().splitlines()
    names = ("sixfold_kv_blocks_adopted_total", "sixfold_kv_blocks_rejected_total")
    return [int(sum(float(line.split()[-1]) for line in lines if line.startswith(name))) for name in names]


if __name__ == "__main__":
    sys.exit(main())
