"""Server-sent events: one write per stream and step, of bytes that are mostly made beforehand.

data: {"id":...,"choices":[{"index":0,"delta":{"content":" wor"},...}]}\\n\\n       (per choice and step)
: keep-alive\\n\\n                                                       (--stream-keep-alive-s without an event)
data: {"error":{...}}\\n\\n                                                       (a fault after the first byte)
data: [DONE]\\n\\n                                                                (always the last)

What an API says otherwise (the events' names, what keeps a connection alive, how a fault looks) is its renderer's.
"""

from __future__ import annotations

import asyncio
import logging
import time
from typing import Protocol

import msgspec

from sixfold.api.call import Call
from sixfold.api.call_log import log_fault
from sixfold.api.generation import Generation
from sixfold.api.http.errors import ClientGone, ErrorBody, describe, envelope
from sixfold.detokenizer import ChoiceDelta
from sixfold.errors import SixfoldError
from sixfold.observability.meter import now
from sixfold.observability.sites import API_SOCKET
from sixfold.observability.timeline import State

__all__ = ["DONE", "Renderer", "event", "stream"]

DONE = b"data: [DONE]\n\n"
PING = b": keep-alive\n\n"
PIECE_BYTES = 1 << 14
"""Of what a slow reader has not taken yet, handed to the transport at a time."""

logger = logging.getLogger(__name__)


class Renderer(Protocol):
    """Deltas -> the events of one endpoint.

    Attributes:
        ping: what keeps a silent connection alive.
        done: the last event of every stream, empty where an API has none.
    """

    ping: bytes = PING
    done: bytes = DONE

    def opening(self) -> bytes:
        """The events before the first step, maybe none."""
        return b""

    def frames(self, deltas: list[ChoiceDelta]) -> bytes:
        """The events of one step, maybe none."""
        ...

    async def settle(self, generation: Generation) -> None:
        """What there is to do between the last choice's end and `tail`, for renderers that have to wait for it."""
        return

    def tail(self, generation: Generation) -> bytes:
        """The events after the last choice's end, before `done`."""
        ...

    def fault(self, status: int, error: ErrorBody, request_id: str) -> bytes:
        """The event of a fault after the first byte; in place of `tail`."""
        return b"data: " + envelope(error) + b"\n\n"


def event(document: object) -> bytes:
    """One event."""
    return b"data: " + msgspec.json.encode(document) + b"\n\n"


async def stream(call: Call, generation: Generation, renderer: Renderer, headers: list[tuple[bytes, bytes]]) -> None:
    """Answer with a stream; returns when it has ended, however it did. The generation is closed afterwards: what its
    reader has not taken yet counts as in flight, so that the memory it takes is bounded."""
    call.counted = generation
    outlet = _Outlet(call, renderer)
    try:
        await call.start_stream(headers)
        if opening := renderer.opening():
            await call.write(opening)
        last = await _generate(call, generation, renderer, outlet)
        await outlet.drain(call)
        if generation.is_left:
            raise ClientGone
        await call.end_stream(last)
    except ClientGone:
        call.fault = call.fault or "client_gone"
    finally:
        generation.close()


async def _generate(call: Call, generation: Generation, renderer: Renderer, outlet: _Outlet) -> bytes:
    """Everything but the last events, which are returned.

    Raises:
        ClientGone: nobody is there to read them.
    """
    outlet.open()
    try:
        await generation.run(outlet.take)
        await renderer.settle(generation)
        return renderer.tail(generation) + renderer.done
    except ClientGone:
        raise
    except Exception as error:
        generation.close()
        if not isinstance(error, SixfoldError):
            logger.exception("request %(request_id)s failed while streaming", {"request_id": call.request_id})
        status, body = describe(error, call.request_id)
        call.context.metrics.count_refusal(status, body.code or body.type)
        log_fault(call, error)
        return renderer.fault(status, body, call.request_id) + renderer.done
    finally:
        outlet.close()


class _Outlet:
    """Where events leave: at once while the client reads. What it does not take is kept, and follows in pieces as it
    reads on. The engine waits for nobody; a client that lags too far behind, in bytes or in time, is cut off.

    Writes a comment whenever a whole interval went by without an event.
    """

    def __init__(self, call: Call, renderer: Renderer) -> None:
        self._renderer = renderer
        self._connection = call.connection
        self._interval_s = call.context.config.stream_keep_alive_s
        self._kept = bytearray()
        self._lags_since_s = 0.0
        """Since when something is kept, without a break."""
        self._call = call
        self._delivery = call.context.delivery
        self._max_bytes = call.context.config.stream_unread_bytes
        self._max_lag_s = call.context.config.stream_unread_s
        self._wrote = False

    def open(self) -> None:
        """The response has begun."""
        self._connection.on_writable = self._resume
        self._arm()

    def take(self, deltas: list[ChoiceDelta]) -> None:
        started_ns = now() if self._delivery.splits else 0
        frames = self._renderer.frames(deltas)
        rendered_ns = now() if started_ns else 0
        if frames:
            self._wrote = True
            if self._kept or not self._connection.write_chunk(frames):
                self._keep(frames)
        if started_ns:
            self._delivery.render_ns += rendered_ns - started_ns
            self._delivery.write_ns += now() - rendered_ns

    async def drain(self, call: Call) -> None:
        """Write what is still kept.

        Raises:
            ClientGone: its time was over.
        """
        if not self._kept:
            return
        call.enter(State.SOCKET)
        loop = asyncio.get_running_loop()
        meter, started_ns = call.context.meter, now()
        meter.enter(API_SOCKET, started_ns)
        try:
            async with asyncio.timeout_at(loop.time() + self._lags_since_s + self._max_lag_s - time.monotonic()):
                for start in range(0, len(self._kept), PIECE_BYTES):
                    await call.write(bytes(self._kept[start : start + PIECE_BYTES]))
        except TimeoutError:
            self._cut()
            raise ClientGone from None
        finally:
            meter.leave(API_SOCKET, started_ns, now())

    def _keep(self, frames: bytes) -> None:
        now_s = time.monotonic()
        if not self._kept:
            self._lags_since_s = now_s
        self._kept += frames
        if len(self._kept) > self._max_bytes or now_s - self._lags_since_s > self._max_lag_s:
            self._kept.clear()
            self._cut()

    def _cut(self) -> None:
        self._call.fault = "slow_reader"
        self._call.context.metrics.streams_cut += 1
        self._connection.cut()

    def close(self) -> None:
        """Write nothing any more."""
        self._timer.cancel()
        self._connection.on_writable = None

    def _resume(self) -> None:
        while self._kept and self._connection.write_chunk(bytes(self._kept[:PIECE_BYTES])):
            del self._kept[:PIECE_BYTES]

    def _tick(self) -> None:
        if not self._wrote:
            self._connection.write_chunk(self._renderer.ping)
        self._wrote = False
        self._arm()

    def _arm(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(self._interval_s, self._tick)
