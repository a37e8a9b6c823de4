"""What scheduler and KV cache manager say to one another about blocks.

With a block size of 16 and a prefix of 38 tokens of which the last 6 are copied:

    position   0 ........ 15 | 16 ....... 31 | 32 .... 37 | 38 ....... 47 | 48 ...
    block        blocks[0]       blocks[1]        blocks[2], its own        blocks[3]
    prefix     [ shared                      )[ copied    )
    row                                                   [ start ............ end )  written by the step
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import msgspec

from sixfold.kv_cache.token_chain import TokenChain
from sixfold.messages import BlockId

__all__ = ["BlockTable", "Grant", "Prefix", "StepBlocks"]


class BlockTable:
    """The blocks of one sequence, in the order of its tokens. Written by the KV cache manager only."""

    __slots__ = ("blocks", "chain", "is_open", "nodes", "seals")

    def __init__(self, chain: TokenChain) -> None:
        self.chain = chain
        self.blocks: list[BlockId] = []
        self.nodes: list[int] = []
        """[blocks sealed so far] Their nodes in the prefix index."""
        self.is_open = False
        """Whether it holds blocks: from its first grant until its release."""
        self.seals = False
        """Whether its full blocks enter the prefix index."""


@dataclass(slots=True, frozen=True)
class Prefix:
    """Where the first tokens of a newly opened table come from."""

    n_tokens: int = 0
    """Positions [0, n_tokens) need no computing."""
    blocks: list[BlockId] = field(default_factory=list)
    """Full blocks to share."""
    nodes: list[int] = field(default_factory=list)
    """Nodes of the first of them, as far as they are sealed."""
    copy_from: BlockId | None = None
    """Block whose beginning the first block of its own shall be a copy of (positions up to n_tokens)."""
    n_idle: int = 0
    """Of `blocks`, how many nobody holds now: sharing them leaves as many fewer available."""


class Grant(msgspec.Struct):
    """One row's wish: the table must cover positions [0, end), and the row will write [start, end)."""

    table: BlockTable
    start: int
    end: int
    prefix: Prefix | None = None
    """Given when this grant opens the table."""
    first_new: int = 0
    """Filled in by `reserve` where the table has grown: index in `table.blocks` of the first block that the worker has
    not been told of."""


class StepBlocks(Protocol):
    """The part of a step's plan that concerns blocks."""

    copies: list[tuple[BlockId, BlockId]]
    """Filled in by `reserve`: (source, destination), to be copied before any row writes."""
    grown: list[int]
    """Filled in by `reserve`: indices of the rows whose tables are new or have grown."""

    @property
    def rows(self) -> Sequence[Grant]: ...

    @property
    def releases(self) -> Sequence[BlockTable]:
        """Tables to give back first; no outstanding step refers to them."""
