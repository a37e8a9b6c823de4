"""Twenty times more clients than the server can serve: does it keep its pace, refuse at once, and stay as it is?

    python benchmarks/overload.py --model smollm2 --seconds 60

As many clients as the server runs at a time, and twice as many, each asking again when it is answered: the better of
both is the peak. And twenty times as many, with a deadline each. The three take turns, in PARTS parts, so that what the
machine does besides meets them alike: the best of several short looks would be a peak that nobody can keep. Prints one
JSON object:

    peak, overloaded      tokens per second as the server counts them, and `kept`, the second by the first
    accepted, refused     calls under overload
    in_time               part of the accepted calls that were answered within their deadline
    refusal_ms            p50, p99 and the longest time from connecting to the end of a 429, as the probe sees it
    per_second            steps, tokens and CPU seconds by role, at the peak and under overload, with the time to start
    memory_mib            resident memory by process: ready, after the first peak, and at quarters of what follows
    growth                the largest sum of the second half of what follows by that of its first, minus 1

Load and probe are processes of their own. The load runs only on what the server leaves (SCHED_IDLE): it stands for
other machines, and must not take the server's cores. The probe asks at a steady rate whatever the answers are, and
takes a new connection for each question. A refused client comes again after what `retry-after-ms` says.

KV memory is reserved at the start and touched when a block is used for the first time. The pool is small here
(`--num-kv-blocks`), so that every block has been used before the overload begins, and what still grows shows.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import multiprocessing as mp
import os
import socket
import threading
import time
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from serving import Server, served, wait_ready

OVERLOAD = 20
PARTS = 3
SETTLING_S = 2.0
"""From the start of a load until its turn is counted."""
PROBE_PERIOD_S = 0.2
SAMPLE_S = 2.0
PAGE_BYTES = os.sysconf("SC_PAGESIZE")
Address = tuple[str, int]


@dataclass
class Tally:
    accepted: int = 0
    in_time: int = 0
    refused: int = 0
    other: dict[int, int] = field(default_factory=dict)


class Connection:
    """One connection, one call at a time."""

    def __init__(self, address: Address) -> None:
        self._address = address
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def call(self, document: dict[str, Any]) -> tuple[int, dict[str, str], bytes]:
        """Status, headers and body of a completion."""
        if self._streams is None:
            self._streams = await asyncio.open_connection(*self._address)
        reader, writer = self._streams
        body = json.dumps(document).encode()
        writer.write(head(self._address, len(body)) + body)
        top = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in top[1:])}
        answer = await reader.readexactly(int(headers["content-length"]))
        if headers.get("connection") == "close":
            self.close()
        return int(top[0].split()[1]), headers, answer

    def close(self) -> None:
        if self._streams is not None:
            self._streams[1].close()
            self._streams = None


def head(address: Address, size: int) -> bytes:
    """Of a request with a body of so many bytes."""
    lines = f"POST /v1/completions HTTP/1.1\r\nHost: {address[0]}\r\nContent-Type: application/json\r\n"
    return lines.encode() + b"Content-Length: %d\r\n\r\n" % size


def question(name: str, options: argparse.Namespace) -> dict[str, Any]:
    """No two share a prefix."""
    return {
        "prompt": name + " the quick brown fox" * (options.prompt_tokens // 4),
        "max_tokens": options.output_tokens,
        "ignore_eos": True,
        "timeout": options.deadline,
    }


async def client(name: str, address: Address, options: argparse.Namespace, end_s: float, tally: Tally) -> None:
    connection = Connection(address)
    n = 0
    while time.monotonic() < end_s:
        n += 1
        began_s = time.monotonic()
        status, headers, _ = await connection.call(question(f"{name} {n}", options))
        took_s = time.monotonic() - began_s
        if status == 200:
            tally.accepted += 1
            tally.in_time += took_s <= options.deadline
        elif status == 504:
            tally.accepted += 1
        elif status == 429:
            tally.refused += 1
            await asyncio.sleep(min(int(headers["retry-after-ms"]) / 1e3, max(0.0, end_s - time.monotonic())))
        else:
            tally.other[status] = tally.other.get(status, 0) + 1
    connection.close()


async def load(n_clients: int, address: Address, options: argparse.Namespace, seconds: float) -> Tally:
    os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    tally = Tally()
    end_s = time.monotonic() + seconds
    # They do not all come at the same moment.
    clients = []
    for i in range(n_clients):
        clients.append(asyncio.ensure_future(client(f"{n_clients}-{i}", address, options, end_s, tally)))
        await asyncio.sleep(0.5 / n_clients)
    await asyncio.gather(*clients)
    return tally


async def probe(address: Address, options: argparse.Namespace, seconds: float) -> list[float]:
    """Seconds from connecting to the end of each 429. Plain sockets: what it costs, it takes from the server."""
    refusals_s = []
    began_s = time.monotonic()
    for n in range(int(seconds / PROBE_PERIOD_S)):
        time.sleep(max(0.0, began_s + n * PROBE_PERIOD_S - time.monotonic()))
        body = json.dumps({**question(f"probe {n}", options), "stream": True}).encode()
        asked_s = time.monotonic()
        with socket.create_connection(address) as connection:
            connection.sendall(head(address, len(body)) + body)
            answer = b""
            while b"\r\n\r\n" not in answer or not answer.endswith(b"}"):
                answer += connection.recv(1 << 16)
                if not answer.startswith(b"HTTP/1.1 429"):
                    break  # it has a place, and leaves it
            else:
                refusals_s.append(time.monotonic() - asked_s)
    return refusals_s


def _child(pipe: Any, work: Callable[..., Any], *args: Any) -> None:
    pipe.send(asyncio.run(work(*args)))


def beside(work: Callable[..., Any], *args: Any) -> Callable[[], Any]:
    """Run a coroutine function in a process of its own; what is returned waits for its result."""
    mine, theirs = mp.Pipe(duplex=False)
    process = mp.get_context("spawn").Process(target=_child, args=(theirs, work, *args))
    process.start()
    theirs.close()

    def result() -> Any:
        try:
            return mine.recv()
        finally:
            process.join()

    return result


def memory_mib(server: Server) -> dict[str, float]:
    """Resident memory by process, from counters that cost nothing to read."""
    found = {}
    for pid in [server.pid, *Path(f"/proc/{server.pid}/task/{server.pid}/children").read_text().split()]:
        title = Path(f"/proc/{pid}/cmdline").read_bytes().partition(b"\0")[0].decode().removeprefix("sixfold: ")
        n_pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
        found[title] = round(n_pages * PAGE_BYTES / (1 << 20), 1)
    return found


class MemoryWatch:
    """Looks at the server's memory every SAMPLE_S, from now on."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._ended = threading.Event()
        self.samples: list[dict[str, float]] = []
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while not self._ended.wait(SAMPLE_S):
            self.samples.append(memory_mib(self._server))

    def stop(self) -> None:
        self._ended.set()
        self._thread.join()

    def growth(self) -> float:
        sums = [sum(sample.values()) for sample in self.samples]
        half = len(sums) // 2
        return round(max(sums[half:]) / max(sums[:half]) - 1, 4)


