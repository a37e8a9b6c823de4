"""The decision: who runs in the next step, how many tokens each, and who loses its place. Changes nothing.

Tokens:

    1. Rows that need one token (*decode*) come first. If they are more than the budget allows, they take turns, the
       least recently served first.
    2. Rows that need many (*prefill*) share what is left: chunks of running prompts, and waiting choices that fit now.
       Who goes first changes every other step: in turn the policy's choice, the one with the fewest tokens left, the
       oldest, and again the one with the fewest left. A short prompt does not wait behind a long one, and the oldest
       gets a quarter of the prefill budget at least (half of it where the policy goes by age), until it is done.
    3. Neither side starves: while there is prefill to do, a quarter of the budget is kept for it (for budgets below 4:
       one token in every other step), and decode has the rest.

Blocks. A row that lacks one takes a free or retained block; else it waits for blocks of choices that are leaving; else
the newest running choice of lower rank loses its place (*preemption*, by recompute). A choice never evicts an older one
nor itself: it waits, keeping its blocks. So the oldest always gets on, and since it fits the pool alone (admission.py),
every choice ends.

A waiting choice is admitted when its whole known length fits beside what running prompts still need and one spare block
per running choice: then nobody is preempted for about a block's worth of steps. The head of the queue is never skipped,
but for the one step in which other grammars than its own are built.
"""

from __future__ import annotations

from collections.abc import Callable, Set
from operator import attrgetter
from typing import Any

from sixfold.kv_cache import BlockTable, KVCacheManager, Prefix
from sixfold.observability.history import Reason
from sixfold.scheduler.plan import Plan, Row
from sixfold.scheduler.sequence import Key, Sequence, State
from sixfold.scheduler.slots import SlotTable
from sixfold.scheduler.waiting import WaitingQueue

__all__ = ["Planner"]

MAX_SCORED_TOKENS = 256
"""Of prompts whose log-probabilities are wanted, in one step: the worker holds a row of logits for each, which are
268 MB with a vocabulary of 262144."""

MAX_GRAMMAR_CHARS = 8_192
"""Of the grammars of choices that are admitted in one step, unless it is a single one: the step waits until the worker
has built them, for up to 0.1 s (`sixfold.structured.check`)."""
MIN_GRAMMAR_CHARS = 1_024
"""What a short grammar counts as."""

_by_key = attrgetter("key")
_by_last_turn = attrgetter("last_turn")


def _by_tokens_left(sequence: Sequence) -> tuple[int, int, Key]:
    return sequence.request.urgency, sequence.n_pending, sequence.rank


def _by_age(sequence: Sequence) -> tuple[int, int]:
    return sequence.key[1:]


_TURNS: tuple[Callable[[Sequence], Any], ...] = (_by_key, _by_tokens_left, _by_age, _by_tokens_left)
"""Who goes first among prompts. Each for two steps: with a tiny budget only every other step is for prompts."""


def _grammar_chars(sequence: Sequence) -> int:
    """What building the grammar in the worker counts as, with the tokens that it follows through again."""
    grammar = sequence.request.message.sampling.grammar
    return max(len(grammar), MIN_GRAMMAR_CHARS) + 4 * (len(sequence.token_ids) - sequence.n_prompt) if grammar else 0


class _Draft:
    """A plan in the making, with what is left to give away."""

    def __init__(self, step_id: int, n_committed: int, n_tokens: int, n_blocks: int) -> None:
        self.plan = Plan(step_id)
        self.n_committed = n_committed
        self.n_tokens_left = n_tokens
        self.n_scored_left = MAX_SCORED_TOKENS
        self.n_grammar_left = MAX_GRAMMAR_CHARS
        self.n_blocks_left = n_blocks
        self.n_blocks_coming = 0
        """Blocks of leaving sequences that nobody waits for yet."""
        self.leaving: list[BlockTable] | None = None
        """Tables that will be released soon; None until a row lacks a block."""
        self.prefixes: dict[Sequence, tuple[Prefix, Sequence | None]] = {}


