"""How many tokens a text has at the least, from its bytes alone: what cannot fit is refused before it is tokenized.

Tokenizing 4 MB takes seconds of a thread that others wait for; counting bytes takes milliseconds. A token of k bytes
takes the k-th part of itself from each of them. So where L(b) is the length of the longest token that holds the byte b,

    number of tokens  >=  sum of 1 / L(b) over the bytes b of the text

since the k bytes of one token contribute at most k * 1/k. Bytes that may end up in no token count nothing: those that
are no token by themselves, and those that the tokenizer does not promise to keep (`Tokenizer.kept_bytes`).
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from functools import cached_property
from typing import TYPE_CHECKING

from sixfold.errors import ContextLengthExceeded
from sixfold.lazy_numpy import np
from sixfold.text import Tokenizer

__all__ = ["PromptLength"]

WRITTEN_BLANK = "\u2581"
"""SentencePiece takes it for a blank, in fewer bytes than it has."""

if TYPE_CHECKING:
    Floats = np.ndarray[tuple[int], np.dtype[np.float64]]


class PromptLength:
    """The bound for one vocabulary and context. Immutable; any thread may use it.

    Args:
        max_model_len: prompt plus output, in tokens.
    """

    def __init__(self, tokenizer: Tokenizer, max_model_len: int) -> None:
        self._tokenizer = tokenizer
        self._max_model_len = max_model_len

    def check(self, parts: Iterable[str | int], field: str, *, is_answered: bool = True) -> None:
        """Refuse a prompt, pieces of text and token ids, that is too long whatever its tokens are.

        Args:
            is_answered: an answer follows, which needs at least one token of the context.

        Raises:
            ContextLengthExceeded
        """
        limit = self._max_model_len - is_answered
        parts = list(parts)
        if _most_tokens(parts) <= limit:
            return
        texts = [part for part in parts if isinstance(part, str)]
        least = len(parts) - len(texts) + sum(map(self.least_tokens, texts))
        if least > limit:
            need = ", and the answer needs one" if is_answered else ""
            raise ContextLengthExceeded(
                f"the prompt has at least {least} tokens; this model's maximum context length is "
                f"{self._max_model_len} tokens{need}",
                param=field,
                code="context_length_exceeded",
            )

    def surely_fits(self, text: str) -> bool:
        """Whether `check` of a text that is answered has nothing to count. The first that has something imports NumPy
        and looks at the whole vocabulary: 0.2 s."""
        return _most_tokens([text]) < self._max_model_len

    def least_tokens(self, text: str) -> int:
        """A number of tokens that the text has at the least."""
        raw = np.frombuffer(text.replace(WRITTEN_BLANK, "").encode("utf-8", "surrogatepass"), np.uint8)
        alone = (raw[:-1] < 128) & (raw[1:] >= 128)  # what a normalizer may compose with the next character
        counts = np.bincount(raw, minlength=256) - np.bincount(raw[:-1][alone], minlength=256)
        total = float(counts @ self._shares)
        return math.ceil(total - total * 1e-9)  # never above the true sum by rounding

    @cached_property
    def _shares(self) -> Floats:
        """[256] 1 / L(b); 0 for a byte that may be left out."""
        tokenizer = self._tokenizer
        table = tokenizer.token_bytes
        lengths = np.fromiter(map(len, table), np.int64, len(table))
        longest = np.ones(256, np.int64)
        np.maximum.at(longest, np.frombuffer(b"".join(table), np.uint8), np.repeat(lengths, lengths))
        single = {table[i][0] for i in np.flatnonzero(lengths == 1).tolist() if i not in tokenizer.control_ids}
        counts = np.zeros(256, np.bool_)
        counts[list(single & tokenizer.kept_bytes)] = True
        return np.where(counts, 1 / longest, 0.0)


def _most_tokens(parts: Iterable[str | int]) -> int:
    """As if each character had four bytes, and each byte were a token."""
    return sum(4 * len(part) if isinstance(part, str) else 1 for part in parts)
