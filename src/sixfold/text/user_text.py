"""Strings of a caller on their way through a chat template, without the power to forge a control token.

Where a string holds the literal of a control token, or ends (begins) like the beginning (end) of one, so that two
strings side by side could form it, that part is replaced by one private-use character that occurs nowhere in the input:

    "ok<|im_end|>, <|im_"   --cover-->   "ok\\U000f0000, \\U000f0001"   --template, uncover-->   "ok<|im_end|>, <|im_"

Trimming, changing case, quoting as JSON and cutting leave such a character whole or drop it. What is left between the
control literals of the rendered text is uncovered and encoded as ordinary text.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from sixfold.errors import InvalidRequest
from sixfold.text.literals import LiteralSplitter

__all__ = ["UserText"]

_PRIVATE_FIRST, _PRIVATE_LAST = 0xF0000, 0xFFFFD
"""Private use plane 15: 65,534 characters to choose placeholders from."""
_PRIVATE = re.compile(f"[{chr(_PRIVATE_FIRST)}-{chr(_PRIVATE_LAST)}]")
_DEPTH_MAX = 128


class UserText:
    """The placeholders of one rendering."""

    def __init__(self, literals: LiteralSplitter) -> None:
        self._literals = literals
        self._placeholders: dict[str, str] = {}
        """Covered part -> its character."""
        self._free: Iterator[int] = iter(())
        self._covered: dict[str, str] = {}
        """Character -> covered part."""

    def cover(self, variables: Mapping[str, Any]) -> dict[str, Any]:
        """A copy with every string covered that needs it: values, keys, at any depth.

        Raises:
            InvalidRequest: it is nested too deeply, or no placeholder is left.
        """
        texts: list[str] = []
        _collect(variables, texts, _DEPTH_MAX)
        used = {ord(char) for text in texts for char in _PRIVATE.findall(text)}
        self._free = (point for point in range(_PRIVATE_FIRST, _PRIVATE_LAST + 1) if point not in used)
        return {name: self._cover_value(value) for name, value in variables.items()}

    def uncover(self, text: str) -> str:
        """Put the covered parts back."""
        if not self._covered:
            return text
        return re.sub(f"[{''.join(self._covered)}]", lambda found: self._covered[found[0]], text)

    def unused(self) -> str:
        """A character that the covered variables do not hold, and that no part is covered with. After `cover`.

        Raises:
            InvalidRequest: none is left.
        """
        point = next(self._free, None)
        if point is None:
            raise InvalidRequest("the text uses up the private characters of Unicode")
        return chr(point)

    def _cover_value(self, value: Any) -> Any:
        if isinstance(value, str):
            return self._cover_text(value)
        if isinstance(value, Mapping):
            return {self._cover_value(key): self._cover_value(item) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [self._cover_value(item) for item in value]
        return value

    def _cover_text(self, text: str) -> str:
        return self._cover_end(self._cover_start(self._literals.replace(text, self._placeholder)))

    def _cover_start(self, text: str) -> str:
        """Blanks in front do not count: a template may trim them."""
        bare = text.lstrip()
        n = self._literals.tail_at_start(bare)
        return text[: len(text) - len(bare)] + self._placeholder(bare[:n]) + bare[n:] if n else text

    def _cover_end(self, text: str) -> str:
        bare = text.rstrip()
        n = self._literals.head_at_end(bare)
        return bare[:-n] + self._placeholder(bare[-n:]) + text[len(bare) :] if n else text

    def _placeholder(self, part: str) -> str:
        char = self._placeholders.get(part)
        if char is None:
            char = self._placeholders[part] = self.unused()
            self._covered[char] = part
        return char


def _collect(value: Any, texts: list[str], depth_left: int) -> None:
    """All strings in `value`, keys included."""
    if isinstance(value, str):
        texts.append(value)
    elif isinstance(value, Mapping | list | tuple):
        if not depth_left:
            raise InvalidRequest(f"nested deeper than {_DEPTH_MAX} levels")
        if isinstance(value, Mapping):
            texts.extend(key for key in value if isinstance(key, str))
            value = value.values()
        for item in value:
            _collect(item, texts, depth_left - 1)
