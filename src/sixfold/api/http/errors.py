"""The one table from `sixfold.errors` to HTTP, and the shapes of an error: one for each API that is spoken here.

    {"error": {"message": ..., "type": ..., "param": ..., "code": ...}}                        (OpenAI: all routes but)
    {"type": "error", "error": {"type": ..., "message": ...}, "request_id": ...}               (Anthropic: /v1/messages)

A path has its shape before it has a handler, so that a refused `Host` or method looks like everything else there.
A subclass without an entry takes its nearest ancestor's. The messages of errors marked internal never leave the server.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import msgspec

from sixfold import errors
from sixfold.errors import SixfoldError

__all__ = [
    "ANTHROPIC",
    "OPENAI",
    "AnthropicErrorEnvelope",
    "ClientGone",
    "ErrorBody",
    "ErrorEnvelope",
    "ErrorShape",
    "HttpError",
    "clip",
    "describe",
    "envelope",
    "render_error",
    "shape_of",
]

MAX_ECHO_CHARS = 200
"""Of a caller's own words in a message."""

MAX_MESSAGE_CHARS = 500


class Row(NamedTuple):
    status: int
    type: str
    code: str | None
    internal: bool = False


TABLE: dict[type[SixfoldError], Row] = {
    errors.InvalidRequest: Row(400, "invalid_request_error", None),
    errors.ContextLengthExceeded: Row(400, "invalid_request_error", "context_length_exceeded"),
    errors.Unauthorized: Row(401, "invalid_request_error", "invalid_api_key"),
    errors.NotAllowed: Row(403, "invalid_request_error", "not_allowed"),
    errors.ModelNotFound: Row(404, "invalid_request_error", "model_not_found"),
    errors.ResponseNotFound: Row(404, "invalid_request_error", "response_not_found"),
    errors.RouteNotFound: Row(404, "invalid_request_error", "not_found"),
    errors.RequestNotFound: Row(404, "invalid_request_error", "request_not_found"),
    errors.BodyTimeout: Row(408, "invalid_request_error", "body_timeout"),
    errors.PayloadTooLarge: Row(413, "invalid_request_error", "payload_too_large"),
    errors.Overloaded: Row(429, "server_overloaded", "overloaded"),
    errors.RequestAborted: Row(499, "request_aborted", "aborted"),
    errors.RequestFailed: Row(500, "server_error", "request_failed"),
    errors.NotReady: Row(503, "server_unavailable", "not_ready"),
    errors.EngineDead: Row(503, "server_error", "engine_dead"),
    errors.DeadlineExceeded: Row(504, "timeout_error", "deadline_exceeded"),
    errors.SixfoldError: Row(500, "server_error", "internal_error", internal=True),
}

STATUS_OF_CODE = {
    "method_not_allowed": 405,
    "ambiguous_id": 409,
    "unsupported_media_type": 415,
    "headers_too_large": 431,
}
"""Codes with a status of their own within their class."""


class ClientGone(Exception):
    """The client has left: there is nobody to answer."""


class HttpError(NamedTuple):
    """An error as it leaves the server."""

    status: int
    body: bytes
    """The JSON document."""
    wait_s: float | None
    """After which trying again makes sense, where it does."""

    @property
    def retry_after_s(self) -> int | None:
        """For `Retry-After`, which knows no fractions."""
        return None if self.wait_s is None else max(1, math.ceil(self.wait_s))


class ErrorBody(msgspec.Struct, frozen=True):
    message: str
    type: str
    param: str | None
    code: str | None


class ErrorEnvelope(msgspec.Struct, frozen=True):
    error: ErrorBody


class AnthropicErrorBody(msgspec.Struct, frozen=True):
    type: str
    message: str


class AnthropicErrorEnvelope(msgspec.Struct, frozen=True, tag_field="type", tag="error"):
    error: AnthropicErrorBody
    request_id: str


class ErrorShape(NamedTuple):
    """How the routes of one API show an error."""

    document: Callable[[int, ErrorBody, str], bytes]
    """Status, error and request id -> the JSON document."""
    id_headers: tuple[bytes, ...]
    """Headers of every answer that hold the request id."""


def clip(text: str, limit: int = MAX_ECHO_CHARS) -> str:
    """A caller's words, short enough for a message and without halves of surrogate pairs."""
    text = text if len(text) <= limit else text[: limit - 1] + "\N{HORIZONTAL ELLIPSIS}"
    return text.encode("utf-8", "replace").decode("utf-8")


def row_of(error: SixfoldError) -> Row:
    return next(TABLE[cls] for cls in type(error).__mro__ if cls in TABLE)


def describe(error: BaseException, request_id: str) -> tuple[int, ErrorBody]:
    """Status and body of any exception; what is not one of ours, or internal, says only the request id."""
    if isinstance(error, SixfoldError):
        row = row_of(error)
        if not row.internal:
            status = STATUS_OF_CODE.get(error.code or "", row.status)
            param = clip(error.param) if error.param is not None else None
            return status, ErrorBody(clip(error.message, MAX_MESSAGE_CHARS), row.type, param, error.code or row.code)
    return 500, ErrorBody(f"internal error (request {request_id})", "server_error", None, "internal_error")


def envelope(body: ErrorBody) -> bytes:
    return msgspec.json.encode(ErrorEnvelope(body))


ANTHROPIC_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    408: "timeout_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}
"""Of the other statuses, those below 500 are `invalid_request_error` and the rest `api_error`."""


def _anthropic(status: int, body: ErrorBody, request_id: str) -> bytes:
    """There is no `param` in this shape: the message begins with the field where it does not name it anyway."""
    kind = ANTHROPIC_TYPES.get(status, "invalid_request_error" if status < 500 else "api_error")
    named = body.param is None or body.param in body.message
    message = body.message if named else f"{body.param}: {body.message}"
    return msgspec.json.encode(AnthropicErrorEnvelope(AnthropicErrorBody(kind, message), request_id))


OPENAI = ErrorShape(lambda status, body, request_id: envelope(body), (b"x-request-id",))
ANTHROPIC = ErrorShape(_anthropic, (b"x-request-id", b"request-id"))


_MESSAGES = ("/messages", "/messages/count_tokens")
_WITH_NAMES = ("/v1/models/", "/v1/responses/", "/debug/", "/page/")
"""Whose ends callers choose."""


def shape_of(path: str) -> ErrorShape:
    """The shape of errors at a path, whether it exists or not. Whoever asks for `/v1/v1/messages` or `/messages` has
    Anthropic's client with a wrong address, and that client reads its own shape alone."""
    is_messages = path.endswith(_MESSAGES) and not path.startswith(_WITH_NAMES)
    return ANTHROPIC if is_messages or path.startswith("/v1/messages/") else OPENAI


def render_error(error: BaseException, request_id: str, shape: ErrorShape = OPENAI) -> HttpError:
    status, body = describe(error, request_id)
    wait_s = error.retry_after_s if isinstance(error, SixfoldError) else None
    if wait_s is None and status in (429, 503):
        wait_s = 1.0
    document = shape.document(status, body, request_id)
    return HttpError(status, document, wait_s)
