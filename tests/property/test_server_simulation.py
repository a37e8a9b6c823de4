"""The whole server under seeds, and whether the simulation would notice: faults are planted, and must be found.

`python -m tests.simulation_run --runs 10000 --seed 1` runs more seeds.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

import msgspec
import pytest
from tests.server_simulation import run_seed

from sixfold.detokenizer.output import OutputProcessor
from sixfold.engine.engine_process import EngineServer
from sixfold.kv_cache import Journal, manager, token_chain
from sixfold.kv_cache.block_pool import BlockPool
from sixfold.kv_cache.journal import NO_SALT
from sixfold.kv_cache.manager import KVCacheManager
from sixfold.kv_cache.prefix_index import PrefixIndex
from sixfold.kv_cache.token_chain import TokenChain
from sixfold.messages import TokenDelta
from sixfold.scheduler import deltas, register, scheduler, slots
from sixfold.scheduler.scheduler import Scheduler

SEEDS = range(1, 401)
PLANTED_SEEDS_MAX = 300
REGRESSIONS: list[int] = []
"""Seeds that once broke a promise."""


def test_every_promise_holds_and_none_vacuously() -> None:
    came: Counter[str] = Counter()
    for seed in [*REGRESSIONS, *SEEDS]:
        try:
            came += run_seed(seed)
        except Exception as error:
            raise AssertionError(f"python -m tests.simulation_run --runs 1 --seed {seed}") from error
    for kind in ("preemptions", "cached_tokens", "wasted_rows", "mixed_steps", "stop", "length", "done"):
        assert came[kind] > 50, kind
    for kind in (
        "adopted blocks",
        "engine crashes",
        "engines replaced",
        "API deaths",
        "ClientGone",
        "DeadlineExceeded",
        "RequestFailed",
        "Overloaded",
        "forgotten caches",
    ):
        assert came[kind] > 10, kind


def test_a_run_follows_from_its_seed() -> None:
    assert [run_seed(seed) for seed in (3, 4, 5)] == [run_seed(seed) for seed in (3, 4, 5)]


# ---- planted faults --------------------------------------------------------------------------------------------------

Plant = Callable[[pytest.MonkeyPatch], None]


def frees_blocks_a_step_early(patch: pytest.MonkeyPatch) -> None:
    release = Scheduler._pass_fence

    def early(self: Scheduler, sequence: Any) -> None:
        n, sequence.n_steps_in_flight = sequence.n_steps_in_flight, 0
        release(self, sequence)
        sequence.n_steps_in_flight = n

    patch.setattr(Scheduler, "_pass_fence", early)


def forgets_the_generation(patch: pytest.MonkeyPatch) -> None:
    free = slots.SlotTable.free

    def same(self: slots.SlotTable, slot: int, generation: int) -> None:
        free(self, slot, generation)
        self._generations[slot] -= 1

    patch.setattr(slots.SlotTable, "free", same)


def keeps_rows_of_another_life(patch: pytest.MonkeyPatch) -> None:
    """A preempted choice goes on from where it was, over blocks that it no longer has."""
    requeue = Scheduler._requeue

    def same(self: Scheduler, sequence: Any) -> None:
        n_planned = sequence.n_planned
        requeue(self, sequence)
        sequence.n_planned = max(0, n_planned - 1)

    patch.setattr(Scheduler, "_requeue", same)


def counts_outputs_from_one(patch: pytest.MonkeyPatch) -> None:
    def shifted(*args: Any) -> TokenDelta:
        delta = deltas.token_delta(*args)
        return msgspec.structs.replace(delta, first_index=delta.first_index + 1)

    patch.setattr(scheduler, "token_delta", shifted)


def counts_the_end_from_one(patch: pytest.MonkeyPatch) -> None:
    def shifted(*args: Any) -> TokenDelta:
        delta = deltas.last_delta(*args)
        return msgspec.structs.replace(delta, first_index=delta.first_index + 1)

    patch.setattr(scheduler, "last_delta", shifted)


def shares_blocks_between_salts(patch: pytest.MonkeyPatch) -> None:
    init = TokenChain.__init__

    def unsalted(self: TokenChain, token_ids: Any, block_size: int, salt: bytes, *rest: Any) -> None:
        init(self, token_ids, block_size, bytes(32), *rest)

    patch.setattr(TokenChain, "__init__", unsalted)


def believes_the_hash(patch: pytest.MonkeyPatch) -> None:
    def match(self: PrefixIndex, chain: TokenChain, n_blocks_max: int) -> tuple[list[Any], list[int]]:
        blocks: list[Any] = []
        for index in range(n_blocks_max):
            block = self._by_digest.get(chain.name(index)[0])
            if block is None or block in blocks:
                break
            blocks.append(block)
        return blocks, [self._sealed[block].node for block in blocks]

    patch.setattr(PrefixIndex, "match", match)


def adopts_evicted_blocks(patch: pytest.MonkeyPatch) -> None:
    """A block keeps its name when somebody else gets it."""
    extend = KVCacheManager._extend

    def keep(self: KVCacheManager, row: Any) -> None:
        forget, self._index.forget = self._index.forget, lambda _: None  # type: ignore[method-assign]
        try:
            extend(self, row)
        finally:
            self._index.forget = forget  # type: ignore[method-assign]

    patch.setattr(KVCacheManager, "_extend", keep)
    patch.setattr(KVCacheManager, "check", lambda self: None)
    patch.setattr(PrefixIndex, "check", lambda self: None)
    patch.setattr(BlockPool, "share", lambda self, block: _share_any(self, block))


def _share_any(pool: BlockPool, block: Any) -> None:
    pool._idle.pop(block, None)
    if block in pool._free:
        pool._free.remove(block)
    pool.refs[block] += 1


def keeps_records_of_reused_blocks(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Journal, "clear", lambda self, block: None)


def records_what_is_not_computed(patch: pytest.MonkeyPatch) -> None:
    """The journal says of a block what it will hold when the step is done."""
    launch = Scheduler.launch

    def early(self: Scheduler, plan: Any) -> Any:
        step = launch(self, plan)
        for row in plan.rows:
            self._kv.seal(row.table, row.end // self._kv.block_size * self._kv.block_size)
        return step

    patch.setattr(Scheduler, "launch", early)


def adopts_what_lost_its_parent(patch: pytest.MonkeyPatch) -> None:
    """Whoever asks for the same tokens gets the block, whatever stood before them."""
    adopt = PrefixIndex.adopt

    def rootless(self: PrefixIndex, digest: Any) -> Any:
        assert self._journal is not None
        for block, sealed in list(self._journal.read()):
            if sealed is not None:
                name = token_chain.block_digest(digest, token_chain.root_digest(digest, NO_SALT), sealed.content)
                self._journal.write(block, sealed._replace(parent=NO_SALT, digest=name))
        return adopt(self, digest)

    patch.setattr(PrefixIndex, "adopt", rootless)
    patch.setattr(manager, "salt_name", lambda salt, key: NO_SALT)


def does_not_copy_the_shared_tail(patch: pytest.MonkeyPatch) -> None:
    reserve = KVCacheManager.reserve

    def without(self: KVCacheManager, plan: Any) -> None:
        reserve(self, plan)
        plan.copies.clear()

    patch.setattr(KVCacheManager, "reserve", without)


def writes_the_shared_tail(patch: pytest.MonkeyPatch) -> None:
    """A fork takes its parent's last block as it is, and nobody looks."""
    fork = KVCacheManager.plan_fork

    def shared(self: KVCacheManager, parent: Any, n_tokens: int) -> Any:
        prefix = fork(self, parent, n_tokens)
        if prefix.copy_from is None:
            return prefix
        return type(prefix)(prefix.n_tokens, [*prefix.blocks, prefix.copy_from], prefix.nodes)

    patch.setattr(KVCacheManager, "plan_fork", shared)


