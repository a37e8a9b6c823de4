"""Closed-loop load over HTTP: so many clients, each sending its next request when the last one is answered.

    python benchmarks/online.py                                      starts `sixfold serve smollm2` and loads it
    python benchmarks/online.py --url http://127.0.0.1:8000 --model smollm2
    python benchmarks/online.py --url a=http://... --url b=http://... --clients 1,8,32 --rounds 3 --json result.json
                                                                     the same load on several servers, in alternation:
                                                                     medians of the rounds, and ratios to the first
    python benchmarks/online.py --model scripted --step-ms 20        without a model: the path around it

Works with any server that has /v1/completions (or, with `--chat`, /v1/chat/completions) with streaming. Prompts are
digits, about one token each and different in every request, after an optional shared beginning (`--shared-tokens`) that
a prefix cache can use. For a server that is started here, the CPU time of its processes is printed too, per output
token, prompts included.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import random
import shlex
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from report import header, output_file, table
from serving import STARTED_S, Answer, Server, served, stream

ROLES = ("api", "engine", "worker")

FIGURES = (
    "output tok/s",
    "requests/s",
    "TTFT p50 ms",
    "p99",
    "between tokens p50 ms",
    "p99",
    *(f"{role} us/token" for role in ROLES),
    "errors",
)
TOKENS_PER_S, TTFT, ERRORS = 0, 2, len(FIGURES) - 1
COLUMNS = ("server", "clients", *FIGURES, "tok/s to first server's", "of the rounds", "TTFT to first server's")


def main() -> int:
    args = _arguments()
    found: dict[tuple[int, str], list[tuple[Any, ...]]] = {}
    with _servers(args) as servers:
        for server in servers.values():
            asyncio.run(_wait_ready(server.url, _body(args, random.Random(0), "", max_tokens=1), args.key))
        for round_ in range(args.rounds):
            for clients in [int(part) for part in args.clients.split(",")]:
                for name, server in servers.items():
                    print(f"round {round_ + 1}: {clients} clients on {name} ...", file=sys.stderr, flush=True)
                    figures = asyncio.run(_load(args, server, clients, round_))
                    found.setdefault((clients, name), []).append(figures)
    print(header())
    print(table(COLUMNS, [_row(found, clients, name, next(iter(servers))) for clients, name in found]))
    if args.json:
        results = [{"clients": c, "server": n, "rounds": rounds} for (c, n), rounds in found.items()]
        Path(args.json).write_text(json.dumps({"header": header(), "figures": FIGURES, "results": results}, indent=1))
    return 1 if any(figures[ERRORS] for rounds in found.values() for figures in rounds) else 0


def _row(
    found: dict[tuple[int, str], list[tuple[Any, ...]]], clients: int, name: str, first: str
) -> tuple[object, ...]:
    """Medians of a server's rounds, and what they are of the first server's."""
    mine, theirs = found[clients, name], found[clients, first]
    figures = [None if None in column else statistics.median(column) for column in zip(*mine, strict=True)]
    if name == first:
        return (name, clients, *figures, None, None, None)
    base = [None if None in column else statistics.median(column) for column in zip(*theirs, strict=True)]
    ratios = [m[TOKENS_PER_S] / t[TOKENS_PER_S] for m, t in zip(mine, theirs, strict=True) if t[TOKENS_PER_S]]
    spread = f"{min(ratios):.2f} .. {max(ratios):.2f}" if ratios else None
    return (name, clients, *figures, _ratio(figures, base, TOKENS_PER_S), spread, _ratio(figures, base, TTFT))


def _ratio(figures: list[Any], base: list[Any], index: int) -> float | None:
    return figures[index] / base[index] if figures[index] and base[index] else None


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", action="append", default=[], help="[NAME=]URL of a server to load; none: start one")
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--chat", action="store_true", help="chat instead of plain completions")
    parser.add_argument("--serve", default="", help="more arguments of the server that is started here")
    parser.add_argument("--step-ms", type=float, default=20.0, help="time of a step of the model `scripted`")
    parser.add_argument("--key", default="", help="bearer token")
    parser.add_argument("--clients", default="1,8,32")
    parser.add_argument("--requests", type=int, default=0, help="0: 2 per client, at least 4")
    parser.add_argument("--prompt-tokens", type=int, default=128)
    parser.add_argument("--shared-tokens", type=int, default=0)
    parser.add_argument("--max-tokens", type=int, default=128)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--json", type=output_file, default="", help="write every round's figures to this file")
    return parser.parse_args()


@contextlib.contextmanager
def _servers(args: argparse.Namespace) -> Iterator[dict[str, Server]]:
    """Name -> server."""
    if args.url:
        named = [text.partition("=") if "=" in text else (text, "", text) for text in args.url]
        yield {name: Server(url) for name, _, url in named}
        return
    with tempfile.NamedTemporaryFile("w", suffix=".json") as script:
        scripted = ["--script", script.name] if args.model == "scripted" else []
        json.dump({"step_ms": args.step_ms}, script)
        script.flush()
        with served(args.model, *scripted, *shlex.split(args.serve)) as server:
            yield {"sixfold": server}


async def _wait_ready(url: str, body: dict[str, Any], key: str) -> None:
    deadline = time.monotonic() + STARTED_S
    while (answer := await stream(url, body, key)).status != 200:
        if time.monotonic() > deadline or answer.status not in (0, 503):
            sys.exit(f"{url} does not serve: {answer.status} {answer.error}")
        await asyncio.sleep(0.1)


def _body(args: argparse.Namespace, rng: random.Random, shared: str, max_tokens: int) -> dict[str, Any]:
    own = max(2, args.prompt_tokens - args.shared_tokens)
    text = (shared + " " + _digits(rng, own)).strip()
    return {
        "model": args.model,
        **({"messages": [{"role": "user", "content": text}]} if args.chat else {"prompt": text}),
        "max_tokens": max_tokens,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    }


def _digits(rng: random.Random, n_tokens: int) -> str:
    """A digit and a space are a token each in most vocabularies."""
    return " ".join(str(rng.randrange(10)) for _ in range(n_tokens // 2))


async def _load(args: argparse.Namespace, server: Server, clients: int, round_: int) -> tuple[Any, ...]:
    """One closed loop: a value for each of `FIGURES`."""
    rng = random.Random(f"{args.seed} {clients} {round_}")  # no round finds another's prompts in a cache
    shared = _digits(rng, args.shared_tokens)
    n_requests = args.requests or max(4, 2 * clients)
    bodies = [_body(args, rng, shared, args.max_tokens) for _ in range(n_requests)]
    answers: list[Answer] = []

    async def client() -> None:
        while bodies:
            answers.append(await stream(server.url, bodies.pop(), args.key))

    started, used_before = time.perf_counter(), server.cpu_s()
    await asyncio.gather(*(client() for _ in range(clients)))
    wall_s, used = time.perf_counter() - started, server.cpu_s()
    good = [answer for answer in answers if answer.status == 200 and not answer.error]
    failed = [answer for answer in answers if answer not in good]
    for answer in failed[:3]:
        print(f"  failed: {answer.status} {answer.error}", file=sys.stderr)
    ttft_ms = sorted(1e3 * answer.ttft_s for answer in good)
    itl_ms = sorted(1e3 * answer.itl_s for answer in good)
    n_tokens = sum(answer.n_tokens for answer in good)
    return (
        n_tokens / wall_s,
        len(good) / wall_s,
        _percentile(ttft_ms, 0.5),
        _percentile(ttft_ms, 0.99),
        _percentile(itl_ms, 0.5),
        _percentile(itl_ms, 0.99),
        *(1e6 * (used[role] - used_before[role]) / n_tokens if n_tokens and used else None for role in ROLES),
        len(failed),
    )


def _percentile(values: list[float], share: float) -> float | None:
    """Of sorted values; None of none."""
    return values[min(len(values) - 1, int(share * len(values)))] if values else None


if __name__ == "__main__":
    sys.exit(main())
