"""Finding the literals of control tokens in a text."""

from __future__ import annotations

import re
from collections.abc import Mapping

__all__ = ["LiteralSplitter"]


class LiteralSplitter:
    """Cuts a text at known literals: the leftmost first, and of those that begin at one place the longest.

    A vocabulary can hold thousands of such literals. They share a few first characters and a few lengths, so a literal
    is looked up by (place of a first character, length) and the cost of a text does not grow with their number.
    """

    def __init__(self, literals: Mapping[str, int]) -> None:
        self._ids = {literal: token for literal, token in literals.items() if literal}
        self._lengths = sorted({len(literal) for literal in self._ids}, reverse=True)
        first = "".join(sorted({re.escape(literal[0]) for literal in self._ids}))
        self._first = re.compile(f"[{first}]") if first else None
        self._heads = {literal[:n] for literal in self._ids for n in range(1, len(literal))}
        self._tails = {literal[n:] for literal in self._ids for n in range(1, len(literal))}

    def find(self, text: str) -> list[tuple[int, str]]:
        """(place, literal), from left to right, not overlapping."""
        if self._first is None:
            return []
        found: list[tuple[int, str]] = []
        end = 0
        for match in self._first.finditer(text):
            place = match.start()
            if place < end:
                continue
            for length in self._lengths:
                literal = text[place : place + length]
                if literal in self._ids:
                    found.append((place, literal))
                    end = place + len(literal)
                    break
        return found

    def split(self, text: str) -> list[str | int]:
        """The text as ordinary pieces (not empty) and the ids of the literals between them."""
        parts: list[str | int] = []
        done = 0
        for place, literal in self.find(text):
            if place > done:
                parts.append(text[done:place])
            parts.append(self._ids[literal])
            done = place + len(literal)
        if done < len(text):
            parts.append(text[done:])
        return parts

    def head_at_end(self, text: str) -> int:
        """Characters at the end of `text` that are the beginning of a literal (the longest such); 0 for none."""
        return next((n for n in self._fragment_lengths(text) if text[-n:] in self._heads), 0)

    def tail_at_start(self, text: str) -> int:
        """Characters at the start of `text` that are the end of a literal (the longest such); 0 for none."""
        return next((n for n in self._fragment_lengths(text) if text[:n] in self._tails), 0)

    def _fragment_lengths(self, text: str) -> range:
        longest = self._lengths[0] - 1 if self._lengths else 0
        return range(min(longest, len(text)), 0, -1)
