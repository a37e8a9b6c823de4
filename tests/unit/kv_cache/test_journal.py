"""What one engine leaves in the journal, and what the next one believes of it."""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import pytest
from msgspec import structs

from sixfold.kv_cache import BlockTable, Grant, Journal, KVCacheManager, owner_of
from sixfold.kv_cache.journal import OWNER_BYTES
from sixfold.messages import BlockId

SIZE, BLOCKS = 4, 8
KEY = b"key of this server"
OWNER = owner_of(KEY, "configuration", 1)


@dataclass
class Step:
    rows: list[Grant]
    releases: list[BlockTable] = field(default_factory=list)
    copies: list[tuple[BlockId, BlockId]] = field(default_factory=list)
    grown: list[int] = field(default_factory=list)


class Server:
    """The journal's memory and the engine of now."""

    def __init__(self) -> None:
        self.fd = os.memfd_create("journal")
        self.restart()
        self.memory = mmap.mmap(self.fd, 0)
        self.stride = (len(self.memory) - OWNER_BYTES) // BLOCKS

    def restart(self, owner: bytes = OWNER, key: bytes = KEY, **options: bool) -> KVCacheManager:
        journal = Journal.open(self.fd, BLOCKS, SIZE, owner)
        self.kv = KVCacheManager(BLOCKS, SIZE, hash_key=key, journal=journal, **options)
        self.kv.check()
        return self.kv

    def begin(self, tokens: Sequence[int], salt: str = "") -> BlockTable:
        """A prompt's step is on its way to the worker."""
        table = self.kv.new_table(list(tokens), salt=salt)
        prefix = self.kv.plan_prefix(table, len(tokens) - 1)
        self.kv.reserve(Step([Grant(table, prefix.n_tokens, len(tokens), prefix)]))
        return table

    def serve(self, tokens: Sequence[int], salt: str = "") -> BlockTable:
        """A prompt is computed, and its blocks are sealed."""
        table = self.begin(tokens, salt)
        self.kv.seal(table, len(tokens))
        return table

    def found(self, tokens: Sequence[int], salt: str = "") -> list[BlockId]:
        return self.kv.plan_prefix(self.kv.new_table(list(tokens), salt=salt), len(tokens) - 1).blocks

    def record(self, block: int) -> slice:
        """Where a block's record is."""
        at = OWNER_BYTES + block * self.stride
        return slice(at, at + self.stride)


@pytest.fixture
def server() -> Iterator[Server]:
    server = Server()
    yield server
    os.close(server.fd)


def test_sealed_blocks_are_adopted_and_found_again(server: Server) -> None:
    table = server.serve(range(14), salt="x")
    kv = server.restart()
    assert (kv.n_adopted, kv.n_rejected, kv.n_cached, kv.n_free) == (3, 0, 3, 5)
    assert server.found(range(14), salt="x") == table.blocks[:3]
    assert not server.found(range(14)) and not server.found(range(1, 14), salt="x")
    # and it goes on growing where it was, under this engine and the next
    server.serve(range(18), salt="x")
    assert server.restart().n_adopted == 4


def test_a_block_that_the_running_step_writes_is_not_adopted(server: Server) -> None:
    server.begin(range(14))
    assert server.restart().n_adopted == 0


def test_a_block_that_the_running_step_takes_again_is_not_adopted(server: Server) -> None:
    server.kv.release(server.serve(range(4 * BLOCKS)))
    assert server.kv.n_cached == BLOCKS
    server.begin(range(100, 110))  # takes three of them, from the tail of the old prefix
    kv = server.restart()
    assert kv.n_adopted == BLOCKS - 3 and kv.n_free == 3
    assert len(server.found(range(40))) == BLOCKS - 3


def test_o35_a_block_that_was_taken_for_a_copy_is_not_adopted(server: Server) -> None:
    parent = server.serve(range(10))
    fork = server.kv.new_table(list(range(10)), twin=parent, n_common=10)
    server.kv.reserve(Step([Grant(fork, 9, 10, server.kv.plan_fork(parent, 9))]))
    assert server.restart().n_adopted == 2


def test_blocks_with_nan_are_not_adopted_even_before_they_are_given_back(server: Server) -> None:
    table = server.serve(range(10))
    server.kv.distrust(table)
    server.kv.seal(table, 10)
    assert server.restart().n_adopted == 0


def test_a_cache_that_was_forgotten_stays_forgotten(server: Server) -> None:
    server.serve(range(10))
    server.kv.reset_prefix_cache()
    assert server.restart().n_adopted == 0


def test_without_a_prefix_cache_nothing_is_adopted_and_nothing_is_written(server: Server) -> None:
    server.serve(range(10))
    kv = server.restart(enable_prefix_caching=False)
    assert kv.n_adopted == kv.n_cached == 0
    server.memory[OWNER_BYTES:] = bytes(len(server.memory) - OWNER_BYTES)
    server.serve(range(10))
    assert not any(server.memory[OWNER_BYTES:])


