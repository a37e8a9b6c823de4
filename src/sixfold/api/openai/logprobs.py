"""Log-probabilities as the two endpoints show them.

Entries are those of the tokens of which some text is shown. A control token without text, the stop token that ended a
choice and tokens that a stop string cut away have none: the entries' bytes joined are the text, except that a stop
string may have left only a part of the last one. An echoed prompt has one for each of its tokens, whatever is shown of
them: who scores a text counts tokens. A token that is not valid UTF-8 by itself is written `bytes:\\\\xf0\\\\x9f`, as
OpenAI does.
"""

from __future__ import annotations

import codecs
from collections import deque
from collections.abc import Iterable, Sequence

import msgspec

from sixfold.detokenizer import ChoiceDelta
from sixfold.messages import TokenLogprobs
from sixfold.text.tokenizer import Tokenizer

__all__ = [
    "ChatLogprobs",
    "CompletionLogprobs",
    "Entry",
    "LegacyLogprobs",
    "PromptLogprobs",
    "PromptScores",
    "Shown",
    "ShownEntries",
    "token_text",
]

Entry = tuple[int, TokenLogprobs | None]
"""Token id and its log-probabilities; None for a prompt's first token, which nothing predicts."""


def token_text(raw: bytes) -> str:
    """A token's bytes as a JSON string."""
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in raw)


class Alternative(msgspec.Struct, frozen=True):
    token: str
    logprob: float
    bytes: list[int]


class ChatEntry(msgspec.Struct, frozen=True):
    token: str
    logprob: float
    bytes: list[int]
    top_logprobs: list[Alternative]


class ChatLogprobs(msgspec.Struct, frozen=True):
    """`choices[].logprobs` of a chat."""

    content: list[ChatEntry]
    refusal: None = None


class LegacyLogprobs(msgspec.Struct, frozen=True):
    """`choices[].logprobs` of a completion: four lists of equal length."""

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]


class PromptToken(msgspec.Struct, frozen=True):
    """A token in `prompt_logprobs`, as vLLM shows it."""

    logprob: float
    rank: int
    """1 is the likeliest."""
    decoded_token: str


PromptLogprobs = list[dict[int, PromptToken] | None]
"""`prompt_logprobs`: per prompt token, its own id and the likeliest; None for the first, which nothing predicts."""


class PromptScores:
    """Renders `prompt_logprobs`.

    Args:
        n_top: alternatives per token.
    """

    def __init__(self, tokenizer: Tokenizer, n_top: int) -> None:
        self._tokenizer = tokenizer
        self._n_top = n_top

    def render(self, prompt: Sequence[int], scores: Iterable[TokenLogprobs]) -> PromptLogprobs:
        """The whole prompt's.

        Args:
            scores: of each of its tokens but the first.
        """
        return [None, *map(self._entry, prompt[1:], scores)]

    def _entry(self, token_id: int, scores: TokenLogprobs) -> dict[int, PromptToken]:
        piece = self._tokenizer.piece
        out = {token_id: PromptToken(scores.logprob, scores.rank + 1, piece(token_id))}
        tops = zip(scores.top_ids[: self._n_top], scores.top_logprobs, strict=False)
        for rank, (top_id, logprob) in enumerate(tops, 1):
            if top_id != token_id:
                out[top_id] = PromptToken(logprob, rank, piece(top_id))
        return out


