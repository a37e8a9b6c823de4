"""The face of the row kernels, and their NumPy form; `sixfold._native` offers the same functions compiled.

Everything here takes many rows at once and knows nothing of slots.
"""

from __future__ import annotations

import importlib
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from sixfold.sampler import reference
from sixfold.sampler.philox import random64

__all__ = [
    "NOTHING_ALLOWED",
    "ROW_PARAMS",
    "UNUSABLE",
    "Masks",
    "NativeKernels",
    "NumpyKernels",
    "RowKernels",
    "find_native",
]

ROW_PARAMS = np.dtype(
    [
        ("seed", np.uint64),
        ("top_p", np.float64),  # 1 is off
        ("scale", np.float32),  # log2(e) / temperature; 0 is greedy
        ("min_x", np.float32),  # log2(min-p); -inf is off
        ("top_k", np.int32),  # 0 is off
        ("choice", np.uint32),
    ]
)
"""What one row's draw depends on, beside its logits and position. 32 bytes; `RowParams` in native/kernels/sample.h."""

UNUSABLE = -1
NOTHING_ALLOWED = -2


class Masks(NamedTuple):
    """Which tokens some rows may draw."""

    words: npt.NDArray[np.int32]
    """[n_masks, ceil(n_vocab / 32)]: bit i % 32 of word i // 32 for token i."""
    of_row: npt.NDArray[np.int32]
    """[n_rows] The row's mask; -1: it may draw any token."""


Logits = npt.NDArray[np.float32]
Scores = tuple[npt.NDArray[np.float64], npt.NDArray[np.int32], npt.NDArray[np.int32], npt.NDArray[np.float64]]


class RowKernels(Protocol):
    """Logits are float32 [n_rows, n_vocab]; a row is contiguous, rows may be apart."""

    def usable_rows(self, logits: Logits) -> npt.NDArray[np.uint8]:
        """[n_rows] 1 where no logit is NaN and the highest is finite."""

    def draw_rows(
        self, logits: Logits, params: npt.NDArray[np.void], positions: npt.NDArray[np.int64]
    ) -> npt.NDArray[np.int32]:
        """[n_rows] The token of each row, -1 for an unusable one.

        Args:
            params: [n_rows] of `ROW_PARAMS`.
            positions: [n_rows] absolute index of the token that is drawn.
        """

    def draw_allowed_rows(
        self, logits: Logits, params: npt.NDArray[np.void], positions: npt.NDArray[np.int64], masks: Masks
    ) -> npt.NDArray[np.int32]:
        """The same where some rows have a mask: among the tokens that it allows; `NOTHING_ALLOWED` where none of them
        has a logit above -inf."""

    def score_rows(self, logits: Logits, targets: npt.NDArray[np.int32], n_top: int) -> Scores:
        """Log-probabilities of raw logits.

        Args:
            targets: [n_rows] token to score, one in each row.
            n_top: alternatives, at most n_vocab.

        Returns:
            logprob [n_rows], rank [n_rows] (-1 for an unusable row, whose other entries mean nothing), ids of the
            likeliest tokens [n_rows, n_top] and their logprobs.
        """


class NumpyKernels:
    """The reference, row by row."""

    def usable_rows(self, logits: Logits) -> npt.NDArray[np.uint8]:
        usable: npt.NDArray[np.uint8] = np.isfinite(logits.max(axis=1)).astype(np.uint8)
        return usable

    def draw_rows(
        self, logits: Logits, params: npt.NDArray[np.void], positions: npt.NDArray[np.int64]
    ) -> npt.NDArray[np.int32]:
        out = np.full(len(logits), UNUSABLE, np.int32)
        for i, row in enumerate(logits):
            p = params[i]
            how = reference.Filter(p["scale"], int(p["top_k"]), float(p["top_p"]), p["min_x"])
            token_id = reference.pick(row, how, random64(int(p["seed"]), int(p["choice"]), int(positions[i])))
            out[i] = UNUSABLE if token_id is None else token_id
        return out

    def draw_allowed_rows(
        self, logits: Logits, params: npt.NDArray[np.void], positions: npt.NDArray[np.int64], masks: Masks
    ) -> npt.NDArray[np.int32]:
        masked = logits.copy()
        for i in np.flatnonzero(masks.of_row >= 0):
            bits = np.unpackbits(masks.words[masks.of_row[i]].view(np.uint8), bitorder="little")
            masked[i, bits[: logits.shape[1]] == 0] = -np.inf
        out = self.draw_rows(masked, params, positions)
        out[(out == UNUSABLE) & (masks.of_row >= 0)] = NOTHING_ALLOWED
        out[self.usable_rows(logits) == 0] = UNUSABLE
        return out

    def score_rows(self, logits: Logits, targets: npt.NDArray[np.int32], n_top: int) -> Scores:
        n_rows = len(logits)
        logprobs = np.full(n_rows, reference.LOGPROB_FLOOR)
        ranks = np.full(n_rows, -1, np.int32)
        top_ids = np.zeros((n_rows, n_top), np.int32)
        top_logprobs = np.full((n_rows, n_top), reference.LOGPROB_FLOOR)
        for i, row in enumerate(logits):
            if reference.is_usable(row):
                logprobs[i], ranks[i], top_ids[i], top_logprobs[i] = reference.logprobs(row, int(targets[i]), n_top)
        return logprobs, ranks, top_ids, top_logprobs


class NativeKernels:
    """The compiled kernels: this class makes room for their results.

    Args:
        module: `sixfold._native.sampler`.
        pool: a `sixfold._native.ThreadPool` that shares out the rows; None: the caller's thread does them all.
    """

    def __init__(self, module: Any, pool: Any = None) -> None:
        self._module, self._pool = module, pool

    def usable_rows(self, logits: Logits) -> npt.NDArray[np.uint8]:
        out = np.empty(len(logits), np.uint8)
        self._module.usable_rows(self._pool, logits, out)
        return out

    def draw_rows(
        self, logits: Logits, params: npt.NDArray[np.void], positions: npt.NDArray[np.int64]
    ) -> npt.NDArray[np.int32]:
        out = np.empty(len(logits), np.int32)
        records = params.view(np.uint8).reshape(len(params), ROW_PARAMS.itemsize)
        self._module.draw_rows(self._pool, logits, records, positions, out)
        return out

    def draw_allowed_rows(
        self, logits: Logits, params: npt.NDArray[np.void], positions: npt.NDArray[np.int64], masks: Masks
    ) -> npt.NDArray[np.int32]:
        out = np.empty(len(logits), np.int32)
        records = params.view(np.uint8).reshape(len(params), ROW_PARAMS.itemsize)
        self._module.draw_allowed_rows(self._pool, logits, records, positions, masks.words, masks.of_row, out)
        return out

    def score_rows(self, logits: Logits, targets: npt.NDArray[np.int32], n_top: int) -> Scores:
        n_rows = len(logits)
        logprobs, ranks = np.empty(n_rows, np.float64), np.empty(n_rows, np.int32)
        top_ids, top_logprobs = np.empty((n_rows, n_top), np.int32), np.empty((n_rows, n_top), np.float64)
        self._module.score_rows(self._pool, logits, targets, logprobs, ranks, top_ids, top_logprobs)
        return logprobs, ranks, top_ids, top_logprobs


def find_native(pool: Any = None) -> RowKernels | None:
    """The compiled kernels, over a thread pool if one is given, or None where the extension is missing."""
    try:
        native = importlib.import_module("sixfold._native")
    except ImportError:
        return None
    module = getattr(native, "sampler", None)
    return None if module is None else NativeKernels(module, pool)
