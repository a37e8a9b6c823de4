"""The worker's permanent rows: one slot per running choice, and everything of it that depends on sampled tokens.

    tokens       [max_slots, max_len]     int32  prompt, delivered and drawn tokens
    lengths      [max_slots]              int32  how many of them are known
    n_prompt     [max_slots]              int32  of these, the original prompt
    block_table  [max_slots, max_blocks]  int32  block of positions [16 * i, 16 * (i + 1))

A slot is written by `SlotAdmit`, advanced by the token that a step drew, and read by the steps that follow; the
engine never sends a token twice. Single writer: the worker's step loop.
"""

from __future__ import annotations

import numpy as np

from sixfold import _native
from sixfold.config import BLOCK_SIZE
from sixfold.errors import ProtocolError
from sixfold.executor.step_arrays import Int32, StepArrays
from sixfold.messages import SlotAdmit

__all__ = ["Slots"]


_OTHER_LIFE, _BEYOND_TOKENS = 2, 3
"""Answers of `_native.check_rows`; 0: every row fits. native/kernels/step_rows.h"""


class Slots:
    """Token and block tables of all slots.

    Attributes:
        state: [3, max_slots] generations, incarnations and lengths, as the native code takes them.
    """

    def __init__(self, max_slots: int, max_len: int, num_blocks: int = 1 << 31) -> None:
        self.max_len = max_len
        self._num_blocks = num_blocks
        max_blocks = -(-max_len // BLOCK_SIZE)
        self.tokens: Int32 = np.zeros((max_slots, max_len + 1), np.int32)
        self.n_prompt: Int32 = np.zeros(max_slots, np.int32)
        self.block_table: Int32 = np.zeros((max_slots, max_blocks), np.int32)
        self.state: Int32 = np.full((3, max_slots), -1, np.int32)
        self._generation, self._incarnation, self.lengths = self.state
        self.lengths[:] = 0

    def admit(self, admit: SlotAdmit) -> None:
        """Raises: ProtocolError: the tokens do not fit the slot."""
        n, slot = len(admit.token_ids), admit.slot
        if n > self.max_len:
            raise ProtocolError(f"{n} tokens for a slot of {self.max_len}")
        if not 0 <= slot < len(self.tokens) or not 0 <= admit.n_prompt_original <= n:
            raise ProtocolError(f"slot {slot} cannot be admitted with {admit.n_prompt_original} of {n} tokens")
        try:
            self.tokens[slot, :n] = admit.token_ids
        except OverflowError as e:
            raise ProtocolError(f"slot {slot} is admitted with a number that is no token id") from e
        self.lengths[slot] = n
        self.n_prompt[slot] = admit.n_prompt_original
        self._generation[slot] = admit.generation
        self._incarnation[slot] = admit.incarnation

    def free(self, slot: int) -> None:
        """Raises: ProtocolError: there is no such slot."""
        if not 0 <= slot < len(self.tokens):
            raise ProtocolError(f"slot {slot} cannot be freed: there are {len(self.tokens)}")
        self._generation[slot] = -1

    def apply_table(self, step: StepArrays) -> None:
        """Write the step's block-table entries; its rows have been checked.

        Raises:
            ProtocolError: entries beyond a table, or blocks that there are not.
        """
        self._check_blocks(step.copies, step.step_id)
        self._check_blocks(step.table_blocks, step.step_id)
        if not step.tables.size and not len(step.table_blocks):
            return
        rows, starts, counts = step.tables.tolist()
        if sum(counts) != len(step.table_blocks):
            raise ProtocolError(f"step {step.step_id} has not as many table entries as it says")
        at = 0
        for row, start, n in zip(rows, starts, counts, strict=True):
            if not 0 <= row < step.n_rows or n < 0 or not 0 <= start <= self.block_table.shape[1] - n:
                raise ProtocolError(f"step {step.step_id} has entries beyond a slot's block table")
            self.block_table[step.slots[row], start : start + n] = step.table_blocks[at : at + n]
            at += n

    def _check_blocks(self, blocks: Int32, step_id: int) -> None:
        if len(blocks) and not 0 <= blocks.min() <= blocks.max() < self._num_blocks:
            raise ProtocolError(f"step {step_id} names a block that there is not")

    def check_rows(self, step: StepArrays) -> None:
        """Every row must match its slot's key and compute known tokens only.

        Raises:
            ProtocolError: a row of another life of its slot, or beyond its tokens.
        """
        fault = _native.check_rows(step.columns, self.state, self.tokens)
        if fault == _BEYOND_TOKENS:
            raise ProtocolError(f"step {step.step_id} has a row beyond its slot's tokens")
        if fault:
            what = "for another life of its slot" if fault == _OTHER_LIFE else "of a slot that there is not"
            raise ProtocolError(f"step {step.step_id} has a row {what}")

    def append_drawn(self, step: StepArrays, token_ids: Int32) -> None:
        """Add the drawn tokens [rows] to the slots of the rows that sample. Where one is negative, its row failed; it
        gets token 0: the next step may already hold a row for it, whose result the engine drops."""
        _native.append_drawn(step.columns, token_ids, self.state, self.tokens)
