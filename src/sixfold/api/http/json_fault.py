"""Where a JSON document is broken: the path of the value at fault, for error messages.

The parser in use says at most a byte offset. A caller wants to know the field, so a refused body is walked once more,
slowly, by this reader. It runs on refused bodies only, and gives up after `MAX_VALUES`.
"""

from __future__ import annotations

import re
from typing import NamedTuple

__all__ = ["Fault", "find_fault", "nests_too_much"]

_SPACE = re.compile(rb"[ \t\n\r]*+")
_STRING = re.compile(rb'"((?:[^"\\\x00-\x1f]|\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4}))*+)"')
_NUMBER = re.compile(rb"-?+(?:0|[1-9][0-9]*+)(?:\.[0-9]++)?+(?:[eE][+-]?[0-9]++)?+(?![0-9.eE+a-zA-Z-])")
_WORD = re.compile(rb"(?:true|false|null)(?![0-9a-zA-Z])")
_ESCAPE = re.compile(rb"\\(?:u([0-9a-fA-F]{4})|.)", re.DOTALL)
_BRACKETS = re.compile(rb'(?:[^"\[\]{}]*+"(?:[^"\\]|\\.)*+(?:"|\\?\Z)){0,1000}+[^"\[\]{}]*+([\[\]{}]?)', re.DOTALL)
"""Everything up to and with the next bracket outside strings, or a thousand strings: other threads get their turn.
An unfinished string reaches to the end: otherwise each of its escaped quotes would start a search of its own."""


MAX_VALUES = 100_000
"""About 0.1 s."""


class Fault(NamedTuple):
    path: str
    """Of the value at fault, e.g. `messages[0].content`; empty: the document itself."""
    reason: str
    offset: int
    """In bytes."""


def nests_too_much(body: bytes, max_depth: int, max_containers: int) -> bool:
    """Whether arrays and objects are nested deeper than `max_depth`, or are more than `max_containers`.

    Brackets in strings do not count. Broken JSON is not looked at more closely.
    """
    if body.count(b"[") + body.count(b"{") <= max_depth:
        return False
    depth = n_containers = 0
    for match in _BRACKETS.finditer(body):
        bracket = match.group(1)
        if bracket in (b"[", b"{"):
            depth += 1
            n_containers += 1
            if depth > max_depth or n_containers > max_containers:
                return True
        elif bracket:
            depth -= 1
    return False


def find_fault(body: bytes) -> Fault | None:
    """The first fault in the document, or None where this reader finds none or gives up."""
    return _Reader(body).read()


class _Reader:
    """One pass over the body. `path` holds the key or index of every open container."""

    def __init__(self, body: bytes) -> None:
        self.body = body
        self.at = 0
        self.path: list[str | int] = []
        self.closers: list[bytes] = []

    def read(self) -> Fault | None:
        fault = self._value()
        left = MAX_VALUES
        while fault is None and self.closers:
            left -= 1
            if not left:
                return None
            fault = self._after_value()
        if fault is not None:
            return fault
        self._space()
        return self._fault("unexpected bytes after the document") if self.at < len(self.body) else None

    def _space(self) -> None:
        match = _SPACE.match(self.body, self.at)
        self.at = match.end() if match else self.at

    def _fault(self, reason: str) -> Fault:
        path = ""
        for part in self.path:
            if isinstance(part, int):
                path += f"[{part}]"
            else:
                path += ("." if path else "") + part
        return Fault(path, reason if self.at < len(self.body) else "it ends too early", self.at)

    def _value(self) -> Fault | None:
        """Read a value; of an array or object, its beginning up to the first inner value."""
        self._space()
        head = self.body[self.at : self.at + 1]
        if head == b"[":
            return self._open(b"]")
        if head == b"{":
            return self._open(b"}")
        if head == b'"':
            return self._string()[1]
        match = _NUMBER.match(self.body, self.at) or _WORD.match(self.body, self.at)
        if match is None:
            return self._fault("texts need double quotes" if head == b"'" else "not a JSON value")
        self.at = match.end()
        return None

    def _open(self, closer: bytes) -> Fault | None:
        self.at += 1
        self._space()
        if self.body[self.at : self.at + 1] == closer:
            self.at += 1
            return None
        self.closers.append(closer)
        if closer == b"]":
            self.path.append(0)
            return self._value()
        self.path.append("")
        return self._member()

    def _member(self) -> Fault | None:
        """Read `"key": value`, up to the value's first inner value."""
        self.path.pop()
        self._space()
        if self.body[self.at : self.at + 1] != b'"':
            single = self.body[self.at : self.at + 1] == b"'"
            return self._fault("keys need double quotes" if single else "a key is missing")
        key, fault = self._string()
        if fault is not None:
            return fault
        self.path.append(key)
        self._space()
        if self.body[self.at : self.at + 1] != b":":
            return self._fault("a colon is missing")
        self.at += 1
        return self._value()

    def _after_value(self) -> Fault | None:
        """Inside a container, after one of its values: a comma and the next value, or the container's end."""
        self._space()
        head = self.body[self.at : self.at + 1]
        if head == self.closers[-1]:
            self.at += 1
            self.closers.pop()
            self.path.pop()
            return None
        if head != b",":
            return self._fault("a comma or a closing bracket is missing")
        self.at += 1
        last = self.path[-1]
        if isinstance(last, int):
            self.path[-1] = last + 1
            return self._value()
        return self._member()

    def _string(self) -> tuple[str, Fault | None]:
        match = _STRING.match(self.body, self.at)
        if match is None:
            if self.body.find(b'"', self.at + 1) < 0:
                self.at = len(self.body)
            return "", self._fault("a string holds a control character or a wrong escape")
        raw = match.group(1)
        try:
            text = raw.decode("utf-8")
        except UnicodeDecodeError as error:
            self.at += 1 + error.start
            return "", self._fault("a string is not valid UTF-8")
        if b"\\u" in raw and _has_lone_surrogate(raw):
            return "", self._fault("a string holds half a surrogate pair")
        self.at = match.end()
        return text, None


def _has_lone_surrogate(raw: bytes) -> bool:
    high = -1  # end of a high surrogate that waits for its low half
    for match in _ESCAPE.finditer(raw):
        unit = int(match.group(1), 16) if match.group(1) else 0
        if high >= 0 and (match.start() != high or not 0xDC00 <= unit <= 0xDFFF):
            return True
        if high >= 0:
            high = -1
        elif 0xD800 <= unit <= 0xDBFF:
            high = match.end()
        elif 0xDC00 <= unit <= 0xDFFF:
            return True
    return high >= 0
