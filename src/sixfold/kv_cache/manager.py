"""The face that the scheduler sees. `plan_*` and the numbers ask and change nothing; the other verbs do.

A table's life, and the one rule that makes sharing safe - *no step writes a block that two tables hold*:

    plan_prefix / plan_fork   where could its first tokens come from?     (asks)
    reserve                   share those blocks, take new ones           at launch, for a whole step; cannot fail
    seal                      full blocks whose values are in memory      at commit: they may be shared from now on
                              enter the prefix index
    distrust                  nobody shall find its blocks again          at once, where a row's values are NaN
    release                   give every block back                       when no outstanding step refers to the table

Only full blocks are shared, and a sequence writes only past its shared tokens, so the block it writes is its own. The
one exception, a prompt whose last block is partly filled and that several choices continue, is copied on fork.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from sixfold.kv_cache.block_map import BlockMap
from sixfold.kv_cache.block_pool import BlockPool
from sixfold.kv_cache.block_table import BlockTable, Grant, Prefix, StepBlocks
from sixfold.kv_cache.journal import Journal
from sixfold.kv_cache.prefix_index import Parent, PrefixIndex
from sixfold.kv_cache.token_chain import Digest, TokenChain, keyed_digest, salt_name
from sixfold.messages import BlockId

__all__ = ["KVCacheManager"]

NO_PREFIX = Prefix()


class KVCacheManager:
    """Owner of capacity.

    Args:
        num_blocks: blocks in the pool, at least 1.
        block_size: tokens per block.
        enable_prefix_caching: whether full blocks are retained and found again.
        hash_key: secret of the block names, at most 64 bytes; differs between starts unless pinned.
        digest: replaces the keyed hash (tests).
        journal: what an engine before has left of its prefix cache, of which the blocks are adopted that can be
            believed; from then on this one's. Without a prefix cache nothing is adopted or written.
    """

    def __init__(
        self,
        num_blocks: int,
        block_size: int,
        *,
        enable_prefix_caching: bool = True,
        hash_key: bytes = b"",
        digest: Digest | None = None,
        journal: Journal | None = None,
    ) -> None:
        assert num_blocks >= 1 and block_size >= 1
        self.block_size = block_size
        self.enable_prefix_caching = enable_prefix_caching
        self._hash_key = hash_key
        self._digest = digest or keyed_digest(hash_key)
        self._pool = BlockPool(num_blocks)
        self._map = BlockMap(self._pool)
        self._index = PrefixIndex(journal if enable_prefix_caching else None)
        self._open: set[BlockTable] = set()
        self.n_adopted = self.n_rejected = 0
        """Blocks of the journal, at the start."""
        if journal is not None and enable_prefix_caching:
            blocks, self.n_rejected = self._index.adopt(self._digest)
            self._pool.adopt(blocks)
            self.n_adopted = len(blocks)

    # ---- numbers ----------------------------------------------------------------------------------------------------

    @property
    def num_blocks(self) -> int:
        return self._pool.num_blocks

    @property
    def capacity_tokens(self) -> int:
        return self._pool.num_blocks * self.block_size

    @property
    def n_free(self) -> int:
        return self._pool.n_free

    @property
    def n_cached(self) -> int:
        """Blocks that nobody holds but that are retained for reuse."""
        return self._pool.n_idle

    @property
    def n_held(self) -> int:
        return self._pool.num_blocks - self._pool.n_available

    @property
    def n_available(self) -> int:
        """Blocks that `reserve` can hand out: free ones, and retained ones that it would evict."""
        return self._pool.n_available

    def blocks_for(self, n_tokens: int) -> int:
        """Blocks that `n_tokens` positions need."""
        return -(-n_tokens // self.block_size)

    # ---- asking -----------------------------------------------------------------------------------------------------

    def new_table(
        self, token_ids: list[int], *, salt: str = "", twin: BlockTable | None = None, n_common: int = 0
    ) -> BlockTable:
        """An empty table for a sequence; it holds nothing and needs no release until a `reserve` opens it.

        Args:
            token_ids: the sequence; it may only grow.
            salt: blocks are shared only between equal salts.
            twin: table of a sequence with the same salt that begins with the same `n_common` tokens: saves hashing
                them again.
        """
        twin_chain = twin.chain if twin is not None else None
        name = twin_chain.salt if twin_chain is not None else salt_name(salt, self._hash_key)
        chain = TokenChain(token_ids, self.block_size, name, self._digest, twin_chain, n_common // self.block_size)
        return BlockTable(chain)

    def plan_prefix(self, table: BlockTable, n_tokens_max: int) -> Prefix:
        """The longest known beginning of a sequence, in whole blocks, at most `n_tokens_max` tokens."""
        if not self.enable_prefix_caching:
            return NO_PREFIX
        blocks, nodes = self._index.match(table.chain, n_tokens_max // self.block_size)
        if not blocks:
            return NO_PREFIX
        refs = self._pool.refs
        n_idle = sum(refs[block] == 0 for block in blocks)
        return Prefix(len(blocks) * self.block_size, blocks, nodes, None, n_idle)

    def plan_fork(self, parent: BlockTable, n_tokens: int) -> Prefix:
        """The first `n_tokens` of an open table: its full blocks are shared, the partly filled tail is copied.

        The steps that write them must have been launched.
        """
        assert n_tokens <= len(parent.blocks) * self.block_size
        n_full, n_tail = divmod(n_tokens, self.block_size)
        copy_from = parent.blocks[n_full] if n_tail else None
        return Prefix(n_tokens, parent.blocks[:n_full], parent.nodes[:n_full], copy_from)

    def plan_release(self, tables: Iterable[BlockTable]) -> int:
        """How many blocks would become available if these tables were released together."""
        drops = Counter(block for table in tables for block in table.blocks)
        return sum(self._pool.refs[block] == n for block, n in drops.items())

    # ---- doing ------------------------------------------------------------------------------------------------------

    def reserve(self, plan: StepBlocks) -> None:
        """Hold the blocks of a step. Fills in `plan.copies`, `plan.grown` and `first_new` of the rows in it.

        Cannot fail for lack of blocks: the plan was made against `n_available` and `plan_release`.
        """
        for table in plan.releases:
            self.release(table)
        for row in plan.rows:
            if row.prefix is not None:
                self._open_table(row.table, row.prefix)
        # Only now: taking evicts idle blocks, and the shared ones above must not be among them.
        refs, block_size = self._pool.refs, self.block_size
        for index, row in enumerate(plan.rows):
            blocks = row.table.blocks
            if len(blocks) * block_size < row.end:  # also of every row that opens its table: it writes past its prefix
                plan.grown.append(index)
                self._extend(row, plan.copies)
            # The first block written decides: those behind it were never shared, for only full blocks are.
            assert refs[blocks[row.start // block_size]] == 1, "a step would write a shared block"

    def seal(self, table: BlockTable, n_tokens: int) -> None:
        """Positions [0, n_tokens) of the table are computed and in memory: its full blocks can be found from now on."""
        if not table.seals:
            return
        nodes = table.nodes
        for index in range(len(nodes), n_tokens // self.block_size):
            parent: Parent = nodes[-1] if nodes else table.chain.salt
            node, displaced = self._index.seal(table.blocks[index], table.chain.name(index), parent)
            nodes.append(node)
            if displaced is not None:
                self._pool.discard(displaced)
                self._map.note([displaced])

    def distrust(self, table: BlockTable) -> None:
        """The values in an open table's blocks may be NaN: from now on nobody finds them, nor any that follow."""
        table.seals = False
        for block in table.blocks:
            self._index.forget(block)

    def release(self, table: BlockTable) -> None:
        """Give back every block. The caller knows that no outstanding step refers to the table."""
        assert table.is_open, "a table is released once"
        # From the tail: a block is evicted before the blocks in front of it, without which it could not be found.
        for block in reversed(table.blocks):
            self._pool.drop(block, retain=block in self._index)
        self._map.note(table.blocks)
        table.blocks = []
        table.nodes = []
        table.is_open = False
        self._open.remove(table)

    def reset_prefix_cache(self) -> int:
        """Forget every retained block, and let no table that is open now retain any. Returns how many became free."""
        n_free_before = self._pool.n_free
        forgotten = list(self._index.blocks())
        for block in forgotten:
            self._index.forget(block)
            self._pool.discard(block)
        self._map.note(forgotten)
        for table in self._open:
            table.seals = False
        return self._pool.n_free - n_free_before

    def _open_table(self, table: BlockTable, prefix: Prefix) -> None:
        assert not table.is_open, "a table is opened once"
        for block in prefix.blocks:
            self._pool.share(block)
        table.blocks = list(prefix.blocks)
        table.nodes = list(prefix.nodes)
        table.is_open = True
        table.seals = self.enable_prefix_caching
        self._open.add(table)

    def _extend(self, row: Grant, copies: list[tuple[BlockId, BlockId]]) -> None:
        """Take blocks until the row's table covers [0, end). What a fork copies goes to the first of them."""
        blocks, prefix = row.table.blocks, row.prefix
        row.first_new = len(blocks) if prefix is None else 0
        while len(blocks) * self.block_size < row.end:
            block = self._pool.take()
            self._index.forget(block)
            blocks.append(block)
        if prefix is not None and prefix.copy_from is not None:
            copies.append((prefix.copy_from, blocks[len(prefix.blocks)]))

    def block_map(self, holders: Iterable[tuple[int, BlockTable]]) -> tuple[int, bytes]:
        """The pool as a picture: see `BlockMap.look`."""
        return self._map.look(holders)

    def check(self) -> None:
        """Raises AssertionError unless tables, counts, states and index agree."""
        refs: Counter[BlockId] = Counter()
        for table in self._open:
            assert table.is_open and len(set(table.blocks)) == len(table.blocks), "a table holds a block twice"
            assert len(table.nodes) <= len(table.blocks)
            refs.update(table.blocks)
        self._index.check()
        self._pool.check(refs, self._index.blocks())
