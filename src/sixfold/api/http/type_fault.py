"""What the parser says about a body of the wrong shape -> an error in JSON's words that names the field."""

from __future__ import annotations

import difflib
import functools
import re
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import msgspec

from sixfold.api.fields.structured_fields import JsonSchemaFormat, ResponseFormat, StructuredOutputsField
from sixfold.api.fields.tool_schemas import CallInHistory, FunctionDefinition, NamedTool, ToolDefinition
from sixfold.api.http.errors import clip
from sixfold.api.openai.schemas import INERT, UNSUPPORTED, ChatMessage, ChatRequest, ContentPart, StreamOptions
from sixfold.errors import InvalidRequest

__all__ = ["field_name", "refusal", "unknown_field", "unsupported_type"]

MAX_SUGGESTED_CHARS = 64
"""A longer name is no slip of the finger, and comparing takes its time."""

CLOSE = 0.75
"""Share of equal characters from which a name is a slip: below it, other servers' fields get odd suggestions."""

OTHER_NAMES: dict[str, tuple[str, ...]] = {
    "schema": ("json_schema",),
    "stop": ("stop_sequences",),
    "stop_sequences": ("stop",),
    "response_format": ("text.format", "output_config.format"),
    "output_format": ("response_format", "text.format"),
    "output_config": ("response_format", "text.format"),
    "text": ("response_format", "output_config.format"),
    "json_schema": ("structured_outputs.json", "text.format", "output_config.format"),
    "grammar": ("structured_outputs.grammar",),
    "guided_json": ("structured_outputs.json", "text.format", "output_config.format"),
    "guided_regex": ("structured_outputs.regex",),
    "guided_choice": ("structured_outputs.choice",),
    "guided_grammar": ("structured_outputs.grammar",),
    "system": ("instructions", "messages"),
    "instructions": ("system", "messages"),
    "messages": ("input", "prompt"),
    "input": ("messages", "prompt"),
    "prompt": ("messages", "input"),
} | dict.fromkeys(
    (
        "max_tokens",
        "max_completion_tokens",
        "max_output_tokens",
        "max_new_tokens",
        "max_length",
        "n_predict",
        "num_predict",
    ),
    ("max_tokens", "max_output_tokens"),
)
"""Other APIs' names, and those of older versions -> what they are called here: the first that the body's type has."""

_WHERE = re.compile(r" - at (`key` in )?`\$([^`]*)`$", re.DOTALL)
_UNKNOWN = re.compile(r"^Object contains unknown field `(.*)`$", re.DOTALL)
_MISSING = re.compile(r"^Object missing required field `(.*)`$", re.DOTALL)
_TAG = re.compile(r"^Invalid value '(.*)'$", re.DOTALL)
_ENUM = re.compile(r"^Invalid enum value '?(.*?)'?$", re.DOTALL)
_TYPES = re.compile(r"^Expected `([a-z |]+)`, got `([a-z]+)`$")
_INDEXES = re.compile(r"(?:\[[^\]]*\])+$")
_WHOLE_FIELDS = re.compile(
    r"^(messages\[\d+\]\.content|logit_bias|metadata|response_format(?=\.json_schema\.schema))\b.*", re.DOTALL
)

_WORDS = {
    "int": "an integer",
    "float": "a number",
    "str": "a string",
    "bool": "a boolean",
    "array": "an array",
    "object": "an object",
    "null": "null",
}

_INSIDE: dict[str, type[msgspec.Struct]] = {
    "stream_options": StreamOptions,
    "messages": ChatMessage,
    "content": ContentPart,
    "tools": ToolDefinition,
    "function": FunctionDefinition,
    "tool_calls": CallInHistory,
    "tool_choice": NamedTool,
    "response_format": ResponseFormat,
    "json_schema": JsonSchemaFormat,
    "structured_outputs": StructuredOutputsField,
}
"""The last name of a path -> the objects found there. A request's own `INSIDE` replaces it."""


