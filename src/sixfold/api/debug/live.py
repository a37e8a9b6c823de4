"""`GET /debug/live`: the feed as server-sent events."""

from __future__ import annotations

import asyncio

import msgspec

from sixfold.api.call import Call
from sixfold.api.debug.feed import MIN_PERIOD_MS
from sixfold.errors import InvalidRequest

__all__ = ["MAX_FRAMES", "MAX_PERIOD_MS", "live"]

MAX_PERIOD_MS = 10_000
MAX_FRAMES = 1_000_000


class LiveQuery(msgspec.Struct, frozen=True):
    """Of `GET /debug/live`."""

    interval_ms: int = 100
    frames: int = 0
    """0: until somebody ends it."""


async def live(call: Call) -> None:
    """`GET /debug/live?interval_ms=100&frames=1`: a frame as soon as there is something new, at most one in each
    interval."""
    query = _query(call)
    n_sent = 0
    with call.context.live.joined(query.interval_ms) as watcher:
        gone = asyncio.ensure_future(call.wait_gone())
        try:
            await call.start_stream()
            while (frame := await watcher.next()) is not None and not gone.done():
                try:
                    async with asyncio.timeout(call.context.config.stream_unread_s):
                        await call.write(b"data: " + frame + b"\n\n")
                except TimeoutError:
                    call.fault = "slow_reader"
                    call.connection.cut()
                    return
                n_sent += 1
                if n_sent == query.frames:
                    break
            if not gone.done():
                await call.end_stream(b"")
        finally:
            gone.cancel()


def _query(call: Call) -> LiveQuery:
    """Raises: InvalidRequest: the query has another parameter, or a value that is not allowed."""
    bounds = {"interval_ms": (MIN_PERIOD_MS, MAX_PERIOD_MS), "frames": (1, MAX_FRAMES)}
    found: dict[str, int] = {}
    for name, value in call.query():
        if name not in bounds:
            raise InvalidRequest(f"unknown parameter {name[:50]!r}; there are {', '.join(bounds)}", param=name[:50])
        least, greatest = bounds[name]
        if not (value.isascii() and value.isdigit() and len(value) < 10 and least <= int(value) <= greatest):
            raise InvalidRequest(f"{name} must be a whole number from {least} to {greatest}", param=name)
        found[name] = int(value)
    return LiveQuery(**found)
