"""What the scheduler holds, as a picture for people (`EngineView`). Reads and changes nothing.

Why a choice waits: of the next in line, what the latest plan lacked (`Reason`); of all others

    order    others are in front of it
    leader   another choice of its request computes the prompt that they share
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice

from sixfold.messages import ChoiceView
from sixfold.observability.history import Reason
from sixfold.scheduler.sequence import Sequence, State

__all__ = ["MAX_RUNNING", "MAX_WAITING", "choice_views"]

MAX_RUNNING, MAX_WAITING = 256, 64
"""Choices in one view, at most: what more there is, is only counted."""


def choice_views(
    running: Iterable[Sequence], draining: Iterable[Sequence], queue: Iterable[Sequence], head_reason: Reason
) -> list[ChoiceView]:
    """Those with a slot, then those that wait.

    Args:
        head_reason: why the first one in the queue waits.
    """
    head = head_reason.name.lower()
    found = [_view(sequence, "") for sequence in islice(_chain(running, draining), MAX_RUNNING)]
    for place, sequence in enumerate(islice(queue, MAX_WAITING)):
        found.append(_view(sequence, head if place == 0 or head_reason is Reason.SLOTS else "order"))
        found += [_view(s, "leader") for s in sequence.request.sequences if s.state is State.HELD]
    return found[: MAX_RUNNING + MAX_WAITING]


def _chain(running: Iterable[Sequence], draining: Iterable[Sequence]) -> Iterator[Sequence]:
    yield from running
    yield from draining


def _view(sequence: Sequence, reason: str) -> ChoiceView:
    return ChoiceView(
        sequence.request.uid,
        sequence.choice,
        sequence.state.value,
        reason,
        sequence.n_prompt,
        sequence.n_computed,
        sequence.n_output,
        sequence.n_cached,
        len(sequence.table.blocks),
        sequence.slot,
        sequence.incarnation,
        sequence.limit,
    )
