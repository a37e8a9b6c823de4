"""What the scheduler tells of its choices: an entry in the history for every change, and the waits of requests in the
meter. It decides nothing, and the scheduler asks it nothing: of a sequence it writes `since_ns` alone, for itself.

A step with the same rows as the one before, all of them decoding, costs one comparison of lists.
"""

from __future__ import annotations

from collections.abc import Sequence as Rows

from sixfold.messages import StepPlan
from sixfold.observability.history import Event, History, Mode, Reason
from sixfold.observability.meter import Meter, now
from sixfold.observability.sites import (
    ENGINE_BLOCKS,
    ENGINE_BUDGET,
    ENGINE_FENCE,
    ENGINE_PREEMPTING,
    ENGINE_SLOTS,
    ENGINE_STEP,
    ENGINE_TURN,
)
from sixfold.scheduler.plan import Row
from sixfold.scheduler.sequence import Sequence, State

__all__ = ["Chronicle"]

_SITES = {
    Reason.STEP: ENGINE_STEP,
    Reason.SLOTS: ENGINE_SLOTS,
    Reason.BLOCKS: ENGINE_BLOCKS,
    Reason.BUDGET: ENGINE_BUDGET,
}


class Chronicle:
    """See the module's docstring.

    Args:
        history, meter: the engine's; None: told to nobody.
    """

    def __init__(self, history: History | None = None, meter: Meter | None = None) -> None:
        self._add = meter.add if meter is not None else _nowhere
        self._note = (history or History.private()).note
        self._reason = Reason.STEP
        self._slots: list[int] = []
        self._rows: dict[Sequence, Mode] = {}
        """Of the latest step."""
        self._is_steady = True
        """None of them computes a prompt."""
        self._left_ns: dict[Sequence, int] = {}
        """Running choices that are in no step, and since when."""

    def held(self, sequence: Sequence) -> None:
        self._tell(Event.HELD, sequence)

    def queued(self, sequence: Sequence, *, again: bool) -> None:
        now_ns = self._tell(Event.QUEUED, sequence, again)
        if again:
            self._add(ENGINE_PREEMPTING, sequence.since_ns, now_ns, 0, sequence.request.uid)
        sequence.since_ns = now_ns

    def admitted(self, sequence: Sequence, step_id: int) -> None:
        uid = sequence.request.uid
        now_ns = self._note(Event.ADMITTED, uid, sequence.choice, 0, step_id)
        self._add(_SITES[self._reason], sequence.since_ns, now_ns, step_id, uid)

    def preempted(self, sequence: Sequence) -> None:
        sequence.since_ns = self._tell(Event.PREEMPTED, sequence)
        self._left_ns.pop(sequence, None)

    def closed(self, sequence: Sequence) -> None:
        sequence.since_ns = self._tell(Event.CLOSED, sequence)
        self._left_ns.pop(sequence, None)

    def passed_fence(self, sequence: Sequence) -> None:
        """A choice that has ended gives back what it held."""
        self._add(ENGINE_FENCE, sequence.since_ns, now(), 0, sequence.request.uid)

    def waits_for(self, reason: Reason) -> None:
        """Why the plan that was just made leaves somebody in the queue."""
        if reason is not self._reason:
            self._reason = reason
            self._note(Event.REASON, 0, 0, reason)

    def launched(self, step: StepPlan, rows: Rows[Row]) -> None:
        """Note who is in the step and was not in the one before, and the other way round."""
        if self._is_steady and step.slots == self._slots and not step.admits:
            return
        before, step_id = self._rows, step.step_id
        after = {row.sequence: _mode(row) for row in rows}
        for sequence, mode in before.items():
            if after.get(sequence) is not mode:
                at_ns = self._tell(Event.STEPS_END, sequence, mode, step_id - 1)
                if sequence not in after and sequence.state is State.RUNNING:
                    self._left_ns[sequence] = at_ns
        for sequence, mode in after.items():
            if before.get(sequence) is not mode:
                at_ns = self._tell(Event.STEPS_BEGIN, sequence, mode, step_id)
                if sequence in self._left_ns:
                    self._add(ENGINE_TURN, self._left_ns.pop(sequence), at_ns, step_id, sequence.request.uid)
        self._rows, self._slots = after, step.slots
        self._is_steady = Mode.PREFILL not in after.values()

    def _tell(self, event: Event, sequence: Sequence, value: int = 0, step_id: int = 0) -> int:
        return self._note(event, sequence.request.uid, sequence.choice, value, step_id)


def _nowhere(site: int, start_ns: int, end_ns: int, step: int = 0, uid: int = 0) -> None:
    """Where nobody asks."""


def _mode(row: Row) -> Mode:
    is_decode = row.start >= row.sequence.n_prompt and row.end == row.start + 1
    return Mode.DECODE if is_decode else Mode.PREFILL
