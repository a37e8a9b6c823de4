"""Server-sent events: one write per stream and step, of bytes that are mostly made beforehand.

data: {"id":...,"choices":[{"index":0,"delta":{"content":" wor"},...}]}\\n\\n       (per choice and step)
: keep-alive\\n\\n                                                                (every 15 s without an event)
data: {"error":{...}}\\n\\n                                                       (a fault after the first byte)
data: [DONE]\\n\\n                                                                (always the last)
"""

from __future__ import annotations

import asyncio
import logging
from typing import Protocol

import msgspec

from sixfold.api.call import Call
from sixfold.api.errors import ClientGone, describe, envelope
from sixfold.api.generation import Generation
from sixfold.detokenizer import ChoiceDelta
from sixfold.errors import SixfoldError

__all__ = ["DONE", "KEEP_ALIVE_S", "Renderer", "event", "stream"]

KEEP_ALIVE_S = 15.0
DONE = b"data: [DONE]\n\n"
PING = b": keep-alive\n\n"

logger = logging.getLogger(__name__)


class Renderer(Protocol):
    """Deltas -> the events of one endpoint."""

    def frames(self, deltas: list[ChoiceDelta]) -> bytes:
        """The events of one step, maybe none."""
        ...

    def tail(self, generation: Generation) -> bytes:
        """The events after the last choice's end, before `[DONE]`."""
        ...


def event(document: object) -> bytes:
    """One event."""
    return b"data: " + msgspec.json.encode(document) + b"\n\n"


async def stream(call: Call, generation: Generation, renderer: Renderer, headers: list[tuple[bytes, bytes]]) -> None:
    """Answer with a stream; returns when it has ended, however it did. The generation is closed afterwards."""
    call.counted = generation
    gone = asyncio.ensure_future(call.wait_gone())
    gone.add_done_callback(lambda _: generation.close())
    ping = _KeepAlive(call)
    try:
        await call.start_stream(headers)
        async for deltas in generation.steps():
            frames = renderer.frames(deltas)
            if frames:
                await call.write(frames)
                ping.wrote = True
        last = renderer.tail(generation) + DONE
    except ClientGone:
        call.fault = "client_gone"
        return
    except Exception as error:
        if not isinstance(error, SixfoldError):
            logger.exception("request %s failed while streaming", call.request_id)
        status, body = describe(error, call.request_id)
        call.context.metrics.count_refusal(status)
        call.log_fault(error)
        last = b"data: " + envelope(body) + b"\n\n" + DONE
    finally:
        ping.stop()
        generation.close()
        gone.cancel()
    await call.end_stream(last)


class _KeepAlive:
    """Writes a comment whenever a whole interval went by without a write."""

    def __init__(self, call: Call) -> None:
        self.wrote = False
        self._call = call
        self._loop = asyncio.get_running_loop()
        self._timer = self._loop.call_later(KEEP_ALIVE_S, self._tick)
        self._writing: asyncio.Task[None] | None = None

    def stop(self) -> None:
        self._timer.cancel()
        if self._writing is not None:
            self._writing.cancel()

    def _tick(self) -> None:
        if not self.wrote and (self._writing is None or self._writing.done()):
            self._writing = self._loop.create_task(self._call.write(PING))
        self.wrote = False
        self._timer = self._loop.call_later(KEEP_ALIVE_S, self._tick)
