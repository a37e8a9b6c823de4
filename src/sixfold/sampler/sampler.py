"""`Sampler`: the worker's part that turns rows of logits into tokens, with one state per slot."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from sixfold.errors import ProtocolError
from sixfold.messages import RowStatus, Sampling, SlotAdmit, TokenLogprobs
from sixfold.sampler.adjustments import Adjustments
from sixfold.sampler.grammar_slots import GrammarSlots
from sixfold.sampler.kernels import NOTHING_ALLOWED, ROW_PARAMS, UNUSABLE, Masks, NumpyKernels, RowKernels, find_native
from sixfold.sampler.reference import LOGPROB_FLOOR
from sixfold.sampler.weights import LOG2_E
from sixfold.structured import MatcherFactory

__all__ = ["Draws", "Sampler"]

Indices = Sequence[int] | npt.NDArray[np.integer]

_GRAMMAR_FAILED = -3
_STATUS = np.zeros(4, np.uint8)
"""By the negative entry that a kernel gives for a token, counted from the end."""
_STATUS[UNUSABLE] = RowStatus.NAN_LOGITS
_STATUS[NOTHING_ALLOWED] = RowStatus.NOTHING_ALLOWED
_STATUS[_GRAMMAR_FAILED] = RowStatus.GRAMMAR_FAULT

TEMPERATURE_MIN = 1e-6
"""Lower temperatures, except 0, count as this one: its inverse is finite in float32."""


class Draws(NamedTuple):
    """What `Sampler.sample` drew."""

    token_ids: npt.NDArray[np.int32]
    """[n_rows] The token, or -1 where `status` is not OK."""
    status: npt.NDArray[np.uint8]
    """[n_rows] `RowStatus`."""
    logprobs: dict[int, TokenLogprobs]
    """Row -> of its token, where the slot asks for them and the row is OK."""


class _Slot:
    """One choice's state. `n_generated` and the penalty counts advance in `Sampler.observe`, of special slots alone."""

    __slots__ = ("adjustments", "has_grammar", "n_generated", "n_logprobs", "n_prompt")

    def __init__(self, admit: SlotAdmit) -> None:
        n_prompt = admit.n_prompt_original
        prompt, output = admit.token_ids[:n_prompt], admit.token_ids[n_prompt:]
        self.n_prompt = n_prompt
        self.n_generated = len(output)
        self.n_logprobs = admit.sampling.logprobs
        self.has_grammar = bool(admit.sampling.grammar)
        self.adjustments = Adjustments(admit.sampling, prompt, output)

    @property
    def is_special(self) -> bool:
        """The next token needs work beside the draw: adjustments, a grammar or logprobs."""
        return self.has_grammar or self.n_logprobs is not None or self.adjustments.pending(self.n_generated)


