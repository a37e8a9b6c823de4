"""One HTTP call: its request's bytes in, its response's bytes out. Handlers meet ASGI nowhere else.

A response that is sent while the request's body is still arriving closes the connection afterwards. Closing at once
would reset it, and the client might never see the answer; so for a short time what still arrives is read and dropped.
"""

from __future__ import annotations

import asyncio
import random
import re
import secrets
import time
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import parse_qsl

from starlette.types import Receive, Scope, Send

from sixfold.api.access.keys import ANYBODY
from sixfold.api.admission.admission import Permit
from sixfold.api.call_log import log_fault
from sixfold.api.context import ApiContext
from sixfold.api.http.errors import ClientGone, clip, describe, render_error, shape_of
from sixfold.errors import BodyTimeout, InvalidRequest, NotAllowed, Overloaded, PayloadTooLarge
from sixfold.observability.calls import CallRecord, current
from sixfold.observability.meter import now
from sixfold.observability.sites import API_BODY
from sixfold.observability.timeline import State

if TYPE_CHECKING:
    from sixfold.api.generation import TotalUsage
    from sixfold.messages import GenerateRequest

__all__ = ["Call", "Connection"]

LINGER_S = 2.0
RETRY_SPREAD = 0.25
LINGER_MAX_BYTES = 256 << 20

_REQUEST_ID = re.compile(rb"[A-Za-z0-9._:-]{1,128}")

Headers = Iterable[tuple[bytes, bytes]]


class Connection(Protocol):
    """What a call may do past ASGI: write parts of a stream without waiting. Fulfilled by `guard.py`."""

    on_writable: Callable[[], None] | None
    """Called when the client reads again after a refused `write_chunk`."""

    def write_chunk(self, data: bytes) -> bool:
        """Write one chunk; False, and nothing is written, while the client does not read."""
        ...

    def cut(self) -> None:
        """Reset the connection: `wait_gone` returns."""
        ...


class Arrival(Protocol):
    """The request as far as it is here. Fulfilled by uvicorn's cycle."""

    more_body: bool
    """Its end has not come yet."""


class Counted(Protocol):
    """What answers a call, for the log."""

    @property
    def first_token_s(self) -> float:
        """CLOCK_MONOTONIC; 0 where there is none."""
        ...

    def usage(self) -> TotalUsage: ...

    def reasons(self) -> list[str]:
        """Why each choice ended."""
        ...

    @property
    def asked(self) -> GenerateRequest:
        """What the engine was asked for, the first of several."""
        ...


