"""Engine -> API: tokens as they are committed, and how a choice ended."""

from __future__ import annotations

from typing import Literal

import msgspec

from sixfold.messages.ids import RequestId, StepId
from sixfold.messages.step import TokenLogprobs

__all__ = ["NO_TIME", "Finish", "FinishReason", "OutputBatch", "TokenDelta"]

FinishReason = Literal["stop", "length", "abort", "timeout", "error"]


class Finish(msgspec.Struct, frozen=True, omit_defaults=True):
    """The one terminal event of a choice."""

    reason: FinishReason
    stop_token_id: int | None = None
    """The id that ended it, when a stop id did. That token is part of the output and of usage, not of the text."""
    message: str = ""
    """For `error`: one sentence for the user."""


NO_TIME = 0.0
"""A default is not sent if it is this very object: msgspec does not compare numbers."""


class TokenDelta(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """New tokens of one choice. Nothing that it refers to refers to it: Python need not search it for garbage."""

    uid: RequestId
    choice: int
    attempt: int = 0
    first_index: int
    """Index of `token_ids[0]` in the choice's whole output: a gap or an overlap is visible, never silent."""
    token_ids: list[int] = []
    logprobs: list[TokenLogprobs] | None = None
    prompt_logprobs: list[TokenLogprobs] | None = None
    """Choice 0, once, with the delta that follows the end of prefill: entry j scores prompt token j + 1."""
    n_cached: int = 0
    """Prompt tokens whose KV came from the prefix cache; set on the choice's first delta."""
    started_s: float = NO_TIME
    """When the first of the request's choices left the queue, CLOCK_MONOTONIC; set on the choice's first delta."""
    embedding: bytes = b""
    """With the finish of a request with `pooling`: see `StepResult.embeddings`."""
    finish: Finish | None = None


class OutputBatch(msgspec.Struct, frozen=True, tag="outputs"):
    """All deltas of one commit for one API process."""

    engine_epoch: int
    step_id: StepId
    deltas: list[TokenDelta]