def seals_what_is_not_computed(patch: pytest.MonkeyPatch) -> None:
    seal = KVCacheManager.seal
    patch.setattr(KVCacheManager, "seal", lambda self, table, n: seal(self, table, n + self.block_size - 1))


def forgets_blocks_of_an_aborted_request(patch: pytest.MonkeyPatch) -> None:
    release = KVCacheManager.release

    def lose(self: KVCacheManager, table: Any) -> None:
        if len(table.blocks) > 2:
            table.blocks.pop()
        release(self, table)

    patch.setattr(KVCacheManager, "release", lose)


def loses_an_ending(patch: pytest.MonkeyPatch) -> None:
    deliver = EngineServer._deliver

    def without(self: EngineServer, items: Iterable[TokenDelta]) -> None:
        deliver(self, [d for d in items if d.finish is None or d.finish.reason != "length" or d.uid % 5])

    patch.setattr(EngineServer, "_deliver", without)


def tells_an_ending_twice(patch: pytest.MonkeyPatch) -> None:
    commit = Scheduler.commit

    def twice(self: Scheduler, *args: Any) -> list[TokenDelta]:
        found = commit(self, *args)
        return found + [d for d in found if d.finish is not None]

    patch.setattr(Scheduler, "commit", twice)


def drops_an_abort(patch: pytest.MonkeyPatch) -> None:
    """Of a process that is gone."""
    drop = EngineServer._drop

    def without(self: EngineServer, peer: Any) -> None:
        peer.uids.clear()
        drop(self, peer)

    patch.setattr(EngineServer, "_drop", without)


