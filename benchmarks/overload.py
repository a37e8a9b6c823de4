"""Twenty times more than the server can do: does it go on at its pace, and does it refuse at once?

    python benchmarks/overload.py --model smollm2 --seconds 8

First as many clients as the server runs at a time, each asking again when it is answered: the peak. Then twenty times
as many, with a deadline each. Prints one JSON object:

    peak, overloaded      tokens per second
    accepted, refused     calls under overload
    in_time               part of the accepted calls that were answered within their deadline
    refusal_ms            p50 and p99 of the time to a 429
    memory_mib            of all processes, before, at the peak and under overload

A refused client waits as long as `retry-after-ms` says.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlparse

OVERLOAD = 20


@dataclass
class Tally:
    n_tokens: int = 0
    accepted: int = 0
    in_time: int = 0
    other: dict[int, int] = field(default_factory=dict)
    refusals_s: list[float] = field(default_factory=list)


async def call(host: str, port: int, document: dict[str, Any]) -> tuple[int, dict[str, str], bytes]:
    """One POST on a connection of its own."""
    reader, writer = await asyncio.open_connection(host, port)
    try:
        body = json.dumps(document).encode()
        head = f"POST /v1/completions HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n"
        head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        writer.write(head.encode() + body)
        data = await reader.read()
    finally:
        writer.close()
    top, _, rest = data.partition(b"\r\n\r\n")
    lines = top.decode("latin-1").split("\r\n")
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines[1:])}
    return int(lines[0].split()[1]), headers, rest


async def client(
    number: int, address: tuple[str, int], options: argparse.Namespace, end_s: float, tally: Tally
) -> None:
    n = 0
    while time.monotonic() < end_s:
        n += 1
        prompt = f"{number} {n} " + "the quick brown fox " * (options.prompt_tokens // 4)
        document = {
            "prompt": prompt,
            "max_tokens": options.output_tokens,
            "ignore_eos": True,
            "timeout": options.deadline,
        }
        began_s = time.monotonic()
        status, headers, body = await call(*address, document)
        took_s = time.monotonic() - began_s
        if status == 200:
            tally.accepted += 1
            tally.in_time += took_s <= options.deadline
            if time.monotonic() <= end_s:
                tally.n_tokens += json.loads(body)["usage"]["completion_tokens"]
        elif status == 429:
            tally.refusals_s.append(took_s)
            await asyncio.sleep(min(int(headers["retry-after-ms"]) / 1e3, max(0.0, end_s - time.monotonic())))
        else:
            tally.other[status] = tally.other.get(status, 0) + 1


async def load(n_clients: int, address: tuple[str, int], options: argparse.Namespace) -> Tally:
    tally = Tally()
    end_s = time.monotonic() + options.seconds
    await asyncio.gather(*(client(i, address, options, end_s, tally) for i in range(n_clients)))
    return tally


def memory_mib(supervisor: int) -> float:
    """Resident memory of a process and its children."""
    children = subprocess.run(["ps", "-o", "pid=", "--ppid", str(supervisor)], capture_output=True, text=True).stdout
    total = 0
    for pid in (supervisor, *map(int, children.split())):
        with open(f"/proc/{pid}/smaps_rollup") as file:
            total += int(re.search(r"Pss:\s+(\d+)", file.read()).group(1))  # type: ignore[union-attr]
    return round(total / 1024, 1)


def percentile(values: list[float], part: float) -> float | None:
    return round(1e3 * sorted(values)[int(part * (len(values) - 1))], 2) if values else None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--seconds", type=float, default=8.0, help="of each of the two parts")
    parser.add_argument("--running", type=int, default=8, help="--max-num-seqs")
    parser.add_argument("--prompt-tokens", type=int, default=64)
    parser.add_argument("--output-tokens", type=int, default=32)
    parser.add_argument("--deadline", type=float, default=10.0, help="seconds, of each call")
    options = parser.parse_args()
    arguments = ["serve", options.model, "--port", "0", "--max-num-seqs", str(options.running)]
    server = subprocess.Popen(
        [sys.executable, "-m", "sixfold", *arguments],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )
    try:
        assert server.stdout is not None
        for line in server.stdout:
            if found := re.search(r"http://\S+", line):
                break
        else:
            raise SystemExit("the server did not start")
        url = urlparse(found.group())
        address = (str(url.hostname), int(url.port or 0))
        memory = [memory_mib(server.pid)]
        peak = asyncio.run(load(options.running, address, options))
        memory.append(memory_mib(server.pid))
        over = asyncio.run(load(OVERLOAD * options.running, address, options))
        memory.append(memory_mib(server.pid))
    finally:
        server.send_signal(signal.SIGINT)
        server.wait(10)
    print(
        json.dumps(
            {
                "peak": round(peak.n_tokens / options.seconds, 1),
                "overloaded": round(over.n_tokens / options.seconds, 1),
                "accepted": over.accepted,
                "refused": len(over.refusals_s),
                "in_time": round(over.in_time / over.accepted, 4) if over.accepted else None,
                "refusal_ms": {"p50": percentile(over.refusals_s, 0.5), "p99": percentile(over.refusals_s, 0.99)},
                "other": over.other,
                "memory_mib": memory,
            }
        )
    )


if __name__ == "__main__":
    main()
