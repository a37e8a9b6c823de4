"""A step as the worker sees it: what is written into `StepPlan`, and whether a `StepResult` answers it."""

from __future__ import annotations

from typing import NamedTuple

from sixfold.errors import ProtocolError
from sixfold.messages import EMBED, PROMPT_LOGPROBS, SlotAdmit, StepPlan, StepResult, TokenLogprobs
from sixfold.scheduler.plan import Plan, Row
from sixfold.scheduler.sequence import Sequence

__all__ = ["LaunchedStep", "check_result", "embedding_of", "scored_prompt", "slot_admit", "write_rows"]


class LaunchedStep(NamedTuple):
    """An outstanding step."""

    message: StepPlan
    rows: list[Row]
    sequences: list[Sequence]
    """[rows] Theirs."""
    fork_parents: list[Sequence]
    """Their blocks are read by the step's copies."""


def slot_admit(sequence: Sequence) -> SlotAdmit:
    """What the worker needs to build the sequence's slot, be it new, resumed or replayed."""
    message = sequence.request.message
    return SlotAdmit(
        slot=sequence.slot,
        generation=sequence.generation,
        incarnation=sequence.incarnation,
        token_ids=list(sequence.token_ids),
        n_prompt_original=sequence.n_prompt,
        choice=sequence.choice,
        sampling=message.sampling,
        prompt_logprobs=message.prompt_logprobs if sequence.prompt_logprobs is not None else None,
        pooling=message.pooling,
        script=message.script,
    )


def write_rows(step: StepPlan, plan: Plan, before: LaunchedStep | None) -> list[Sequence]:
    """Write the rows: their keys, their work and the new parts of their block tables.

    Args:
        before: the latest step, if it is outstanding. A sequence that is in it has kept its slot, so the keys of the
            same sequences are the same.

    Returns:
        [rows] Their sequences.
    """
    rows = plan.rows
    sequences = [row.sequence for row in rows]
    if before is not None and sequences == before.sequences:
        same = before.message
        step.slots, step.generations, step.incarnations = same.slots, same.generations, same.incarnations
    else:
        step.slots = [sequence.slot for sequence in sequences]
        step.generations = [sequence.generation for sequence in sequences]
        step.incarnations = [sequence.incarnation for sequence in sequences]
    step.starts = [row.start for row in rows]
    step.counts = [row.end - row.start for row in rows]
    step.flags = [row.flags for row in rows]
    step.table_rows = plan.grown
    for index in plan.grown:
        row = plan.rows[index]
        new = row.table.blocks[row.first_new :]
        step.table_starts.append(row.first_new)
        step.table_counts.append(len(new))
        step.table_blocks += new
    return sequences


def check_result(result: StepResult, launched: LaunchedStep | None, engine_epoch: int) -> LaunchedStep:
    """Return `launched`, the oldest outstanding step, if `result` answers it: every row by its key, none besides.

    Raises:
        ProtocolError: another engine, another step, other rows, or columns of unequal length.
    """
    if result.engine_epoch != engine_epoch:
        raise ProtocolError(f"result of engine epoch {result.engine_epoch}, this is {engine_epoch}")
    if launched is None or result.step_id != launched.message.step_id:
        raise ProtocolError(f"result of step {result.step_id}, which is not the oldest outstanding one")
    asked = launched.message
    keys = (result.slots, result.generations, result.incarnations)
    if keys != (asked.slots, asked.generations, asked.incarnations):
        raise ProtocolError(f"result of step {result.step_id} answers other rows than it was asked")
    if len(result.token_ids) != asked.n_rows or len(result.status) != asked.n_rows:
        raise ProtocolError(f"result of step {result.step_id} has not {asked.n_rows} rows")
    return launched


def scored_prompt(result: StepResult, index: int, row: Row) -> list[TokenLogprobs]:
    """Log-probabilities of the prompt tokens behind each of the row's positions; [] for a row that was not asked.

    Raises:
        ProtocolError: their number is wrong.
    """
    if not row.flags & PROMPT_LOGPROBS:
        return []
    entries = result.prompt_logprobs.get(index, [])
    if len(entries) != min(row.end, row.sequence.n_prompt - 1) - row.start:
        raise ProtocolError(f"result of step {result.step_id} lacks log-probabilities of prompt tokens")
    return entries


def embedding_of(result: StepResult, index: int, row: Row) -> bytes:
    """The embedding that is complete with this row; b"" for a row that was not asked.

    Raises:
        ProtocolError: it is missing.
    """
    if not row.flags & EMBED:
        return b""
    embedding = result.embeddings.get(index, b"")
    if not embedding:
        raise ProtocolError(f"result of step {result.step_id} lacks an embedding")
    return embedding
