"""Closed-loop load over HTTP: so many clients, each sending its next request when the last one is answered.

    python benchmarks/online.py                                      starts `sixfold serve smollm2` and loads it
    python benchmarks/online.py --url http://127.0.0.1:8000 --model smollm2
    python benchmarks/online.py --url A --url B --clients 1,8,32     the same load on several servers, in alternation

Works with any server that has /v1/completions with streaming. Prompts are digits, about one token each and different
in every request, after an optional shared beginning (`--shared-tokens`) that a prefix cache can use.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import random
import sys
import time
from collections.abc import Iterator
from typing import Any

from report import header, table
from serving import STARTED_S, Answer, served, stream

COLUMNS = (
    "server",
    "clients",
    "output tok/s",
    "requests/s",
    "TTFT p50 ms",
    "p99",
    "between tokens p50 ms",
    "p99",
    "errors",
)


def main() -> int:
    args = _arguments()
    with _servers(args) as urls:
        for url in urls:
            asyncio.run(_wait_ready(url, _body(args, random.Random(0), "", max_tokens=1), args.key))
        rows = []
        for clients in [int(part) for part in args.clients.split(",")]:
            for url in urls:
                print(f"{clients} clients on {url} ...", file=sys.stderr, flush=True)
                rows.append(asyncio.run(_load(args, url, clients)))
    print(header())
    print(table(COLUMNS, rows))
    return 1 if any(row[-1] for row in rows) else 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", action="append", default=[], help="server to load; none: start one here")
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--key", default="", help="bearer token")
    parser.add_argument("--clients", default="1,8,32")
    parser.add_argument("--requests", type=int, default=0, help="0: 2 per client, at least 4")
    parser.add_argument("--prompt-tokens", type=int, default=128)
    parser.add_argument("--shared-tokens", type=int, default=0)
    parser.add_argument("--max-tokens", type=int, default=128)
    parser.add_argument("--seed", type=int, default=1)
    return parser.parse_args()


@contextlib.contextmanager
def _servers(args: argparse.Namespace) -> Iterator[list[str]]:
    if args.url:
        yield args.url
        return
    with served(args.model) as url:
        yield [url]


async def _wait_ready(url: str, body: dict[str, Any], key: str) -> None:
    deadline = time.monotonic() + STARTED_S
    while (answer := await stream(url, body, key)).status != 200:
        if time.monotonic() > deadline or answer.status not in (0, 503):
            sys.exit(f"{url} does not serve: {answer.status} {answer.error}")
        await asyncio.sleep(0.1)


def _body(args: argparse.Namespace, rng: random.Random, shared: str, max_tokens: int) -> dict[str, Any]:
    own = max(2, args.prompt_tokens - args.shared_tokens)
    return {
        "model": args.model,
        "prompt": (shared + " " + _digits(rng, own)).strip(),
        "max_tokens": max_tokens,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    }


def _digits(rng: random.Random, n_tokens: int) -> str:
    """A digit and a space are a token each in most vocabularies."""
    return " ".join(str(rng.randrange(10)) for _ in range(n_tokens // 2))


async def _load(args: argparse.Namespace, url: str, clients: int) -> tuple[Any, ...]:
    rng = random.Random(f"{args.seed} {clients}")
    shared = _digits(rng, args.shared_tokens)
    n_requests = args.requests or max(4, 2 * clients)
    bodies = [_body(args, rng, shared, args.max_tokens) for _ in range(n_requests)]
    answers: list[Answer] = []

    async def client() -> None:
        while bodies:
            answers.append(await stream(url, bodies.pop(), args.key))

    started = time.perf_counter()
    await asyncio.gather(*(client() for _ in range(clients)))
    wall_s = time.perf_counter() - started
    good = [answer for answer in answers if answer.status == 200 and not answer.error]
    failed = [answer for answer in answers if answer not in good]
    for answer in failed[:3]:
        print(f"  failed: {answer.status} {answer.error}", file=sys.stderr)
    ttft_ms = sorted(1e3 * answer.ttft_s for answer in good)
    itl_ms = sorted(1e3 * answer.itl_s for answer in good)
    return (
        url,
        clients,
        sum(answer.n_tokens for answer in good) / wall_s,
        len(good) / wall_s,
        _percentile(ttft_ms, 0.5),
        _percentile(ttft_ms, 0.99),
        _percentile(itl_ms, 0.5),
        _percentile(itl_ms, 0.99),
        len(failed),
    )


def _percentile(values: list[float], share: float) -> float | None:
    """Of sorted values; None of none."""
    return values[min(len(values) - 1, int(share * len(values)))] if values else None


if __name__ == "__main__":
    sys.exit(main())