@pytest.mark.parametrize("byte", range(0, 8 + 8 + 16 + 32 + 4 * SIZE + 4, 3))
def test_a_torn_record_is_rejected_and_so_is_what_follows_it(byte: int, server: Server) -> None:
    blocks = server.serve(range(14)).blocks
    at = server.record(blocks[1])
    server.memory[at.start + byte] ^= 0x40
    kv = server.restart()
    assert (kv.n_adopted, kv.n_rejected) == (1, 1)
    assert server.found(range(14)) == blocks[:1]
    assert not any(server.memory[server.record(blocks[2])][:8]), "its successor is still there for the next engine"


def test_every_beginning_of_a_record_is_as_none(server: Server) -> None:
    """Killed while it is written: the first eight bytes, which make it valid, come last."""
    (block,) = server.serve(range(SIZE)).blocks
    at = server.record(block)
    whole = bytes(server.memory[at])
    for n_written in range(8, server.stride):
        server.memory[at] = bytes(8) + whole[8:n_written] + bytes(server.stride - n_written)
        kv = server.restart()
        assert kv.n_adopted == kv.n_rejected == 0


def test_a_record_at_another_blocks_place_is_rejected(server: Server) -> None:
    blocks = server.serve(range(10)).blocks
    server.memory[server.record(5)] = server.memory[server.record(blocks[1])]
    kv = server.restart()
    assert (kv.n_adopted, kv.n_rejected) == (2, 1)


def test_a_record_of_another_generation_of_its_parent_is_not_adopted(server: Server) -> None:
    """The parent's block was taken for the same tokens again: whole, and yet not what the child hung on."""
    first = server.serve(range(10)).blocks
    child = bytes(server.memory[server.record(first[1])])
    server.kv.reset_prefix_cache()
    for table in list(server.kv._open):
        server.kv.release(table)
    assert server.serve(range(5)).blocks[0] == first[0]
    server.memory[server.record(first[1])] = child
    kv = server.restart()
    assert kv.n_adopted == 1 and server.found(range(10)) == first[:1]


def test_two_records_of_one_prefix_are_one(server: Server) -> None:
    (block,) = server.serve(range(SIZE)).blocks
    journal = Journal(memoryview(server.memory), BLOCKS, SIZE)
    (sealed,) = [sealed for _, sealed in journal.read()]
    assert sealed is not None
    journal.write(BlockId(7), structs.replace(sealed, node=99))
    kv = server.restart()
    assert (kv.n_adopted, kv.n_rejected) == (1, 1) and server.found(range(5)) == [block]


@pytest.mark.parametrize(
    "owner",
    [
        owner_of(KEY, "another configuration", 1),
        owner_of(KEY, "configuration", 2),  # the worker was started again: its memory is empty
        owner_of(b"another key", "configuration", 1),
    ],
)
def test_the_journal_of_another_owner_is_wiped(owner: bytes, server: Server) -> None:
    server.serve(range(10))
    kv = server.restart(owner)
    assert kv.n_adopted == kv.n_rejected == 0 and not any(server.memory[OWNER_BYTES:])
    assert server.restart().n_adopted == 0, "it came back"


def test_names_under_another_key_are_rejected(server: Server) -> None:
    server.serve(range(10))
    kv = server.restart(key=b"another")
    assert (kv.n_adopted, kv.n_rejected) == (0, 1)  # and what follows it hangs on nothing


def test_p2_names_that_collide_serve_nobody_elses_prefix() -> None:
    memory = memoryview(bytearray(Journal.size(BLOCKS, SIZE)))

    def engine() -> KVCacheManager:
        return KVCacheManager(
            BLOCKS, SIZE, digest=lambda data: b"the same for all", journal=Journal(memory, BLOCKS, SIZE)
        )

    kv = engine()
    table = kv.new_table(list(range(5)), salt="x")
    kv.reserve(Step([Grant(table, 0, 5, kv.plan_prefix(table, 4))]))
    kv.seal(table, 5)
    kv = engine()
    assert kv.n_adopted == 1

    def n_found(tokens: list[int], salt: str) -> int:
        return kv.plan_prefix(kv.new_table(tokens, salt=salt), 4).n_tokens

    assert n_found([0, 1, 2, 3, 9], "x") == 4
    assert n_found([0, 1, 2, 4, 9], "x") == n_found([0, 1, 2, 3, 9], "y") == 0


def test_o36_adopted_blocks_are_evicted_from_the_tail_of_what_grew_first(server: Server) -> None:
    old, young = server.serve(range(12)).blocks, server.serve(range(50, 62)).blocks
    kv = server.restart()
    assert list(kv._pool._idle) == [*reversed(old), *reversed(young)]
    server.begin(range(100, 113))  # four blocks: the two that are free, and two of the oldest prefix
    assert server.found(range(12)) == old[:1] and len(server.found(range(50, 62))) == 2


def test_the_memory_file_gets_the_size_of_another_pool(server: Server) -> None:
    server.serve(range(10))
    journal = Journal.open(server.fd, BLOCKS + 1, SIZE, OWNER)
    assert not list(journal.read()) and os.fstat(server.fd).st_size == Journal.size(BLOCKS + 1, SIZE)
