"""Random walks over what a grammar allows, with the tokens of a real model."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from sixfold.executor.grammar_vocabulary import vocabulary_of
from sixfold.model_file import GGUFFile
from sixfold.structured import MatcherFactory
from sixfold.text import gguf_tokenizer

__all__ = ["Walker"]

MAX_TOKENS = 600
FREE_TOKENS = 40
"""Drawn without an aim; afterwards the walk takes what closes something, where that is allowed."""


class Walker:
    """Draws tokens at random among those that a grammar allows."""

    def __init__(self, model_path: Path) -> None:
        self.tokenizer = gguf_tokenizer(GGUFFile.open(model_path))
        self.n_rows = self.tokenizer.n_vocab + 100
        self.factory = MatcherFactory(lambda: vocabulary_of(self.tokenizer, self.n_rows))
        self.ends = sorted(self.tokenizer.end_ids)
        self.never = sorted(self.tokenizer.control_ids - self.tokenizer.end_ids)
        self.never += range(self.tokenizer.n_vocab, self.n_rows)
        self.closing = [
            self.tokenizer.encode(text, parse_control=False, add_bos=False)[0]
            for text in ('"', "}", "]", '"}', '\\"', "@", ":", "a", "0", ",")
        ]

    def walk(
        self, grammar: str, seed: int, *, lead: Sequence[int] = (), max_tokens: int = MAX_TOKENS
    ) -> list[int] | None:
        """Ids up to the end token, without it; None where there is none within `max_tokens`.

        Args:
            lead: tokens to begin with.
        """
        rng = random.Random(seed)
        matcher = self.factory(grammar)
        words = np.zeros((self.n_rows + 31) // 32, np.int32)
        ids = list(lead)
        matcher.advance(ids)
        while True:
            matcher.mask(words)
            bits = np.unpackbits(words.view(np.uint8), bitorder="little")[: self.n_rows]
            ends = bits[self.ends].any()
            assert bits.any(), "nothing is allowed"
            assert not bits[self.never].any(), "a control token or a row without a token is allowed"
            assert ends == matcher.may_end
            bits[self.ends] = 0
            if ends and (len(ids) >= FREE_TOKENS or not bits.any() or rng.random() < 0.2):
                return ids
            if len(ids) >= max_tokens:
                return None
            token_id = self._choose(rng, bits, len(ids))
            matcher.advance([token_id])
            ids.append(token_id)

    def _choose(self, rng: random.Random, bits: npt.NDArray[np.uint8], n_drawn: int) -> int:
        if n_drawn >= FREE_TOKENS:
            closing = [token_id for token_id in self.closing if bits[token_id]]
            if closing and rng.random() < 0.9:
                return closing[0] if rng.random() < 0.7 else rng.choice(closing)
        return int(rng.choice(np.flatnonzero(bits)))

    def text(self, ids: list[int]) -> str:
        """Raises: UnicodeDecodeError: the ids are no text."""
        return b"".join(self.tokenizer.token_bytes[i] for i in ids).decode()

    def answer(self, grammar: str, seed: int) -> str:
        """The text of a walk that ends."""
        ids = self.walk(grammar, seed)
        assert ids is not None, "the walk did not end"
        return self.text(ids)
