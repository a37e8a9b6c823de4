"""The native backend: a step's rows become flat arrays, the recorded program runs over them, the sampler draws.

A step's tokens stand row after row:

    rows        | row 0: counts[0] tokens | row 1: counts[1] tokens | ...
    tokens      [0, T)  token_ids, positions, row_of_token
    logits for  the last token of every row with SAMPLE, then every token of rows with PROMPT_LOGPROBS whose successor
                is part of the prompt; no other token meets the head
    hidden of   the tokens that an embedding is made of (pooling.py)
"""

from __future__ import annotations

import os

import numpy as np
import numpy.typing as npt

from sixfold.config import Config
from sixfold.errors import DoesNotFit
from sixfold.executor.grammar_vocabulary import read_vocabulary
from sixfold.executor.native import kernels, models
from sixfold.executor.pooling import Pools
from sixfold.executor.slots import Slots
from sixfold.executor.step_arrays import Int32, StepArrays
from sixfold.executor.worker import Drawn
from sixfold.messages import PROMPT_LOGPROBS, SAMPLE, SlotAdmit, WorkerFacts
from sixfold.model_file import open_model
from sixfold.observability.meter import Meter, now
from sixfold.observability.sites import WORKER_EMBED, WORKER_HEAD
from sixfold.sampler import Sampler
from sixfold.sampler.kernels import find_native
from sixfold.structured import MatcherFactory

__all__ = ["NativeBackend"]

Indices = npt.NDArray[np.intp]

NO_ROWS = np.zeros(0, np.intp)
NO_TOKENS = np.zeros(0, np.int32)


