"""`Sequence`, one choice of a request: the only mutable per-request state in the engine.

Its states:

    HELD --leader's prompt launched--> WAITING --launch--> RUNNING --preempted--> PREEMPTING --fence--> WAITING
                                                                `--ended--> CLOSING --fence--> CLOSED

The *fence* of a sequence is the commit of the newest step that refers to it; blocks and slot are given back there and
nowhere else. Where that is behind it already, PREEMPTING and CLOSING are passed through at once.

How far a sequence is, in positions:

    0 ............. n_computed ........... n_planned ............ n_known <= target
    [ committed     )[ launched, in flight )[ can be launched     )
    [ token_ids: known here     )[ known to the worker: drawn in flight )
"""

from __future__ import annotations

import enum

from sixfold.kv_cache import BlockTable
from sixfold.messages import GenerateRequest, TokenLogprobs

__all__ = ["Key", "Request", "Sequence", "State"]

Key = tuple[int, int, int]
"""Orders of sequences. The second and third part are (serial, choice), so that no two sequences compare equal."""


class State(enum.Enum):
    """Where a choice is. The first four still owe their terminal event."""

    HELD = "held"
    """Another choice of the request, its leader, computes the prompt that they share."""
    WAITING = "waiting"
    """In the queue; holds no slot and no block."""
    RUNNING = "running"
    PREEMPTING = "preempting"
    """Gets no new rows; what is in flight still counts."""
    CLOSING = "closing"
    """Has ended; what is in flight is dropped."""
    CLOSED = "closed"


class Request:
    """What the choices of one `GenerateRequest` have in common. Written by `Scheduler` only."""

    __slots__ = (
        "attempt",
        "charge",
        "has_started",
        "is_aborted",
        "message",
        "n_unclosed",
        "order",
        "sequences",
        "started_s",
        "stop_ids",
        "uid",
        "urgency",
    )

    def __init__(self, message: GenerateRequest, order: int, urgency: int) -> None:
        self.message = message
        self.uid = message.uid
        self.attempt = message.attempt
        self.order = order
        """First part of the queue key, made by the policy: smaller runs earlier."""
        self.charge = 0.0
        """What the policy has charged its tenant."""
        self.urgency = urgency
        """Smaller is evicted later."""
        self.stop_ids = frozenset(message.sampling.stop_token_ids)
        self.sequences: list[Sequence] = []
        self.n_unclosed = 0
        """Choices that are not CLOSED: with the last one the request is forgotten."""
        self.has_started = False
        """Whether a choice was ever admitted: until then its prompt counts as queued."""
        self.started_s = 0.0
        """When the first choice was admitted; CLOCK_MONOTONIC."""
        self.is_aborted = False


class Sequence:
    """One choice. Written by `Scheduler` only."""

    __slots__ = (
        "choice",
        "generation",
        "has_spoken",
        "incarnation",
        "key",
        "last_step",
        "last_turn",
        "limit",
        "n_cached",
        "n_computed",
        "n_known",
        "n_planned",
        "n_prompt",
        "prompt_logprobs",
        "rank",
        "request",
        "since_ns",
        "slot",
        "state",
        "stop_ids",
        "table",
        "target",
        "token_ids",
    )

    def __init__(self, request: Request, choice: int, serial: int, token_ids: list[int], limit: int) -> None:
        message = request.message
        self.request = request
        self.choice = choice
        self.key: Key = (request.order, serial, choice)
        """Order of service."""
        self.rank: Key = (request.urgency, serial, choice)
        """Order of eviction: the largest goes first."""
        self.state = State.HELD

        self.token_ids = token_ids
        """Prompt and every committed output token; only ever grows."""
        self.n_prompt = len(message.prompt_token_ids)
        self.limit = limit
        """Output tokens after which the choice ends with `length`."""
        self.target = self.n_prompt + max(limit, 1) - 1
        """Positions that are ever computed: the last output token is drawn, but nothing follows it."""
        self.stop_ids = request.stop_ids

        self.table: BlockTable
        """Contents are the KV cache manager's."""
        self.slot = -1
        self.generation = -1
        self.incarnation = 0
        self.n_computed = 0
        self.n_planned = 0
        self.n_known = min(len(token_ids), self.target)
        self.last_step = -1
        """Id of the newest step that reads or writes this sequence's blocks: its fence."""
        self.last_turn = -1
        """Number of its newest row, counted over all rows of the engine: who has the smallest waits longest."""

        self.n_cached = 0
        """Prompt tokens found in the prefix cache at its first admission."""
        self.since_ns = 0
        """CLOCK_MONOTONIC: since when it waits, in the queue or for its fence. The chronicle's."""
        self.has_spoken = self.n_output > 0
        """Whether a delta of it was emitted, be it by an engine that is gone."""
        wants_prompt_logprobs = message.prompt_logprobs is not None and choice == 0 and self.n_output == 0
        self.prompt_logprobs: list[TokenLogprobs] | None = [] if wants_prompt_logprobs else None
        """Collected while the prompt is computed; None when not wanted or already delivered."""

    @property
    def n_output(self) -> int:
        return len(self.token_ids) - self.n_prompt

    @property
    def is_open(self) -> bool:
        """Whether it still owes its terminal event."""
        return self.state is not State.CLOSING and self.state is not State.CLOSED

    @property
    def n_pending(self) -> int:
        """Tokens that can be computed now; 0 when all are launched or nothing further is needed."""
        return self.n_known - self.n_planned
