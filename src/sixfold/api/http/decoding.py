"""Bytes of a body -> a validated request object, or an error that names the field.

Order: size (done by the reader of the body), nesting depth, JSON, types and unknown fields.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

import msgspec

from sixfold.api.call import Call
from sixfold.api.http.errors import clip
from sixfold.api.http.json_fault import find_fault, nests_too_much
from sixfold.api.http.refusals import unsupported_part
from sixfold.api.http.type_fault import field_name, refusal, unknown_field, unsupported_type
from sixfold.errors import InvalidRequest
from sixfold.observability.meter import now
from sixfold.observability.sites import API_PARSE

__all__ = ["MAX_JSON_CONTAINERS", "MAX_JSON_DEPTH", "by_size", "convert", "decode", "read_request"]

MAX_JSON_DEPTH = 64
MAX_JSON_CONTAINERS = 100_000
MAX_IGNORED_FIELDS = 64
INLINE_BYTES = 64 << 10
"""Larger bodies are parsed and converted in a thread: a hostile one can keep it busy for half a second."""

T = TypeVar("T")
P = ParamSpec("P")
R = TypeVar("R")

_decoders: dict[type, msgspec.json.Decoder[Any]] = {}

_OBJECT = re.compile(r"^Object .* - at `\$(\..*)`$", re.DOTALL)
_PART = re.compile(r"^\.(messages\[\d+\]\.content)\[(\d+)\]$")

SERVED_TYPES = {".messages[].content[]": frozenset({"text"})}
"""Objects with a `type`, where they stand -> the types that are served. A request's own `SERVED_TYPES` replace it."""


async def read_request(call: Call, kind: type[T]) -> tuple[T, list[str]]:
    """Read the call's body and `decode` it; a large one beside the event loop.

    Raises:
        NotAllowed, PayloadTooLarge, BodyTimeout, Overloaded, ClientGone: see `Call.read_json`.
        InvalidRequest: see `decode`.
    """
    body = await call.read_json()
    started_ns = now()
    try:
        return await by_size(call, decode, kind, body, ignore_unknown=call.context.ignore_unknown)
    finally:
        call.context.meter.add(API_PARSE, started_ns, now())


async def by_size(call: Call, work: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
    """Do work that takes the longer, the larger the call's body is: at once, or beside the event loop."""
    if call.body_bytes <= INLINE_BYTES:
        return work(*args, **kwargs)
    return await call.context.threads.run(work, *args, **kwargs)


def decode(kind: type[T], body: bytes, *, ignore_unknown: bool = False) -> tuple[T, list[str]]:
    """Parse and validate.

    Args:
        kind: the request's struct.
        ignore_unknown: leave unknown fields out instead of refusing the request.

    Returns:
        The request and the names of the fields that were left out.

    Raises:
        InvalidRequest: `param` names the field as far as it is known.
    """
    if nests_too_much(body, MAX_JSON_DEPTH, MAX_JSON_CONTAINERS):
        raise InvalidRequest(
            f"the body nests deeper than {MAX_JSON_DEPTH} levels, or has over {MAX_JSON_CONTAINERS} arrays and objects",
            code="json_too_deep",
        )
    try:
        return _decoder(kind).decode(body), []
    except msgspec.ValidationError as error:
        message = str(error)
        if ignore_unknown and unknown_field(message) is not None:
            return _without_unknown(kind, body)
        raise _unsupported_type(kind, body, message) or refusal(kind, message) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise _broken(body) from None


def _decoder(kind: type[T]) -> msgspec.json.Decoder[T]:
    decoder = _decoders.get(kind)
    if decoder is None:
        decoder = _decoders[kind] = msgspec.json.Decoder(kind)
    return decoder


def _unsupported_type(kind: type, body: bytes, message: str) -> InvalidRequest | None:
    """An object of a type that is not served has fields that no type here knows: its type is what is wrong."""
    where = _OBJECT.match(message)
    if where is None:
        return None
    path = where.group(1)
    served = getattr(kind, "SERVED_TYPES", SERVED_TYPES).get(re.sub(r"\d+", "", path))
    if served is None:
        return None
    try:
        name = _at(msgspec.json.decode(body), path)["type"]
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, LookupError, TypeError):
        return None  # also a body that is no JSON further on, or a path that a key of the body imitates
    if not isinstance(name, str) or name in served:
        return None
    part = _PART.match(path)
    return unsupported_part(part.group(1), int(part.group(2)), name) if part else unsupported_type(path, name)


def _broken(body: bytes) -> InvalidRequest:
    fault = find_fault(body)
    if fault is None:
        return InvalidRequest("the body is not valid JSON", code="invalid_json")
    param = field_name(fault.path)
    at = f"{param}: " if param else ""
    return InvalidRequest(
        f"{at}the body is not valid JSON at byte {fault.offset}: {fault.reason}", param=param, code="invalid_json"
    )


def _without_unknown(kind: type[T], body: bytes) -> tuple[T, list[str]]:
    try:
        document = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise _broken(body) from None
    ignored: list[str] = []
    return convert(kind, document, "", ignored), ignored


def convert(kind: type[T], document: Any, where: str, ignored: list[str] | None) -> T:
    """Validate a part of a body that was taken as plain JSON.

    Args:
        where: its path within the body, for errors.
        ignored: unknown fields are left out, of the document too, and their names added here; None refuses them.

    Raises:
        InvalidRequest: `param` names the field as far as it is known.
    """
    while True:
        try:
            return msgspec.convert(document, kind, str_keys=True)
        except msgspec.ValidationError as error:
            message = str(error)
            unknown = unknown_field(message)
            if ignored is None or unknown is None or len(ignored) == MAX_IGNORED_FIELDS:
                raise refusal(kind, message, where) from None
            path, name = unknown
            try:
                del _at(document, path)[name]
            except (KeyError, IndexError, TypeError):  # a key made to look like the end of the parser's message
                raise refusal(kind, message, where) from None
            ignored.append(clip(f"{where}{path}.{name}".lstrip(".")))


def _at(document: Any, path: str) -> Any:
    for key, index in re.findall(r"\.([^.\[]+)|\[(\d+)\]", path):
        document = document[int(index)] if index else document[key]
    return document
