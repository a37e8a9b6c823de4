"""A worker without a model that remembers what every KV position must hold.

It keeps its own slots, block tables and memory, built from nothing but the plans that it gets. Position p of a sequence
is written as a *tag*, a digest of all tokens up to p and of the salt (which rides in `script[0]`). Before a row writes,
all positions before it are compared with the tags that they must hold. So a block that was freed too early, adopted
wrongly, copied late or shared with another salt shows at once, as does a row that writes a shared block.

The next token is a function of those tags, the seed and the choice: a test can compute any request's tokens alone.
"""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass, field

from sixfold.messages import (
    EMBED,
    PROMPT_LOGPROBS,
    SAMPLE,
    GenerateRequest,
    RowStatus,
    SlotAdmit,
    StepPlan,
    StepResult,
    TokenLogprobs,
)

VOCAB = 29
END_ID = 0
_DRAW = 1
_FAULTY = -7
"""Tag of a position whose values are NaN."""


def extend_tags(tags: list[int], token_ids: list[int], salt: int) -> None:
    """Append the tags of `token_ids[len(tags):]`."""
    for token_id in token_ids[len(tags) :]:
        tags.append(hash((tags[-1] if tags else salt, token_id)))


def draw(tag: int, seed: int, choice: int, position: int) -> int:
    """The token at `position`, after a prefix with this tag."""
    return hash((tag, seed, choice, position, _DRAW)) % VOCAB


def expected_output(request: GenerateRequest, choice: int, capacity_tokens: int) -> tuple[list[int], str]:
    """(all output tokens, finish reason) of a choice that nobody disturbs; the prompt fits."""
    salt, fault_at = request.script
    limit = min(request.max_tokens, capacity_tokens - len(request.prompt_token_ids) + 1)
    tokens = list(request.prompt_token_ids)
    tags: list[int] = []
    output: list[int] = []
    while len(output) < limit:
        if len(output) == fault_at:
            return output, "error"
        extend_tags(tags, tokens, salt)
        token_id = draw(tags[-1], request.sampling.seed, choice, len(tokens))
        tokens.append(token_id)
        output.append(token_id)
        if token_id in request.sampling.stop_token_ids and len(output) > request.sampling.min_tokens:
            return output, "stop"
    return output, "length"


def embedding(tags: list[int], pooling: str) -> bytes:
    """What an embedding holds here: all tags, or the last."""
    return repr(tags if pooling == "mean" else tags[-1:]).encode()


_Key = tuple[int, int]
"""(slot, generation)"""


@dataclass
class _Use:
    """What an outstanding step refers to."""

    rows: dict[_Key, set[int]]
    """Blocks that each row reads or writes."""
    copies: list[tuple[int, set[_Key]]]
    """(source block, whose it was)"""
    failed: set[int] = field(default_factory=set)
    """Blocks of rows without usable logits."""

    def is_anothers(self, block: int, key: _Key) -> bool:
        """Whether the step needs a block that `key` is about to write, for somebody else."""
        by_row = any(block in blocks for other, blocks in self.rows.items() if other != key)
        return by_row or any(block == source and key not in owners for source, owners in self.copies)


@dataclass
class _Slot:
    admit: SlotAdmit
    token_ids: list[int]
    tags: list[int] = field(default_factory=list)
    table: list[int] = field(default_factory=list)
    pooled: list[int] = field(default_factory=list)
    """Tags of the positions that an embedding was made of."""

    @property
    def key(self) -> _Key:
        return self.admit.slot, self.admit.generation


