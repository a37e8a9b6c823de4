"""Bytes of a body -> a validated request object, or an error that names the field.

Order: size (done by the reader of the body), nesting depth, JSON, types and unknown fields.
"""

from __future__ import annotations

import re
from typing import Any, TypeVar

import msgspec

from sixfold.api.call import Call
from sixfold.api.errors import clip
from sixfold.api.json_fault import find_fault, nests_too_much
from sixfold.errors import InvalidRequest

__all__ = ["MAX_JSON_DEPTH", "decode", "field_name", "read_request"]

MAX_JSON_DEPTH = 64
MAX_JSON_CONTAINERS = 100_000
MAX_IGNORED_FIELDS = 64
INLINE_BYTES = 64 << 10
"""Larger bodies are parsed in a thread: checking and refusing a hostile one takes milliseconds."""

T = TypeVar("T")

_decoders: dict[type, msgspec.json.Decoder[Any]] = {}

_WHERE = re.compile(r" - at (?:`key` in )?`\$([^`]*)`$", re.DOTALL)
_UNKNOWN = re.compile(r"^Object contains unknown field `(.*)`$", re.DOTALL)
_MISSING = re.compile(r"^Object missing required field `(.*)`$", re.DOTALL)
_INDEXES = re.compile(r"(?:\[[^\]]*\])+$")
_WHOLE_FIELDS = re.compile(r"^(messages\[\d+\]\.content|logit_bias|metadata)\b.*", re.DOTALL)


async def read_request(call: Call, kind: type[T]) -> tuple[T, list[str]]:
    """Read the call's body and `decode` it; a large one beside the event loop.

    Raises:
        NotAllowed, PayloadTooLarge, BodyTimeout, Overloaded, ClientGone: see `Call.read_json`.
        InvalidRequest: see `decode`.
    """
    body = await call.read_json()
    ignore_unknown = call.context.ignore_unknown
    if len(body) <= INLINE_BYTES:
        return decode(kind, body, ignore_unknown=ignore_unknown)
    return await call.context.in_thread(decode, kind, body, ignore_unknown=ignore_unknown)


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
        if ignore_unknown and _UNKNOWN.match(_WHERE.sub("", str(error))):
            return _without_unknown(kind, body)
        raise _refusal(str(error)) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise _broken(body) from None


def field_name(path: str) -> str | None:
    """A path within the document -> the field that an error names.

    Indexes of plain lists are left out (`stop[1]` -> `stop`), those of messages are kept (`messages[0].role`); what
    is wrong inside a message's content or a map is put down to the whole.
    """
    path = _WHOLE_FIELDS.sub(r"\1", path.lstrip("."))
    return clip(_INDEXES.sub("", path)) or None


def _decoder(kind: type[T]) -> msgspec.json.Decoder[T]:
    decoder = _decoders.get(kind)
    if decoder is None:
        decoder = _decoders[kind] = msgspec.json.Decoder(kind)
    return decoder


def _refusal(message: str) -> InvalidRequest:
    where = _WHERE.search(message)
    path = where.group(1) if where else ""
    what = _WHERE.sub("", message)
    if unknown := _UNKNOWN.match(what):
        param = field_name(f"{path}.{unknown.group(1)}")
        return InvalidRequest(f"unknown field: {param}", param=param, code="unknown_field")
    if missing := _MISSING.match(what):
        param = field_name(f"{path}.{missing.group(1)}")
        return InvalidRequest(f"{param} is required", param=param, code="missing_field")
    param = field_name(path)
    return InvalidRequest(
        f"{param or 'the body'}: {what[:1].lower()}{clip(what[1:])}", param=param, code="invalid_type"
    )


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
    while True:
        try:
            return msgspec.convert(document, kind, str_keys=True), ignored
        except msgspec.ValidationError as error:
            where = _WHERE.search(str(error))
            unknown = _UNKNOWN.match(_WHERE.sub("", str(error)))
            if unknown is None or len(ignored) == MAX_IGNORED_FIELDS:
                raise _refusal(str(error)) from None
            path = where.group(1) if where else ""
            try:
                del _at(document, path)[unknown.group(1)]
            except (KeyError, IndexError, TypeError):  # a key made to look like the end of the parser's message
                raise _refusal(str(error)) from None
            ignored.append(clip(f"{path}.{unknown.group(1)}".lstrip(".")))


def _at(document: Any, path: str) -> Any:
    for key, index in re.findall(r"\.([^.\[]+)|\[(\d+)\]", path):
        document = document[int(index)] if index else document[key]
    return document
