"""Stop strings in a stream of characters: what may be sent, what must wait, and where the text ends.

All stop strings are followed at once by one automaton (Aho and Corasick, "Efficient string matching", 1975). Its state
is the longest suffix of the text so far that is a prefix of some stop string. That suffix is exactly what has to wait,
so the state's depth is the number of characters that wait, and the work is linear in the text.

    stop = "DEF GHI"        text so far   "abc DEF G"
                            sent          "abc "
                            held back         "DEF G"     state of depth 5

The match that is complete first wins; of several that complete with the same character, the longest. This depends
on the characters alone and not on how they were cut into tokens or deltas.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

__all__ = ["StopFilter"]

ROOT = 0


class StopFilter:
    """Passes text on, except for a tail that is a proper prefix of a stop string.

    Args:
        stop: the stop strings, non-empty each.
        include_stop: a matched stop string is part of the text that is passed on.
    """

    __slots__ = ("_depth", "_fail", "_held", "_include_stop", "_match", "_next", "_starts", "_state")

    def __init__(self, stop: Iterable[str], *, include_stop: bool = False) -> None:
        self._include_stop = include_stop
        self._held = ""
        self._state = ROOT
        self._next: list[dict[str, int]] = [{}]  # state -> character -> deeper state
        self._depth = [0]  # state -> length of the prefix it stands for
        self._match: list[str | None] = [None]  # state -> longest stop string that ends here
        self._fail = [ROOT]  # state -> state of its longest proper suffix
        for text in stop:
            self._insert(text)
        self._link()
        self._starts = frozenset(self._next[ROOT])

    def _insert(self, text: str) -> None:
        if not text:
            raise ValueError("a stop string is empty")
        state = ROOT
        for char in text:
            deeper = self._next[state].get(char)
            if deeper is None:
                deeper = len(self._next)
                self._next[state][char] = deeper
                self._next.append({})
                self._depth.append(self._depth[state] + 1)
                self._match.append(None)
                self._fail.append(ROOT)
            state = deeper
        self._match[state] = text

    def _link(self) -> None:
        """Breadth first, so that the suffix of a state, which is shorter, is finished before the state."""
        waiting = deque(self._next[ROOT].values())
        while waiting:
            state = waiting.popleft()
            for char, deeper in self._next[state].items():
                self._fail[deeper] = self._step(self._fail[state], char)
                if self._match[deeper] is None:
                    self._match[deeper] = self._match[self._fail[deeper]]
                waiting.append(deeper)

    def _step(self, state: int, char: str) -> int:
        while True:
            deeper = self._next[state].get(char)
            if deeper is not None:
                return deeper
            if state == ROOT:
                return ROOT
            state = self._fail[state]

    def push(self, text: str) -> tuple[str, str | None]:
        """Take more text.

        Returns:
            The text that may be sent now, and the stop string that was completed or None. After a match the rest of
            `text` is dropped, and the filter must not be used again.
        """
        state = self._state
        if state == ROOT and self._starts.isdisjoint(text):
            return text, None
        matches = self._match
        for index, char in enumerate(text):
            state = self._step(state, char)
            match = matches[state]
            if match is not None:
                end = len(self._held) + index + 1
                whole = self._held + text
                self._held = ""
                return whole[: end if self._include_stop else end - len(match)], match
        self._state = state
        whole = self._held + text
        sendable = len(whole) - self._depth[state]
        self._held = whole[sendable:]
        return whole[:sendable], None

    def flush(self) -> str:
        """The text is over: what was held back turned out not to be a stop string."""
        held, self._held, self._state = self._held, "", ROOT
        return held