class FakeWorker:
    """Executes plans in order at `submit`; results wait for `collect`."""

    def __init__(self, num_blocks: int, block_size: int, n_slots: int, pipeline_depth: int) -> None:
        self.block_size, self.n_slots, self.pipeline_depth = block_size, n_slots, pipeline_depth
        self.memory: list[list[int | None]] = [[None] * block_size for _ in range(num_blocks)]
        self.slots: dict[int, _Slot] = {}
        self.generations = Counter[int]()
        self.results: deque[StepResult] = deque()
        self.in_use: deque[_Use] = deque()
        """Per outstanding step, what it refers to."""
        self.next_step_id = 0
        self.distrusted: set[int] = set()
        """Blocks of failed rows whose engine knows, until they are written anew: nobody may be admitted on them."""
        self._told: set[int] = set()
        """The same, of results that the engine has taken and perhaps not looked at yet."""

    def submit(self, plan: StepPlan) -> None:
        assert plan.step_id == self.next_step_id and len(self.in_use) < self.pipeline_depth
        self.distrusted |= self._told
        self._told.clear()
        self.next_step_id += 1
        self._free(plan)
        self._admit(plan)
        self._set_tables(plan)
        use = _Use({self.slots[slot].key: set(self.slots[slot].table) for slot in plan.slots}, self._copy(plan))
        self._check_hazards(plan)
        self._check_trust(plan)
        self.in_use.append(use)
        self.results.append(self._run(plan))

    def collect(self) -> StepResult:
        """The oldest step's result, which the engine takes at once."""
        self.retire()
        return self.results.popleft()

    def retire(self) -> None:
        """The engine has the oldest step's result: what that step refers to is no longer in use."""
        self._told |= self.in_use.popleft().failed

    def attach(self) -> None:
        """Another engine has come: nothing is outstanding and no slot is taken. The memory stays as it is."""
        self.slots.clear()
        self.generations.clear()
        self.results.clear()
        self.in_use.clear()
        self._told.clear()
        self.next_step_id = 0

    def _free(self, plan: StepPlan) -> None:
        for slot, generation in plan.frees:
            assert self.slots.pop(slot).admit.generation == generation
            assert all((slot, generation) not in use.rows for use in self.in_use), "freed under an outstanding step"
            self.generations[slot] += 1

    def _admit(self, plan: StepPlan) -> None:
        for admit in plan.admits:
            assert 0 <= admit.slot < self.n_slots and admit.slot not in self.slots
            assert admit.generation == self.generations[admit.slot]
            slot = _Slot(admit, list(admit.token_ids))
            extend_tags(slot.tags, slot.token_ids, admit.script[0])
            self.slots[admit.slot] = slot

    def _set_tables(self, plan: StepPlan) -> None:
        assert sum(plan.table_counts) == len(plan.table_blocks)
        at = 0
        for row, start, count in zip(plan.table_rows, plan.table_starts, plan.table_counts, strict=True):
            table = self.slots[plan.slots[row]].table
            assert start == len(table), "a delta continues the table"
            table += plan.table_blocks[at : at + count]
            at += count

    def _copy(self, plan: StepPlan) -> list[tuple[int, set[_Key]]]:
        copies: list[tuple[int, set[_Key]]] = []
        for source, destination in plan.copies:
            owners = {slot.key for slot in self.slots.values() if source in slot.table}
            assert owners, "a block is copied from a live table"
            copies.append((source, owners))
            self.memory[destination] = list(self.memory[source])
            self.distrusted.discard(destination)
        return copies

    def _check_hazards(self, plan: StepPlan) -> None:
        """A block that a row writes is in no other table, and no outstanding step uses it for another sequence."""
        holders = Counter(block for slot in self.slots.values() for block in slot.table)
        for index, start, count in zip(plan.slots, plan.starts, plan.counts, strict=True):
            slot = self.slots[index]
            for block in slot.table[start // self.block_size : (start + count - 1) // self.block_size + 1]:
                assert holders[block] == 1, "a row writes a shared block"
                assert not any(use.is_anothers(block, slot.key) for use in self.in_use), "a block is reused too early"

    def _check_trust(self, plan: StepPlan) -> None:
        """Who comes now takes no block over from a row that failed, unless from somebody who still works on it."""
        starts = dict(zip(plan.slots, plan.starts, strict=True))
        new = {admit.slot for admit in plan.admits}
        held = {block for index, slot in self.slots.items() if index not in new for block in slot.table}
        for index in new:
            taken_over = self.slots[index].table[: starts[index] // self.block_size]
            assert not (self.distrusted - held).intersection(taken_over), "a block of a row that failed is found again"

    def _run(self, plan: StepPlan) -> StepResult:
        result = StepResult(
            engine_epoch=plan.engine_epoch,
            step_id=plan.step_id,
            slots=list(plan.slots),
            generations=list(plan.generations),
            incarnations=list(plan.incarnations),
            token_ids=[-1] * plan.n_rows,
            status=[RowStatus.OK] * plan.n_rows,
        )
        assert len(set(plan.slots)) == plan.n_rows, "one row per slot"
        for row in range(plan.n_rows):
            slot = self.slots[plan.slots[row]]
            assert (slot.admit.generation, slot.admit.incarnation) == (plan.generations[row], plan.incarnations[row])
            self._run_row(slot, plan.starts[row], plan.counts[row], plan.flags[row], row, result)
        return result

    def _run_row(self, slot: _Slot, start: int, count: int, flags: int, row: int, result: StepResult) -> None:
        end = start + count
        assert count > 0 and end <= len(slot.token_ids), "a row computes tokens that the worker knows"
        assert end <= len(slot.table) * self.block_size
        for position in range(start):
            assert self._read(slot, position) == slot.tags[position], f"position {position} holds something else"
        for position in range(start, end):
            self._write(slot, position, slot.tags[position])
        if flags & PROMPT_LOGPROBS:
            scored = range(start + 1, min(end + 1, slot.admit.n_prompt_original))
            result.prompt_logprobs[row] = [TokenLogprobs(-float(position), 0, [], []) for position in scored]
        if flags & EMBED:
            self._pool(slot, start, end, row, result)
        if not flags & SAMPLE:
            return
        assert end == len(slot.token_ids), "logits follow the last known token"
        if len(slot.token_ids) - slot.admit.n_prompt_original == slot.admit.script[1]:
            result.status[row] = RowStatus.NAN_LOGITS
            # Only the last position: what is before the prompt's end may belong to other choices too.
            self._write(slot, end - 1, _FAULTY)
            self.in_use[-1].failed.update(slot.table)
            # The worker draws nothing; rows in flight go on with any token.
            slot.token_ids.append(END_ID)
        else:
            token_id = draw(slot.tags[-1], slot.admit.sampling.seed, slot.admit.choice, end)
            slot.token_ids.append(token_id)
            result.token_ids[row] = token_id
            if slot.admit.sampling.logprobs is not None:
                result.logprobs[row] = TokenLogprobs(-float(end), 0, [], [])
        extend_tags(slot.tags, slot.token_ids, slot.admit.script[0])

    @staticmethod
    def _pool(slot: _Slot, start: int, end: int, row: int, result: StepResult) -> None:
        pooling, n_prompt = slot.admit.pooling, slot.admit.n_prompt_original
        assert pooling and end <= n_prompt
        if pooling == "mean":
            assert start == len(slot.pooled), "a mean is of every token, once"
        slot.pooled += slot.tags[start:end]
        if end == n_prompt:
            result.embeddings[row] = embedding(slot.tags[:n_prompt], pooling)
            assert embedding(slot.pooled, pooling) == result.embeddings[row]

    def _read(self, slot: _Slot, position: int) -> int | None:
        value = self.memory[slot.table[position // self.block_size]][position % self.block_size]
        is_after_fault = value == _FAULTY
        return slot.tags[position] if is_after_fault and self._has_failed(slot) else value

    @staticmethod
    def _has_failed(slot: _Slot) -> bool:
        return len(slot.token_ids) - slot.admit.n_prompt_original > slot.admit.script[1] >= 0

    def _write(self, slot: _Slot, position: int, tag: int) -> None:
        block, place = slot.table[position // self.block_size], position % self.block_size
        if place == 0:
            self.distrusted.discard(block)
        self.memory[block][place] = tag
