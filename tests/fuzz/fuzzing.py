"""What all fuzzers share: numbered cases that follow from a seed, and how a failing one is told.

A fuzzer is a module with `case(rng)`, which makes an input; `check(case)`, which raises where something is wrong with
what came of it; and `REGRESSIONS`, inputs that once failed. `python -m tests.fuzz.NAME --seconds 600 --seed 7` runs it.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
import traceback
from collections.abc import Iterable
from random import Random
from typing import Any, Protocol

SHOWN_CHARS = 4000


class Fuzzer(Protocol):
    """See the module's docstring."""

    __name__: str
    REGRESSIONS: list[Any]

    def case(self, rng: Random) -> Any: ...
    def check(self, case: Any) -> None: ...


def numbered(fuzzer: Fuzzer, seed: int, number: int) -> Any:
    """The input of this number."""
    return fuzzer.case(Random(f"{seed}/{number}"))


def run(fuzzer: Fuzzer, seed: int, numbers: Iterable[int], until_s: float = float("inf")) -> int:
    """Returns how many cases were tried.

    Raises:
        AssertionError: a case failed; it is printed.
    """
    n = 0
    for number in numbers:
        if time.monotonic() > until_s:
            break
        one = numbered(fuzzer, seed, number)
        try:
            fuzzer.check(one)
        except Exception as error:
            name = fuzzer.__name__.rpartition(".")[2]
            print(f"{name}, seed {seed}, case {number}, for REGRESSIONS:\n{repr(one)[:SHOWN_CHARS]}", file=sys.stderr)
            raise AssertionError(
                f"again: python -m tests.fuzz.{name} --seed {seed} --first {number} --cases 1"
            ) from error
        n += 1
    return n


def main(fuzzer: Fuzzer) -> int:
    """The command line of a fuzzer."""
    parser = argparse.ArgumentParser(description=fuzzer.__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60.0, help="how long at most")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--first", type=int, default=0, help="number of the first case")
    parser.add_argument("--cases", type=int, default=1 << 40)
    given = parser.parse_args()
    numbers = range(given.first, given.first + given.cases)
    try:
        n = run(fuzzer, given.seed, numbers, time.monotonic() + given.seconds)
    except AssertionError:
        traceback.print_exc()
        return 1
    print(f"seed {given.seed}: {n} cases, none failed")
    return 0


def spliced(one: Any, other: Any, rng: Random) -> Any:
    """A text or list that begins as one and ends as the other."""
    return one[: rng.randint(0, len(one))] + other[rng.randint(0, len(other)) :]


def nudged(document: Any, rng: Random) -> Any:
    """A copy of a JSON value with one place changed to another value of its type: mostly still accepted."""
    root = [json.loads(json.dumps(document))]
    place: Any = root
    key: Any = 0
    while isinstance(place[key], dict | list) and place[key] and rng.random() < 0.95:
        place = place[key]
        key = rng.choice(list(place) if isinstance(place, dict) else range(len(place)))
    match place[key]:
        case bool(flag):
            place[key] = not flag
        case int(number):
            place[key] = rng.choice((number + 1, number - 1, 0, 1, 2, 64, 97, 255, 256, (1 << 63) - 1))
        case float(number):
            place[key] = rng.choice((0.0, 1.0, 2.0, number / 2, 1e-9, -number))
        case str(text):
            place[key] = rng.choice((text + "x", text * 2, text[:1], "é\n\x00", "<|im_end|>", "a" * 300, "{", '"'))
        case list(items):
            place[key] = rng.choice((items * 2, items[::-1], items[:1], []))
        case dict(items) if items:
            del items[rng.choice(list(items))]
        case None:
            place[key] = rng.choice(("", 0, {}, []))
    return root[0]


def damaged_text(text: str, rng: Random, marks: tuple[str, ...]) -> str:
    """One to four cuts, repetitions or insertions."""
    for _ in range(rng.randint(1, 4)):
        start = rng.randint(0, len(text))
        end = min(len(text), start + rng.choice((0, 1, 2, 5, 20)))
        match rng.randrange(4):
            case 0:
                text = text[:start] + text[end:]
            case 1:
                text = text[:end] + text[start:]
            case 2:
                text = text[:start] + rng.choice(marks) + text[start:]
            case 3:
                text = text[:start] + rng.choice(marks) + text[end:]
    return text
