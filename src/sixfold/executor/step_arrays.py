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
    """Read-only views of a packed step."""

    engine_epoch: int
    step_id: int
    columns: Int32
    table_blocks: Int32
    copies: Int32
    frees: Int32
    admits: list[SlotAdmit]

    @classmethod
    def unpack(cls, packed: PackedStep) -> StepArrays:
        """Raises: ProtocolError: sizes do not agree."""
        try:
            return cls(
                packed.engine_epoch,
                packed.step_id,
                np.frombuffer(packed.columns, np.int32).reshape(N_COLUMNS, packed.n_rows),
                np.frombuffer(packed.table_blocks, np.int32),
                np.frombuffer(packed.copies, np.int32).reshape(-1, 2),
                np.frombuffer(packed.frees, np.int32).reshape(-1, 2),
                packed.admits,
            )
        except ValueError as e:
            raise ProtocolError(f"a step plan's sizes do not agree: {e}") from e

    @property
    def n_rows(self) -> int:
        return int(self.columns.shape[1])

    @property
    def slots(self) -> Int32:
        return self.columns[0]

    @property
    def generations(self) -> Int32:
        return self.columns[1]

    @property
    def incarnations(self) -> Int32:
        return self.columns[2]

    @property
    def starts(self) -> Int32:
        return self.columns[3]

    @property
    def counts(self) -> Int32:
        return self.columns[4]

    @property
    def flags(self) -> Int32:
        return self.columns[5]

    @property
    def table_starts(self) -> Int32:
        return self.columns[6]

    @property
    def table_counts(self) -> Int32:
        return self.columns[7]
