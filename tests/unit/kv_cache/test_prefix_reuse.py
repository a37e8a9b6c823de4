"""What is found again, what is not, and what goes first when room is needed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest

from sixfold.kv_cache import BlockTable, Grant, KVCacheManager, Prefix
from sixfold.messages import BlockId

SIZE = 4


@dataclass
class Step:
    rows: list[Grant]
    releases: list[BlockTable] = field(default_factory=list)
    copies: list[tuple[BlockId, BlockId]] = field(default_factory=list)
    grown: list[int] = field(default_factory=list)


def constant(data: bytes) -> bytes:
    return b"the same for all"


def make(num_blocks: int = 16, **options: object) -> KVCacheManager:
    return KVCacheManager(num_blocks, SIZE, **options)  # type: ignore[arg-type]


def serve(kv: KVCacheManager, tokens: Sequence[int], salt: str = "") -> tuple[BlockTable, Prefix]:
    """Admit, compute and seal a prompt."""
    table = kv.new_table(list(tokens), salt=salt)
    prefix = kv.plan_prefix(table, len(tokens) - 1)
    kv.reserve(Step([Grant(table, prefix.n_tokens, len(tokens), prefix)]))
    kv.seal(table, len(tokens))
    kv.check()
    return table, prefix


def n_found(kv: KVCacheManager, tokens: Sequence[int], salt: str = "") -> int:
    return kv.plan_prefix(kv.new_table(list(tokens), salt=salt), len(tokens) - 1).n_tokens


@pytest.mark.parametrize("n_tokens", [3 * SIZE - 1, 3 * SIZE, 3 * SIZE + 1])
def test_o36_a_token_is_always_left_to_compute(n_tokens: int) -> None:
    kv = make()
    for time in range(3):
        table, prefix = serve(kv, range(n_tokens))
        assert prefix.n_tokens == (0 if time == 0 else (n_tokens - 1) // SIZE * SIZE)
        assert len(table.blocks) == kv.blocks_for(n_tokens)
        kv.release(table)
    assert kv.n_free + kv.n_cached == kv.num_blocks


def test_o35_another_salt_finds_nothing() -> None:
    kv = make()
    serve(kv, range(12), salt="x")
    assert n_found(kv, range(12), salt="y") == n_found(kv, range(12)) == 0
    assert n_found(kv, range(12), salt="x") == 8


def test_blocks_of_a_running_sequence_are_shared_not_copied() -> None:
    kv = make()
    first, _ = serve(kv, range(12))
    second, _ = serve(kv, [*range(8), 77, 78])
    assert second.blocks[:2] == first.blocks[:2] and second.blocks[2] != first.blocks[2]
    assert kv.n_held == 4


@pytest.mark.parametrize("differs_at", [0, SIZE])
def test_o37_a_collision_never_serves_another_prefix(differs_at: int) -> None:
    kv = make(digest=constant)
    prompt = list(range(12))
    table, _ = serve(kv, prompt)
    kv.release(table)
    other = list(prompt)
    other[differs_at] = 99
    assert n_found(kv, other) <= differs_at
    table, prefix = serve(kv, other)
    assert prefix.n_tokens <= differs_at
    kv.release(table)
    assert n_found(kv, prompt) <= 8


def test_o37_names_are_keyed_and_differ_between_keys() -> None:
    names = {make(hash_key=key).new_table(list(range(4))).chain.name(0)[0] for key in (b"a", b"b", b"a")}
    assert len(names) == 2


def test_a_name_covers_everything_before_it() -> None:
    kv = make()
    one, two = kv.new_table([1] * 4 + [5] * 4), kv.new_table([2] * 4 + [5] * 4)
    assert one.chain.name(1)[1] == two.chain.name(1)[1]
    assert one.chain.name(1)[0] != two.chain.name(1)[0]


def test_each_block_is_hashed_once() -> None:
    calls: list[bytes] = []

    def counting(data: bytes) -> bytes:
        calls.append(data)
        return data[-8:]

    kv = make(digest=counting)
    tokens = list(range(12))
    table = kv.new_table(tokens)
    for _ in range(3):
        kv.plan_prefix(table, 12)
        table.chain.name(2)
    twin = kv.new_table([*tokens, 50, 51, 52, 53], twin=table, n_common=12)
    twin.chain.name(3)
    assert len(calls) == 4 + 1, "four blocks and the salt"


def test_without_prefix_caching_nothing_is_retained() -> None:
    kv = make(enable_prefix_caching=False)
    table, _ = serve(kv, range(12))
    kv.release(table)
    assert (kv.n_cached, kv.n_free) == (0, 16)
    assert n_found(kv, range(12)) == 0


def test_the_end_of_a_prompt_is_evicted_before_its_beginning() -> None:
    kv = make(num_blocks=4)
    table, _ = serve(kv, range(12))
    kv.release(table)
    assert (kv.n_free, kv.n_cached) == (1, 3)
    serve(kv, [90] * 8)
    assert n_found(kv, range(12)) == 8


def test_adopted_blocks_are_not_evicted_by_the_same_step() -> None:
    kv = make(num_blocks=3)
    table, _ = serve(kv, range(8))
    kv.release(table)
    table, prefix = serve(kv, [*range(8), 9, 10])
    assert prefix.n_idle == 2 and len(table.blocks) == 3 and kv.n_available == 0


def test_values_that_are_not_to_be_trusted_are_not_found_again() -> None:
    kv = make()
    table, _ = serve(kv, range(12))
    kv.distrust(table)
    kv.release(table)
    assert n_found(kv, range(12)) == 0 and kv.n_free == 16


def test_after_a_reset_old_values_cannot_be_found_even_if_sealed_later() -> None:
    kv = make()
    tokens = list(range(12))
    early = kv.new_table(tokens)
    kv.reserve(Step([Grant(early, 0, 12, Prefix())]))
    done, _ = serve(kv, range(50, 62))
    kv.release(done)
    assert kv.reset_prefix_cache() == 3
    kv.seal(early, 12)
    assert n_found(kv, tokens) == 0
    kv.release(early)
    assert kv.n_free == 16
    kv.check()


def test_a_prefix_can_be_found_again_after_its_beginning_was_evicted_and_recomputed() -> None:
    kv = make(num_blocks=6)
    first, _ = serve(kv, range(12))
    # The same prompt at the same time: its own first blocks stay anonymous, its own last one is found under the others.
    twin = kv.new_table(list(range(12)))
    kv.reserve(Step([Grant(twin, 0, 12, Prefix())]))
    kv.seal(twin, 12)
    kv.release(first)
    kv.release(twin)
    assert (kv.n_cached, kv.n_free) == (3, 3)
    kv.check()


def test_a_fork_shares_full_blocks_and_copies_the_tail() -> None:
    kv = make()
    parent, _ = serve(kv, range(7))
    child = kv.new_table([*range(6), 50])
    prefix = kv.plan_fork(parent, 6)
    step = Step([Grant(child, 6, 7, prefix)])
    kv.reserve(step)
    assert step.copies == [(parent.blocks[1], child.blocks[1])]
    assert child.blocks[0] == parent.blocks[0] and child.blocks[1] != parent.blocks[1]
    assert step.grown == [0] and step.rows[0].first_new == 0, "the worker knows nothing of the child's table yet"
    kv.check()


def test_a_fork_at_a_block_border_copies_nothing() -> None:
    kv = make()
    parent, _ = serve(kv, range(9))
    child = kv.new_table([*range(8), 50])
    step = Step([Grant(child, 8, 9, kv.plan_fork(parent, 8))])
    kv.reserve(step)
    assert step.copies == [] and child.blocks[:2] == parent.blocks[:2]


def test_no_step_writes_a_block_that_two_tables_hold() -> None:
    kv = make()
    parent, _ = serve(kv, range(8))
    child = kv.new_table(list(range(8)))
    with pytest.raises(AssertionError, match="shared"):
        kv.reserve(Step([Grant(child, 7, 8, Prefix(8, list(parent.blocks)))]))


def test_plan_release_counts_what_only_these_tables_hold() -> None:
    kv = make()
    parent, _ = serve(kv, range(12))
    child, _ = serve(kv, [*range(8), 70])
    assert kv.plan_release([parent]) == 1
    assert kv.plan_release([child]) == 1
    assert kv.plan_release([parent, child]) == 4
    assert kv.n_held == 4, "asking changes nothing"


def test_released_tables_make_room_in_the_same_step() -> None:
    kv = make(num_blocks=2)
    old, _ = serve(kv, range(8))
    table = kv.new_table([90] * 8)
    assert kv.n_available == 0
    kv.reserve(Step([Grant(table, 0, 8, Prefix())], releases=[old]))
    assert len(table.blocks) == 2
    kv.check()
