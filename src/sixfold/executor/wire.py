"""Steps and results as bytes: the engine process's half, which needs no array library.

PackedStep field  int32 content
columns           [6, rows]  slots, generations, incarnations, starts, counts, flags
tables            [3, growths]  table_rows, table_starts, table_counts
table_blocks      [sum(table_counts)]
copies            [copies, 2]  source block, destination block
frees             [frees, 2]   slot, generation
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import Annotated

import msgspec

from sixfold.errors import ProtocolError
from sixfold.messages import SlotAdmit, StepId, StepPlan, StepResult

__all__ = ["N_COLUMNS", "PackedStep", "Packer", "decode_result", "decode_step", "encode"]

N_COLUMNS = 6


class PackedStep(msgspec.Struct, array_like=True):
    """A step plan as flat int32 bytes in the machine's order; both ends are processes of one machine."""

    engine_epoch: int
    step_id: StepId
    n_rows: Annotated[int, msgspec.Meta(ge=0)]
    columns: bytes
    tables: bytes
    table_blocks: bytes
    copies: bytes
    frees: bytes
    admits: list[SlotAdmit]


encode = msgspec.msgpack.Encoder().encode
_step_decoder = msgspec.msgpack.Decoder(PackedStep)
_result_decoder = msgspec.msgpack.Decoder(StepResult)


class Packer:
    """Packs the steps for one worker, one after another. Most columns are those of the step before: they are compared,
    which is a quarter of the price, and not packed again."""

    def __init__(self) -> None:
        self._latest: list[tuple[list[int], bytes]] = [([], b"")] * N_COLUMNS

    def pack(self, plan: StepPlan) -> PackedStep:
        """The plan's lists as bytes. They must not change afterwards."""
        columns = (plan.slots, plan.generations, plan.incarnations, plan.starts, plan.counts, plan.flags)
        for index, column in enumerate(columns):
            if column != self._latest[index][0]:
                self._latest[index] = column, _int32(*column)
        return PackedStep(
            plan.engine_epoch,
            plan.step_id,
            len(plan.slots),
            b"".join([packed for _, packed in self._latest]),
            _int32(*plan.table_rows, *plan.table_starts, *plan.table_counts),
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
