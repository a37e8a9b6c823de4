"""Control messages between processes: greetings, verdicts, statistics, shutdown."""

from __future__ import annotations

import msgspec

from sixfold.messages.ids import RequestId

__all__ = ["WAIT_REASONS", "Admitted", "EngineStats", "Hello", "Rejected", "Welcome", "WorkerFacts"]

WAIT_REASONS = ("step", "slots", "blocks", "budget", "preempted", "leader", "trial")
"""Why a choice waits: the next step has not been planned; the latest had no slot, no blocks, or no room among its
tokens for the head of the queue; it lost its blocks to an older one; another choice of its request computes their
prompt; it is suspected of having crashed the server, and is tried alone."""


class Hello(msgspec.Struct, frozen=True, tag="hello"):
    """First frame of every connection."""

    protocol: int
    role: str
    """`api-control`, `api-outputs`, `worker-control` or `worker-steps`."""
    instance: int
    """Random, one per process start: two connections of one process carry the same one."""
    config_digest: str


class WorkerFacts(msgspec.Struct, frozen=True, tag="worker_facts"):
    """What a worker can hold, told once its weights are loaded."""

    pid: int
    num_blocks: int
    max_slots: int
    max_model_len: int
    isa: str
    bytes_weights: int
    bytes_kv: int
    hidden: int = 0
    """Numbers of an embedding."""


class Welcome(msgspec.Struct, frozen=True, tag="welcome"):
    """The engine's answer to an API process."""

    engine_epoch: int
    worker: WorkerFacts
    faults: int = 0
    """Crashes so far of an engine or a worker of this server that were of their own making."""


class Admitted(msgspec.Struct, frozen=True, tag="admitted"):
    """The request is in the queue; exactly one terminal event per choice will follow."""

    uid: RequestId


class Rejected(msgspec.Struct, frozen=True, tag="rejected"):
    """The request was refused; nothing of it remains in the engine. This is its terminal event."""

    uid: RequestId
    error: str
    """Class name in `sixfold.errors`."""
    message: str
    param: str | None = None
    code: str | None = None
    retry_after_s: float | None = None


class EngineStats(msgspec.Struct, frozen=True, kw_only=True, tag="stats"):
    """A snapshot of the engine; counters only ever rise within an epoch."""

    engine_epoch: int = 0
    running: int = 0
    waiting: int = 0
    blocks_total: int = 0
    blocks_free: int = 0
    blocks_cached: int = 0
    """Unreferenced but retained for reuse. free + cached + held = total."""
    steps: int = 0
    blocks_adopted: int = 0
    """Cached blocks that this engine took over from the one before."""
    blocks_rejected: int = 0
    """Of those that it found, the ones that it did not believe."""
    preemptions: int = 0
    prompt_tokens: int = 0
    """Prompt tokens of admitted requests."""
    cached_tokens: int = 0
    """Of these, found in the prefix cache."""
    generated_tokens: int = 0
    wasted_rows: int = 0
    """Rows that were computed and dropped, because their request had ended."""
    waiting_for: dict[str, int] = {}
    """One of WAIT_REASONS -> choices."""
    prefilled_tokens: int = 0
    """Tokens computed that are no decode rows."""
    decode_rows: int = 0
    step_prefill_tokens: int = 0
    """Of the newest step; the same for its decode rows."""
    step_decode_rows: int = 0
    mixed_steps: int = 0
    """Steps that held prefill and decode rows together."""
    queued_tokens: int = 0
    """Prompt tokens of requests of which no choice has started."""
    queue_wait_s: float = 0.0
    """What a request that comes now will wait, as far as can be predicted; 0 also where nothing was measured yet."""
    run_s: float = 0.0
    """What a choice takes from its place to its end, on the average; 0 where nothing was measured yet."""
    place_s: float = 0.0
    """Between two places in the queue that become free; 0 where nothing was measured yet."""
    finished: dict[str, int] = {}
    """Finish reason -> choices."""
