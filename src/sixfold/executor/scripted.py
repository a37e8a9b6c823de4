"""A backend without a model: the test, or a user who tests a client, says which tokens come out.

Where a slot has a script, its k-th drawn token is `script[k]`, then the end token. Without one, the token is a
function of every token before it, the seed and the choice: any two runs agree exactly when their contexts agree,
which is what tests of caching, preemption and replay need.

The scripted token is given to the real sampler as a logit far above the rest, so `logit_bias`, penalties,
`min_tokens` and log-probabilities behave as with a model. The entry `FAULT` in a script makes that row's logits NaN;
the others end processes (`text/script.py`).

A token's hidden state depends on its id alone: the embeddings of texts are the closer, the more tokens they share.
"""

from __future__ import annotations

import os
import threading
import time
import zlib

import numpy as np
import numpy.typing as npt

from sixfold.executor.pooling import Pools
from sixfold.executor.slots import Slots
from sixfold.executor.step_arrays import Int32, StepArrays
from sixfold.executor.worker import Drawn
from sixfold.messages import PROMPT_LOGPROBS, SAMPLE, SlotAdmit, TokenLogprobs, WorkerFacts
from sixfold.observability.meter import Meter
from sixfold.sampler import Sampler
from sixfold.structured import MatcherFactory
from sixfold.text.script import ENGINE_CRASH, FAULT, WORKER_CRASH, WORKER_HANG

__all__ = ["ScriptedBackend"]

_HIGH = 40.0  # exp(-40) times any vocabulary is far below one ulp of a probability: the draw is the script's


HIDDEN = 64
"""Numbers of a hidden state, and so of an embedding."""


class ScriptedBackend:
    """See the module's docstring.

    Args:
        n_vocab: number of token ids.
        printable: ids that the default stream draws from.
        end_id: token after the end of a script.
        script: for slots that bring none; empty is the default stream.
        step_s: seconds that a step takes, for tests that need a slow model.
        grammars: as the sampler's.
    """

    def __init__(
        self,
        *,
        n_vocab: int,
        printable: list[int],
        end_id: int,
        num_blocks: int,
        max_slots: int,
        max_model_len: int,
        script: tuple[int, ...] = (),
        step_s: float = 0.0,
        grammars: MatcherFactory | None = None,
    ) -> None:
        self.facts = WorkerFacts(os.getpid(), num_blocks, max_slots, max_model_len, "scripted", 0, 0, HIDDEN)
        self._n_vocab = n_vocab
        self._printable = printable
        self._end_id = end_id
        self._script = script
        self._step_s = step_s
        self._sampler = Sampler(max_slots, n_vocab, grammars=grammars)
        self._admits: dict[int, SlotAdmit] = {}
        self._pools = Pools(HIDDEN)

    def count_times(self, meter: Meter) -> None:
        """There are no operations to count."""

    def free(self, slot: int) -> None:
        self._admits.pop(slot, None)
        self._sampler.free(slot)
        self._pools.free(slot)

    def admit(self, admit: SlotAdmit) -> None:
        self._admits[admit.slot] = admit
        self._sampler.admit(admit.slot, admit)
        self._pools.admit(admit)

    def copy_blocks(self, copies: Int32) -> None:
        """There is no KV to copy."""

    def run(self, step: StepArrays, slots: Slots) -> Drawn:
        if self._step_s:
            time.sleep(self._step_s)
        drawn = Drawn(np.full(step.n_rows, -1, np.int32), np.zeros(step.n_rows, np.int32))
        rows = np.flatnonzero(step.flags & SAMPLE)
        if len(rows):
            self._draw(step, slots, rows, drawn)
        for row in np.flatnonzero(step.flags & PROMPT_LOGPROBS):
            drawn.prompt_logprobs[int(row)] = self._score(step, slots, int(row))
        pooled = self._pools.tokens(step, slots)
        if len(pooled):
            self._pools.take(step, slots, _hidden_states(_token_ids(step, slots)[pooled]), drawn)
        return drawn

    def prepare(self) -> bool:
        return self._sampler.prepare()

    def close(self) -> None:
        self._sampler.close()
        self._admits.clear()

    def _draw(self, step: StepArrays, slots: Slots, rows: npt.NDArray[np.intp], drawn: Drawn) -> None:
        sampled_slots = step.slots[rows]
        positions = step.starts[rows] + step.counts[rows]
        logits = np.zeros((len(rows), self._n_vocab), np.float32)
        crashes: list[int] = []
        for i, slot in enumerate(sampled_slots.tolist()):
            token = self._next(slots, slot, int(positions[i]))
            if token == WORKER_CRASH:
                raise RuntimeError("the script asked for a crash of the worker")
            if token == WORKER_HANG:
                threading.Event().wait()
            if token == FAULT:
                logits[i] = np.nan
            elif token == ENGINE_CRASH:
                crashes.append(i)
            else:
                logits[i, token] = _HIGH
        ids, status, logprobs = self._sampler.sample(sampled_slots, logits, positions)
        self._sampler.observe(sampled_slots, ids)
        ids[crashes] = -1  # without a status that says why: the engine does not survive it
        drawn.token_ids[rows] = ids
        drawn.status[rows] = status
        drawn.logprobs = {int(rows[i]): entry for i, entry in logprobs.items()}

    def _next(self, slots: Slots, slot: int, position: int) -> int:
        """The token that belongs at `position`."""
        admit = self._admits[slot]
        script = admit.script or self._script
        k = position - admit.n_prompt_original
        if script:
            return script[k] if k < len(script) else self._end_id
        context = slots.tokens[slot, :position].tobytes()
        start = (admit.sampling.seed * 31 + admit.choice) & 0xFFFFFFFF if admit.sampling.temperature else 0
        return self._printable[zlib.crc32(context, start) % len(self._printable)]

    def _score(self, step: StepArrays, slots: Slots, row: int) -> list[TokenLogprobs]:
        slot, start = int(step.slots[row]), int(step.starts[row])
        end = min(start + int(step.counts[row]) + 1, int(slots.n_prompt[slot]))
        targets = slots.tokens[slot, start + 1 : end]
        logits = np.zeros((len(targets), self._n_vocab), np.float32)
        logits[np.arange(len(targets)), targets] = _HIGH
        return self._sampler.score(logits, targets, self._admits[slot].prompt_logprobs or 0)


def _token_ids(step: StepArrays, slots: Slots) -> Int32:
    """Of all the step's tokens, row after row."""
    rows = zip(step.slots.tolist(), step.starts.tolist(), step.counts.tolist(), strict=True)
    return np.concatenate([slots.tokens[slot, start : start + count] for slot, start, count in rows])


def _hidden_states(token_ids: Int32) -> npt.NDArray[np.float32]:
    """[tokens, HIDDEN] numbers in [-1, 1), drawn by a hash of token id and place."""
    mixed = np.asarray(token_ids[:, None] * HIDDEN + np.arange(HIDDEN), np.uint32)
    for multiplier in (0x7FEB352D, 0x846CA68B):
        mixed = np.asarray((mixed ^ (mixed >> np.uint32(16))) * np.uint32(multiplier), np.uint32)
    return np.asarray((mixed >> np.uint32(8)) / 2**23 - 1, np.float32)
