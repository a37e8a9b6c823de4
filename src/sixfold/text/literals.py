"""Finding the literals of control tokens in a text."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping

__all__ = ["LiteralSplitter"]

_BLANKS = re.compile(r"[ \t\n\v\f\r]*")


class LiteralSplitter:
    """Cuts a text at known literals: the leftmost first, and of those that begin at one place the longest.

    A vocabulary can hold thousands of such literals. They share a few beginnings of two characters, and each of these a
    few lengths, so a literal is looked up by (beginning, length): the cost of a text does not grow with their number.
    """

    def __init__(self, literals: Mapping[str, int], *, strips_after: Collection[str] = ()) -> None:
        """
        Args:
            literals: text -> id.
            strips_after: those of them that swallow the blanks behind them.
        """
        self._ids = {literal: token for literal, token in literals.items() if literal}
        self._strips_after = frozenset(strips_after)
        self._longest = max(map(len, self._ids), default=0)
        lengths: dict[str, set[int]] = {}
        for literal in self._ids:
            lengths.setdefault(literal[:2], set()).add(len(literal))
        self._lengths = {beginning: sorted(found, reverse=True) for beginning, found in lengths.items()}
        self._first = _pattern_of_beginnings(lengths)
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
            literal = self._at(text, place)
            if literal:
                found.append((place, literal))
                end = place + len(literal)
        return found

    def _at(self, text: str, place: int) -> str:
        """The longest literal that begins at `place`; "" for none."""
        for length in self._lengths.get(text[place : place + 2], ()):
            literal = text[place : place + length]
            if literal in self._ids:
                return literal
        return text[place] if text[place] in self._ids else ""

    def split(self, text: str) -> list[str | int]:
        """The text as ordinary pieces (not empty) and the ids of the literals between them."""
        parts: list[str | int] = []
        done = 0
        for place, literal in self.find(text):
            if place > done:
                parts.append(text[done:place])
            parts.append(self._ids[literal])
            done = place + len(literal)
            if literal in self._strips_after and (blanks := _BLANKS.match(text, done)):
                done = blanks.end()
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
        return range(min(self._longest - 1, len(text)), 0, -1)


def _pattern_of_beginnings(beginnings: Iterable[str]) -> re.Pattern[str] | None:
    """Finds the first character of each beginning (one or two characters); None for no beginning."""
    second: dict[str, set[str]] = {}
    for beginning in beginnings:
        second.setdefault(beginning[0], set()).add(beginning[1:])
    alternatives = []
    for first, rest in sorted(second.items()):
        # A literal of one character may stand before anything.
        behind = "" if "" in rest else f"(?=[{''.join(map(re.escape, sorted(rest)))}])"
        alternatives.append(re.escape(first) + behind)
    return re.compile("|".join(alternatives)) if alternatives else None