def loses_outputs_without_a_channel(patch: pytest.MonkeyPatch) -> None:
    flush = EngineServer._flush

    def losing(self: EngineServer) -> None:
        for peer in self._peers.values():
            if peer.outputs is None:
                peer.outbox.clear()
        flush(self)

    patch.setattr(EngineServer, "_flush", losing)


def dies_with_an_api_process(patch: pytest.MonkeyPatch) -> None:
    def die(self: EngineServer, peer: Any, fault: Exception) -> None:
        raise fault

    patch.setattr(EngineServer, "_drop_faulty", die)


def remembers_requests(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(EngineServer, "_forget", lambda self, uid: None)


def starts_a_replay_anew(patch: pytest.MonkeyPatch) -> None:
    enter = Scheduler._enter
    patch.setattr(
        Scheduler,
        "_enter",
        lambda self, message, limit: enter(self, msgspec.structs.replace(message, delivered=()), limit),
    )


def replays_without_the_last_token(patch: pytest.MonkeyPatch) -> None:
    enter = Scheduler._enter

    def shorter(self: Scheduler, message: Any, limit: int) -> Any:
        cut = tuple(tokens[:-1] for tokens in message.delivered)
        return enter(self, msgspec.structs.replace(message, delivered=cut), limit)

    patch.setattr(Scheduler, "_enter", shorter)


def counts_the_stop_string_wrong(patch: pytest.MonkeyPatch) -> None:
    text = OutputProcessor._text

    def later(self: OutputProcessor, choice: Any, *args: Any) -> Any:
        out, found = text(self, choice, *args)
        return out, None if found is None else found._replace(n_tokens=found.n_tokens - 1)

    patch.setattr(OutputProcessor, "_text", later)


def misses_deadlines(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(register.Register, "pop_expired", lambda self, now_s: iter(()))


PLANTS: list[Plant] = [
    frees_blocks_a_step_early,
    forgets_the_generation,
    keeps_rows_of_another_life,
    counts_outputs_from_one,
    counts_the_end_from_one,
    shares_blocks_between_salts,
    believes_the_hash,
    adopts_evicted_blocks,
    keeps_records_of_reused_blocks,
    records_what_is_not_computed,
    adopts_what_lost_its_parent,
    does_not_copy_the_shared_tail,
    writes_the_shared_tail,
    seals_what_is_not_computed,
    forgets_blocks_of_an_aborted_request,
    loses_an_ending,
    tells_an_ending_twice,
    drops_an_abort,
    loses_outputs_without_a_channel,
    dies_with_an_api_process,
    remembers_requests,
    starts_a_replay_anew,
    replays_without_the_last_token,
    counts_the_stop_string_wrong,
    misses_deadlines,
]


@pytest.mark.parametrize("plant", PLANTS, ids=lambda plant: plant.__name__)
def test_a_planted_fault_is_found(plant: Plant, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch)
    for seed in range(1, PLANTED_SEEDS_MAX + 1):
        try:
            run_seed(seed)
        except Exception:  # noqa: BLE001 - found
            return
    raise AssertionError(f"{PLANTED_SEEDS_MAX} seeds do not find it")
