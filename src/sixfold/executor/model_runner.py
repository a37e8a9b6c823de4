"""The native backend: a step's rows become flat arrays, the recorded program runs over them, the sampler draws.

A step's tokens stand row after row:

    rows        | row 0: counts[0] tokens | row 1: counts[1] tokens | ...
    tokens      [0, T)  token_ids, positions, row_of_token
    logits for  the last token of every row with SAMPLE, then every token of rows with PROMPT_LOGPROBS whose successor
                is part of the prompt; no other token meets the head
"""

from __future__ import annotations

import os

import numpy as np
import numpy.typing as npt

from sixfold.config import Config
from sixfold.errors import DoesNotFit
from sixfold.executor.grammar_vocabulary import read_vocabulary
from sixfold.executor.native import kernels, models
from sixfold.executor.slots import Slots
from sixfold.executor.step_arrays import Int32, StepArrays
from sixfold.executor.worker import Drawn
from sixfold.messages import PROMPT_LOGPROBS, SAMPLE, RowStatus, SlotAdmit, TokenLogprobs, WorkerFacts
from sixfold.model_file import open_model
from sixfold.sampler import Sampler
from sixfold.sampler.kernels import find_native
from sixfold.structured import MatcherFactory

__all__ = ["NativeBackend"]

Indices = npt.NDArray[np.intp]


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
        self._logits = np.empty((max_slots, model.vocab), np.float32)
        self._absent = np.array(model.config.absent_ids, np.intp)
        self.facts = WorkerFacts(
            os.getpid(),
            config.cache.num_kv_blocks,
            max_slots,
            config.model.max_model_len,
            self._pool.isa,
            model.bytes_weights,
            self._kv.n_bytes,
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

    def free(self, slot: int) -> None:
        self._sampler.free(slot)
        self._prompt_logprobs.pop(slot, None)

    def admit(self, admit: SlotAdmit) -> None:
        self._sampler.admit(admit.slot, admit)
        if admit.prompt_logprobs is not None:
            self._prompt_logprobs[admit.slot] = admit.prompt_logprobs

    def copy_blocks(self, copies: Int32) -> None:
        self._kv.copy_blocks(np.ascontiguousarray(copies))

    def run(self, step: StepArrays, slots: Slots) -> Drawn:
        rows = np.arange(step.n_rows, dtype=np.int32)
        ends = np.cumsum(step.counts, dtype=np.int32)
        row_of_token = np.repeat(rows, step.counts)
        n_tokens = len(row_of_token)
        positions = np.arange(n_tokens, dtype=np.int32) + (step.starts + step.counts - ends)[row_of_token]
        token_ids = slots.tokens[step.slots[row_of_token], positions]

        sampled = np.flatnonzero(step.flags & SAMPLE)
        scored = self._scored_tokens(step, slots, row_of_token, positions)
        wants_logits = self._sampler.rows_need_logits(step.slots[sampled])
        if len(self._absent):
            wants_logits[:] = True  # the program's argmax knows no forbidden ids
        greedy = np.concatenate([~wants_logits, np.zeros(len(scored), np.bool_)]).astype(np.uint8)
        out_ids = np.empty(len(greedy), np.int32)
        out_nan = np.empty(len(greedy), np.uint8)
        logits = self._logit_rows(len(greedy) - int(greedy.sum()))
        self._sampler.begin(step.slots[sampled[wants_logits]])
        self._program.run(
            token_ids,
            positions,
            row_of_token,
            np.ascontiguousarray(step.slots),
            slots.block_table,
            np.concatenate([ends[sampled] - 1, scored]).astype(np.int32),
            greedy,
            out_ids,
            out_nan,
            logits,
        )
        logits[:, self._absent] = -np.inf
        drawn = Drawn(np.full(step.n_rows, -1, np.int32), np.zeros(step.n_rows, np.int32))
        self._draw(step, sampled, np.flatnonzero(wants_logits), out_ids, out_nan, logits, drawn)
        if len(scored):
            self._score(step, slots, row_of_token, positions, scored, logits, drawn)
        return drawn

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

    def _scored_tokens(self, step: StepArrays, slots: Slots, row_of_token: Int32, positions: Int32) -> Indices:
        """Tokens whose successor is a prompt token that is to be scored."""
        if not self._prompt_logprobs:
            return np.zeros(0, np.intp)
        scores = (step.flags & PROMPT_LOGPROBS) != 0
        return np.flatnonzero(scores[row_of_token] & (positions + 1 < slots.n_prompt[step.slots][row_of_token]))

    def _draw(
        self,
        step: StepArrays,
        sampled: Indices,
        drawing: Indices,
        out_ids: Int32,
        out_nan: npt.NDArray[np.uint8],
        logits: npt.NDArray[np.float32],
        drawn: Drawn,
    ) -> None:
        """Tokens of the rows with SAMPLE: the program's argmax for greedy ones, the sampler's draw for the rest.

        Args:
            drawing: indices into `sampled` whose logits were written, in the order of the logits.
        """
        if not len(sampled):
            return
        slots = step.slots[sampled]
        ids = out_ids[: len(sampled)]
        status = np.where(out_nan[: len(sampled)] != 0, RowStatus.NAN_LOGITS, RowStatus.OK)
        if len(drawing):
            draws = self._sampler.sample(
                slots[drawing], logits[: len(drawing)], (step.starts + step.counts)[sampled[drawing]]
            )
            ids[drawing], status[drawing] = draws.token_ids, draws.status
            drawn.logprobs = {int(sampled[drawing[i]]): entry for i, entry in draws.logprobs.items()}
        self._sampler.observe(slots, ids)
        drawn.token_ids[sampled] = ids
        drawn.status[sampled] = status

    def _score(
        self,
        step: StepArrays,
        slots: Slots,
        row_of_token: Int32,
        positions: Int32,
        scored: Indices,
        logits: npt.NDArray[np.float32],
        drawn: Drawn,
    ) -> None:
        """Log-probabilities of the prompt tokens that follow the scored ones; their logits are the last rows."""
        logits = logits[len(logits) - len(scored) :]
        for row in np.flatnonzero(step.flags & PROMPT_LOGPROBS):
            slot = int(step.slots[row])
            mine = np.flatnonzero(row_of_token[scored] == row)
            targets = slots.tokens[slot, positions[scored[mine]] + 1]
            entries: list[TokenLogprobs] = []
            if len(mine):
                rows = logits[mine[0] : mine[-1] + 1]
                entries = self._sampler.score(rows, targets, self._prompt_logprobs[slot])
            drawn.prompt_logprobs[int(row)] = entries