def refusal(kind: type, message: str, within: str = "") -> InvalidRequest:
    """The parser's message as an error.

    Args:
        kind: what the body, or the part of it, was parsed as.
        within: path of the part.
    """
    where = _WHERE.search(message)
    path = where.group(2) if where else ""
    what = _WHERE.sub("", message)
    if unknown := _UNKNOWN.match(what):
        param = field_name(f"{within}{path}.{unknown.group(1)}")
        hint = _suggestion(kind, path, unknown.group(1))
        return InvalidRequest(f"unknown field: {param}{hint}", param=param, code="unknown_field")
    if missing := _MISSING.match(what):
        param = field_name(f"{within}{path}.{missing.group(1)}")
        return InvalidRequest(f"{param} is required", param=param, code="missing_field")
    path = within + path
    if (tag := _TAG.match(what)) and path.endswith(".type"):
        return unsupported_type(path.removesuffix(".type"), tag.group(1))
    subject = clip(path.lstrip(".")) or "the body"
    if (enum := _ENUM.match(what)) and (allowed := _allowed(kind, where.group(2) if where else "")):
        return InvalidRequest(
            f"{subject} must be one of {', '.join(allowed)}, not {clip(enum.group(1), 64)}",
            param=field_name(path),
            code="invalid_type",
        )
    if where and where.group(1):
        subject = f"a key of {subject}"
    return InvalidRequest(f"{subject}{_fault(what)}", param=field_name(path), code="invalid_type")


_hints = functools.cache(get_type_hints)


def _allowed(kind: type, path: str) -> list[str]:
    """The values of the field at a path within `kind`; empty where that is no such field."""
    found: list[Any] = [kind]
    for name in re.findall(r"\.(\w+)|\[", path):
        found = [inner for one in found for inner in _inside(one, name)]
    return [str(value) for one in found if get_origin(one) is Literal for value in get_args(one)]


def _inside(one: Any, name: str) -> list[Any]:
    """Types of a struct's field, or, without a name, of a list's items; of a union, each by itself."""
    if not name:
        return _alternatives(get_args(one)[0]) if get_origin(one) is list else []
    is_struct = isinstance(one, type) and issubclass(one, msgspec.Struct)
    return _alternatives(_hints(one)[name]) if is_struct and name in _hints(one) else []


def _alternatives(one: Any) -> list[Any]:
    is_union = isinstance(one, UnionType) or get_origin(one) is Union
    return [alone for each in get_args(one) for alone in _alternatives(each)] if is_union else [one]


def unsupported_type(path: str, kind: str) -> InvalidRequest:
    """An object whose `type` says that it is something that this server does not know, or does not offer."""
    return InvalidRequest(
        f"{clip(path.lstrip('.'))}: type {clip(kind, 64)} is not supported",
        param=field_name(path),
        code="unsupported_field",
    )


def unknown_field(message: str) -> tuple[str, str] | None:
    """Path of the object and name of the field, where that is what the parser's message is about."""
    where = _WHERE.search(message)
    unknown = _UNKNOWN.match(_WHERE.sub("", message))
    return None if unknown is None else (where.group(2) if where else "", unknown.group(1))


def field_name(path: str) -> str | None:
    """A path within the document -> the field that an error names.

    Indexes of plain lists are left out (`stop[1]` -> `stop`), those of messages are kept (`messages[0].role`); what
    is wrong inside a message's content or a map is put down to the whole.
    """
    path = _WHOLE_FIELDS.sub(r"\1", path.lstrip("."))
    return clip(_INDEXES.sub("", path)) or None


def _fault(what: str) -> str:
    types = _TYPES.match(what)
    if types is None:
        return f": {what[:1].lower()}{clip(what[1:])}"
    wanted = types.group(1).split(" | ")
    got = _WORDS.get(types.group(2), types.group(2))
    if types.group(2) == "float":
        got = "a number with a fraction or an exponent"
    return f" must be {' or '.join(_WORDS.get(name, name) for name in wanted)}, not {got}"


def _suggestion(kind: type, path: str, name: str) -> str:
    """The field that was probably meant. None that is refused anyway, and none that does nothing."""
    if len(name) > MAX_SUGGESTED_CHARS:
        return ""
    names = re.findall(r"\.(\w+)", path)
    inside = getattr(kind, "INSIDE", _INSIDE)
    fields: tuple[str, ...] = getattr(inside.get(names[-1]) if names else kind, "__struct_fields__", ())
    known = UNSUPPORTED.keys() - getattr(kind, "OFFERED", ())
    offered = [field for field in fields if field not in known and field not in INERT and field != "script"]
    meant = next((other for other in OTHER_NAMES.get(name, ()) if other.partition(".")[0] in offered), None)
    is_another_field = not names and (name in OTHER_NAMES or name in ChatRequest.__struct_fields__)
    if meant is None and not is_another_field:  # `min_tokens` is no slip for `max_tokens`
        meant = next(iter(difflib.get_close_matches(name, offered, n=1, cutoff=CLOSE)), None)
    return f"; did you mean {meant}?" if meant is not None else ""
