"""A grammar's state while a choice is generated: the worker's half.

The library never raises: errors are states, and a matcher in error allows nothing but the end, as if the answer were
complete. So `is_error()` is asked after everything.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from sixfold.structured.check import limits
from sixfold.structured.vocabulary import Vocabulary, make_tokenizer

__all__ = ["GrammarError", "Matcher", "MatcherFactory"]

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt


class GrammarError(Exception):
    """The grammar cannot go on: a limit was reached. Only this choice is affected."""


class Matcher:
    """Not thread-safe; different ones may be used by different threads."""

    def __init__(self, tokenizer: Any, grammar: str) -> None:
        from llguidance import LLMatcher

        self._matcher = LLMatcher(tokenizer, grammar, log_level=0, limits=limits())
        self._check()

    @property
    def may_end(self) -> bool:
        """The grammar is satisfied as it stands."""
        return bool(self._matcher.is_accepting())

    def mask(self, out: npt.NDArray[np.int32]) -> None:
        """Write which tokens may come next: bit i % 32 of word i // 32 for token i.

        Raises:
            GrammarError
        """
        self._matcher.unsafe_compute_mask_ptr(out.ctypes.data, out.nbytes)
        self._check()

    def advance(self, token_ids: Sequence[int]) -> None:
        """Tokens were drawn.

        Raises:
            GrammarError: also where the grammar does not allow one.
        """
        n = self._matcher.try_consume_tokens(list(token_ids))
        self._check()
        if n != len(token_ids):
            raise GrammarError("a token does not fit the grammar")

    def _check(self) -> None:
        if self._matcher.is_error():
            raise GrammarError(self._matcher.get_error())


class MatcherFactory:
    """Makes matchers for one vocabulary; vocabulary and the library's tables are made with the first, or before.

    Args:
        read: gives the vocabulary.
    """

    def __init__(self, read: Callable[[], Vocabulary]) -> None:
        self._read = read
        self._tokenizer: Any = None

    @functools.cached_property
    def vocabulary(self) -> Vocabulary:
        return self._read()

    def prepare(self) -> bool:
        """Make the next part: the vocabulary, then the tables. Returns whether more is left."""
        if "vocabulary" not in self.__dict__:
            return bool(self.vocabulary)
        if self._tokenizer is None:
            self._tokenizer = make_tokenizer(self.vocabulary)
        return False

    def __call__(self, grammar: str) -> Matcher:
        """Raises: GrammarError: it cannot be used."""
        while self._tokenizer is None:
            self.prepare()
        return Matcher(self._tokenizer, grammar)
