"""Ways to break the server, to see that the simulation notices: `python -m tests.mutations`.

Each mutation takes away one thing that some promise rests on, while the program runs; no file is changed. It is
*caught* when a seed raises. One that no seed catches is a hole in the simulation, and ends the command with status 1.
`tests/property/test_server_simulation.py` runs those that are noticed soon.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
import time
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import msgspec
import pytest
from tests.server_simulation import run_seed

from sixfold.detokenizer.output import OutputProcessor
from sixfold.engine.client import EngineClient
from sixfold.engine.engine_process import EngineServer
from sixfold.engine.quarantine import Quarantine
from sixfold.engine.replay import Replay
from sixfold.executor.worker import Worker
from sixfold.kv_cache import Journal, manager, token_chain
from sixfold.kv_cache.block_pool import BlockPool
from sixfold.kv_cache.journal import NO_SALT
from sixfold.kv_cache.manager import KVCacheManager
from sixfold.kv_cache.prefix_index import PrefixIndex
from sixfold.kv_cache.token_chain import TokenChain
from sixfold.messages import Abort, Admitted, TokenDelta
from sixfold.scheduler import deltas, register, scheduler, slots
from sixfold.scheduler.scheduler import Scheduler
from sixfold.transport import codecs

Mutation = Callable[[pytest.MonkeyPatch], None]


# ---- steps, blocks, names --------------------------------------------------------------------------------------------


def frees_blocks_a_step_early(patch: pytest.MonkeyPatch) -> None:
    release = Scheduler._pass_fence

    def early(self: Scheduler, sequence: Any) -> None:
        fence, sequence.last_step = sequence.last_step, -1
        release(self, sequence)
        sequence.last_step = fence

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
    """A block keeps its name while somebody else fills it, until it gets another."""
    extend, seal = KVCacheManager._extend, PrefixIndex.seal

    def keep(self: KVCacheManager, *args: Any) -> None:
        forget, self._index.forget = self._index.forget, lambda _: None  # type: ignore[method-assign]
        try:
            extend(self, *args)
        finally:
            self._index.forget = forget  # type: ignore[method-assign]

    def rename(self: PrefixIndex, block: Any, name: Any, parent: Any) -> Any:
        self.forget(block)
        return seal(self, block, name, parent)

    patch.setattr(KVCacheManager, "_extend", keep)
    patch.setattr(PrefixIndex, "seal", rename)
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

    def early(self: Scheduler, plan: Any, *args: Any) -> Any:
        step = launch(self, plan, *args)
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
                self._journal.write(block, msgspec.structs.replace(sealed, parent=NO_SALT, digest=name))
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


# ---- keys and epochs -------------------------------------------------------------------------------------------------


def _without(patch: pytest.MonkeyPatch, *fields: str) -> None:
    """A result is matched without these of its keys."""
    check = scheduler.check_result

    def lenient(result: Any, launched: Any, engine_epoch: int) -> Any:
        asked = {"engine_epoch": engine_epoch}
        if launched is not None:
            names = ("step_id", "slots", "generations", "incarnations")
            asked |= {name: getattr(launched.message, name) for name in names}
        asked = {name: asked[name] for name in fields if name in asked}
        return check(msgspec.structs.replace(result, **asked), launched, engine_epoch)

    patch.setattr(scheduler, "check_result", lenient)


def takes_results_of_another_engine(patch: pytest.MonkeyPatch) -> None:
    _without(patch, "engine_epoch")


def takes_results_of_another_step(patch: pytest.MonkeyPatch) -> None:
    _without(patch, "step_id")


def takes_results_of_another_slot(patch: pytest.MonkeyPatch) -> None:
    _without(patch, "slots")


def takes_results_of_another_generation(patch: pytest.MonkeyPatch) -> None:
    _without(patch, "generations")


def takes_results_of_another_incarnation(patch: pytest.MonkeyPatch) -> None:
    _without(patch, "incarnations")


def executes_steps_of_another_engine(patch: pytest.MonkeyPatch) -> None:
    def follow(self: Worker, step: Any) -> None:
        self._epoch, self._last_step = step.engine_epoch, step.step_id

    patch.setattr(Worker, "_check_order", follow)


def takes_outputs_of_another_engine(patch: pytest.MonkeyPatch) -> None:
    receive = EngineClient._on_outputs

    def any_epoch(self: EngineClient, received: Any) -> None:
        batch = codecs.decode_output(received.body)
        body = codecs.encode(msgspec.structs.replace(batch, engine_epoch=self.engine_epoch))
        receive(self, msgspec.structs.replace(received, body=body))

    patch.setattr(EngineClient, "_on_outputs", any_epoch)


def keeps_the_incarnation(patch: pytest.MonkeyPatch) -> None:
    requeue = Scheduler._requeue

    def same(self: Scheduler, sequence: Any) -> None:
        sequence.incarnation -= 1
        requeue(self, sequence)

    patch.setattr(Scheduler, "_requeue", same)


def frees_slots_before_the_fence(patch: pytest.MonkeyPatch) -> None:
    close = Scheduler._close

    def early(self: Scheduler, sequence: Any, reason: Any) -> None:
        if sequence.slot >= 0 and sequence.last_step >= self._n_committed:
            self._slots.free(sequence.slot, sequence.generation)
            sequence.slot = -1
        close(self, sequence, reason)

    patch.setattr(Scheduler, "_close", early)


# ---- tokens and ends -------------------------------------------------------------------------------------------------


def loses_a_token(patch: pytest.MonkeyPatch) -> None:
    deliver = EngineServer._deliver

    def without(self: EngineServer, items: list[TokenDelta]) -> None:
        deliver(self, [d for d in items if d.finish is not None or (d.uid + d.first_index) % 7])

    patch.setattr(EngineServer, "_deliver", without)


def takes_repeated_tokens(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(OutputProcessor, "_overlap", lambda self, choice, delta: 0)


def records_too_little(patch: pytest.MonkeyPatch) -> None:
    """What an API process keeps of a choice, for the next engine, lags by a token."""
    take = Replay.take

    def short(self: Replay, delta: TokenDelta) -> None:
        take(self, delta)
        if delta.first_index % 5 == 4:
            self._tokens[delta.choice].pop()

    patch.setattr(Replay, "take", short)


def replays_what_has_ended(patch: pytest.MonkeyPatch) -> None:
    again = Replay.again

    def whole(self: Replay, open_choices: Any, *, admitted: bool) -> Any:
        return again(self, range(self.request.n), admitted=admitted)

    patch.setattr(Replay, "again", whole)


def replays_nothing(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(EngineClient, "_replay_all", lambda self: None)


def ignores_aborts(patch: pytest.MonkeyPatch) -> None:
    handle = EngineServer._handle

    def deaf(self: EngineServer, peer: Any, body: bytes) -> None:
        if not isinstance(codecs.decode_to_engine(body), Abort):
            handle(self, peer, body)

    patch.setattr(EngineServer, "_handle", deaf)


def ignores_stop_strings(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Scheduler, "finish_at", lambda self, uid, choice, n_tokens: None)


def loses_logprobs_of_resumed_choices(patch: pytest.MonkeyPatch) -> None:
    def without(sequence: Any, token_id: int, logprobs: Any, finish: Any) -> TokenDelta:
        return deltas.token_delta(sequence, token_id, None if sequence.incarnation else logprobs, finish)

    patch.setattr(scheduler, "token_delta", without)


def pools_a_prompt_twice(patch: pytest.MonkeyPatch) -> None:
    """A chunk of an embedding's prompt begins with the last token of the chunk before."""
    read_prompt = Scheduler._read_prompt

    def again(self: Scheduler, row: Any) -> None:
        if row.sequence.request.message.pooling == "mean" and row.start and row.prefix is None:
            row.start -= 1
        read_prompt(self, row)

    patch.setattr(Scheduler, "_read_prompt", again)