class Sampler:
    """Draws tokens for the slots of one worker. Not thread-safe: the worker's step thread owns it.

    Args:
        max_slots: slots are in [0, max_slots).
        n_vocab: width of the logits.
        kernels: the row kernels; None takes the compiled ones where they exist, else NumPy.
        grammars: makes the matchers of slots whose sampling has a grammar; None where no slot has one.
    """

    def __init__(
        self,
        max_slots: int,
        n_vocab: int,
        *,
        kernels: RowKernels | None = None,
        grammars: MatcherFactory | None = None,
    ) -> None:
        self._n_vocab = n_vocab
        self._grammars = None if grammars is None else GrammarSlots(max_slots, n_vocab, grammars)
        self._kernels: RowKernels = kernels or find_native() or NumpyKernels()
        self._slots: list[_Slot | None] = [None] * max_slots
        self._params: npt.NDArray[np.void] = np.zeros(max_slots, ROW_PARAMS)
        self.logits_needed = np.zeros(max_slots, np.uint8)
        """[max_slots] 0 where the slot's next token is the highest logit, and nobody needs the row of them."""
        self._random = np.zeros(max_slots, np.bool_)  # slot -> temperature above 0
        self._special = np.zeros(max_slots, np.bool_)  # slot -> `_Slot.is_special`
        self._n_special = self._n_needing = 0

    def admit(self, slot: int, admit: SlotAdmit) -> None:
        """Start, resume or replay a choice in a slot; whatever the slot held is forgotten."""
        state = _Slot(admit)
        if self._grammars is not None:
            self._grammars.admit(slot, admit.sampling, admit.token_ids[admit.n_prompt_original :])
        elif state.has_grammar:
            raise ProtocolError("a grammar for a worker without a vocabulary")
        self._slots[slot] = state
        self._params[slot] = _row_params(admit.sampling, admit.choice)
        self._mark(slot, random=admit.sampling.temperature != 0, special=state.is_special)

    def free(self, slot: int) -> None:
        """Forget a slot; a free one stays free."""
        self._slots[slot] = None
        if self._grammars is not None:
            self._grammars.free(slot)
        self._mark(slot, random=False, special=False)

    @property
    def any_logits_needed(self) -> bool:
        """Whether `logits_needed` is set for any slot."""
        return self._n_needing > 0

    def begin(self, slots: Indices) -> None:
        """What can be done for the draws of these slots before their logits are there: their grammars' masks, beside
        the caller, and grammars that are new. `sample` of the same slots must follow, or `finish` where there are
        none, and nothing else before it."""
        if self._grammars:
            self._grammars.begin(_ints(slots))

    def finish(self) -> None:
        """Wait for what `begin` began, in a step that draws nothing."""
        if self._grammars:
            self._grammars.finish()

    def prepare(self) -> bool:
        """A part of what the first grammar of the worker's life needs. Returns whether more is left. Takes up to a
        second with the largest vocabularies, most of it with the interpreter lock."""
        return self._grammars is not None and self._grammars.prepare()

    def sample(self, slots: Indices, logits: npt.NDArray[np.float32], positions: Indices) -> Draws:
        """Draw one token for each row.

        Args:
            slots: [n_rows] admitted slots.
            logits: [n_rows, n_vocab] raw logits; a row is contiguous. Rows of slots with adjustments are overwritten.
            positions: [n_rows] absolute index of the token that is drawn (prompt length for the first one).
        """
        slot_index = np.asarray(slots, np.intp)
        position = np.asarray(positions, np.int64)
        raw: dict[int, npt.NDArray[np.float32]] = {}
        unusable: list[int] = []
        special = np.flatnonzero(self._special[slot_index]).tolist()
        if special and not logits.flags.writeable:
            logits = logits.copy()
        for i in special:
            self._adjust(i, self._state(int(slot_index[i])), logits[i], int(position[i]), raw, unusable)
        token_ids = self._pick(slot_index, logits, position)
        token_ids[unusable] = UNUSABLE
        status = _STATUS[np.minimum(token_ids, 0)]
        logprobs: dict[int, TokenLogprobs] = {}
        for i in special:
            n_top = self._state(int(slot_index[i])).n_logprobs
            if n_top is not None and token_ids[i] >= 0:
                row = raw.get(i)
                row = logits[i] if row is None else row
                logprobs[i] = self.score(row[np.newaxis], token_ids[i : i + 1], n_top)[0]
        return Draws(token_ids, status, logprobs)

    def _pick(
        self, slots: npt.NDArray[np.intp], logits: npt.NDArray[np.float32], positions: npt.NDArray[np.int64]
    ) -> npt.NDArray[np.int32]:
        """[n_rows] The tokens; a negative entry of `_STATUS` where there is none."""
        params = self._params[slots]
        if not self._grammars:
            return self._kernels.draw_rows(logits, params, positions)
        each = slots.tolist()
        words, mask_of = self._grammars.masks(each)
        if not mask_of:
            return self._kernels.draw_rows(logits, params, positions)
        of_row = np.array([mask_of.get(slot, -1) for slot in each], np.int32)
        token_ids = self._kernels.draw_allowed_rows(logits, params, positions, Masks(words, of_row))
        for i in np.flatnonzero(of_row >= 0).tolist():
            if self._grammars.failed(each[i]):
                token_ids[i] = _GRAMMAR_FAILED
        return token_ids

    def observe(self, slots: Indices, token_ids: Indices) -> None:
        """Advance the slots by one drawn token each, greedy ones included. Rows with a negative id are skipped."""
        if not self._n_special:
            return  # what tokens change is kept for special slots alone, and none becomes special later
        for slot, token_id in zip(_ints(slots), _ints(token_ids), strict=True):
            state = self._slots[slot]
            if state is None or token_id < 0 or not self._special[slot]:
                continue
            state.n_generated += 1
            state.adjustments.observe(token_id)
            if state.has_grammar and self._grammars is not None:
                self._grammars.observe(slot, token_id)
            if not state.is_special:
                self._mark(slot, random=bool(self._random[slot]), special=False)

    def score(self, logits: npt.NDArray[np.float32], targets: Indices, n_top: int) -> list[TokenLogprobs]:
        """Log-probabilities of given tokens under raw logits; for the prompt, and for drawn tokens.

        Args:
            logits: [n_rows, n_vocab] raw; not changed.
            targets: [n_rows] a token for each row.
            n_top: alternatives to report.

        Returns:
            [n_rows]; an unusable row (see `usable`) has the floor, rank 0 and no alternatives.
        """
        n_top = min(n_top, self._n_vocab)
        columns = self._kernels.score_rows(logits, np.asarray(targets, np.int32), n_top)
        logprobs, ranks, top_ids, top_logprobs = (column.tolist() for column in columns)
        return [
            TokenLogprobs(logprobs[i], ranks[i], top_ids[i], top_logprobs[i])
            if ranks[i] >= 0
            else TokenLogprobs(LOGPROB_FLOOR, 0, [], [])
            for i in range(len(ranks))
        ]

    def usable(self, logits: npt.NDArray[np.float32]) -> npt.NDArray[np.bool_]:
        """[n_rows] Whether a row of raw logits holds no NaN and its highest value is finite."""
        return self._kernels.usable_rows(logits).astype(np.bool_)

    def close(self) -> None:
        """End what runs beside the caller. Idempotent."""
        if self._grammars is not None:
            self._grammars.close()

    def check(self) -> None:
        """Raise AssertionError when the two views of a slot disagree."""
        for slot, state in enumerate(self._slots):
            expected = state is not None and state.is_special
            assert self._special[slot] == expected, f"slot {slot}"
            assert self.logits_needed[slot] == (self._special[slot] or self._random[slot]), f"slot {slot}"
        assert self._n_special == self._special.sum() and self._n_needing == self.logits_needed.sum()

    def _mark(self, slot: int, *, random: bool, special: bool) -> None:
        needed = random or special
        self._n_special += special - int(self._special[slot])
        self._n_needing += needed - int(self.logits_needed[slot])
        self._random[slot], self._special[slot], self.logits_needed[slot] = random, special, needed

    def _state(self, slot: int) -> _Slot:
        state = self._slots[slot]
        if state is None:
            raise KeyError(f"slot {slot} was not admitted")
        return state

    def _adjust(
        self,
        i: int,
        state: _Slot,
        row: npt.NDArray[np.float32],
        position: int,
        raw: dict[int, npt.NDArray[np.float32]],
        unusable: list[int],
    ) -> None:
        """Steps 1 to 3 for row `i`; keeps the raw row where logprobs want it."""
        n_generated = position - state.n_prompt
        if not state.adjustments.pending(n_generated):
            return
        if not self._kernels.usable_rows(row[np.newaxis])[0]:
            unusable.append(i)  # a mask could hide the fault
            return
        if state.n_logprobs is not None:
            raw[i] = row.copy()
        state.adjustments.apply(row, n_generated)


def _row_params(sampling: Sampling, choice: int) -> tuple[int, float, float, float, int, int]:
    """One record of `ROW_PARAMS`."""
    scale = float(LOG2_E) / max(sampling.temperature, TEMPERATURE_MIN) if sampling.temperature else 0.0
    min_x = math.log2(sampling.min_p) if sampling.min_p > 0 else -math.inf
    seed = sampling.seed & (2**64 - 1)
    return seed, sampling.top_p, scale, min_x, max(0, sampling.top_k), choice


def _ints(values: Indices) -> list[int]:
    return values.tolist() if isinstance(values, np.ndarray) else list(values)
