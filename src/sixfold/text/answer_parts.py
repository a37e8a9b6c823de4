"""The pieces that an answer is made of, free of any wire format: content, reasoning, calls of functions.

A parser reads an answer's text as it comes and gives out parts. However the text is cut into pieces, the joined parts
are the same: what could still become markup is held back until it is decided.
"""

from __future__ import annotations

from typing import Protocol

import msgspec

__all__ = ["AnswerParser", "CallArguments", "CallBegin", "Content", "Part", "Reasoning"]


class Content(msgspec.Struct, frozen=True):
    """Text for the reader; never empty."""

    text: str


class Reasoning(msgspec.Struct, frozen=True):
    """What the model wrote before its answer; never empty."""

    text: str


class CallBegin(msgspec.Struct, frozen=True):
    """A call's function is known. `index` counts the answer's calls from 0, without a gap."""

    index: int
    name: str


class CallArguments(msgspec.Struct, frozen=True):
    """A piece of the arguments of call `index`, which is the latest begun; never empty. Joined they are a JSON
    object's text, unless the answer was cut short or the model wrote no valid JSON."""

    index: int
    text: str


Part = Content | Reasoning | CallBegin | CallArguments


class AnswerParser(Protocol):
    """Reads the answer of one choice."""

    n_calls: int
    """Calls begun so far."""

    def push(self, text: str) -> list[Part]:
        """Take the next piece of text."""
        ...

    def finish(self) -> list[Part]:
        """The text is over: what was held back."""
        ...
