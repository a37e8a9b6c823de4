"""A model's tokens in the form in which the library takes them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from llguidance import LLTokenizer

__all__ = ["Vocabulary", "make_tokenizer"]


class Vocabulary:
    """What a grammar needs to know of a vocabulary.

    Args:
        token_bytes: [n_rows] what each id stands for; b"" for an id that no grammar may choose. As wide as the logits.
        control_ids: tokens that no text becomes.
        end_ids: at least one; each may end the answer where the grammar lets it end.
        encode: the model's own tokens of a text. Where a grammar leaves one way to go on, the answer is written with
            them. None: the longest ones that fit, from left to right.
    """

    def __init__(
        self,
        token_bytes: Sequence[bytes],
        control_ids: Collection[int],
        end_ids: Collection[int],
        encode: Callable[[str], list[int]] | None = None,
    ) -> None:
        self.token_bytes = list(token_bytes)
        self.control_ids = sorted(control_ids)
        self.end_ids = sorted(end_ids)
        self.encode = encode


class _Wrapper:
    """The attributes that the library looks for."""

    is_tokenizer_wrapper = True

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.tokens = vocabulary.token_bytes
        self.special_token_ids = vocabulary.control_ids
        self.eos_token_id = vocabulary.end_ids[0]
        self.bos_token_id = None
        self._vocabulary = vocabulary
        self.tokenizer: LLTokenizer | None = None

    def __call__(self, text: bytes | str) -> list[int]:
        """Tokens that are the text, all of it and nothing else: some encoders put a blank in front."""
        data = text if isinstance(text, bytes) else text.encode()
        if self._vocabulary.encode is not None:
            ids = self._vocabulary.encode(data.decode())
            if b"".join(self.tokens[i] for i in ids if i < len(self.tokens)) == data:
                return ids
        return [] if self.tokenizer is None else list(self.tokenizer.greedy_tokenize(data.decode()))


def make_tokenizer(vocabulary: Vocabulary) -> LLTokenizer:
    """Holds the interpreter lock all the while: 0.1 s for 49,152 tokens."""
    from llguidance import LLTokenizer

    wrapper = _Wrapper(vocabulary)
    tokenizer = LLTokenizer(cast(Any, wrapper), eos_token=vocabulary.end_ids)
    wrapper.tokenizer = tokenizer
    return tokenizer
