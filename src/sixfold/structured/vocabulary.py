"""A model's tokens in the form in which the library takes them."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from llguidance import LLTokenizer

__all__ = ["Vocabulary", "make_tokenizer"]


class Vocabulary:
    """What a grammar needs to know of a vocabulary.

    Args:
        token_bytes: [n_rows] what each id stands for; b"" for an id that no grammar may choose. As wide as the logits.
        control_ids: tokens that no text becomes.
        end_ids: at least one; each may end the answer where the grammar lets it end.
    """

    def __init__(self, token_bytes: Sequence[bytes], control_ids: Collection[int], end_ids: Collection[int]) -> None:
        self.token_bytes = list(token_bytes)
        self.control_ids = sorted(control_ids)
        self.end_ids = sorted(end_ids)


class _Wrapper:
    """The attributes that the library looks for."""

    is_tokenizer_wrapper = True

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.tokens = vocabulary.token_bytes
        self.special_token_ids = vocabulary.control_ids
        self.eos_token_id = vocabulary.end_ids[0]
        self.bos_token_id = None
        control = frozenset(vocabulary.control_ids)
        self._ids = {piece: i for i, piece in enumerate(self.tokens) if piece and i not in control}
        self._longest = max(map(len, self._ids), default=1)

    def __call__(self, text: bytes | str) -> list[int]:
        """Tokens of a text that the grammar forces; a mask may hold the first of them alone. Where no token fits, the
        text ends: the library goes on without it."""
        raw = text.encode() if isinstance(text, str) else text
        ids: list[int] = []
        place = 0
        while place < len(raw):
            lengths = range(min(self._longest, len(raw) - place), 0, -1)
            piece = next((raw[place : place + n] for n in lengths if raw[place : place + n] in self._ids), None)
            if piece is None:
                break
            ids.append(self._ids[piece])
            place += len(piece)
        return ids


def make_tokenizer(vocabulary: Vocabulary) -> LLTokenizer:
    """Holds the interpreter lock all the while: 0.1 s for 49,152 tokens."""
    from llguidance import LLTokenizer

    return LLTokenizer(_Wrapper(vocabulary), eos_token=vocabulary.end_ids)
