"""The syntax of one call in an answer's text, as far as it has been written."""

from __future__ import annotations

import json
import re
from enum import Enum
from typing import NamedTuple

__all__ = ["HEAD_CHARS_MAX", "Head", "NoHead", "ObjectScanner", "read_head", "read_named_head"]

HEAD_CHARS_MAX = 4096
"""Of a head: where the arguments do not begin before, it is no call. A head is read again with each piece of text."""

_BLANKS = re.compile(r"[ \t\r\n]*")
_STRING = re.compile(r'"(?:[^"\\\x00-\x1f]|\\.)*"', re.DOTALL)
_OPEN_STRING = re.compile(r'"(?:[^"\\\x00-\x1f]|\\.)*\\?\Z', re.DOTALL)
_SCALAR = re.compile(r"[-+.0-9a-zA-Z]+")
_NESTING = re.compile(r'["{}\[\]]')
_STRING_END = re.compile(r'[^"\\]*(?:\\.[^"\\]*)*', re.DOTALL)
_NAMED = re.compile(r"([a-zA-Z0-9_-]{1,64})(?:\[CALL_ID\][a-zA-Z0-9]{1,64})?(?:\[ARGS\])?[ \t\r\n]*(?=\{)")
_NAMED_PART = re.compile(r"[a-zA-Z0-9_-]{0,64}(?:\[[A-Z_]*(?:\][a-zA-Z0-9]{0,64})?){0,2}[ \t\r\n]*")
_ARGUMENT_KEYS = frozenset({"arguments", "parameters"})


class NoHead(Enum):
    """What has been written is not the head of a call."""

    UNFINISHED = "it may become one"
    BROKEN = "it cannot"


class Head(NamedTuple):
    """The function is known, and where its arguments are."""

    name: str
    end: int
    """Where the arguments begin (`arguments` is None), or the object ends."""
    arguments: str | None
    """Where they are complete already, or were not given."""


class ObjectScanner:
    """Finds the end of a JSON object or array, fed piece by piece. Only nesting and strings are looked at."""

    def __init__(self, depth: int = 0) -> None:
        self.depth = depth
        """Objects and arrays that are open."""
        self._in_string = False
        self._escaped = False

    def end(self, text: str, start: int = 0) -> int | None:
        """Behind the bracket that closes the last one open; None when it is not in this piece."""
        place = start
        while place < len(text):
            if self._in_string:
                place = self._string(text, place)
                continue
            found = _NESTING.search(text, place)
            if found is None:
                return None
            place = found.end()
            match found.group():
                case '"':
                    self._in_string = True
                case "{" | "[":
                    self.depth += 1
                case _:
                    self.depth -= 1
                    if self.depth <= 0:
                        return place
        return None

    def _string(self, text: str, place: int) -> int:
        if self._escaped:
            self._escaped = False
            return place + 1
        found = _STRING_END.match(text, place)
        assert found is not None
        place = found.end()
        if place < len(text):
            if text[place] == '"':
                self._in_string = False
            else:
                self._escaped = True
            place += 1
        return place


def read_head(text: str, start: int) -> Head | NoHead:
    """Read `{"name": "f", "arguments": ...` in any order of keys, up to where the arguments can be given out.

    Args:
        start: of the text; `{` stands there.
    """
    limit = start + HEAD_CHARS_MAX
    head = _read_object(text[:limit], start)
    return NoHead.BROKEN if head is NoHead.UNFINISHED and len(text) >= limit else head


def _read_object(text: str, start: int) -> Head | NoHead:
    name: str | None = None
    arguments: str | None = None
    place = start + 1
    try:
        while True:
            place = _skip(text, place)
            if text[place] == "}":
                if name is None:
                    return NoHead.BROKEN
                return Head(name, place + 1, arguments or "{}")
            key, place = _string_at(text, place)
            place = _skip(text, place)
            if text[place] != ":":
                return NoHead.BROKEN
            place = _skip(text, place + 1)
            if key in _ARGUMENT_KEYS and name is not None and text[place] == "{":
                return Head(name, place, None)
            end = _value_end(text, place)
            if key == "name":
                name, _ = _string_at(text, place)
            elif key in _ARGUMENT_KEYS:
                arguments = _object_text(text[place:end])
            place = _skip(text, end)
            if text[place] == ",":
                place = _skip(text, place + 1)
                if text[place] != '"':
                    return NoHead.BROKEN
            elif text[place] != "}":
                return NoHead.BROKEN
    except IndexError:
        return NoHead.UNFINISHED
    except (ValueError, RecursionError):
        return NoHead.BROKEN


def read_named_head(text: str, start: int) -> Head | NoHead:
    """Read `f[ARGS]{` or `f{`, with a `[CALL_ID]...` between maybe."""
    found = _NAMED.match(text, start, start + HEAD_CHARS_MAX)
    if found is not None:
        return Head(found.group(1), found.end(), None)
    unfinished = len(text) < start + HEAD_CHARS_MAX and _NAMED_PART.fullmatch(text, start)
    return NoHead.UNFINISHED if unfinished else NoHead.BROKEN


def _skip(text: str, place: int) -> int:
    """Behind the blanks; IndexError where the text ends with them."""
    found = _BLANKS.match(text, place)
    assert found is not None
    if found.end() == len(text):
        raise IndexError
    return found.end()


def _string_at(text: str, place: int) -> tuple[str, int]:
    """A string and its end; IndexError where it is not complete, ValueError where there is none."""
    found = _STRING.match(text, place)
    if found is not None:
        return json.loads(found.group()), found.end()
    if _OPEN_STRING.match(text, place):
        raise IndexError
    raise ValueError


def _value_end(text: str, place: int) -> int:
    if text[place] == '"':
        return _string_at(text, place)[1]
    if text[place] in "{[":
        end = ObjectScanner().end(text, place)
        if end is None:
            raise IndexError
        return end
    found = _SCALAR.match(text, place)
    if found is None:
        raise ValueError
    if found.end() == len(text):
        raise IndexError
    return found.end()


def _object_text(value: str) -> str:
    """Arguments that are complete: an object as it stands, or one within a string; null is none."""
    if value == "null":
        return "{}"
    if value.startswith('"'):
        value = json.loads(value).strip() or "{}"
        value.encode()  # half a surrogate pair is a ValueError too
        if not isinstance(json.loads(value), dict):
            raise ValueError
    if not value.startswith("{"):
        raise ValueError
    return value
