"""A packed step as int32 arrays: what the worker computes with. Shapes: `wire.py`."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sixfold.errors import ProtocolError
from sixfold.executor.wire import N_COLUMNS, PackedStep
from sixfold.messages import SlotAdmit

__all__ = ["Int32", "StepArrays"]

Int32 = npt.NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class StepArrays:
    """Read-only views of a packed step. The columns have one entry per row; their meanings: `messages/step.py`."""

    engine_epoch: int
    step_id: int
    columns: Int32
    """[6, rows] All columns, as `wire.py` orders them."""
    slots: Int32
    generations: Int32
    incarnations: Int32
    starts: Int32
    counts: Int32
    flags: Int32
    table_rows: Int32
    """[growths]; so are the next two."""
    table_starts: Int32
    table_counts: Int32
    table_blocks: Int32
    """[sum(table_counts)]"""
    copies: Int32
    """[copies, 2] source block, destination block"""
    frees: Int32
    """[frees, 2] slot, generation"""
    admits: list[SlotAdmit]

    @classmethod
    def unpack(cls, packed: PackedStep) -> StepArrays:
        """Raises: ProtocolError: sizes do not agree."""
        try:
            columns = np.frombuffer(packed.columns, np.int32).reshape(N_COLUMNS, packed.n_rows)
            slots, generations, incarnations, starts, counts, flags = columns
            table_rows, table_starts, table_counts = np.frombuffer(packed.tables, np.int32).reshape(3, -1)
            return cls(
                engine_epoch=packed.engine_epoch,
                step_id=packed.step_id,
                columns=columns,
                slots=slots,
                generations=generations,
                incarnations=incarnations,
                starts=starts,
                counts=counts,
                flags=flags,
                table_rows=table_rows,
                table_starts=table_starts,
                table_counts=table_counts,
                table_blocks=np.frombuffer(packed.table_blocks, np.int32),
                copies=np.frombuffer(packed.copies, np.int32).reshape(-1, 2),
                frees=np.frombuffer(packed.frees, np.int32).reshape(-1, 2),
                admits=packed.admits,
            )
        except ValueError as e:
            raise ProtocolError(f"a step plan's sizes do not agree: {e}") from e

    @property
    def n_rows(self) -> int:
        return len(self.slots)
