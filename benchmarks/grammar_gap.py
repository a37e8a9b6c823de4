"""How long a stream waits between two tokens while others' grammars are compiled.

    python benchmarks/grammar_gap.py [--model smollm2] [--tokens 600] [--step-ms 5]

The server has the model's vocabulary and no model: a step takes `--step-ms`, so that what a grammar adds shows. One
stream is timed while another caller asks, one request after the other, for

    refused     schemas that the API process's check refuses: they cost its threads, and reach no engine
    accepted    schemas with hundreds of properties, each another one: the worker compiles them in the step that admits
    limits      grammars near the limit of what the check lets pass
"""

from __future__ import annotations

import argparse
import http.client
import itertools
import json
import statistics
import tempfile
import threading
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from report import header, table
from serving import COMPLETIONS, served

LETTERS = "abcdefghijklmnopqrstuvwxyz"


def refused(i: int) -> dict[str, Any]:
    choices = "|".join(a + b + ".{1,40}" for a in LETTERS for b in LETTERS)
    return {"json": {"type": "string", "pattern": f"({choices}){{1,{30 + i}}}"}}


def accepted(i: int) -> dict[str, Any]:
    properties = {f"p{i}_{k}": {"type": "string", "maxLength": 20 + k % 7} for k in range(200)}
    return {"json": {"type": "object", "properties": properties, "additionalProperties": False}}


def near_limits(i: int) -> dict[str, Any]:
    return {"regex": f"[a-z ]{{1,{5000 + i}}}(" + "|".join(f"{a}{b}{i}" for a in LETTERS for b in LETTERS) + ")"}


def post(url: str, body: dict[str, Any]) -> int:
    request = urllib.request.Request(url + COMPLETIONS, json.dumps(body).encode(), {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request) as answer:
            answer.read()
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code


def gaps_ms(url: str, body: dict[str, Any]) -> list[float]:
    """Between the events of a stream."""
    address = urlsplit(url)
    connection = http.client.HTTPConnection(str(address.hostname), address.port)
    connection.request("POST", COMPLETIONS, json.dumps(body), {"Content-Type": "application/json"})
    times_s = [time.perf_counter() for line in connection.getresponse() if line.startswith(b"data: {")]
    connection.close()
    return [1e3 * (b - a) for a, b in itertools.pairwise(times_s)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--tokens", type=int, default=600)
    parser.add_argument("--step-ms", type=float, default=5.0)
    args = parser.parse_args()
    rows: list[list[object]] = []
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder) / "script.json"
        script.write_text(json.dumps({"step_ms": args.step_ms}))
        with served(args.model, "--executor", "scripted", "--script", str(script)) as server:
            while True:
                try:
                    if post(server.url, {"prompt": "x", "max_tokens": 1}) == 200:
                        break
                except OSError:
                    time.sleep(0.05)
            for name, kind in (("alone", None), ("refused", refused), ("accepted", accepted), ("limits", near_limits)):
                over, statuses = threading.Event(), []

                def others(kind: Any = kind, over: Any = over, statuses: Any = statuses) -> None:
                    for i in itertools.count():
                        if over.is_set() or kind is None:
                            return
                        asked = {"prompt": "y", "max_tokens": 2, "structured_outputs": kind(i)}
                        statuses.append(post(server.url, asked))

                thread = threading.Thread(target=others)
                thread.start()
                gaps = sorted(gaps_ms(server.url, {"prompt": "x", "max_tokens": args.tokens, "stream": True}))
                over.set()
                thread.join()
                n_ok = sum(status == 200 for status in statuses)
                p99 = gaps[int(0.99 * len(gaps))]
                rows.append([name, statistics.median(gaps), p99, gaps[-1], n_ok, len(statuses) - n_ok])
    print(header())
    print(table(["others", "median ms", "p99 ms", "longest ms", "answered", "refused"], rows))


if __name__ == "__main__":
    main()
