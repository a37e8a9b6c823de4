"""Slots: which rows a step may have, and what a drawn token does to them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from sixfold import _native
from sixfold.errors import ProtocolError
from sixfold.executor.slots import Slots
from sixfold.executor.step_arrays import StepArrays
from sixfold.executor.wire import Packer
from sixfold.messages import SAMPLE, Sampling, SlotAdmit, StepPlan


def step_of(*rows: tuple[int, int, int, int, int, int]) -> StepArrays:
    """Rows of (slot, generation, incarnation, start, count, flags)."""
    columns = [list(column) for column in zip(*rows, strict=True)] if rows else [[] for _ in range(6)]
    slots, generations, incarnations, starts, counts, flags = columns
    plan = StepPlan(
        engine_epoch=0,
        step_id=0,
        slots=slots,
        generations=generations,
        incarnations=incarnations,
        starts=starts,
        counts=counts,
        flags=flags,
    )
    return StepArrays.unpack(Packer().pack(plan))


def slots_with(*lengths: int) -> Slots:
    """Slot i holds lengths[i] tokens 10, 11, ..., is of generation i and incarnation 7."""
    slots = Slots(4, 8)
    for slot, n in enumerate(lengths):
        tokens = list(range(10, 10 + n))
        sampling = Sampling(seed=0)
        slots.admit(
            SlotAdmit(
                slot=slot,
                generation=slot,
                incarnation=7,
                token_ids=tokens,
                n_prompt_original=n,
                choice=0,
                sampling=sampling,
            )
        )
    return slots


def test_rows_that_fit() -> None:
    slots = slots_with(3, 5)
    slots.check_rows(step_of((1, 1, 7, 2, 3, SAMPLE), (0, 0, 7, 0, 3, 0)))
    slots.check_rows(step_of())


@pytest.mark.parametrize(
    ("row", "fault"),
    [
        ((0, 1, 7, 0, 3, 0), "another life"),
        ((0, 0, 6, 0, 3, 0), "another life"),
        ((2, 2, 7, 0, 1, 0), "another life"),
        ((0, 0, 7, 0, 4, 0), "beyond"),
        ((0, 0, 7, 3, 0, 0), "beyond"),
        ((0, 0, 7, -1, 2, 0), "beyond"),
        ((0, 0, 7, 2**31 - 1, 2**31 - 1, 0), "beyond"),
        ((4, 0, 7, 0, 1, 0), "there is not"),
        ((-1, 0, 7, 0, 1, 0), "there is not"),
    ],
)
def test_rows_that_do_not_fit(row: tuple[int, int, int, int, int, int], fault: str) -> None:
    slots = slots_with(3, 5)
    with pytest.raises(ProtocolError, match=fault):
        slots.check_rows(step_of((1, 1, 7, 4, 1, SAMPLE), row))


def test_a_freed_slot_has_no_rows() -> None:
    slots = slots_with(3)
    slots.free(0)
    with pytest.raises(ProtocolError, match="another life"):
        slots.check_rows(step_of((0, 0, 7, 2, 1, SAMPLE)))


def appended(slots: Slots, step: StepArrays, drawn: Sequence[int]) -> None:
    slots.append_drawn(step, np.array(drawn, np.int32))


def test_only_rows_that_sample_get_a_token_and_a_failed_one_gets_0() -> None:
    slots = slots_with(3, 5, 2)
    step = step_of((1, 1, 7, 4, 1, SAMPLE), (0, 0, 7, 0, 2, 0), (2, 2, 7, 1, 1, SAMPLE))
    appended(slots, step, [77, 78, -1])
    assert slots.lengths.tolist() == [3, 6, 3, 0]
    assert slots.tokens[1, :6].tolist() == [10, 11, 12, 13, 14, 77]
    assert slots.tokens[2, :3].tolist() == [10, 11, 0]


def test_a_full_slot_takes_no_token() -> None:
    slots = slots_with(8)
    step = step_of((0, 0, 7, 7, 1, SAMPLE))
    appended(slots, step, [5])  # one place beyond the longest sequence: its last token is never computed
    with pytest.raises(ValueError, match="full"):
        appended(slots, step, [5])


def test_arrays_of_other_shapes_are_refused() -> None:
    slots = slots_with(3)
    step = step_of((0, 0, 7, 2, 1, SAMPLE))
    with pytest.raises(ValueError, match="drawn"):
        appended(slots, step, [5, 6])
    with pytest.raises(ValueError, match="columns"):
        _native.check_rows(step.columns[:5], slots.state, slots.tokens)
    with pytest.raises(ValueError, match="state"):
        _native.check_rows(step.columns, slots.state[:2], slots.tokens)
    with pytest.raises(TypeError):
        _native.check_rows(step.columns.astype(np.int64), slots.state, slots.tokens)
