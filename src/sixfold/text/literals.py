"""Finding the literals of control tokens in a text."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Collection, Mapping

__all__ = ["ASCII_BLANKS", "UNICODE_BLANKS", "LiteralSplitter"]

ASCII_BLANKS = " \t\n\v\f\r"
UNICODE_BLANKS = (
    ASCII_BLANKS + "\x85\xa0\u1680" + "".join(map(chr, range(0x2000, 0x200B))) + "\u2028\u2029\u202f\u205f\u3000"
)
"""Unicode's White_Space."""
_LEVELS_MAX = 8
"""Groups within groups in the expression; below that, literals are tried one by one."""


class LiteralSplitter:
    """Cuts a text at known literals: the leftmost first, and of those that begin at one place the longest.

    The work is one search by the library of regular expressions, for an expression in which literals share what they
    begin with: a text that is full of beginnings (`<|im_<|im_<|im_`) costs little more than one that has none, and
    thousands of literals cost little more than a few.
    """

    def __init__(
        self,
        literals: Mapping[str, int],
        *,
        strips_before: Collection[str] = (),
        strips_after: Collection[str] = (),
        blanks: str = ASCII_BLANKS,
    ) -> None:
        """
        Args:
            literals: text -> id.
            strips_before, strips_after: those of them that swallow the blanks in front of them, behind them.
            blanks: the characters that these swallow.
        """
        self._ids = {literal: token for literal, token in literals.items() if literal}
        self._strips_before = frozenset(strips_before)
        self._strips_after = frozenset(strips_after)
        self._blanks = frozenset(blanks)
        self._longest = max(map(len, self._ids), default=0)
        self._any = re.compile(_expression(sorted(self._ids), _LEVELS_MAX)) if self._ids else None
        self._heads = {literal[:n] for literal in self._ids for n in range(1, len(literal))}
        self._tails = {literal[n:] for literal in self._ids for n in range(1, len(literal))}

    def find(self, text: str) -> list[tuple[int, str]]:
        """(place, literal), from left to right, not overlapping."""
        if self._any is None:
            return []
        return [(match.start(), match.group()) for match in self._any.finditer(text)]

    def replace(self, text: str, by: Callable[[str], str]) -> str:
        """The text with each literal that `find` finds replaced."""
        return text if self._any is None else self._any.sub(lambda match: by(match.group()), text)

    def split(self, text: str) -> list[str | int]:
        """The text as ordinary pieces (not empty) and the ids of the literals between them."""
        parts: list[str | int] = []
        done = 0
        for place, literal in self.find(text):
            end = place
            while literal in self._strips_before and end > done and text[end - 1] in self._blanks:
                end -= 1
            if end > done:
                parts.append(text[done:end])
            parts.append(self._ids[literal])
            done = place + len(literal)
            while literal in self._strips_after and done < len(text) and text[done] in self._blanks:
                done += 1
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


def _expression(texts: list[str], levels: int) -> str:
    """Matches the longest of the texts (sorted, different; one may be empty) that begins at a place."""
    if levels == 0:
        return "|".join(map(re.escape, sorted(texts, key=len, reverse=True)))
    branches = []
    for _, same_start in itertools.groupby(filter(None, texts), key=lambda text: text[0]):
        group = list(same_start)
        shared = _common_start(group[0], group[-1])
        rest = [text[len(shared) :] for text in group]
        branches.append(re.escape(shared) + (f"(?:{_expression(rest, levels - 1)})" if rest != [""] else ""))
    if texts[0] == "":
        branches.append("")  # where nothing longer fits
    return "|".join(branches)


def _common_start(one: str, other: str) -> str:
    n = next(
        (i for i, pair in enumerate(zip(one, other, strict=False)) if pair[0] != pair[1]), min(len(one), len(other))
    )
    return one[:n]