def percentile(values: list[float], part: float) -> float | None:
    return round(1e3 * sorted(values)[math.ceil(part * len(values)) - 1], 2) if values else None


def counters(server: Server) -> dict[str, float]:
    """What the server has done so far: steps, tokens, CPU seconds by role."""
    with urllib.request.urlopen(server.url + "/metrics", timeout=10) as answer:
        lines = [line.rsplit(" ", 1) for line in answer.read().decode().splitlines() if not line.startswith("#")]
    values = {name.partition("{")[0]: float(value) for name, value in lines}
    found = {name: values[f"sixfold_{name}_total"] for name in ("steps", "generation_tokens", "prompt_tokens")}
    return {**found, **server.cpu_s()}


class Turns:
    """One kind of load, in several turns."""

    def __init__(self) -> None:
        self.tally = Tally()
        self.counted: dict[str, float] = {}
        self.seconds = 0.0

    def add(self, tally: Tally, before: dict[str, float], after: dict[str, float], seconds: float) -> None:
        for name in ("accepted", "in_time", "refused"):
            setattr(self.tally, name, getattr(self.tally, name) + getattr(tally, name))
        for status, n in tally.other.items():
            self.tally.other[status] = self.tally.other.get(status, 0) + n
        self.counted = {name: after[name] - value + self.counted.get(name, 0.0) for name, value in before.items()}
        self.seconds += seconds

    def per_second(self) -> dict[str, float]:
        return {name: round(value / self.seconds, 3) for name, value in self.counted.items()}


