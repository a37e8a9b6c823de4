"""What measuring costs: CPU time of a decode step with all of it, and without.

    python benchmarks/measuring.py [--model smollm2] [--streams 32] [--pairs 32] [--json result.json]

One server under a constant load of streams, whose processes are told by a signal to stop measuring and to begin again
(`measuring_switch/sitecustomize.py`), in the order on, off, off, on. Of each window of steps the CPU time of every
process is read, divided by the steps; a pair is a window of each kind, side by side. Of the pairs' differences the mean
and the median are told, each with its interval at 95 %: where other programs disturb some windows by far more than is
looked for, the mean has all of that, and the median little.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import os
import re
import signal
import statistics
import sys
import time
from pathlib import Path
from typing import Any

from report import header, output_file, table
from serving import STARTED_S, Server, served, stream

from sixfold.engine.progress import Count, Progress

ROUNDS = 4
"""Of four windows, with the same streams."""
SETTLING_STEPS = 4
ROLES = ("api", "engine", "worker")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--streams", type=int, default=32)
    parser.add_argument("--pairs", type=int, default=32)
    parser.add_argument("--seconds", type=float, default=600.0, help="at most; the pairs that there are then count")
    parser.add_argument("--steps", type=int, default=60, help="of a window")
    parser.add_argument("--json", type=output_file, default="", help="write the figures to this file")
    args = parser.parse_args()
    switch = Path(__file__).resolve().parent / "measuring_switch"
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (str(switch), os.environ.get("PYTHONPATH"))))
    with served(args.model, "--max-num-seqs", str(args.streams)) as server:
        pairs: list[dict[str, Any]] = []
        try:
            asyncio.run(
                asyncio.wait_for(
                    _measure(server, args.model, args.streams, args.pairs, args.steps, pairs), args.seconds
                )
            )
        except TimeoutError:
            if len(pairs) < 2:
                sys.exit(f"not two pairs within {args.seconds:.0f} s")
        del pairs[args.pairs :]
    print(header())
    rows = []
    for role in (*ROLES, "all"):
        off = [sum(pair["off"].values()) if role == "all" else pair["off"][role] for pair in pairs]
        on = [sum(pair["on"].values()) if role == "all" else pair["on"][role] for pair in pairs]
        added = sorted(a - b for a, b in zip(on, off, strict=True))
        mean, half, rank = statistics.mean(added), _half_interval(added), _rank(len(added))
        median, whole = statistics.median(added), statistics.median(off)
        figures = (mean, mean - half, mean + half, median, added[rank], added[-1 - rank])
        us = [f"{1e6 * seconds:.1f}" for seconds in figures]
        shares = [f"{seconds / whole:+.2%}" for seconds in figures[3:]]
        rows.append(
            (
                role,
                1e6 * whole,
                f"{us[0]} ({us[1]} to {us[2]})",
                f"{us[3]} ({us[4]} to {us[5]})",
                f"{shares[0]} ({shares[1]} to {shares[2]})",
            )
        )
    print(table(("process", "CPU us/step without", "added, mean (95 %)", "median (95 %)", "median's share"), rows))
    print(f"\n{len(pairs)} pairs of {args.steps} steps at {args.streams} streams")
    if args.json:
        Path(args.json).write_text(json.dumps({"header": header(), "pairs": pairs}, indent=1))
    return 0


def _half_interval(values: list[float]) -> float:
    """Half of the mean's 95 % interval; 2.04 is Student's t for 30 values, and enough for more."""
    return 2.04 * statistics.stdev(values) / math.sqrt(len(values))


def _rank(n: int) -> int:
    """From either end of n sorted values, that of the ends of the median's 95 % interval (by the binomial distribution,
    as a normal one)."""
    return max(0, math.floor(n / 2 - 0.98 * math.sqrt(n)) - 1)


async def _measure(
    server: Server, model: str, n_streams: int, n_pairs: int, n_steps: int, pairs: list[dict[str, Any]]
) -> None:
    await _until_ready(server, model)
    pids = _pids(server)
    counts = Progress.open(_run_dir(pids)).counts
    while len(pairs) < n_pairs:
        n_tokens = (4 * ROUNDS + 2) * (n_steps + SETTLING_STEPS) + 3 * n_streams
        async with asyncio.TaskGroup() as streams:
            for index in range(n_streams):
                body = {
                    "model": model,
                    "prompt": [100 + index, 200, 300, 400],
                    "max_tokens": n_tokens,
                    "ignore_eos": True,
                    "temperature": 0,
                    "stream": True,
                }
                streams.create_task(stream(server.url, body))
            await _steps(counts, 2 * n_streams)  # until all of them decode
            for _ in range(ROUNDS):
                windows = []
                for kind in ("on", "off", "off", "on"):
                    windows.append((kind, await _window(kind, n_steps, server, pids, counts)))
                pairs += [dict(windows[:2]), dict(windows[2:])]


async def _until_ready(server: Server, model: str) -> None:
    body = {"model": model, "prompt": "One, two,", "max_tokens": 4, "temperature": 0, "stream": True}
    started = time.monotonic()
    while (await stream(server.url, body)).status != 200:
        if time.monotonic() - started > STARTED_S:
            sys.exit(f"no answer within {STARTED_S:.0f} s")
        await asyncio.sleep(0.1)


async def _window(kind: str, n_steps: int, server: Server, pids: list[int], counts: memoryview) -> dict[str, float]:
    """CPU seconds per step, by role."""
    for pid in pids:
        os.kill(pid, signal.SIGRTMIN + (kind == "on"))
    await _steps(counts, SETTLING_STEPS)
    before, begun = server.cpu_s(), counts[Count.ENGINE_COMMITTED]
    await _steps(counts, n_steps)
    after, ended = server.cpu_s(), counts[Count.ENGINE_COMMITTED]
    return {role: (after[role] - before[role]) / (ended - begun) for role in ROLES}


async def _steps(counts: memoryview, n: int) -> None:
    end, begun = counts[Count.ENGINE_COMMITTED] + n, time.monotonic()
    while counts[Count.ENGINE_COMMITTED] < end:
        if time.monotonic() - begun > STARTED_S:
            sys.exit("the streams ended before their windows")
        await asyncio.sleep(0.003)


def _pids(server: Server) -> list[int]:
    return [int(pid) for pid in Path(f"/proc/{server.pid}/task/{server.pid}/children").read_text().split()]


def _run_dir(pids: list[int]) -> str:
    """Of the server: its processes map files that lie there."""
    for pid in pids:
        found = re.search(r"(\S+)/progress$", Path(f"/proc/{pid}/maps").read_text(), re.MULTILINE)
        if found is not None:
            return found.group(1)
    sys.exit("the server maps no counters")


if __name__ == "__main__":
    sys.exit(main())
