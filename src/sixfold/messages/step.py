"""Scheduler <-> executor: one step of the engine, as flat columns.

A row is one slot's part of a step. Rows are matched by their keys `(slot, generation, incarnation)`, never by counting:

    column          meaning
    slots[i]        the worker's permanent row for this choice while it is running
    generations[i]  bumped when the slot is freed: a late row of a finished request does not match any more
    incarnations[i] bumped when the request resumes after preemption: a row over a revoked block table does not match
    starts[i]       position of the first token that this row computes
    counts[i]       number of tokens that it computes: positions [starts[i], starts[i] + counts[i])
    flags[i]        SAMPLE: the row reaches the last known token, draw the next one. PROMPT_LOGPROBS: score the chunk.
                    EMBED: the chunk is part of an embedding, which is complete with the prompt's last token

The worker knows a slot's tokens: those of `SlotAdmit` and those that it drew itself. Hence a decode row
needs no token id, and step n+1 can be planned while step n runs.
"""

from __future__ import annotations

import msgspec

from sixfold.messages.ids import StepId
from sixfold.messages.request import Pooling, Sampling

__all__ = ["EMBED", "PROMPT_LOGPROBS", "SAMPLE", "RowStatus", "SlotAdmit", "StepPlan", "StepResult", "TokenLogprobs"]

SAMPLE = 1
PROMPT_LOGPROBS = 2
EMBED = 4


class RowStatus:
    """Values of `StepResult.status`."""

    OK = 0
    NAN_LOGITS = 1
    """The logits of this row hold NaN or no finite value: only this request fails."""
    SCRIPT_FAULT = 2
    """Scripted executor: the script asked for a failure here."""
    GRAMMAR_FAULT = 3
    """The row's grammar hit a limit: what it allows is not known."""
    NOTHING_ALLOWED = 4
    """Grammar, bias and the wait for `min_tokens` together leave this row no token."""
    NAN_HIDDEN = 5
    """The hidden states that an embedding is made of are not finite."""


class SlotAdmit(msgspec.Struct, frozen=True, kw_only=True):
    """ADMIT_SLOT: (re)builds a slot. Serves admission, resume after preemption and replay after a crash alike."""

    slot: int
    generation: int
    incarnation: int
    token_ids: list[int]
    """Prompt and every token delivered so far."""
    n_prompt_original: int
    """Tokens of `token_ids` that are the prompt: penalties, min_tokens and draw positions count from here."""
    choice: int
    sampling: Sampling
    prompt_logprobs: int | None = None
    pooling: Pooling = ""
    script: tuple[int, ...] = ()


class StepPlan(msgspec.Struct, kw_only=True):
    """What one step does. Order in the worker: frees, admits, copies, table deltas, rows."""

    engine_epoch: int
    step_id: StepId
    """Strictly increasing by 1 within an epoch."""
    frees: list[tuple[int, int]] = []
    """(slot, generation) pairs that hold nothing any more."""
    admits: list[SlotAdmit] = []
    copies: list[tuple[int, int]] = []
    """(source block, destination block): copy-on-write of a shared tail, before any row writes."""
    slots: list[int] = []
    generations: list[int] = []
    incarnations: list[int] = []
    starts: list[int] = []
    counts: list[int] = []
    flags: list[int] = []
    table_rows: list[int] = []
    """[growths] Which rows' block tables have grown: few, since a block lasts for many steps."""
    table_starts: list[int] = []
    """[growths] Index in the row's block table from which `table_counts[i]` entries of `table_blocks` are set."""
    table_counts: list[int] = []
    table_blocks: list[int] = []
    """[sum(table_counts)] Block ids, one table's after another's."""

    @property
    def n_rows(self) -> int:
        return len(self.slots)

    @property
    def n_tokens(self) -> int:
        return sum(self.counts)


class TokenLogprobs(msgspec.Struct, frozen=True, array_like=True):
    """Natural logs of raw-logit probabilities for one position."""

    logprob: float
    """Of the token at this position. -inf never leaves the sampler: floor is -9999.0."""
    rank: int
    """0 is the most likely token."""
    top_ids: list[int]
    """Falling probability, ties to the lowest id; as many as were asked for."""
    top_logprobs: list[float]


class StepResult(msgspec.Struct, kw_only=True):
    """What came of a step: rows in the plan's order, each with its own key."""

    engine_epoch: int
    step_id: StepId
    slots: list[int]
    generations: list[int]
    incarnations: list[int]
    token_ids: list[int]
    """[rows] The token drawn, or -1 for a row without SAMPLE."""
    status: list[int]
    """[rows] RowStatus."""
    logprobs: dict[int, TokenLogprobs] = {}
    """Row index -> of its drawn token, where the slot's sampling asks for them."""
    prompt_logprobs: dict[int, list[TokenLogprobs]] = {}
    """Row index -> entry j scores the token at position starts[i] + 1 + j, as far as the prompt goes."""
    embeddings: dict[int, bytes] = {}
    """Row index -> the prompt's pooled hidden state, [hidden] float32, little-endian: of rows with EMBED that reach the
    prompt's end."""
