"""Time from the start of `sixfold serve` to the first token of a request, the model being in the cache.

    python benchmarks/startup.py [--model smollm2] [--rounds 5] [--json result.json]

The request is sent from the first moment on, again and again, until the server takes it: so the figure holds
everything that a user would wait for. A start before the first round is not counted: it writes Python's bytecode, as
an installation does. (Without it, as where `PYTHONDONTWRITEBYTECODE` is set, every process compiles the sources, for
0.3 s in all.)
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import sys
import time
from pathlib import Path

from report import header, output_file, table
from serving import STARTED_S, served, stream

RETRY_S = 0.01


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=output_file, default="", help="write every round's seconds to this file")
    args = parser.parse_args()
    body = {"model": args.model, "prompt": "One, two,", "max_tokens": 4, "temperature": 0, "stream": True}
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    seconds = []
    for _ in range(1 + args.rounds):
        started = time.perf_counter()
        with served(args.model) as server:
            seconds.append(asyncio.run(_first_token(server.url, body, started)))
    del seconds[0]
    print(header())
    row = (min(seconds), statistics.median(seconds), max(seconds))
    print(table(("seconds to the first token: best", "median", "worst"), [row]))
    if args.json:
        Path(args.json).write_text(json.dumps({"header": header(), "model": args.model, "seconds": seconds}, indent=1))
    return 0


async def _first_token(url: str, body: dict[str, object], started: float) -> float:
    while time.perf_counter() - started < STARTED_S:
        sent = time.perf_counter()
        answer = await stream(url, body)
        if answer.status == 200 and not answer.error:
            return sent + answer.ttft_s - started
        if answer.status not in (0, 503):
            sys.exit(f"the server answered {answer.status}: {answer.error}")
        await asyncio.sleep(RETRY_S)
    sys.exit(f"no answer within {STARTED_S:.0f} s")


if __name__ == "__main__":
    sys.exit(main())