class Call:
    """See the module's docstring. Lives as long as its handler runs.

    Attributes:
        caller: whose call it is, once its key was seen.
        permit: what it was allowed so far, and has to give back.
        connection: for the parts of a stream.
        counted: the generation that answers the call, once the engine has taken it; for the log.
        record: where its time goes, of a call that wants work from the engine.
        fault: why the call did not end well, once known: an error's code, or `client_gone`; for the log.
        shape: of errors on this path.
        request_id: the caller's `X-Request-Id` where it is fit to be echoed, else our own. A label, never a key.
        arrival_s: CLOCK_MONOTONIC, when its headers were complete.
        body_bytes: of the request, once it was read.
    """

    __slots__ = (
        "_body_left",
        "_send",
        "arrival_s",
        "body_bytes",
        "caller",
        "connection",
        "context",
        "counted",
        "fault",
        "permit",
        "receive",
        "record",
        "request_id",
        "scope",
        "shape",
        "started",
        "status",
    )

    def __init__(self, context: ApiContext, scope: Scope, receive: Receive, send: Send) -> None:
        self.context = context
        self.scope = scope
        self.receive = receive
        self._send = send
        self.caller = ANYBODY
        self.permit = Permit(context.admission)
        self.connection: Connection = scope["sixfold.connection"]
        self.shape = shape_of(scope["path"])
        label = self.header(b"x-request-id")
        if label is not None and _REQUEST_ID.fullmatch(label):
            self.request_id = label.decode("ascii")
        else:
            self.request_id = "req-" + secrets.token_hex(12)
        self.started = False
        self.status = 0
        self.counted: Counted | None = None
        self.record: CallRecord | None = None
        self.fault: str | None = None
        self.arrival_s = time.monotonic()
        self.body_bytes = 0
        self._body_left = (
            self.header(b"content-length") not in (None, b"0") or self.header(b"transfer-encoding") is not None
        )

    def enter(self, state: State | None, at_ns: int = 0) -> None:
        """From now on, or from `at_ns`, the call's time goes there."""
        if self.record is not None:
            self.record.enter(state, at_ns)

    def header(self, name: bytes) -> bytes | None:
        """The first header of this (lower case) name."""
        for key, value in self.scope["headers"]:
            if key == name:
                return bytes(value)
        return None

    def query(self) -> list[tuple[str, str]]:
        """Names and values of the URL's query, in order. They are as many as fit into a head.

        Raises:
            InvalidRequest: a name is there twice.
        """
        pairs = parse_qsl(self.scope["query_string"].decode("latin-1"), keep_blank_values=True)
        if len(dict(pairs)) < len(pairs):
            raise InvalidRequest("a parameter is given twice", param="query")
        return pairs

    @property
    def tenant(self) -> str:
        """What is stored for one is not there for another. Without keys there is one tenant."""
        return self.caller.tenant

    # admission

    def admitted(self, *, generates: bool = True) -> AbstractContextManager[None]:
        """Ask for the permit, and hold it until the engine's verdict; from here on the call's time is recorded.

        Args:
            generates: the call is nothing without the engine.

        Raises:
            EngineDead, NotReady, Overloaded: see `Permit.preparing`.
        """
        self.record = CallRecord(self.request_id, int(self.arrival_s * 1e9), path=self.scope["path"])
        self.record.enter(State.RECEIVE, self.record.start_ns)
        current.set(self.record)
        return self.permit.preparing(self.caller.allowance, generates=generates)

    def reserve(self, n_choices: int, deadline_s: float | None = None) -> None:
        """Take places, now that the body is known. Raises: InvalidRequest, Overloaded: see `Permit.reserve`."""
        self.permit.reserve(n_choices, self.body_bytes, deadline_s)

    def close(self) -> None:
        """The call is over. Call once."""
        self.permit.close()
        if self.record is not None:
            self._close_record(self.record)

    def let_go(self) -> None:
        """Nobody asks it any more. What it refers to refers back to it, so without this its prompt and its tokens would
        stay until the garbage collector comes.
        """
        self.counted = None
        for name in ("sixfold.call", "sixfold.connection", "sixfold.arrival"):
            self.scope.pop(name, None)

    def _close_record(self, record: CallRecord) -> None:
        record.request_id, record.status, record.fault = self.request_id, self.status, self.fault or ""
        record.end_ns = time.monotonic_ns()
        self.context.call_ring.write(record)

    # request

    def label(self, request_id: str | None) -> None:
        """Take the body's `request_id` as the call's label.

        Raises:
            InvalidRequest: it is not fit to be one.
        """
        if request_id is None:
            return
        if not request_id.isascii() or not _REQUEST_ID.fullmatch(request_id.encode()):
            raise InvalidRequest("request_id must be 1 to 128 letters, digits and ._:-", param="request_id")
        self.request_id = request_id

    async def read_json(self) -> bytes:
        """The body of a POST, not yet parsed.

        Raises:
            NotAllowed: it is not declared as plain JSON.
            PayloadTooLarge, BodyTimeout, Overloaded: it breaks a limit.
            ClientGone: it will never be complete.
        """
        media_type = (self.header(b"content-type") or b"").partition(b";")[0].strip().lower()
        if media_type != b"application/json":
            raise NotAllowed("Content-Type must be application/json", code="unsupported_media_type")
        if (self.header(b"content-encoding") or b"identity").strip().lower() != b"identity":
            raise NotAllowed("a compressed body is not accepted", code="unsupported_media_type")
        limit = self.context.config.max_body_bytes
        declared = self.header(b"content-length")
        if declared is not None and (not declared.isdigit() or int(declared) > limit):
            raise _too_large(limit)
        started_ns = now()
        try:
            async with asyncio.timeout(self.context.config.body_timeout_s):
                body = await self._read(limit)
        except TimeoutError:
            raise BodyTimeout(f"the body did not arrive within {self.context.config.body_timeout_s:g} s") from None
        finally:
            self.context.meter.add(API_BODY, started_ns, now())
        self.body_bytes = len(body)
        self.enter(State.PARSE)
        if not body:
            raise InvalidRequest("the body is empty; it must be a JSON object", code="invalid_json")
        return body

    async def _read(self, limit: int) -> bytes:
        message = await self.receive()
        body = message.get("body", b"")
        if message["type"] == "http.request" and not message.get("more_body"):
            self._body_left = False
            if len(body) > limit:
                raise _too_large(limit)
            return bytes(body)
        return await self._read_pieces(message, limit)

    async def _read_pieces(self, message: Any, limit: int) -> bytes:
        budget = self.context.body_budget
        pieces: list[bytes] = []
        size = 0
        try:
            while True:
                if message["type"] != "http.request":
                    raise ClientGone
                piece = message.get("body", b"")
                size += len(piece)
                budget.take(len(piece))
                pieces.append(piece)
                if size > limit:
                    raise _too_large(limit)
                if budget.exceeded:
                    raise Overloaded("too many large requests are arriving at the same time", retry_after_s=1.0)
                if not message.get("more_body"):
                    self._body_left = False
                    return b"".join(pieces)
                message = await self.receive()
        finally:
            budget.give(size)

    async def wait_gone(self) -> None:
        """Returns when the client has left (or the response is complete)."""
        while (await self.receive())["type"] != "http.disconnect":
            pass

    # response

    async def respond(
        self, status: int, body: bytes, *, content_type: bytes = b"application/json", headers: Headers = ()
    ) -> None:
        """Send a whole response."""
        self.enter(State.SOCKET)
        self.started = True
        self.status = status
        head = [
            (b"content-type", content_type),
            (b"content-length", b"%d" % len(body)),
            *self._id_headers(),
            *headers,
        ]
        if self._body_left:
            arrival: Arrival = self.scope["sixfold.arrival"]
            self._body_left = arrival.more_body  # what is here already, read or not, need not be waited for
        if self._body_left:
            head.append((b"connection", b"close"))
        await self._send({"type": "http.response.start", "status": status, "headers": head})
        await self._send({"type": "http.response.body", "body": body, "more_body": self._body_left})
        if self._body_left:
            await self._linger()
            await self._send({"type": "http.response.body", "body": b"", "more_body": False})

    async def fail(self, error: BaseException) -> None:
        """Send the error's response."""
        answer = render_error(error, self.request_id, self.shape)
        headers = []
        if answer.wait_s is not None and answer.retry_after_s is not None:
            # Spread, so that those who were refused together do not come back together.
            wait_ms = max(1, round(answer.wait_s * 1000 * random.uniform(1 - RETRY_SPREAD, 1 + RETRY_SPREAD)))
            headers.append((b"retry-after", b"%d" % answer.retry_after_s))
            headers.append((b"retry-after-ms", b"%d" % wait_ms))
        if answer.status == 401:
            headers.append((b"www-authenticate", b'Bearer realm="sixfold"'))
        body = describe(error, self.request_id)[1]
        self.context.metrics.count_refusal(answer.status, body.code or body.type)
        log_fault(self, error)
        await self.respond(answer.status, answer.body, headers=headers)

    async def start_stream(self, headers: Headers = ()) -> None:
        """Begin a response of server-sent events."""
        self.started = True
        self.status = 200
        head = [
            (b"content-type", b"text/event-stream; charset=utf-8"),
            (b"cache-control", b"no-cache"),
            (b"x-accel-buffering", b"no"),
            *self._id_headers(),
            *headers,
        ]
        await self._send({"type": "http.response.start", "status": 200, "headers": head})

    async def write(self, data: bytes) -> None:
        """Send a part of a stream; waits while the client does not read."""
        await self._send({"type": "http.response.body", "body": data, "more_body": True})

    async def end_stream(self, data: bytes) -> None:
        """Send the last part."""
        self.enter(State.SOCKET)
        await self._send({"type": "http.response.body", "body": data, "more_body": False})

    def ignored_header(self, names: list[str]) -> list[tuple[bytes, bytes]]:
        """Names the fields that were left out under `--unknown-fields ignore`."""
        if not names:
            return []
        shown = "".join(c if " " <= c <= "~" else "?" for c in clip(", ".join(names), 1000))
        return [(b"x-sixfold-ignored-fields", shown.encode("ascii"))]

    def _id_headers(self) -> list[tuple[bytes, bytes]]:
        return [(name, self.request_id.encode("ascii")) for name in self.shape.id_headers]

    async def _linger(self) -> None:
        dropped = 0
        try:
            async with asyncio.timeout(LINGER_S):
                while dropped < LINGER_MAX_BYTES:
                    message = await self.receive()
                    if message["type"] != "http.request" or not message.get("more_body"):
                        return
                    dropped += len(message.get("body", b""))
        except TimeoutError:
            return


def _too_large(limit: int) -> PayloadTooLarge:
    return PayloadTooLarge(f"the body is larger than {limit} bytes")
