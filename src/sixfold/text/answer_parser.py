"""An answer's text, piece by piece -> its parts: reasoning, content, calls.

    [<think> reasoning </think>]  { content | opener head arguments rest closer }

Text is kept in a buffer until it is decided what it is; each state takes what it can and says what is next. What
begins like a call and turns out to be none is content, as it was written. What begins like one and ends with the answer
before the function's name is known is dropped. From there on, arguments go out as they come: if they are cut short, or
no valid JSON, the caller gets what there is.

Blanks between content and calls, and around the reasoning, belong to neither.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from typing import Literal

from sixfold.text.answer_parts import CallArguments, CallBegin, Content, Part, Reasoning
from sixfold.text.call_format import CallFormat
from sixfold.text.call_syntax import Head, NoHead, ObjectScanner, read_head, read_named_head

__all__ = ["THINK_BEGIN", "THINK_END", "PartsParser", "Thinking"]

THINK_BEGIN, THINK_END = "<think>", "</think>"

Thinking = Literal["no", "maybe", "open"]
"""Whether an answer may begin with `<think>`, or the prompt has written it already."""

_FIRST_KEY = re.compile(r'\{\s*"(?:name|type)"')
_FIRST_KEY_PART = re.compile(r'\{\s*(?:"(?:n(?:a(?:me?)?)?|t(?:y(?:pe?)?)?)?)?\Z')
_BARE_CHARS = 64
"""Of a bare object, up to where its first key ends."""
_PIECE_CHARS = 1024
"""What is taken from a text is cut off its front: of a long one, piece by piece, or the cutting would take all time."""


class PartsParser:
    """An `AnswerParser` for one answer.

    Args:
        calls: the format of calls; None: there are none to be found.
        names: of the functions that may be called; what calls another is content.
        one_call: later calls are left out.
        sure: the answer is nothing but calls (a grammar makes sure of it): what is cut short is never content.
        thinking: how the answer begins.
    """

    def __init__(
        self,
        calls: CallFormat | None,
        names: Collection[str] = (),
        *,
        one_call: bool = False,
        sure: bool = False,
        thinking: Thinking = "no",
    ) -> None:
        self.n_calls = 0
        self._format = calls
        self._names = names
        self._one_call = one_call
        self._sure = sure
        openers = calls.openers if calls is not None else {}
        self._openers = re.compile("|".join(map(re.escape, openers))) if openers else None
        self._fragments = frozenset(opener[:n] for opener in openers for n in range(1, len(opener)))
        self._longest = max(map(len, openers), default=1)
        self._parts: list[Part] = []
        self._buffer = ""
        self._waiting: list[str] = []
        """Blanks behind a buffer of nothing but blanks: no state can do anything with them."""
        self._blanks: list[str] = []
        """Held back: content if more of it follows."""
        self._any_content = False
        self._opener = self._unsaid = ""
        """What began the call, and as much of it as is content if there is none."""
        self._named = calls is not None and calls.named
        self._wrapped = False
        """The arguments stand within an object that has the name too."""
        self._bare = calls is not None and calls.bare
        """A JSON object that stands here may be a call."""
        self._in_array = False
        self._muted = False
        self._scanner = ObjectScanner()
        self._over = False
        self._state: Callable[[], bool] = {"no": self._text, "maybe": self._start, "open": self._reasoning}[thinking]
        self._lstrip = thinking == "open"
        """Blanks at the front belong to nothing."""

    @property
    def reasons(self) -> bool:
        """The text is within the reasoning, as far as is known."""
        return self._state == self._reasoning

    def push(self, text: str) -> list[Part]:
        """See `AnswerParser`."""
        for start in range(0, len(text) or 1, _PIECE_CHARS):
            self._push_piece(text[start : start + _PIECE_CHARS])
        parts, self._parts = self._parts, []
        return parts

    def _push_piece(self, text: str) -> None:
        if self._waiting and not self._over and not text.strip():
            self._waiting.append(text)
            return
        self._buffer = "".join((*self._waiting, text)) if self._waiting else self._buffer + text
        while self._state():
            pass
        self._waiting = [self._buffer] if self._buffer.isspace() else []

    def finish(self) -> list[Part]:
        """See `AnswerParser`."""
        self._over = True
        return self.push("")

    # Each state takes from the buffer, and returns whether another one is to go on.

    def _start(self) -> bool:
        """Nothing but blanks so far: the answer may begin with its reasoning."""
        bare = self._buffer.lstrip()
        if bare.startswith(THINK_BEGIN):
            self._buffer = bare[len(THINK_BEGIN) :]
            self._lstrip = True
            self._state = self._reasoning
            return True
        if THINK_BEGIN.startswith(bare) and not self._over:
            return False
        self._state = self._text
        return True

    def _reasoning(self) -> bool:
        if self._lstrip:
            self._buffer = self._buffer.lstrip()
            self._lstrip = not self._buffer
        text, end, rest = self._buffer.partition(THINK_END)
        if end or self._over:
            if text := text.rstrip():
                self._parts.append(Reasoning(text))
            self._buffer = rest
            self._lstrip = True
            self._state = self._text
            return True
        held = _fragment_at_end(text, THINK_END)
        safe = text[: len(text) - held].rstrip()
        if safe:
            self._parts.append(Reasoning(safe))
            self._buffer = text[len(safe) :]
        return False

    def _text(self) -> bool:
        if self._lstrip:
            self._buffer = self._buffer.lstrip()
            self._lstrip = not self._buffer
        if self._bare and (bare := self._buffer.lstrip()):
            self._content(self._buffer[: len(self._buffer) - len(bare)])
            self._buffer = bare
            self._bare = False
            if bare[0] in "{[":
                self._opener = self._unsaid = ""
                self._state = self._head
                return True
        elif self._bare and not self._over:
            return False
        found = self._openers.search(self._buffer) if self._openers is not None else None
        if found is not None:
            self._content(self._buffer[: found.start()])
            self._opener = self._unsaid = found.group()
            self._bare = False
            self._buffer = self._buffer[found.end() :]
            self._state = self._head
            return True
        held = 0 if self._over and not self._sure else self._held()
        self._content(self._buffer[: len(self._buffer) - held])
        self._buffer = self._buffer[len(self._buffer) - held :]
        if self._over and not self.n_calls and self._blanks:
            self._parts.append(Content("".join(self._blanks)))
            self._blanks = []
        return False

    def _head(self) -> bool:
        """Behind an opener, or where a bare call may stand, or at the next object of an array."""
        text = self._buffer.lstrip()
        start, in_array = 0, self._in_array
        if text.startswith("[") and not in_array:
            start, in_array = len(text) - len(text[1:].lstrip()), True
        head = self._read_head(text, start, in_array)
        if head is NoHead.UNFINISHED and not self._over:
            return False
        if isinstance(head, NoHead) or head.name not in self._names:
            self._no_call(dropped=self._over and head is NoHead.UNFINISHED)
            return True
        self._in_array = in_array
        self._wrapped = text[start] == "{"
        self._buffer = text[head.end :]
        self._begin(head)
        return True

    def _read_head(self, text: str, start: int, in_array: bool) -> Head | NoHead:
        if start == len(text):
            return NoHead.UNFINISHED
        if text[start] == "{":
            if not self._opener and not _FIRST_KEY.match(text, start, start + _BARE_CHARS):
                unfinished = len(text) < start + _BARE_CHARS and _FIRST_KEY_PART.match(text, start)
                return NoHead.UNFINISHED if unfinished else NoHead.BROKEN
            return read_head(text, start)
        if self._named and self._opener and not in_array:
            return read_named_head(text, start)
        return NoHead.BROKEN

    def _begin(self, head: Head) -> None:
        self._muted = self._one_call and self.n_calls > 0
        self._blanks = ["\n"] if self._any_content else []
        self._unsaid = ""
        if not self._muted:
            self._parts.append(CallBegin(self.n_calls, head.name))
            self.n_calls += 1
        if head.arguments is not None:
            self._arguments_text(head.arguments)
            self._state = self._behind
        else:
            self._scanner = ObjectScanner()
            self._state = self._arguments

    def _no_call(self, *, dropped: bool) -> None:
        """What was held back is content, or dropped; then go on looking for calls."""
        self._state = self._text
        self._bare = self._in_array = False
        if dropped and (self._opener or self._sure):
            self._buffer = ""
        else:
            self._content(self._unsaid)
        self._unsaid = ""

    def _arguments(self) -> bool:
        text = self._buffer
        end = self._scanner.end(text)
        self._arguments_text(text[:end])
        self._buffer = "" if end is None else text[end:]
        if end is None:
            return False
        self._scanner = ObjectScanner(depth=1)
        self._state = self._rest if self._wrapped else self._behind
        return True

    def _arguments_text(self, text: str) -> None:
        if text and not self._muted:
            self._parts.append(CallArguments(self.n_calls - 1, text))

    def _rest(self) -> bool:
        """Behind the arguments, within the call's object."""
        end = self._scanner.end(self._buffer)
        self._buffer = "" if end is None else self._buffer[end:]
        self._state = self._rest if end is None else self._behind
        return end is not None

    def _behind(self) -> bool:
        """Behind a call: what belongs to its markup, or the next call."""
        text = self._buffer = self._buffer.lstrip()
        if not text:
            return False
        closer = self._format.openers.get(self._opener, "") if self._format is not None else ""
        if self._in_array:
            self._in_array = text[0] == ","
            if text[0] in ",]":
                self._buffer = text[1:]
            self._state = self._head if self._in_array else self._behind
            return True
        if closer and text.startswith(closer):
            self._buffer = text[len(closer) :]
            self._after_call()
            return True
        if closer and closer.startswith(text):
            if self._over:
                self._buffer = ""
            return False
        if not closer and text[0] == ";":
            self._buffer = text[1:]
            return True
        if text[0] == "{":
            self._state = self._head
            return True
        self._after_call()
        return True

    def _after_call(self) -> None:
        self._lstrip = True
        self._bare = self._format is not None and self._format.bare
        self._state = self._text

    def _content(self, text: str) -> None:
        if self._format is None:
            if text:
                self._parts.append(Content(text))
            return
        bare = text.rstrip()
        if bare:
            self._any_content = True
            self._parts.append(Content("".join((*self._blanks, bare))))
            self._blanks = []
        if len(bare) < len(text):
            self._blanks.append(text[len(bare) :])

    def _held(self) -> int:
        """Characters at the buffer's end that may be the beginning of an opener."""
        text = self._buffer
        return next((n for n in range(min(self._longest - 1, len(text)), 0, -1) if text[-n:] in self._fragments), 0)


def _fragment_at_end(text: str, literal: str) -> int:
    return next((n for n in range(min(len(literal) - 1, len(text)), 0, -1) if literal.startswith(text[-n:])), 0)
