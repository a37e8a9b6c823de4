"""What one run of a chat template may use: time, memory, and the size of what it makes."""

from __future__ import annotations

import os
import re
import time
from collections.abc import ItemsView, Iterable, KeysView, ValuesView
from typing import Any

from jinja2.utils import Namespace

__all__ = [
    "LENGTH_MAX",
    "METER",
    "PIECES_MAX",
    "LimitReached",
    "Meter",
    "check_length",
    "check_percent",
    "check_replaced",
    "checked_parts",
    "length_of",
]

METER = "sixfold_meter"
"""The name under which a program's variables must hold its `Meter`."""
LENGTH_MAX = 16 << 20
"""Of the output, and of any value: characters or elements. Four times the largest body that is accepted by default."""
PIECES_MAX = 1 << 20
"""Of a text that is cut, each of which costs far more than its characters."""
_STEPS_MAX = 1_000_000
_RENDER_S_MAX = 2.0
"""CPU time of the thread: a template is not worse because the machine is busy."""
_GROWTH_BYTES_MAX = 512 << 20
"""Of the process during one rendering: several values of the greatest length."""
_STEPS_PER_LOOK = 16
_PERCENT_WIDTH = re.compile(r"%(\([^)]*\))?[-+ #0]*(\*|\d{4}|\d*\.(\*|\d{4}))")


class LimitReached(Exception):
    """A bound of this file."""


class Meter:
    """What one rendering uses up, in the thread that made this."""

    def __init__(self) -> None:
        self._n_steps = self._next_look = 0
        self._until_s = time.thread_time() + _RENDER_S_MAX
        self._bytes_at_start = _resident_bytes()

    def step(self) -> bool:
        """True until a limit is reached, then it raises `LimitReached`."""
        self.spend(1)
        if self._n_steps >= self._next_look:
            self._next_look = self._n_steps + _STEPS_PER_LOOK
            if time.thread_time() > self._until_s:
                raise LimitReached(f"longer than {_RENDER_S_MAX:g} seconds")
            if _resident_bytes() - self._bytes_at_start > _GROWTH_BYTES_MAX:
                raise LimitReached(f"more than {_GROWTH_BYTES_MAX >> 20} MB of memory")
        return True

    def spend(self, n_steps: int) -> None:
        self._n_steps += n_steps
        if self._n_steps > _STEPS_MAX:
            raise LimitReached(f"more than {_STEPS_MAX} steps")

    def weigh(self, value: Any) -> None:
        """Count all that a value holds: a small list may hold another a million times."""
        n_characters = 0
        left = [value]
        while left:
            one = left.pop()
            if isinstance(one, str):
                n_characters += len(one)
                check_length(n_characters)
            elif isinstance(one, dict | list | tuple | set | frozenset | ValuesView | ItemsView | KeysView):
                self.spend(len(one))
                left += one
                left += one.values() if isinstance(one, dict) else ()
            elif isinstance(one, Namespace):
                raise LimitReached("a namespace as a whole")


def _resident_bytes() -> int:
    with open("/proc/self/statm", "rb") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def check_length(length: int) -> None:
    if length > LENGTH_MAX:
        raise LimitReached(f"a value of more than {LENGTH_MAX} elements")


def length_of(value: Any) -> int:
    return len(value) if isinstance(value, str | list | tuple) else 0


def check_replaced(text: str, old: str, new: str) -> None:
    check_length(len(text) + text.count(old) * len(new))


def check_percent(meter: Meter, layout: str, values: Any) -> None:
    if _PERCENT_WIDTH.search(layout):
        raise LimitReached("a format that is too wide")
    meter.weigh(values)


def checked_parts(meter: Meter, between: str, values: Iterable[Any]) -> list[Any]:
    parts = []
    for value in values:
        meter.step()
        parts.append(value)
    meter.weigh(parts)
    check_length(sum(map(length_of, parts)) + len(parts) * len(between))
    return parts
