"""The protocol guard: what uvicorn does not bound, bounded before a byte of a request reaches the application.

    bound                       default       beyond it
    open connections            4096          503, closed
    bytes of a request's head   32 KiB        431, closed
    header fields               100           431, closed
    head complete within        10 s          408, closed (a silent fresh connection: closed)
    keep-alive idle             75 s          closed
    client does not read        60 s          connection reset; the request is aborted

A request that is broken is answered with 400, after the answers to those before it, and the connection is closed.
An offer to speak another protocol (`Upgrade: h2c`, `websocket`) is not taken: the request is answered as it stands.
The body's own limits need the application's say and are in `call.py`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from sixfold.api.http.errors import ErrorBody, envelope

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


class _AnyLength(int):
    """The length that uvicorn expects of an answer to HTTP/1.0: whatever comes is right."""

    def __lt__(self, _: int) -> bool:
        return False

    def __sub__(self, _: int) -> _AnyLength:
        return self

    def __ne__(self, _: object) -> bool:
        return False


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
        self._refusal_due: int | None = None
        self._head_without_offer = b""
        self.on_writable: Callable[[], None] | None = None
        """Called when the client reads again after `write_chunk` was refused."""

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
        self._unset_keepalive_if_required()
        try:
            self._feed(data)
        except httptools.HttpParserError as fault:
            if isinstance(fault.__context__, MemoryError):  # ours, and not the client's
                raise fault.__context__ from None
            self._refuse(self._refusal)
        # Within one piece of data the head may have ended; then the fields were counted one by one.
        if self._head_bytes is not None and self._head_bytes > self.limits.max_header_bytes:
            self._refuse(431)

    def _feed(self, data: bytes) -> None:
        """Parse. The parser stops behind a head that offers another protocol; a new one goes on from the same head
        without the offer, which a server may ignore (RFC 9110, 7.8)."""
        left = memoryview(data)
        while left:
            try:
                self.parser.feed_data(left)
                return
            except httptools.HttpParserUpgrade as stop:
                left = left[stop.args[0] :]
            self.parser = httptools.HttpRequestParser(self)
            self.parser.set_dangerous_leniencies(lenient_data_after_close=True)  # as uvicorn does
            self.parser.feed_data(self._head_without_offer)

    def on_message_begin(self) -> None:
        self._field_bytes = 0
        if self._head_bytes == 0:  # behind another request, in the same piece of data
            self._head_bytes = 1
            self._arm()
        super().on_message_begin()
        self.scope["sixfold.connection"] = self  # type: ignore[typeddict-unknown-key]

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
        version, method = self.parser.get_http_version(), self.parser.get_method()
        n_hosts = sum(name == b"host" for name, _ in self.headers)
        if n_hosts > 1 or (n_hosts == 0 and version == "1.1"):
            raise ValueError("not exactly one Host")
        if method == b"CONNECT":
            raise ValueError("this is no proxy")
        if self.parser.should_upgrade():
            lines = [b"%s %s HTTP/%s" % (method, self.url, version.encode("ascii"))]
            lines += [b"%s: %s" % field for field in self.headers if field[0] != b"upgrade"]
            self._head_without_offer = b"\r\n".join([*lines, b"", b""])
            return
        self._head_bytes = None
        self._disarm()
        super().on_headers_complete()
        self.scope["sixfold.arrival"] = self.cycle  # type: ignore[typeddict-unknown-key]
        if version == "1.0":  # knows no chunks: what has no length ends with the connection
            self.cycle.chunked_encoding = False
            self.cycle.expected_content_length = _AnyLength()

    def on_message_complete(self) -> None:
        if self.parser.should_upgrade():
            return  # of nothing but the head
        self._head_bytes = 0
        super().on_message_complete()

    def _count(self, n_bytes: int) -> None:
        self._field_bytes += n_bytes
        if self._field_bytes > self.limits.max_header_bytes:
            self._refusal = 431
            raise ValueError("headers too large")

    # refusals

    def _refuse(self, status: int) -> None:
        """Answer with an error, after the answers that are owed already, and close. No more requests are read."""
        if self._refused:
            return
        self._refused = True
        self._disarm()
        cycle = self.cycle
        if self._head_bytes is None:  # the body of the latest request is broken
            if cycle.response_started:
                self.transport.close()
                return
            cycle.disconnected = True
            cycle.message_event.set()
            waits = bool(self.pipeline)
            if waits:
                self.pipeline.popleft()
        else:
            waits = cycle is not None and not cycle.response_complete
        if waits:
            self._refusal_due = status
        else:
            self._answer(status)

    def _answer(self, status: int) -> None:
        self._unset_keepalive_if_required()
        if self.transport.is_closing():
            return
        self.transport.write(refusal(status))
        if status == 503:
            self.transport.close()
        else:
            if self.transport.can_write_eof():  # TLS has no half of a connection to close
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
        last = not self.pipeline
        super().on_response_complete()
        if self._head_bytes == 0:
            self._disarm()  # the keep-alive timer takes over
        if last and self._refusal_due is not None:
            self._answer(self._refusal_due)

    def write_chunk(self, data: bytes) -> bool:
        """A part of a streamed response, past ASGI: it costs a call and not a coroutine. False, and nothing is sent,
        while the client does not read."""
        if self.flow.write_paused:
            return False
        if not self.transport.is_closing():
            self.transport.write(b"%x\r\n%b\r\n" % (len(data), data) if self.cycle.chunked_encoding else data)
        return True

    def cut(self) -> None:
        """Reset the connection: whoever answers on it sees a client that is gone."""
        self.transport.abort()

    def pause_writing(self) -> None:
        super().pause_writing()
        if self._stall_timer is None:
            self._stall_timer = self.loop.call_later(self.limits.write_stall_s, self._stalled)

    def resume_writing(self) -> None:
        self._cancel_stall()
        super().resume_writing()
        if self.on_writable is not None:
            self.on_writable()

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
