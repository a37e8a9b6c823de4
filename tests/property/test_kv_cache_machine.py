"""Any sequence of opens, extensions, seals, forks, releases and restarts, against a model made of plain dictionaries.

The model says what every position of every table must hold and what every block holds in fact; the pool is small, and
the hash function sometimes has three values only. What is matched must be true whatever the names say.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from tests.simulation import digest_of_three

from sixfold.kv_cache import BlockTable, Grant, Journal, KVCacheManager, Prefix
from sixfold.kv_cache.block_map import BlockMap
from sixfold.messages import BlockId
from sixfold.messages.view import CACHED, FREE, HELD, SHARED

BLOCK_SIZE = 2
SALTS = ["", "other"]


@dataclass
class Step:
    rows: list[Grant]
    releases: list[BlockTable] = field(default_factory=list)
    copies: list[tuple[BlockId, BlockId]] = field(default_factory=list)
    grown: list[int] = field(default_factory=list)


@dataclass
class Model:
    """One open table: its salt and tokens, how many are in blocks, and how many of those have been computed."""

    table: BlockTable
    salt: str
    tokens: list[int]
    n_computed: int


class KVCacheMachine(RuleBasedStateMachine):
    @initialize(num_blocks=st.integers(2, 9), collides=st.booleans(), caching=st.sampled_from([True, True, False]))
    def start(self, num_blocks: int, collides: bool, caching: bool) -> None:
        digest = digest_of_three if collides else None
        journal = memoryview(bytearray(Journal.size(num_blocks, BLOCK_SIZE)))
        self.new_manager = lambda: KVCacheManager(
            num_blocks,
            BLOCK_SIZE,
            enable_prefix_caching=caching,
            hash_key=b"k",
            digest=digest,
            journal=Journal(journal, num_blocks, BLOCK_SIZE),
        )
        self.kv = self.new_manager()
        self.open: list[Model] = []
        self.memory: dict[BlockId, list[object]] = {BlockId(i): [None] * BLOCK_SIZE for i in range(num_blocks)}

    def held(self, model: Model, position: int) -> object:
        return self.memory[model.table.blocks[position // BLOCK_SIZE]][position % BLOCK_SIZE]

    def truth(self, model: Model, position: int) -> object:
        return model.salt, tuple(model.tokens[: position + 1])

    def write(self, model: Model, end: int) -> None:
        """What the worker does in a step."""
        for position in range(model.n_computed, end):
            self.memory[model.table.blocks[position // BLOCK_SIZE]][position % BLOCK_SIZE] = self.truth(model, position)
        model.n_computed = end

    def begin(self, model: Model, prefix: Prefix, releases: list[Model]) -> bool:
        """Open a table if its whole length can be had, after `releases`."""
        n_new = self.kv.blocks_for(len(model.tokens)) - len(prefix.blocks) + prefix.n_idle
        n_have = self.kv.n_available + self.kv.plan_release([m.table for m in releases])
        if n_new > n_have:
            return False
        step = Step([Grant(model.table, prefix.n_tokens, len(model.tokens), prefix)], [m.table for m in releases])
        self.open = [m for m in self.open if m not in releases]
        self.kv.reserve(step)
        for source, destination in step.copies:
            self.memory[destination] = list(self.memory[source])
        model.n_computed = prefix.n_tokens
        for position in range(prefix.n_tokens):
            assert self.held(model, position) == self.truth(model, position), "adopted something else"
        self.write(model, len(model.tokens))
        self.open.append(model)
        return True

    @rule(tokens=st.lists(st.integers(0, 1), min_size=1, max_size=10), salt=st.sampled_from(SALTS), data=st.data())
    def admit(self, tokens: list[int], salt: str, data: st.DataObject) -> None:
        model = Model(self.kv.new_table(tokens, salt=salt), salt, tokens, 0)
        prefix = self.kv.plan_prefix(model.table, len(tokens) - 1)
        assert prefix.n_tokens < len(tokens) and prefix.n_tokens % BLOCK_SIZE == 0
        victims = [] if prefix.blocks or not self.open else data.draw(st.lists(st.sampled_from(self.open), max_size=1))
        self.begin(model, prefix, victims)

    @precondition(lambda self: self.open)
    @rule(data=st.data(), tail=st.lists(st.integers(0, 1), min_size=1, max_size=3))
    def fork(self, data: st.DataObject, tail: list[int]) -> None:
        parent = data.draw(st.sampled_from(self.open))
        n_shared = data.draw(st.integers(0, parent.n_computed - 1))
        tokens = parent.tokens[:n_shared] + tail
        table = self.kv.new_table(tokens, salt=parent.salt, twin=parent.table, n_common=n_shared)
        self.begin(Model(table, parent.salt, tokens, 0), self.kv.plan_fork(parent.table, n_shared), [])

    @precondition(lambda self: self.open)
    @rule(data=st.data(), token=st.integers(0, 1))
    def extend(self, data: st.DataObject, token: int) -> None:
        model = data.draw(st.sampled_from(self.open))
        start = len(model.tokens)
        if start % BLOCK_SIZE == 0 and not self.kv.n_available:
            return
        model.tokens.append(token)
        row = Grant(model.table, start, start + 1)
        step = Step([row])
        self.kv.reserve(step)
        assert step.grown == ([0] if start % BLOCK_SIZE == 0 else [])
        assert not step.grown or row.first_new == len(model.table.blocks) - 1
        self.write(model, start + 1)

    @rule(first_slot=st.integers(0, 2))
    def look(self, first_slot: int) -> None:
        """What was kept from the look before, and brought up to date, is what a look at everything shows."""
        holders = [(first_slot + index, model.table) for index, model in enumerate(self.open)]
        packed = self.kv.block_map(holders)
        assert packed == BlockMap(self.kv._pool).look(holders)
        cells = array("H", packed[1])
        for slot, table in holders:
            sharers = [other for _, other in holders if set(other.blocks) & set(table.blocks)]
            assert {cells[block] for block in table.blocks} <= {HELD + slot} | ({SHARED} if len(sharers) > 1 else set())
        assert (cells.count(FREE), cells.count(CACHED)) == (self.kv.n_free, self.kv.n_cached)

    @precondition(lambda self: self.open)
    @rule(data=st.data())
    def seal(self, data: st.DataObject) -> None:
        model = data.draw(st.sampled_from(self.open))
        self.kv.seal(model.table, model.n_computed)

    @precondition(lambda self: self.open)
    @rule(data=st.data(), forget=st.sampled_from([False, False, False, True]))
    def release(self, data: st.DataObject, forget: bool) -> None:
        model = data.draw(st.sampled_from(self.open))
        expected = self.kv.n_available + self.kv.plan_release([model.table])
        if forget:
            self.kv.distrust(model.table)
        self.kv.release(model.table)
        self.open.remove(model)
        assert self.kv.n_available == expected

    @rule()
    def restart(self) -> None:
        """The engine is gone, and the memory stays: what was found before, and nothing else, can be found again."""
        names = {block: sealed.digest for block, sealed in self.kv._index._sealed.items()}
        self.kv = self.new_manager()
        self.open.clear()
        adopted = {block: sealed.digest for block, sealed in self.kv._index._sealed.items()}
        assert adopted.items() <= names.items() and len(adopted) == self.kv.n_adopted == self.kv.n_cached
        assert not self.kv.n_rejected

    @rule()
    def reset(self) -> None:
        self.kv.reset_prefix_cache()
        assert self.kv.n_cached == 0

    @invariant()
    def agrees(self) -> None:
        if not hasattr(self, "kv"):
            return
        self.kv.check()
        assert self.kv.n_free + self.kv.n_cached + self.kv.n_held == self.kv.num_blocks
        assert self.kv.n_held == len({block for model in self.open for block in model.table.blocks})
        for model in self.open:
            for position in range(model.n_computed):
                assert self.held(model, position) == self.truth(model, position), "somebody wrote a block in use"

    def teardown(self) -> None:
        if hasattr(self, "kv"):
            for model in self.open:
                self.kv.release(model.table)
            assert self.kv.n_free + self.kv.n_cached == self.kv.num_blocks
            self.kv.check()


KVCacheMachine.TestCase.settings = settings(max_examples=300, stateful_step_count=40, deadline=None, derandomize=True)
TestKVCache = KVCacheMachine.TestCase