def measure(server: Server, address: Address, options: argparse.Namespace) -> dict[str, Any]:
    memory = {"ready": memory_mib(server)}
    turns = {factor: Turns() for factor in (1, 2, OVERLOAD)}
    refusals_s: list[float] = []
    watch: MemoryWatch | None = None

    def turn(factor: int, seconds: float) -> None:
        result = beside(load, factor * options.running, address, options, SETTLING_S + seconds)
        probing = beside(probe, address, options, SETTLING_S + seconds) if factor == OVERLOAD else None
        time.sleep(SETTLING_S)
        before, began_s = counters(server), time.monotonic()
        time.sleep(seconds)
        after, ended_s = counters(server), time.monotonic()
        refusals_s.extend(probing() if probing is not None else ())
        turns[factor].add(result(), before, after, ended_s - began_s)

    for _ in range(PARTS):
        for factor in (1, 2):
            turn(factor, options.peak_seconds / 2 / PARTS)
        if watch is None:
            memory["peak"] = memory_mib(server)
            watch = MemoryWatch(server)
        turn(OVERLOAD, options.seconds / PARTS)
    assert watch is not None
    watch.stop()
    for part in (1, 2, 3, 4):
        memory[f"{25 * part} %"] = watch.samples[len(watch.samples) * part // 4 - 1]
    over = turns[OVERLOAD]
    rates = {factor: t.per_second() for factor, t in turns.items()}
    peak = max(rates[1], rates[2], key=lambda rate: rate["generation_tokens"])
    return {
        "peak": peak["generation_tokens"],
        "overloaded": rates[OVERLOAD]["generation_tokens"],
        "kept": round(rates[OVERLOAD]["generation_tokens"] / peak["generation_tokens"], 3),
        "accepted": over.tally.accepted,
        "refused": over.tally.refused + len(refusals_s),
        "in_time": round(over.tally.in_time / over.tally.accepted, 4) if over.tally.accepted else None,
        "refusal_ms": {
            "n": len(refusals_s),
            "p50": percentile(refusals_s, 0.5),
            "p99": percentile(refusals_s, 0.99),
            "max": percentile(refusals_s, 1.0),
        },
        "other": over.tally.other,
        "per_second": {"peak": peak, "overloaded": rates[OVERLOAD]},
        "memory_mib": memory,
        "growth": watch.growth(),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--seconds", type=float, default=60.0, help="of the overload")
    parser.add_argument("--peak-seconds", type=float, default=20.0, help="of both measurements of the peak together")
    parser.add_argument("--running", type=int, default=8, help="--max-num-seqs")
    parser.add_argument("--prompt-tokens", type=int, default=64)
    parser.add_argument("--output-tokens", type=int, default=32)
    parser.add_argument("--deadline", type=float, default=10.0, help="seconds, of each call")
    parser.add_argument("--num-kv-blocks", type=int, default=640, help="0: as many as the server takes by itself")
    parser.add_argument("--api-server-count", type=int, default=1)
    options = parser.parse_args()
    arguments = ["--max-num-seqs", str(options.running), "--api-server-count", str(options.api_server_count)]
    arguments += ["--num-kv-blocks", str(options.num_kv_blocks)] if options.num_kv_blocks else []
    with served(options.model, *arguments) as server:
        wait_ready(server.url)
        url = urlsplit(server.url)
        print(json.dumps(measure(server, (str(url.hostname), int(url.port or 0)), options), indent=1))


if __name__ == "__main__":
    main()