class Shown:
    """Which tokens are shown, and how.

    Args:
        skip_special: control tokens are not.
        n_top: alternatives per token.
        as_ids: tokens are written `token_id:17`.
        shown_ids: control tokens that are shown all the same.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        *,
        skip_special: bool,
        n_top: int,
        as_ids: bool = False,
        shown_ids: frozenset[int] = frozenset(),
    ) -> None:
        self._bytes = tokenizer.token_bytes
        self._hidden = tokenizer.control_ids - shown_ids if skip_special else frozenset()
        self.n_top = n_top
        self._as_ids = as_ids

    def name(self, token_id: int) -> str:
        """How the token is written."""
        return f"token_id:{token_id}" if self._as_ids else token_text(self.raw(token_id))

    def raw(self, token_id: int) -> bytes:
        return self._bytes[token_id] if token_id < len(self._bytes) else b""

    def text(self, token_id: int) -> bytes:
        """What the token adds to the text."""
        return b"" if token_id in self._hidden else self.raw(token_id)

    def chat(self, entries: list[Entry]) -> ChatLogprobs:
        return ChatLogprobs([self._chat_entry(token_id, logprobs) for token_id, logprobs in entries if logprobs])

    def _chat_entry(self, token_id: int, logprobs: TokenLogprobs) -> ChatEntry:
        tops = zip(logprobs.top_ids[: self.n_top], logprobs.top_logprobs, strict=False)
        return ChatEntry(
            self.name(token_id),
            logprobs.logprob,
            list(self.raw(token_id)),
            [Alternative(self.name(i), value, list(self.raw(i))) for i, value in tops],
        )


class ShownEntries:
    """The entries of one choice, each given out as soon as some text of its token is sent.

    Text may come later than its token (pieces of a character, what may become a stop string) or never.
    """

    def __init__(self, shown: Shown) -> None:
        self._shown = shown
        self._waiting: deque[tuple[int, Entry]] = deque()
        """(characters before the token, its entry)"""
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")
        self._n_chars = 0
        self._n_sent = 0

    def take(self, delta: ChoiceDelta) -> list[Entry]:
        """The entries to send with the delta."""
        entries = list(zip(delta.token_ids, delta.logprobs or [], strict=True))
        if entries and delta.finish_reason == "stop" and isinstance(delta.stop_reason, int):
            entries.pop()  # the stop token has no text
        for entry in entries:
            if raw := self._shown.text(entry[0]):
                self._waiting.append((self._place(raw), entry))
        self._n_sent += len(delta.text)
        out: list[Entry] = []
        while self._waiting and self._waiting[0][0] < self._n_sent:
            out.append(self._waiting.popleft()[1])
        return out

    def _place(self, raw: bytes) -> int:
        """Characters before a token; one that begins within a character is at that character's place."""
        pending = bool(self._utf8.getstate()[0])
        first = self._utf8.decode(raw[:1])
        # If the pending bytes turn out to be no character, they have become a U+FFFD, which is before this token.
        broken = pending and (len(first) > 1 or raw[0] & 0xC0 != 0x80)
        place = self._n_chars + broken
        self._n_chars += len(first) + len(self._utf8.decode(raw[1:]))
        return place


class CompletionLogprobs:
    """Legacy log-probabilities of one choice; keeps count of the characters before each token."""

    def __init__(self, shown: Shown, offset: int = 0) -> None:
        self._shown = shown
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")
        self._offset = offset

    def render(self, entries: list[Entry]) -> LegacyLogprobs:
        out = LegacyLogprobs([], [], [], [])
        for token_id, logprobs in entries:
            out.tokens.append(self._shown.name(token_id))
            out.text_offset.append(self._offset)
            self._offset += len(self._utf8.decode(self._shown.text(token_id)))
            out.token_logprobs.append(None if logprobs is None else logprobs.logprob)
            out.top_logprobs.append(
                None if logprobs is None or not self._shown.n_top else self._tops(token_id, logprobs)
            )
        return out

    def _tops(self, token_id: int, logprobs: TokenLogprobs) -> dict[str, float]:
        """Most likely first, then the token itself; of two tokens that are written alike the likelier stays."""
        tops: dict[str, float] = {}
        for top_id, value in zip(logprobs.top_ids[: self._shown.n_top], logprobs.top_logprobs, strict=False):
            tops.setdefault(self._shown.name(top_id), value)
        tops.setdefault(self._shown.name(token_id), logprobs.logprob)
        return tops