class NativeBackend:
    """Weights, KV memory, compute threads and the sampler of one worker."""

    def __init__(self, model: models.Model, config: Config, grammars: MatcherFactory | None = None) -> None:
        max_slots = config.scheduler.max_num_seqs
        self._model = model
        self._pool = model.pool
        self._kv = model.kv_cache(config.cache.num_kv_blocks, config.cache.kv_cache_dtype)
        self._program = model.program(self._kv, config.scheduler.max_num_batched_tokens)
        self._sampler = Sampler(max_slots, model.vocab, kernels=find_native(self._pool), grammars=grammars)
        self._prompt_logprobs: dict[int, int] = {}
        self._pools = Pools(model.config.hidden)
        self._logits = np.empty((max_slots, model.vocab), np.float32)
        self._no_logits = self._logits[:0]
        self._absent = np.array(model.config.absent_ids, np.intp)
        self._head_is_wider = len(self._absent) > 0
        """The program's argmax knows no absent ids: every row that samples is drawn."""
        self._all_slots = np.ones(max_slots, np.uint8)
        self.facts = WorkerFacts(
            os.getpid(),
            config.cache.num_kv_blocks,
            max_slots,
            config.model.max_model_len,
            self._pool.isa,
            model.bytes_weights,
            self._kv.n_bytes,
            model.config.hidden,
        )

    @classmethod
    def load(cls, config: Config) -> NativeBackend:
        """Load the model file of a resolved configuration.

        Raises:
            ModelFileError: the file cannot be used.
            DoesNotFit: the KV cache does not fit into memory.
        """
        file = open_model(config.model.model, quantize=config.model.quantization)
        pool = kernels.ThreadPool(config.executor.threads)
        model = models.load(
            file, pool, activations=config.executor.activations, max_positions=config.model.max_model_len
        )
        try:
            return cls(model, config, MatcherFactory(lambda: read_vocabulary(config, model.vocab)))
        except MemoryError as e:
            raise DoesNotFit(
                f"{config.cache.num_kv_blocks} KV blocks do not fit into memory", param="--num-kv-blocks"
            ) from e

    def count_times(self, meter: Meter) -> None:
        self._program.count_times(np.asarray(meter.counters(WORKER_EMBED, WORKER_HEAD)))

    def free(self, slot: int) -> None:
        self._sampler.free(slot)
        self._prompt_logprobs.pop(slot, None)
        self._pools.free(slot)

    def admit(self, admit: SlotAdmit) -> None:
        self._sampler.admit(admit.slot, admit)
        if admit.prompt_logprobs is not None:
            self._prompt_logprobs[admit.slot] = admit.prompt_logprobs
        self._pools.admit(admit)

    def copy_blocks(self, copies: Int32) -> None:
        self._kv.copy_blocks(np.ascontiguousarray(copies))

    def run(self, step: StepArrays, slots: Slots) -> Drawn:
        scored = self._scored_tokens(step, slots) if self._prompt_logprobs else {}
        n_scored = sum(map(len, scored.values())) if scored else 0
        # Between two steps the caches are cold: an array operation that can be left out is 10 us of a step's 3000.
        any_needed = self._sampler.any_logits_needed
        drawing = self._drawing(step) if any_needed or self._head_is_wider else NO_ROWS
        n_logits = len(drawing) + n_scored
        logits = self._logit_rows(n_logits) if n_logits else self._no_logits
        pooled = self._pools.tokens(step, slots) if self._pools else None
        hidden = np.empty((len(pooled), self._program.hidden), np.float32) if pooled is not None else None
        drawn = Drawn(np.empty(step.n_rows, np.int32), np.empty(step.n_rows, np.int32))
        self._sampler.begin(step.slots[drawing] if len(drawing) else ())
        began_ns = now()
        self._program.run_rows(
            step.columns,
            slots.state,
            slots.tokens,
            slots.block_table,
            self._sampler.logits_needed if not self._head_is_wider else self._all_slots,
            np.concatenate(list(scored.values())) if scored else NO_TOKENS,
            drawn.token_ids,
            drawn.status,
            logits,
            pooled,
            hidden,
        )
        drawn.forward_ns = began_ns, now()
        if self._head_is_wider:
            logits[:, self._absent] = -np.inf
        if len(drawing):
            self._draw(step, drawing, logits[: len(drawing)], drawn)
        else:
            self._sampler.finish()
        if any_needed:  # else there is no slot whose sampling tokens change
            self._sampler.observe(step.slots, drawn.token_ids)
        if scored:
            self._score(step, slots, scored, logits[len(drawing) :], drawn)
        if hidden is not None:
            self._pools.take(step, slots, hidden, drawn)
        return drawn

    def prepare(self) -> bool:
        return self._kv.give_memory(self._program.blocks_used) or self._sampler.prepare()

    def logits(self, token_ids: list[int], *, last: int = 0) -> npt.NDArray[np.float32]:
        """Raw logits [tokens, vocabulary] of one sequence, in steps of the budget: for reference checks, not for
        serving. It uses KV blocks from 0 on: on a worker that serves, their content is lost.

        Args:
            last: of this many tokens at the end alone; 0: of all.
        """
        n = len(token_ids)
        first = n - last if last else 0
        logits = np.empty((n - first, self._program.vocab), np.float32)
        table = np.arange(self.facts.num_blocks, dtype=np.int32)[np.newaxis]
        chunk = self._program.max_tokens
        for start in range(0, n, chunk):
            ids = np.array(token_ids[start : start + chunk], np.int32)
            count = len(ids)
            wanted = np.arange(max(0, first - start), count, dtype=np.int32)
            self._program.run(
                ids,
                np.arange(start, start + count, dtype=np.int32),
                np.zeros(count, np.int32),
                np.zeros(1, np.int32),
                table,
                wanted,
                np.zeros(len(wanted), np.uint8),
                np.empty(len(wanted), np.int32),
                np.empty(len(wanted), np.uint8),
                logits[max(0, start - first) : max(0, start + count - first)],
            )
        return logits

    def close(self) -> None:
        """Give back memory and threads: they belong to these objects. Idempotent; nothing runs afterwards."""
        self._sampler.close()
        for owner in ("_program", "_kv", "_model", "_pool", "_logits"):
            self.__dict__.pop(owner, None)

    def _logit_rows(self, n: int) -> npt.NDArray[np.float32]:
        """Room for the step's logits. A prompt that is scored needs more rows than there are slots: 268 MB for 256
        tokens of a large vocabulary, which are not kept."""
        return self._logits[:n] if n <= len(self._logits) else np.empty((n, self._logits.shape[1]), np.float32)

    def _drawing(self, step: StepArrays) -> Indices:
        """Rows with SAMPLE that the sampler draws for; the others have the program's argmax."""
        sampled = (step.flags & SAMPLE) != 0
        if not self._head_is_wider:
            sampled &= self._sampler.logits_needed[step.slots] != 0
        return np.flatnonzero(sampled)

    def _scored_tokens(self, step: StepArrays, slots: Slots) -> dict[int, Int32]:
        """Row -> its tokens, as indices into the step's, whose successor is a prompt token that is to be scored."""
        scored: dict[int, Int32] = {}
        ends = np.cumsum(step.counts)
        for row in np.flatnonzero(step.flags & PROMPT_LOGPROBS).tolist():
            count = int(step.counts[row])
            n = min(count, int(slots.n_prompt[step.slots[row]]) - 1 - int(step.starts[row]))
            first = int(ends[row]) - count
            scored[row] = np.arange(first, first + max(0, n), dtype=np.int32)
        return scored

    def _draw(self, step: StepArrays, rows: Indices, logits: npt.NDArray[np.float32], drawn: Drawn) -> None:
        """The sampler's tokens of `rows`, in the order of the logits."""
        positions = (step.starts + step.counts)[rows]
        draws = self._sampler.sample(step.slots[rows], logits, positions)
        drawn.token_ids[rows], drawn.status[rows] = draws.token_ids, draws.status
        drawn.logprobs = {int(rows[i]): entry for i, entry in draws.logprobs.items()}

    def _score(
        self,
        step: StepArrays,
        slots: Slots,
        scored: dict[int, Int32],
        logits: npt.NDArray[np.float32],
        drawn: Drawn,
    ) -> None:
        """Log-probabilities of the prompt tokens that follow the scored ones."""
        at = 0
        for row, tokens in scored.items():
            slot, first = int(step.slots[row]), int(step.starts[row]) + 1
            targets = slots.tokens[slot, first : first + len(tokens)]
            rows = logits[at : at + len(tokens)]
            at += len(tokens)
            drawn.prompt_logprobs[row] = (
                self._sampler.score(rows, targets, self._prompt_logprobs[slot]) if len(tokens) else []
            )
