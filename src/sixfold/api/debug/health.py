"""`GET /debug/health`: what is loaded, what is allowed, who may call."""

from __future__ import annotations

import resource
import time

import msgspec

from sixfold import __version__
from sixfold.api.call import Call
from sixfold.api.debug.frames import state_of
from sixfold.config import BLOCK_SIZE

__all__ = ["Health", "health"]


class KeyInUse(msgspec.Struct, frozen=True):
    """A key by its name; nothing that it could be found out by."""

    name: str
    tenant: str
    scope: str
    weight: int


class Limits(msgspec.Struct, frozen=True):
    """What the server takes, at most."""

    max_model_len: int
    max_running: int
    max_outstanding: int
    """Choices that run and wait."""
    max_queued_tokens: int
    max_queue_wait_s: float
    """0: no bound."""
    max_body_bytes: int
    max_connections: int
    """Per API process."""
    block_size: int
    blocks: int
    api_processes: int


class Memory(msgspec.Struct, frozen=True):
    """Bytes."""

    weights: int
    kv_cache: int
    api_process_peak: int
    """The most that this API process had in memory."""


class Health(msgspec.Struct, frozen=True):
    """`GET /debug/health`."""

    state: str
    model: str
    chats: bool
    """Whether the model has a chat template."""
    scripted: bool
    version: str
    build: str
    engine_epoch: int
    uptime_s: float
    """Of the server, whichever API process answers, and however often any was started again."""
    restarts: dict[str, int]
    """Role of a process -> how often one was started again."""
    limits: Limits
    memory: Memory
    sampling_defaults: dict[str, float | int]
    keys: list[KeyInUse] | None
    """None: the server asks for none."""


async def health(call: Call) -> None:
    """`GET /debug/health`."""
    context = call.context
    client, config, worker = context.client, context.config, context.client.worker
    ring = context.keys
    document = Health(
        state=state_of(context),
        model=client.model_name,
        chats=client.chat_template is not None,
        scripted=client.scripted,
        version=__version__,
        build=client.build,
        engine_epoch=client.engine_epoch,
        uptime_s=time.monotonic() - context.start.monotonic_s,
        restarts=dict(context.metrics.restarts()),
        limits=Limits(
            max_model_len=client.max_model_len,
            max_running=worker.max_slots if worker is not None else 0,
            max_outstanding=client.max_outstanding,
            max_queued_tokens=client.max_queued_tokens,
            max_queue_wait_s=client.max_queue_wait_s,
            max_body_bytes=config.max_body_bytes,
            max_connections=config.max_connections,
            block_size=BLOCK_SIZE,
            blocks=worker.num_blocks if worker is not None else 0,
            api_processes=config.api_server_count,
        ),
        memory=Memory(
            weights=worker.bytes_weights if worker is not None else 0,
            kv_cache=worker.bytes_kv if worker is not None else 0,
            api_process_peak=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        ),
        sampling_defaults=dict(client.sampling_defaults),
        keys=None
        if ring is None
        else [KeyInUse(c.name, c.tenant, "admin" if c.is_admin else "user", c.weight) for c in ring.callers()],
    )
    await call.respond(200, msgspec.json.encode(document))
