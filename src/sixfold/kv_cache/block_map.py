"""The block pool as a picture, for people who watch.

A look at a large pool takes milliseconds of the engine's one thread. So the cells are kept from one look to the next,
and a look touches what has changed: blocks that tables have taken since (a table only grows), and blocks that were
given back, of which `note` is told. What is noted is bounded by half the pool. Beyond it, and before the first look,
nothing is noted and the next look begins anew: so nobody has to say that nobody watches any more.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable

from sixfold.kv_cache.block_pool import BlockPool
from sixfold.kv_cache.block_table import BlockTable
from sixfold.messages import BlockId
from sixfold.messages.view import CACHED, FREE, HELD, SHARED

__all__ = ["MAP_CELLS", "BlockMap"]

MAP_CELLS = 1 << 16
"""Of a block map, at most."""


class BlockMap:
    """See the module's docstring. Reads the pool and changes nothing."""

    def __init__(self, pool: BlockPool) -> None:
        self._pool = pool
        self._cells = array("H")
        self._seen: dict[int, tuple[list[BlockId], int]] = {}
        """Slot -> a table's list of blocks, and how many of them the cells show. A released table gets a new list."""
        self._noted: list[list[BlockId]] | None = None
        """What was given back since the last look; None: nobody has looked, or it was too much."""
        self._n_noted = 0

    def note(self, blocks: list[BlockId]) -> None:
        """A table gives these back, or they are no longer worth keeping. The list is not changed afterwards."""
        if self._noted is None:
            return
        self._noted.append(blocks)
        self._n_noted += len(blocks)
        if self._n_noted > self._pool.num_blocks // 2:
            self._noted = None

    def look(self, holders: Iterable[tuple[int, BlockTable]]) -> tuple[int, bytes]:
        """The picture now.

        Args:
            holders: slot and table of each choice that has a slot.

        Returns:
            (blocks per cell, cells): see `EngineView.cells`. At most MAP_CELLS of them.
        """
        refs, idle = self._pool.refs, self._pool.idle()
        stride = -(-len(refs) // MAP_CELLS)
        if stride > 1:
            # Of so many blocks only every so many-th is looked at.
            some = (HELD if refs[b] else CACHED if b in idle else FREE for b in range(0, len(refs), stride))
            return stride, array("H", some).tobytes()
        now = [(slot, table.blocks) for slot, table in holders]
        if self._noted is None:
            self._cells = array("H", bytes(2 * len(refs)))
            self._seen = {}
            for block in idle:
                self._cells[block] = CACHED
        else:
            self._give_back(self._noted, now)
        cells = self._cells
        for slot, blocks in now:
            own, seen = HELD + slot, self._seen.get(slot)
            for block in blocks[seen[1] :] if seen is not None and seen[0] is blocks else blocks:
                cells[block] = own if refs[block] == 1 else SHARED
        self._seen = {slot: (blocks, len(blocks)) for slot, blocks in now}
        self._noted, self._n_noted = [], 0
        return 1, cells.tobytes()

    def _give_back(self, noted: list[list[BlockId]], now: list[tuple[int, list[BlockId]]]) -> None:
        """Cells of blocks that a table held at the last look, or between it and now, and holds no longer."""
        refs, idle, cells = self._pool.refs, self._pool.idle(), self._cells
        given: set[BlockId] = set()
        given.update(*noted)
        here = dict(now)
        for slot, (blocks, _) in self._seen.items():
            if here.get(slot) is not blocks:
                given.update(blocks)
        left = set()
        for block in given:
            n_refs = refs[block]
            if n_refs == 1:
                left.add(block)  # shared before, or taken again since
            cells[block] = SHARED if n_refs > 1 else CACHED if block in idle else FREE
        if left:
            for slot, blocks in now:
                for block in left.intersection(blocks):
                    cells[block] = HELD + slot
