"""The one exception tree. `api/http/errors.py` holds the one table from these to HTTP.

    SixfoldError
    |- InvalidRequest            the caller's fault; names the field
    |  `- ContextLengthExceeded  prompt (+ max_tokens) does not fit the model or the block pool
    |- PayloadTooLarge           body, header or list above its documented limit
    |- BodyTimeout               the body did not arrive in time
    |- ModelNotFound             no such model here
    |- ResponseNotFound          no answer is stored under this id
    |- Unauthorized              missing or wrong key
    |- NotAllowed                host, method or content type refused
    |- RouteNotFound             no such path
    |- RequestNotFound           no request of this name is in flight
    |- RequestAborted            another call ended this request
    |- Overloaded                a bounded queue is full; carries `retry_after_s`
    |- NotReady                  starting, draining or restarting; carries `retry_after_s`
    |- DeadlineExceeded          the request's own deadline passed
    |- RequestFailed             this request failed inside the server (NaN logits, poisoned); others live
    |- EngineDead                the engine or a worker is gone
    |- ModelFileError            a model file is truncated, hostile or of an unsupported kind
    |- DownloadError             a model could not be fetched or its digest is wrong
    |- ConfigError               a flag or a configuration value cannot be used; names it
    |  `- DoesNotFit             the model, with these settings, needs more memory than there is
    `- ProtocolError             bytes between our own processes that break the protocol

Every class can be raised with a message that is fit for the user: no paths of ours, no internals.
"""

from __future__ import annotations

__all__ = [
    "BodyTimeout",
    "ConfigError",
    "ContextLengthExceeded",
    "DeadlineExceeded",
    "DoesNotFit",
    "DownloadError",
    "EngineDead",
    "InvalidRequest",
    "ModelFileError",
    "ModelNotFound",
    "NotAllowed",
    "NotReady",
    "Overloaded",
    "PayloadTooLarge",
    "ProtocolError",
    "RequestAborted",
    "RequestFailed",
    "RequestNotFound",
    "ResponseNotFound",
    "RouteNotFound",
    "SixfoldError",
    "Unauthorized",
    "printable",
]


def printable(text: str) -> str:
    """Words that others chose, with what would not be printed as it is escaped: `a\nb` -> `a\\nb`."""
    return text if text.isprintable() else "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


class SixfoldError(Exception):
    """Root of the tree.

    Args:
        message: one sentence for the user.
        param: the field at fault, as the caller wrote it (`messages[0].content`), or None.
        code: a short machine-readable cause (`context_length_exceeded`), or None.
        retry_after_s: when trying again makes sense, in seconds, or None.
    """

    def __init__(
        self,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        retry_after_s: float | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.code = code
        self.retry_after_s = retry_after_s


class InvalidRequest(SixfoldError):
    """The request cannot be served as written; `param` names the field."""


class ContextLengthExceeded(InvalidRequest):
    """Prompt, or prompt plus `max_tokens`, is longer than the model or the block pool allows."""


class PayloadTooLarge(SixfoldError):
    """Something the client sent is above a documented size limit."""


class BodyTimeout(SixfoldError):
    """The request body did not arrive before its deadline."""


class ModelNotFound(SixfoldError):
    """The named model is not served or not known."""


class ResponseNotFound(SixfoldError):
    """No answer is stored under this id, or not any more."""


class Unauthorized(SixfoldError):
    """No key, or a wrong one."""


class NotAllowed(SixfoldError):
    """Host, method or content type is refused."""


class RouteNotFound(SixfoldError):
    """No such path."""


class RequestNotFound(SixfoldError):
    """No request of this name is in flight: it is unknown, or has ended."""


class RequestAborted(SixfoldError):
    """Another call asked for the end of this request."""


class Overloaded(SixfoldError):
    """A bounded queue is full. Trying again later makes sense."""


class NotReady(SixfoldError):
    """The server is starting, draining or restarting."""


class DeadlineExceeded(SixfoldError):
    """The request's own deadline passed before it was done."""


class RequestFailed(SixfoldError):
    """This one request failed inside the server; no other request is affected."""


class EngineDead(SixfoldError):
    """The engine, or a worker that it needs, is gone."""


class ModelFileError(SixfoldError):
    """A model file is truncated, inconsistent or of an unsupported kind.

    The message may quote the file, which can hold anything: what would not be printed is escaped, and much is cut.
    """

    CHARS_MAX = 1000

    def __init__(self, message: str, *, param: str | None = None) -> None:
        message = printable(message)
        if len(message) > self.CHARS_MAX:
            half = self.CHARS_MAX // 2
            message = f"{message[:half]} ... {message[-half:]}"
        super().__init__(message, param=param)


class DownloadError(SixfoldError):
    """A model could not be fetched, or what arrived has the wrong digest."""


class ConfigError(SixfoldError):
    """A flag, environment variable or configuration entry cannot be used; `param` names it."""


class DoesNotFit(ConfigError):
    """The model needs more memory than there is; smaller settings may help."""


class ProtocolError(SixfoldError):
    """Bytes between our own processes that break the protocol: a bug, never user input."""
