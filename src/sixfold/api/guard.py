"""The protocol guard: what uvicorn does not bound, bounded before a byte of a request reaches the application.

    bound                       default       beyond it
    open connections            4096          503, closed
    bytes of a request's head   32 KiB        431, closed
    header fields               100           431, closed
    head complete within        10 s          408, closed (a silent fresh connection: closed)
    keep-alive idle             75 s          closed
    client does not read        60 s          connection reset; the request is aborted

The body's own limits need the application's say and are in `body.py`.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from sixfold.api.errors import ErrorBody, envelope

__all__ = ["KEEP_ALIVE_S", "MAX_HEADER_BYTES", "MAX_HEADER_FIELDS", "WRITE_STALL_S", "GuardLimits", "guarded_protocol"]

MAX_HEADER_BYTES = 32 << 10
MAX_HEADER_FIELDS = 100
KEEP_ALIVE_S = 75
WRITE_STALL_S = 60.0
LINGER_S = 1.0  # what still arrives after a refusal is dropped for this long: closing at once would reset the answer
FIELD_OVERHEAD_BYTES = 4  # ": " and the line end

_REFUSALS = {
    400: (b"Bad Request", "the bytes received are not a valid HTTP/1.1 request", "bad_request"),
    408: (b"Request Timeout", "the request's headers did not arrive in time", "header_timeout"),
    431: (b"Request Header Fields Too Large", "the request's headers are too large", "headers_too_large"),
    503: (b"Service Unavailable", "too many open connections", "too_many_connections"),
}


@dataclass(frozen=True, kw_only=True)
class GuardLimits:
    """See the module's table."""

    max_connections: int = 4096
    header_timeout_s: float = 10.0
    max_header_bytes: int = MAX_HEADER_BYTES
    max_header_fields: int = MAX_HEADER_FIELDS
    write_stall_s: float = WRITE_STALL_S


def refusal(status: int) -> bytes:
    """A whole response for faults below the application."""
    phrase, message, code = _REFUSALS[status]
    kind = "server_overloaded" if status == 503 else "invalid_request_error"
    body = envelope(ErrorBody(message, kind, None, code))
    retry = b"retry-after: 1\r\n" if status == 503 else b""
    return (
        b"HTTP/1.1 %d %s\r\ncontent-type: application/json\r\ncontent-length: %d\r\n%sconnection: close\r\n\r\n"
        % (status, phrase, len(body), retry)
    ) + body


class _Guarded(HttpToolsProtocol):
    """A connection. `_head_bytes` counts the head that is being read; it is None while none is."""

    limits = GuardLimits()

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._head_timer: asyncio.TimerHandle | None = None
        self._stall_timer: asyncio.TimerHandle | None = None
        self._head_bytes: int | None = 0
        self._field_bytes = 0
        self._refusal = 400
        self._refused = False

    # connection

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if len(self.connections) > self.limits.max_connections:
            self._refuse(503)
            return
        self._arm()

    def connection_lost(self, exc: Exception | None) -> None:
        self._disarm()
        self._cancel_stall()
        super().connection_lost(exc)

    # head

    def data_received(self, data: bytes) -> None:
        if self._refused or self.transport.is_closing():
            return
        if self._head_bytes is not None:
            self._head_bytes += len(data)
            self._arm()
        super().data_received(data)
        # Within one piece of data the head may have ended; then the fields were counted one by one.
        if self._head_bytes is not None and self._head_bytes > self.limits.max_header_bytes:
            self._refuse(431)

    def on_message_begin(self) -> None:
        self._field_bytes = 0
        super().on_message_begin()

    def on_url(self, url: bytes) -> None:
        self._count(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        self._count(len(name) + len(value) + FIELD_OVERHEAD_BYTES)
        super().on_header(name, value)
        if len(self.headers) > self.limits.max_header_fields:
            self._refusal = 431
            raise ValueError("too many header fields")

    def on_headers_complete(self) -> None:
        self._head_bytes = None
        self._disarm()
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        self._head_bytes = 0
        super().on_message_complete()

    def _count(self, n_bytes: int) -> None:
        self._field_bytes += n_bytes
        if self._field_bytes > self.limits.max_header_bytes:
            self._refusal = 431
            raise ValueError("headers too large")

    def send_400_response(self, msg: str) -> None:
        """Called by the parser's owner for whatever it cannot parse, our own limits included."""
        self._refuse(self._refusal)

    def _refuse(self, status: int) -> None:
        self._disarm()
        self._refused = True
        if self.transport.is_closing():
            return
        if self.cycle is not None and not self.cycle.response_complete:
            self.transport.close()
            return
        self.transport.write(refusal(status))
        if status == 503:
            self.transport.close()
        else:
            self.transport.write_eof()
            self._head_timer = self.loop.call_later(LINGER_S, self.transport.abort)

    # timers

    def _arm(self) -> None:
        if self._head_timer is None:
            self._head_timer = self.loop.call_later(self.limits.header_timeout_s, self._head_late)

    def _disarm(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _head_late(self) -> None:
        self._head_timer = None
        if self.cycle is not None and not self.cycle.response_complete:
            self._arm()  # bytes of a pipelined request, while an answer is being written
        elif self._head_bytes:
            self._refuse(408)
        else:
            self.transport.close()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self._head_bytes == 0:
            self._disarm()  # the keep-alive timer takes over

    def pause_writing(self) -> None:
        super().pause_writing()
        if self._stall_timer is None:
            self._stall_timer = self.loop.call_later(self.limits.write_stall_s, self._stalled)

    def resume_writing(self) -> None:
        self._cancel_stall()
        super().resume_writing()

    def _stalled(self) -> None:
        self._stall_timer = None
        self.transport.abort()

    def _cancel_stall(self) -> None:
        if self._stall_timer is not None:
            self._stall_timer.cancel()
            self._stall_timer = None


def guarded_protocol(limits: GuardLimits) -> type[asyncio.Protocol]:
    """A protocol class for `uvicorn.Config(http=...)` with these limits."""
    return type("GuardedProtocol", (_Guarded,), {"limits": limits})
