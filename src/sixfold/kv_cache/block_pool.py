"""Capacity: every KV block is in exactly one of three states.

State and what it means, and the verbs that leave it:

    free   refs == 0, holds nothing of value       take -> held    adopt -> idle
    held   refs >= 1, in that many block tables    drop -> free, or idle where it is worth retaining
    idle   refs == 0, retained for reuse           share -> held    take (evict) -> held    discard -> free

free + idle + held == num_blocks, always. "Available for allocation" is free + idle: idle blocks are evicted, the least
recently used first, when no free one is left.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Set

from sixfold.messages import BlockId

__all__ = ["BlockPool"]


class BlockPool:
    """Reference counts, the free stack and the eviction order of blocks 0 .. num_blocks - 1."""

    def __init__(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        self.refs: list[int] = [0] * num_blocks
        """[num_blocks] How many tables hold the block. Written here only."""
        # A stack, lowest id on top: blocks freed a moment ago are still in the CPU's caches, and a server that never
        # fills its pool never touches the memory of the high ids.
        self._free = [BlockId(i) for i in reversed(range(num_blocks))]
        self._idle: OrderedDict[BlockId, None] = OrderedDict()

    @property
    def n_free(self) -> int:
        return len(self._free)

    @property
    def n_idle(self) -> int:
        return len(self._idle)

    @property
    def n_available(self) -> int:
        return len(self._free) + len(self._idle)

    def take(self) -> BlockId:
        """Hand out a block with refs == 1. The caller has asked `n_available`, and forgets what the block held."""
        block = self._free.pop() if self._free else self._idle.popitem(last=False)[0]
        self.refs[block] = 1
        return block

    def share(self, block: BlockId) -> None:
        """One more table holds an idle or held block."""
        if self.refs[block] == 0:
            del self._idle[block]
        self.refs[block] += 1

    def drop(self, block: BlockId, *, retain: bool) -> None:
        """One table less. The last one leaves it idle (youngest of all) when `retain`, else free."""
        assert self.refs[block] > 0, f"block {block} was dropped more often than it was held"
        self.refs[block] -= 1
        if self.refs[block] == 0:
            if retain:
                self._idle[block] = None
            else:
                self._free.append(block)

    def adopt(self, blocks: list[BlockId]) -> None:
        """Free blocks that hold something of value: they become idle, the first of them the first to be evicted."""
        adopted = set(blocks)
        self._free = [block for block in self._free if block not in adopted]
        self._idle.update(dict.fromkeys(blocks))

    def discard(self, block: BlockId) -> None:
        """An idle block is worth nothing any more: it becomes free. A held block stays as it is."""
        if self.refs[block] == 0:
            del self._idle[block]
            self._free.append(block)

    def idle(self) -> Set[BlockId]:
        """The idle blocks, the least recently used first."""
        return self._idle.keys()

    def check(self, refs: Mapping[BlockId, int], retained: set[BlockId]) -> None:
        """Compare with the truth: `refs` counted over all tables, `retained` from the prefix index.

        Raises:
            AssertionError: a count, a state or the sum of the states is wrong.
        """
        free, idle = set(self._free), set(self._idle)
        held = {block for block in range(self.num_blocks) if self.refs[block]}
        assert len(free) == len(self._free), "a block is free twice"
        assert not free & idle and not free & held and not idle & held, "a block is in two states"
        assert len(free) + len(idle) + len(held) == self.num_blocks, "a block is in no state"
        assert {BlockId(block): self.refs[block] for block in held} == dict(refs), "reference counts are wrong"
        assert idle == retained - held, "idle blocks and the prefix index disagree"
