"""What `Scheduler.plan()` decides: a value that nothing has acted on yet."""

from __future__ import annotations

from dataclasses import dataclass, field

from sixfold.kv_cache import BlockTable, Grant
from sixfold.messages import BlockId
from sixfold.scheduler.sequence import Sequence

__all__ = ["Plan", "Row"]


class Row(Grant, kw_only=True, gc=False):
    """One sequence's part of a step: it computes positions [start, end).

    `prefix` is given when the row also admits the sequence to a slot. Nothing that a row refers to refers to a row:
    Python need not search them for garbage.
    """

    sequence: Sequence
    flags: int = 0
    """Filled in by `launch`: SAMPLE, PROMPT_LOGPROBS."""
    fork_parent: Sequence | None = None
    """The choice whose partly filled block is copied: the step reads it."""


@dataclass(slots=True)
class Plan:
    """One step, before it is launched. The KV cache manager sees it as `kv_cache.StepBlocks`."""

    step_id: int
    rows: list[Row] = field(default_factory=list)
    """Empty only where the step just tells an otherwise idle worker which slots are free."""
    preempted: list[Sequence] = field(default_factory=list)
    """Lose their place. Those without an outstanding step give their blocks back at once, others at their fence."""
    releases: list[BlockTable] = field(default_factory=list)
    """Tables of the former."""
    copies: list[tuple[BlockId, BlockId]] = field(default_factory=list)
    """Filled in by `KVCacheManager.reserve`, and so is `grown`."""
    grown: list[int] = field(default_factory=list)
    """Indices of the rows whose block tables are new or have grown."""
