"""One choice's tokens -> its text, piece by piece.

Tokens of a byte-level vocabulary are byte strings; a character may be spread over several of them. Bytes go through
Python's incremental UTF-8 decoder, which waits for the rest of a character and replaces what can never become one by
U+FFFD. So the joined pieces equal `b"".join(bytes of all tokens).decode("utf-8", "replace")`, character for character.
"""

from __future__ import annotations

import codecs
from collections.abc import Callable, Sequence
from typing import NamedTuple

from sixfold.detokenizer.stop import StopFilter

__all__ = ["Detokenizer", "StopMatch"]

_UTF8 = codecs.getincrementaldecoder("utf-8")


class StopMatch(NamedTuple):
    """A stop string was completed."""

    text: str
    """The stop string."""
    n_tokens: int
    """Tokens of the choice up to and including the one that completed it."""


class Detokenizer:
    """Text state of one choice. Work is linear in the tokens, also for invalid bytes.

    Args:
        token_bytes: [n_vocab] id -> the bytes that the token stands for. An id beyond the table has no text.
        control: the control tokens (set of ids, or a predicate).
        skip_special: control tokens have no text; otherwise they appear as the table spells them.
        stop: stop strings, non-empty each.
        include_stop: a matched stop string stays in the text.
    """

    __slots__ = (
        "_decode",
        "_is_control",
        "_n_table",
        "_n_tokens",
        "_skip_special",
        "_stop",
        "_table",
        "_utf8",
        "stopped",
    )

    def __init__(
        self,
        token_bytes: Sequence[bytes],
        control: frozenset[int] | Callable[[int], bool] = frozenset(),
        *,
        skip_special: bool = True,
        stop: tuple[str, ...] = (),
        include_stop: bool = False,
    ) -> None:
        self._table = token_bytes
        self._n_table = len(token_bytes)
        self._is_control = control if callable(control) else control.__contains__
        self._skip_special = skip_special
        self._stop = StopFilter(stop, include_stop=include_stop) if stop else None
        self._utf8 = _UTF8("replace")
        self._decode = self._utf8.decode
        self._n_tokens = 0
        self.stopped = False
        """A stop string was found: the text is complete."""

    @property
    def n_tokens(self) -> int:
        """Tokens taken so far."""
        return self._n_tokens

    def push(self, token_ids: Sequence[int]) -> tuple[str, StopMatch | None]:
        """Take the choice's next tokens.

        Returns:
            The text that can be sent now (maybe empty; never half a character), and the stop string that ended the
            choice or None. Tokens after the match are not looked at; after it, `push` takes nothing more.
        """
        if self.stopped:
            return "", None
        if self._stop is None:
            self._n_tokens += len(token_ids)
            if len(token_ids) == 1:
                return self._decode(self._token_bytes(token_ids[0])), None
            return self._decode(b"".join([self._token_bytes(token_id) for token_id in token_ids])), None
        pieces: list[str] = []
        for token_id in token_ids:
            self._n_tokens += 1
            text = self._decode(self._token_bytes(token_id))
            if text:
                sendable, match = self._stop.push(text)
                pieces.append(sendable)
                if match is not None:
                    self.stopped = True
                    return "".join(pieces), StopMatch(match, self._n_tokens)
        return "".join(pieces), None

    def skip(self, n_tokens: int = 1) -> None:
        """Count tokens that have no text: a stop token."""
        self._n_tokens += n_tokens

    def flush(self) -> str:
        """The tokens are over: the text held back for a stop string, and U+FFFD for a character cut short.

        That last U+FFFD is not searched for stop strings: no token wrote it.
        """
        if self.stopped:
            return ""
        held = self._stop.flush() if self._stop is not None else ""
        return held + self._decode(b"", True)

    def _token_bytes(self, token_id: int) -> bytes:
        if self._skip_special and self._is_control(token_id):
            return b""
        # Padding rows of a model's head have no token.
        return self._table[token_id] if token_id < self._n_table else b""
