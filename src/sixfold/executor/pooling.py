"""Embeddings in the making: hidden states of a prompt's tokens, chunk after chunk, become one vector a slot.

A mean is a float64 sum, to which the tokens are added one after another in the order of their positions. How a prompt
was cut into chunks, and what shared their steps, therefore changes no bit of it.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from sixfold.errors import ProtocolError
from sixfold.executor.slots import Slots
from sixfold.executor.step_arrays import Int32, StepArrays
from sixfold.executor.worker import Drawn
from sixfold.messages import EMBED, RowStatus, SlotAdmit

__all__ = ["Pools"]

Float32 = npt.NDArray[np.float32]


class Pools:
    """What has been pooled of each slot's prompt so far.

    Args:
        hidden: numbers of a hidden state.
    """

    def __init__(self, hidden: int) -> None:
        self._hidden = hidden
        self._sums: dict[int, npt.NDArray[np.float64]] = {}
        self._is_mean: dict[int, bool] = {}

    def admit(self, admit: SlotAdmit) -> None:
        """A slot begins, or begins anew after preemption."""
        if admit.pooling:
            self._sums[admit.slot] = np.zeros(self._hidden, np.float64)
            self._is_mean[admit.slot] = admit.pooling == "mean"

    def free(self, slot: int) -> None:
        self._sums.pop(slot, None)
        self._is_mean.pop(slot, None)

    def __bool__(self) -> bool:
        """Whether any slot is pooled."""
        return bool(self._sums)

    def tokens(self, step: StepArrays, slots: Slots) -> Int32:
        """Indices of the step's tokens whose hidden states `take` needs; a row's are neighbours.

        Raises:
            ProtocolError: a row with EMBED of a slot without `pooling`.
        """
        wanted = [np.zeros(0, np.int32)]
        ends = np.cumsum(step.counts)
        for row in np.flatnonzero(step.flags & EMBED).tolist():
            end, count = int(ends[row]), int(step.counts[row])
            if int(step.slots[row]) not in self._is_mean:
                raise ProtocolError(f"step {step.step_id} pools a slot that asks for no embedding")
            if not self._is_mean[int(step.slots[row])]:
                count = int(self._is_last(step, slots, row))
            wanted.append(np.arange(end - count, end, dtype=np.int32))
        return np.concatenate(wanted)

    def take(self, step: StepArrays, slots: Slots, hidden: Float32, drawn: Drawn) -> None:
        """Add what the step computed; write the embeddings that are complete, and the status of those that failed.

        Args:
            hidden: [tokens, hidden] hidden states of the tokens that `tokens` named.
        """
        at = 0
        for row in np.flatnonzero(step.flags & EMBED).tolist():
            slot, is_last = int(step.slots[row]), self._is_last(step, slots, row)
            total = self._sums[slot]
            n = int(step.counts[row]) if self._is_mean[slot] else int(is_last)
            for state in hidden[at : at + n]:
                total += state
            at += n
            if not np.isfinite(total).all():
                drawn.status[row] = RowStatus.NAN_HIDDEN
            elif is_last:
                pooled = total / int(slots.n_prompt[slot]) if self._is_mean[slot] else total
                drawn.embeddings[row] = pooled.astype("<f4").tobytes()

    @staticmethod
    def _is_last(step: StepArrays, slots: Slots, row: int) -> bool:
        """Whether the row reaches its prompt's end."""
        return int(step.starts[row] + step.counts[row]) == int(slots.n_prompt[step.slots[row]])
