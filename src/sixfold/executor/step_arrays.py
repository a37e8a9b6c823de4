"""A packed step as int32 arrays: what the worker computes with. Shapes: `wire.py`."""

from __future__ import annotations

import msgspec
import numpy as np
import numpy.typing as npt

from sixfold.errors import ProtocolError
from sixfold.executor.wire import N_COLUMNS, PackedStep
from sixfold.messages import SlotAdmit

__all__ = ["Int32", "StepArrays"]

Int32 = npt.NDArray[np.int32]

_INT32 = np.dtype(np.int32)
_NOTHING = np.zeros(0, _INT32)
_NO_PAIRS = _NOTHING.reshape(0, 2)
_NO_GROWTH = _NOTHING.reshape(3, 0)


class StepArrays(msgspec.Struct):
    """Read-only views of a packed step. The columns have one entry per row; their meanings: `messages/step.py`.

    A view is made when it is asked for: most steps need no column by itself.
    """

    engine_epoch: int
    step_id: int
    n_rows: int
    columns: Int32
    """[6, rows] All columns, as `wire.py` orders them; the first three are the rows' keys."""
    tables: Int32
    """[3, growths] Rows, the first entry and the number of entries of each, as `wire.py` orders them."""
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
            columns = np.frombuffer(packed.columns, _INT32).reshape(N_COLUMNS, packed.n_rows)
            return cls(
                packed.engine_epoch,
                packed.step_id,
                columns.shape[1],
                columns,
                np.frombuffer(packed.tables, _INT32).reshape(3, -1) if packed.tables else _NO_GROWTH,
                np.frombuffer(packed.table_blocks, _INT32) if packed.table_blocks else _NOTHING,
                np.frombuffer(packed.copies, _INT32).reshape(-1, 2) if packed.copies else _NO_PAIRS,
                np.frombuffer(packed.frees, _INT32).reshape(-1, 2) if packed.frees else _NO_PAIRS,
                packed.admits,
            )
        except ValueError as e:
            raise ProtocolError(f"a step plan's sizes do not agree: {e}") from e

    @property
    def slots(self) -> Int32:
        return self._column(0)

    @property
    def starts(self) -> Int32:
        return self._column(3)

    @property
    def counts(self) -> Int32:
        return self._column(4)

    @property
    def flags(self) -> Int32:
        return self._column(5)

    def _column(self, index: int) -> Int32:
        column: Int32 = self.columns[index]
        return column
