"""The sampler for one row, in NumPy: the order of the package's docstring, one function a step.

This is the definition. The native kernels give the same token for every row; they only avoid sorting the vocabulary.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from sixfold.sampler.weights import LOG2_E, UNIT, weights

__all__ = ["LOGPROB_FLOOR", "Filter", "draw", "greedy", "is_usable", "logprobs", "pick", "top"]

Floats = npt.NDArray[np.float32]
Weights = npt.NDArray[np.uint64]

LOGPROB_FLOOR = -9999.0
"""Reported instead of -inf, which JSON cannot hold."""


class Filter(NamedTuple):
    """Steps 4 to 7 for one row, as numbers that the kernels take."""

    scale: np.float32
    """log2(e) / temperature; 0 is greedy."""
    top_k: int
    """0 is off."""
    top_p: float
    """1 is off."""
    min_x: np.float32
    """log2(min-p); -inf is off."""


def is_usable(row: Floats) -> bool:
    """No NaN, and the highest logit is a finite number."""
    return bool(np.isfinite(row.max()))  # max() is NaN when any element is


def greedy(row: Floats) -> int:
    """The highest logit; ties to the lowest id."""
    return int(row.argmax())


def pick(row: Floats, how: Filter, random: int) -> int | None:
    """Steps 4 to 8: the token for one row, or None if the row is unusable.

    Args:
        row: [n_vocab] logits after bias, masks and penalties.
        random: 64 random bits.
    """
    if not is_usable(row):
        return None
    if how.scale == 0:
        return greedy(row)
    highest = row.max()
    weight = weights(row, highest, how.scale)
    if how.top_k or how.top_p < 1.0:
        order = np.argsort(-row, kind="stable")  # falling logit, ties by id
        n_kept = _n_top_p(weight[order[: how.top_k or None]], how.top_p)
        weight[order[n_kept:]] = 0
    if how.min_x > -np.inf:
        with np.errstate(over="ignore"):
            weight[(row - highest) * how.scale < how.min_x] = 0
    return draw(weight, random)


def _n_top_p(weight: Weights, top_p: float) -> int:
    """Length of the shortest list from the top that holds the share `top_p` of the whole weight; at least 1.

    Args:
        weight: falling.
    """
    if top_p >= 1.0:
        return len(weight)
    cumulated = np.cumsum(weight)
    needed = np.uint64(top_p * float(cumulated[-1]))
    return int(np.searchsorted(cumulated, max(needed, np.uint64(1)))) + 1


def draw(weight: Weights, random: int) -> int:
    """The first id whose cumulated weight is above `random / 2**64` of the whole. Zero weights are never drawn."""
    cumulated = np.cumsum(weight)
    target = random * int(cumulated[-1]) >> 64
    return int(np.searchsorted(cumulated, np.uint64(target), side="right"))


def logprobs(row: Floats, token_id: int, n_top: int) -> tuple[float, int, list[int], list[float]]:
    """Natural logs of the probabilities that raw logits mean (temperature 1).

    Args:
        row: [n_vocab] raw and usable.
        token_id: the token to score.
        n_top: alternatives to report, at most n_vocab.

    Returns:
        The token's logprob, its rank (0 is the likeliest), and ids and logprobs of the `n_top` likeliest, ties to the
        lowest id. None is below `LOGPROB_FLOOR`.
    """
    highest = row.max()
    log_sum = math.log(int(weights(row, highest, LOG2_E).sum()) / UNIT)

    def logprob(logit: np.float32) -> float:
        return max(float(logit) - float(highest) - log_sum, LOGPROB_FLOOR)

    own = row[token_id]
    rank = int((row > own).sum() + (row[:token_id] == own).sum())
    top_ids = top(row, n_top)
    return logprob(own), rank, top_ids, [logprob(row[i]) for i in top_ids]


def top(row: Floats, n: int) -> list[int]:
    """Ids of the `n` highest logits, falling, ties to the lowest id."""
    if n == 0:
        return []
    threshold = np.partition(row, len(row) - n)[len(row) - n]
    candidates = np.flatnonzero(row >= threshold)
    return [int(i) for i in candidates[np.argsort(-row[candidates], kind="stable")][:n]]
