"""Steps 1 to 3 for one slot: logit bias, forbidden tokens and penalties, as lists of ids to patch in a row of logits.

A bad word of one token is forbidden always, one of several while the output ends with all of it but the last.

Penalties follow vLLM's meaning: the repetition penalty sees prompt and output, the other two see the output alone.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from sixfold.messages import Sampling

__all__ = ["Adjustments", "BadWords", "PenaltyCounts"]

Ids = npt.NDArray[np.int32]
Floats = npt.NDArray[np.float32]

FORBID_AT = -100.0
"""A logit bias at or below this forbids the token, whatever its logit."""
NEGATIVE_INFINITY = np.float32(-np.inf)


class PenaltyCounts:
    """Which tokens a choice holds, and how often its output does.

    Args:
        prompt: ids that count as seen, with 0 occurrences in the output.
        output: ids drawn so far.
    """

    __slots__ = ("_counts", "_ids", "_index", "_n")

    def __init__(self, prompt: Sequence[int], output: Sequence[int]) -> None:
        self._index: dict[int, int] = {}  # token id -> index in the two arrays
        self._ids: Ids = np.zeros(64, np.int32)
        self._counts: Ids = np.zeros(64, np.int32)
        self._n = 0
        for token_id in dict.fromkeys(prompt):
            self._append(token_id, 0)
        for token_id in output:
            self.add(token_id)

    def add(self, token_id: int) -> None:
        """One more occurrence in the output."""
        index = self._index.get(token_id)
        if index is None:
            self._append(token_id, 1)
        else:
            self._counts[index] += 1

    def _append(self, token_id: int, count: int) -> None:
        if self._n == len(self._ids):
            self._ids = np.concatenate([self._ids, np.zeros_like(self._ids)])
            self._counts = np.concatenate([self._counts, np.zeros_like(self._counts)])
        self._index[token_id] = self._n
        self._ids[self._n] = token_id
        self._counts[self._n] = count
        self._n += 1

    @property
    def ids(self) -> Ids:
        """[n_seen] Distinct ids, in the order of their first appearance."""
        return self._ids[: self._n]

    @property
    def counts(self) -> Ids:
        """[n_seen] Occurrences in the output."""
        return self._counts[: self._n]


class BadWords:
    """Which tokens would complete a forbidden sequence of several.

    Args:
        words: the sequences, two tokens at least.
        output: ids drawn so far. What the prompt ends with does not count.
    """

    __slots__ = ("_by_last", "_n_tail", "_tail")

    def __init__(self, words: Sequence[tuple[int, ...]], output: Sequence[int]) -> None:
        self._by_last: dict[int, list[tuple[int, ...]]] = {}  # last but one token of a word -> its words
        for word in words:
            self._by_last.setdefault(word[-2], []).append(word)
        self._n_tail = max(len(word) for word in words) - 1
        self._tail = list(output[-self._n_tail :])

    def add(self, token_id: int) -> None:
        """A token was drawn."""
        self._tail.append(token_id)
        if len(self._tail) > self._n_tail:
            del self._tail[0]

    def completing(self) -> list[int]:
        """The tokens that cannot come next."""
        tail = self._tail
        if not tail:
            return []
        return [word[-1] for word in self._by_last.get(tail[-1], ()) if tuple(tail[1 - len(word) :]) == word[:-1]]


class Adjustments:
    """What a slot's sampling does to its logits before the temperature.

    Args:
        prompt: the choice's prompt.
        output: tokens drawn so far.
    """

    __slots__ = (
        "_allowed",
        "_bad_words",
        "_bias",
        "_bias_ids",
        "_forbidden",
        "_frequency",
        "_min_tokens",
        "_penalties",
        "_presence",
        "_repetition",
        "_stop_ids",
    )

    def __init__(self, sampling: Sampling, prompt: Sequence[int], output: Sequence[int]) -> None:
        bias = {i: value for i, value in sampling.logit_bias.items() if value > FORBID_AT}
        self._bias_ids: Ids = np.fromiter(bias.keys(), np.int32, len(bias))
        self._bias: Floats = np.fromiter(bias.values(), np.float32, len(bias))
        forbidden = {i for i, v in sampling.logit_bias.items() if v <= FORBID_AT}
        forbidden.update(word[0] for word in sampling.bad_words if len(word) == 1)
        self._forbidden: Ids = np.array(sorted(forbidden), np.int32)
        long_words = [word for word in sampling.bad_words if len(word) > 1]
        self._bad_words = BadWords(long_words, output) if long_words else None
        self._allowed: Ids = np.array(sorted(set(sampling.allowed_token_ids)), np.int32)
        self._stop_ids: Ids = np.array(sampling.stop_token_ids, np.int32)
        self._min_tokens = sampling.min_tokens if sampling.stop_token_ids else 0
        self._repetition = np.float32(sampling.repetition_penalty)
        self._presence = np.float32(sampling.presence_penalty)
        self._frequency = np.float32(sampling.frequency_penalty)
        repetition = sampling.repetition_penalty != 1.0
        self._penalties: PenaltyCounts | None = None
        if repetition or sampling.presence_penalty or sampling.frequency_penalty:
            self._penalties = PenaltyCounts(prompt if repetition else (), output)

    @property
    def lasting(self) -> bool:
        """The logits change at every token, not only before `min_tokens`."""
        lists = (self._bias_ids, self._forbidden, self._allowed)
        return self._penalties is not None or self._bad_words is not None or any(len(ids) > 0 for ids in lists)

    def pending(self, n_generated: int) -> bool:
        """The logits change at the token that follows `n_generated` ones."""
        return self.lasting or n_generated < self._min_tokens

    def observe(self, token_id: int) -> None:
        """A token was drawn."""
        if self._penalties is not None:
            self._penalties.add(token_id)
        if self._bad_words is not None:
            self._bad_words.add(token_id)

    def apply(self, row: Floats, n_generated: int) -> None:
        """Change a row of logits [n_vocab] in place, for the token that follows `n_generated` ones."""
        if len(self._bias_ids):
            row[self._bias_ids] += self._bias
        if len(self._forbidden):
            row[self._forbidden] = NEGATIVE_INFINITY
        if len(self._allowed):
            kept = row[self._allowed]
            row.fill(NEGATIVE_INFINITY)
            row[self._allowed] = kept
        if n_generated < self._min_tokens:
            row[self._stop_ids] = NEGATIVE_INFINITY
        if self._bad_words is not None:
            row[self._bad_words.completing()] = NEGATIVE_INFINITY
        if self._penalties is not None:
            self._penalize(row, self._penalties)

    def _penalize(self, row: Floats, seen: PenaltyCounts) -> None:
        values = row[seen.ids]
        if self._repetition != 1.0:
            values = np.where(values > 0, values / self._repetition, values * self._repetition)
        if self._frequency:
            values = values - self._frequency * seen.counts.astype(np.float32)
        if self._presence:
            values = values - self._presence * (seen.counts > 0).astype(np.float32)
        row[seen.ids] = values
