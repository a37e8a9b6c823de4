"""API -> engine: `Watch`; engine -> API, while somebody watches: `EngineView`, a snapshot for people to look at.

A view is for eyes only: nothing is decided by it, any of them may be left out, and none costs anything while nobody
watches.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from sixfold.messages.control import EngineStats

__all__ = ["CACHED", "FREE", "HELD", "SHARED", "ChoiceView", "EngineView", "Watch"]

FREE, CACHED, SHARED, HELD = 0, 1, 2, 3
"""Cells of a block map: nobody's; nobody's, but kept for reuse; in several tables; from `HELD` on, in the table of the
choice in slot `cell - HELD`."""


class Watch(msgspec.Struct, frozen=True, tag="watch"):
    """How often this API process wants a view. A later one replaces it; it ends with the connection."""

    period_ms: int
    """At least 16; 0: no longer."""


class ChoiceView(msgspec.Struct, frozen=True, array_like=True):
    """One choice in the engine. An array on the wire, in this order."""

    uid: int
    choice: int
    state: Literal["held", "waiting", "running", "preempting", "closing", "closed"]
    reason: str
    """Of one that waits, what for: one of `WAIT_REASONS`, or `order`; else empty."""
    n_prompt: int
    n_computed: int
    """Positions that are committed, of prompt and output together."""
    n_output: int
    """Tokens that were drawn."""
    n_cached: int
    """Prompt tokens whose blocks were found in the prefix cache."""
    n_blocks: int
    slot: int
    """-1: none."""
    incarnation: int
    """How often it lost its place."""
    limit: int
    """Tokens that it may draw."""


class EngineView(msgspec.Struct, frozen=True, kw_only=True, tag="view"):
    """What the engine holds, between two steps."""

    engine_epoch: int
    step_id: int
    """The next one."""
    time_ns: int
    """CLOCK_MONOTONIC."""
    outstanding: int
    """Steps launched and not committed."""
    stats: EngineStats
    choices: list[ChoiceView]
    """Those that run, then those that wait in the order of service; not all, where there are very many."""
    blocks_per_cell: int
    cells: bytes
    """[ceil(blocks / blocks_per_cell)] 16-bit little-endian cells of the block map. Of several blocks to a cell the
    first is shown, without its holder (`HELD`)."""