class Planner:
    """Reads the scheduler's collections; writes nothing but the plan that it returns.

    Args:
        running: RUNNING sequences, sorted by rank.
        draining: PREEMPTING and CLOSING sequences: their blocks come back at their fence.
        max_running: bound on `running`.
        max_tokens: token budget of a step.
    """

    def __init__(
        self,
        kv_cache: KVCacheManager,
        *,
        running: list[Sequence],
        draining: Set[Sequence],
        queue: WaitingQueue,
        slots: SlotTable,
        max_running: int,
        max_tokens: int,
    ) -> None:
        self._kv = kv_cache
        self._running = running
        self._draining = draining
        self._queue = queue
        self._slots = slots
        self._max_running = max_running
        self._max_tokens = max_tokens
        self.waits_for = Reason.STEP
        """Why the latest plan leaves somebody in the queue, if it does."""

    def plan(self, step_id: int, n_committed: int) -> Plan | None:
        """The next step; None when no row can run now.

        Args:
            n_committed: steps from this one on are outstanding.
        """
        self.waits_for = Reason.STEP
        decode: list[Sequence] = []
        prefill: list[Sequence] = []
        for sequence in self._running:
            n_pending = sequence.n_known - sequence.n_planned
            if n_pending == 1:
                decode.append(sequence)
            elif n_pending:
                prefill.append(sequence)
        draft = _Draft(step_id, n_committed, self._max_tokens, self._kv.n_available)
        floor = self._prefill_floor(step_id) if prefill or self._n_places() else 0
        decode_later = self._serve_decode(draft, decode, self._max_tokens - floor)
        self._serve_prefill(draft, prefill)
        self._serve_decode(draft, decode_later, draft.n_tokens_left)
        return draft.plan if draft.plan.rows else None

    def _prefill_floor(self, step_id: int) -> int:
        """Tokens that decode leaves to prefill."""
        return self._max_tokens // 4 or step_id % 2

    def _n_places(self) -> int:
        """Waiting choices that could get a slot now."""
        return min(len(self._queue), self._max_running - len(self._running), self._slots.n_free)

    # ---- rows -------------------------------------------------------------------------------------------------------

    def _serve_decode(self, draft: _Draft, sequences: list[Sequence], n_rows_max: int) -> list[Sequence]:
        """One token each, at most `n_rows_max`. Returns those whose turn comes later."""
        if len(sequences) > n_rows_max:
            sequences = sorted(sequences, key=_by_last_turn)
        rows, preempted, block_size = draft.plan.rows, draft.plan.preempted, self._kv.block_size
        n_rows_before = len(rows)
        n_rows_end = n_rows_before + n_rows_max
        later: list[Sequence] = []
        for index, sequence in enumerate(sequences):
            if len(rows) == n_rows_end:
                later = sequences[index:]
                break
            if preempted and sequence in preempted:
                continue
            start, table = sequence.n_planned, sequence.table
            if start == len(table.blocks) * block_size:
                if not self._find_block(draft, sequence):
                    continue
                draft.n_blocks_left -= 1
            rows.append(Row(table, start, sequence.n_known, sequence=sequence))
        draft.n_tokens_left -= len(rows) - n_rows_before
        return later

    def _serve_prefill(self, draft: _Draft, running: list[Sequence]) -> None:
        candidates = running + self._admissible(draft, running)
        if len(candidates) > 1:
            candidates.sort(key=_TURNS[draft.plan.step_id // 2 % len(_TURNS)])
        for sequence in candidates:
            if draft.n_tokens_left == 0:
                self.waits_for = Reason.BUDGET
                break
            if sequence.state is State.RUNNING:
                self._serve_chunk(draft, sequence)
            elif not draft.plan.preempted:
                # Never give a place away in the step that takes one: it would be the next to be taken.
                self._serve_admission(draft, sequence)

    def _serve_chunk(self, draft: _Draft, sequence: Sequence) -> None:
        """The next part of a running prompt, cut to the tokens and blocks that are left."""
        n_tokens = self._n_tokens_for(draft, sequence)
        if sequence in draft.plan.preempted or not n_tokens:
            return
        start, n_blocks = sequence.n_planned, len(sequence.table.blocks)
        if start == n_blocks * self._kv.block_size and not self._find_block(draft, sequence):
            return
        n_room = (n_blocks + draft.n_blocks_left) * self._kv.block_size - start
        end = start + min(sequence.n_pending, n_tokens, n_room)
        self._add_row(draft, Row(sequence.table, start, end, sequence=sequence), self._kv.blocks_for(end) - n_blocks)

    def _serve_admission(self, draft: _Draft, sequence: Sequence) -> None:
        n_tokens = self._n_tokens_for(draft, sequence)
        n_grammar = _grammar_chars(sequence)
        if not n_tokens or draft.n_grammar_left < min(n_grammar, MAX_GRAMMAR_CHARS):
            return
        draft.n_grammar_left -= n_grammar
        prefix, parent = self._prefix(draft, sequence)
        start = prefix.n_tokens
        end = min(sequence.n_pending, start + n_tokens)
        n_blocks = self._kv.blocks_for(end) - len(prefix.blocks) + prefix.n_idle
        row = Row(sequence.table, start, end, prefix, sequence=sequence, fork_parent=parent)
        self._add_row(draft, row, n_blocks)

    @staticmethod
    def _n_tokens_for(draft: _Draft, sequence: Sequence) -> int:
        """What the step has left for a prompt."""
        if sequence.prompt_logprobs is None:
            return draft.n_tokens_left
        return min(draft.n_tokens_left, draft.n_scored_left)

    @staticmethod
    def _add_row(draft: _Draft, row: Row, n_blocks: int) -> None:
        draft.plan.rows.append(row)
        if row.sequence.prompt_logprobs is not None:
            draft.n_scored_left -= row.end - row.start
        draft.n_tokens_left -= row.end - row.start
        draft.n_blocks_left -= n_blocks
        assert draft.n_tokens_left >= 0 and draft.n_blocks_left >= 0 and row.end > row.start

    # ---- admission --------------------------------------------------------------------------------------------------

    def _admissible(self, draft: _Draft, prefilling: list[Sequence]) -> list[Sequence]:
        """The head of the queue, as far as slots and blocks reach."""
        n_places = self._n_places()
        if n_places <= 0 or draft.plan.preempted:
            if self._queue:
                self.waits_for = Reason.BLOCKS if draft.plan.preempted else Reason.SLOTS
            return []
        blocks_for = self._kv.blocks_for
        n_promised = sum(blocks_for(s.n_known) - len(s.table.blocks) for s in prefilling)
        n_spare = len(self._running)
        n_blocks = draft.n_blocks_left - n_promised - n_spare
        found: list[Sequence] = []
        for sequence in self._queue:
            if n_blocks <= 0:
                self.waits_for = Reason.BLOCKS
                break
            n_needed = blocks_for(sequence.n_known)
            if not found:
                # Worth an exact look. For those behind it the bound without reuse will do: they get theirs as the head.
                prefix, _ = self._prefix(draft, sequence)
                n_needed += prefix.n_idle - len(prefix.blocks)
            n_blocks -= n_needed
            if n_blocks < 0:
                self.waits_for = Reason.BLOCKS
                break
            found.append(sequence)
            if len(found) == n_places:
                self.waits_for = Reason.SLOTS
                break
            n_blocks -= 1
        return found

    def _prefix(self, draft: _Draft, sequence: Sequence) -> tuple[Prefix, Sequence | None]:
        """Where the first tokens of a waiting choice come from, and the choice whose block is copied, if one is."""
        known = draft.prefixes.get(sequence)
        if known is None:
            known = draft.prefixes[sequence] = self._find_prefix(sequence)
        return known

    def _find_prefix(self, sequence: Sequence) -> tuple[Prefix, Sequence | None]:
        """From the cache or from another choice of the request, whichever gives more. One token is left to compute,
        since logits are needed; where the prompt's own are wanted, or the mean of its hidden states, all are."""
        if sequence.prompt_logprobs is not None or sequence.request.message.pooling == "mean":
            return Prefix(), None
        prefix = self._kv.plan_prefix(sequence.table, sequence.n_pending - 1)
        n_forked = sequence.n_prompt - 1
        if prefix.n_tokens < n_forked and len(sequence.request.sequences) > 1:
            for parent in sequence.request.sequences:
                if parent.state is State.RUNNING and parent.n_planned > n_forked:
                    fork = self._kv.plan_fork(parent.table, n_forked)
                    return fork, parent if fork.copy_from is not None else None
        return prefix, None

    # ---- preemption -------------------------------------------------------------------------------------------------

    def _find_block(self, draft: _Draft, sequence: Sequence) -> bool:
        """Whether `sequence` can have one more block in this step. If not, it waits, perhaps for one that is coming."""
        if draft.n_blocks_left:
            return True
        if draft.leaving is None:
            draft.leaving = [leaving.table for leaving in self._draining]
            draft.n_blocks_coming = self._kv.plan_release(draft.leaving)
        if not draft.n_blocks_coming:
            victims = self._victims(draft, draft.leaving, sequence)
            if self._preempt(draft, draft.leaving, victims):
                return True
        draft.n_blocks_coming = max(0, draft.n_blocks_coming - 1)
        return False

    def _victims(self, draft: _Draft, leaving: list[BlockTable], sequence: Sequence) -> list[Sequence]:
        """As few of the newest as free a block; none when all those newer than `sequence` together free none."""
        served = {row.sequence for row in draft.plan.rows}
        n_before = self._kv.plan_release(leaving)
        victims: list[Sequence] = []
        for victim in reversed(self._running):
            if victim.rank <= sequence.rank:
                return []
            if victim in served or victim in draft.plan.preempted:
                continue
            victims.append(victim)
            if self._kv.plan_release(leaving + [v.table for v in victims]) > n_before:
                return victims
        return []

    def _preempt(self, draft: _Draft, leaving: list[BlockTable], victims: list[Sequence]) -> int:
        """Put the victims into the plan. Returns how many blocks that gives to this step already."""
        releases = draft.plan.releases
        n_leaving, n_now = self._kv.plan_release(leaving), self._kv.plan_release(releases)
        for victim in victims:
            draft.plan.preempted.append(victim)
            leaving.append(victim.table)
            if victim.last_step < draft.n_committed:
                releases.append(victim.table)
        n_freed_now = self._kv.plan_release(releases) - n_now
        draft.n_blocks_left += n_freed_now
        draft.n_blocks_coming += self._kv.plan_release(leaving) - n_leaving - n_freed_now
        return n_freed_now
