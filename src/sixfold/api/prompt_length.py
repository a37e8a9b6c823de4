"""How many tokens a text has at the least, from its bytes alone: what cannot fit is refused before it is tokenized.

Tokenizing 4 MB takes seconds of a thread that others wait for; counting bytes takes milliseconds. A token of k bytes
takes the k-th part of itself from each of them. So where L(b) is the length of the longest token that holds the byte b,

    number of tokens  >=  sum of 1 / L(b) over the bytes b of the text

since the k bytes of one token contribute at most k * 1/k. A byte that is no token by itself counts nothing: the
tokenizer leaves it out.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from functools import cached_property

import numpy as np

from sixfold.errors import ContextLengthExceeded

__all__ = ["PromptLength"]

Floats = np.ndarray[tuple[int], np.dtype[np.float64]]


class PromptLength:
    """The bound for one vocabulary and context. Immutable; any thread may use it.

    Args:
        token_bytes: [n_vocab] what each token stands for.
        max_model_len: prompt plus output, in tokens.
    """

    def __init__(self, token_bytes: Sequence[bytes], max_model_len: int) -> None:
        self._token_bytes = token_bytes
        self._max_model_len = max_model_len

    def check(self, parts: Iterable[str | int], field: str) -> None:
        """Raises:
        ContextLengthExceeded: the prompt, pieces of text and token ids, is too long whatever its tokens are.
        """
        parts = list(parts)
        texts = [part.encode("utf-8", "surrogatepass") for part in parts if isinstance(part, str)]
        n_ids = len(parts) - len(texts)
        if n_ids + sum(map(len, texts)) < self._max_model_len:
            return  # even if each byte were a token
        least = n_ids + self.least_tokens(b"".join(texts))
        if least >= self._max_model_len:
            raise ContextLengthExceeded(
                f"the prompt has at least {least} tokens; the context is {self._max_model_len} tokens, and the answer "
                "needs one",
                param=field,
                code="context_length_exceeded",
            )

    def least_tokens(self, text: bytes) -> int:
        """A number of tokens that the text has at the least."""
        counts = np.bincount(np.frombuffer(text, np.uint8), minlength=256)
        total = float(counts @ self._shares)
        return math.ceil(total - total * 1e-9)  # never above the true sum by rounding

    @cached_property
    def _shares(self) -> Floats:
        """[256] 1 / L(b); 0 for a byte that is left out."""
        lengths = np.fromiter(map(len, self._token_bytes), np.int64, len(self._token_bytes))
        longest = np.zeros(256, np.int64)
        np.maximum.at(longest, np.frombuffer(b"".join(self._token_bytes), np.uint8), np.repeat(lengths, lengths))
        single = np.zeros(256, np.bool_)
        single[[token[0] for token in self._token_bytes if len(token) == 1]] = True
        return np.where(single, 1 / np.maximum(longest, 1), 0.0)
