"""Steps and results as bytes: the engine process's half, which needs no array library.

PackedStep field  int32 content
columns           [8, rows]  slots, generations, incarnations, starts, counts, flags, table_starts, table_counts
table_blocks      [sum(table_counts)]
copies            [copies, 2]  source block, destination block
frees             [frees, 2]   slot, generation
"""

from __future__ import annotations

import struct
from collections.abc import Iterable

import msgspec

from sixfold.errors import ProtocolError
from sixfold.messages import SlotAdmit, StepId, StepPlan, StepResult

__all__ = ["N_COLUMNS", "PackedStep", "decode_result", "decode_step", "encode", "pack"]

N_COLUMNS = 8


class PackedStep(msgspec.Struct, array_like=True):
    """A step plan as flat int32 bytes in the machine's order; both ends are processes of one machine."""

    engine_epoch: int
    step_id: StepId
    n_rows: int
    columns: bytes
    table_blocks: bytes
    copies: bytes
    frees: bytes
    admits: list[SlotAdmit]


encode = msgspec.msgpack.Encoder().encode
_step_decoder = msgspec.msgpack.Decoder(PackedStep)
_result_decoder = msgspec.msgpack.Decoder(StepResult)


def pack(plan: StepPlan) -> PackedStep:
    """The plan's lists as bytes."""
    columns = _int32(
        *plan.slots,
        *plan.generations,
        *plan.incarnations,
        *plan.starts,
        *plan.counts,
        *plan.flags,
        *plan.table_starts,
        *plan.table_counts,
    )
    return PackedStep(
        plan.engine_epoch,
        plan.step_id,
        len(plan.slots),
        columns,
        _int32(*plan.table_blocks),
        _pairs(plan.copies),
        _pairs(plan.frees),
        plan.admits,
    )


def decode_step(data: bytes) -> PackedStep:
    """Raises: ProtocolError: the bytes are not a packed step."""
    try:
        return _step_decoder.decode(data)
    except msgspec.MsgspecError as e:
        raise ProtocolError(f"not a step plan: {e}") from e


def decode_result(data: bytes) -> StepResult:
    """Raises: ProtocolError: the bytes are not a step result."""
    try:
        return _result_decoder.decode(data)
    except msgspec.MsgspecError as e:
        raise ProtocolError(f"not a step result: {e}") from e


def _pairs(pairs: Iterable[tuple[int, int]]) -> bytes:
    return _int32(*[x for pair in pairs for x in pair])


def _int32(*numbers: int) -> bytes:
    return struct.pack(f"{len(numbers)}i", *numbers)