# ---- blocks ----------------------------------------------------------------------------------------------------------


def trusts_blocks_of_failed_rows(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(KVCacheManager, "distrust", lambda self, table: None)


def keeps_a_block_of_the_preempted(patch: pytest.MonkeyPatch) -> None:
    requeue = Scheduler._requeue

    def hold(self: Scheduler, sequence: Any) -> None:
        if self._kv.n_free:
            self._kv._pool.take()
        requeue(self, sequence)

    patch.setattr(Scheduler, "_requeue", hold)


# ---- suspects --------------------------------------------------------------------------------------------------------


def tries_all_suspects_at_once(patch: pytest.MonkeyPatch) -> None:
    def any_time(self: Quarantine[Any]) -> Any:
        if not self._waiting:
            return None
        self.on_trial, suspect = self._waiting.popitem(last=False)
        return suspect

    patch.setattr(Quarantine, "next", any_time)


def never_clears_a_suspect(patch: pytest.MonkeyPatch) -> None:
    passed = Quarantine.passed

    def stubborn(self: Quarantine[Any], uid: int) -> None:
        if uid != self.on_trial:
            passed(self, uid)

    patch.setattr(Quarantine, "passed", stubborn)


def blames_at_the_first_crash(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Replay, "crashed", lambda self: True)


def dies_with_the_caller_of_a_suspect(patch: pytest.MonkeyPatch) -> None:
    def unguarded(self: EngineServer, peer: Any, suspect: Any) -> None:
        self._tell(peer, Admitted(suspect.uid))
        self._add(peer, suspect)

    patch.setattr(EngineServer, "_try", unguarded)


def trusts_wasted_rows(patch: pytest.MonkeyPatch) -> None:
    """A row that failed counts only where its choice is still open."""
    commit, distrust = Scheduler.commit, KVCacheManager.distrust

    def open_only(self: Scheduler, result: Any, now_s: float) -> Any:
        closed = [row.table for row in self._outstanding[0].rows if not row.sequence.is_open]
        patch.setattr(KVCacheManager, "distrust", lambda kv, table: table in closed or distrust(kv, table))
        return commit(self, result, now_s)

    patch.setattr(Scheduler, "commit", open_only)


MUTATIONS: list[Mutation] = [
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
    takes_results_of_another_engine,
    takes_results_of_another_step,
    takes_results_of_another_slot,
    takes_results_of_another_generation,
    takes_results_of_another_incarnation,
    executes_steps_of_another_engine,
    takes_outputs_of_another_engine,
    keeps_the_incarnation,
    frees_slots_before_the_fence,
    loses_a_token,
    takes_repeated_tokens,
    records_too_little,
    replays_what_has_ended,
    replays_nothing,
    ignores_aborts,
    ignores_stop_strings,
    loses_logprobs_of_resumed_choices,
    pools_a_prompt_twice,
    trusts_blocks_of_failed_rows,
    keeps_a_block_of_the_preempted,
    tries_all_suspects_at_once,
    never_clears_a_suspect,
    blames_at_the_first_crash,
    dies_with_the_caller_of_a_suspect,
    trusts_wasted_rows,
]


RARE = (drops_an_abort, ignores_aborts, dies_with_the_caller_of_a_suspect, trusts_wasted_rows, replays_what_has_ended)
"""Noticed by one seed in many hundreds: with the command, not by the tests."""


class Caught(NamedTuple):
    """The first seed that notices, and what it says."""

    seed: int
    fault: str


def hunt(mutation: Mutation, seeds: Iterable[int]) -> Caught | None:
    """Run the simulation, broken in this way, until a seed raises. None: none does.

    Raises:
        AttributeError, NameError, TypeError: the mutation itself is broken.
    """
    with pytest.MonkeyPatch.context() as patch:
        mutation(patch)
        for seed in seeds:
            try:
                run_seed(seed)
            except (AttributeError, NameError, TypeError):
                raise  # the mutation does not fit the server any more: it says nothing of the promise
            except Exception as error:  # noqa: BLE001 - whatever it is, it was noticed
                return Caught(seed, f"{type(error).__name__}: {error}".splitlines()[0])
    return None


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="mutations; default: all")
    parser.add_argument("--runs", type=int, default=2000, help="how many seeds each may take")
    parser.add_argument("--seed", type=int, default=1, help="the first one")
    given = parser.parse_args()
    n_missed, started_s = 0, time.process_time()
    chosen = [mutation for mutation in MUTATIONS if not given.names or mutation.__name__ in given.names]
    for mutation in chosen:
        with open(os.devnull, "w") as nowhere, contextlib.redirect_stderr(nowhere):
            caught = hunt(mutation, range(given.seed, given.seed + given.runs))
        n_missed += caught is None
        found = "NOT CAUGHT" if caught is None else f"{caught.seed - given.seed + 1:4d} seeds  {caught.fault}"
        print(f"{mutation.__name__:44s}{found}", flush=True)
    print(f"{len(chosen)} mutations, {n_missed} not caught, {time.process_time() - started_s:.0f} s of CPU")
    return 1 if n_missed else 0


if __name__ == "__main__":
    sys.exit(main())
