"""The one table from `sixfold.errors` to HTTP, and the one shape of an error.

    {"error": {"message": ..., "type": ..., "param": ..., "code": ...}}

A subclass without an entry takes its nearest ancestor's. The messages of errors marked internal never leave the server.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import msgspec

from sixfold import errors
from sixfold.errors import SixfoldError

__all__ = ["ClientGone", "HttpError", "clip", "describe", "envelope", "render_error"]

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
    errors.BodyTimeout: Row(408, "invalid_request_error", "body_timeout"),
    errors.PayloadTooLarge: Row(413, "invalid_request_error", "payload_too_large"),
    errors.Overloaded: Row(429, "server_overloaded", "overloaded"),
    errors.RequestFailed: Row(500, "server_error", "request_failed"),
    errors.NotReady: Row(503, "server_unavailable", "not_ready"),
    errors.EngineDead: Row(503, "server_error", "engine_dead"),
    errors.DeadlineExceeded: Row(504, "timeout_error", "deadline_exceeded"),
    errors.SixfoldError: Row(500, "server_error", "internal_error", internal=True),
}

STATUS_OF_CODE = {"method_not_allowed": 405, "unsupported_media_type": 415, "headers_too_large": 431}
"""Codes with a status of their own within their class."""


class ClientGone(Exception):
    """The client has left: there is nobody to answer."""


class HttpError(NamedTuple):
    """An error as it leaves the server."""

    status: int
    body: bytes
    """The JSON document."""
    retry_after_s: int | None


class ErrorBody(msgspec.Struct, frozen=True):
    message: str
    type: str
    param: str | None
    code: str | None


class ErrorEnvelope(msgspec.Struct, frozen=True):
    error: ErrorBody


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


def render_error(error: BaseException, request_id: str) -> HttpError:
    status, body = describe(error, request_id)
    wait_s = error.retry_after_s if isinstance(error, SixfoldError) else None
    if wait_s is None and status in (429, 503):
        wait_s = 1.0
    return HttpError(status, envelope(body), None if wait_s is None else max(1, math.ceil(wait_s)))
