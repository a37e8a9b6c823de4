"""What is said of the fields of a wire type: one source for `/openapi.json` and for the tables of docs/api.md.

A field's annotation carries a `msgspec.Meta` with its description; `says` makes one that also has the default which
takes effect where the field is left out (on the wire that is null, whatever the field). Kinds: see `schemas.py`.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import msgspec
from msgspec import Meta, inspect

__all__ = ["FieldDoc", "field_docs", "says", "structs_of"]

_WORDS: dict[type, str] = {
    inspect.IntType: "integer",
    inspect.FloatType: "number",
    inspect.StrType: "text",
    inspect.BoolType: "boolean",
    inspect.AnyType: "any",
    inspect.DictType: "object",
    inspect.RawType: "any",
}


class FieldDoc(NamedTuple):
    """One field."""

    name: str
    type: str
    """In words."""
    required: bool
    default: Any
    """What takes effect where it is left out; None: nothing to say."""
    description: str
    """Empty where the type does not tell."""
    kind: str
    """`understood`, `inert` or `unsupported`."""


def says(description: str, default: Any = None) -> Meta:
    """A field's annotation.

    Args:
        description: what it does and its range; one sentence or two, without a full stop at the end.
        default: what takes effect where it is left out.
    """
    return Meta(description=description, extra={"default": default})


def field_docs(struct: type[msgspec.Struct]) -> list[FieldDoc]:
    """All fields of a wire type, in their order."""
    info = inspect.type_info(struct)
    assert isinstance(info, inspect.StructType)
    return [_field(struct, field) for field in info.fields]


def structs_of(kinds: Iterable[type[msgspec.Struct]]) -> list[type[msgspec.Struct]]:
    """The types and all that their fields hold, each once, in the order of their first appearance."""
    found: dict[type[msgspec.Struct], None] = {}
    todo = list(kinds)
    while todo:
        kind = todo.pop(0)
        if kind in found:
            continue
        found[kind] = None
        info = inspect.type_info(kind)
        assert isinstance(info, inspect.StructType)
        todo += [inner for field in info.fields for inner in _structs(field.type)]
    return list(found)


def _field(struct: type[msgspec.Struct], field: inspect.Field) -> FieldDoc:
    description, default = "", None
    for part in _parts(field.type):
        if isinstance(part, inspect.Metadata):
            description = (part.extra_json_schema or {}).get("description", description)
            default = (part.extra or {}).get("default", default)
    name = field.encode_name
    return FieldDoc(name, _words(field.type), field.required, default, description, _kind(struct, name))


def _kind(struct: type[msgspec.Struct], name: str) -> str:
    if name in getattr(struct, "OFFERED", ()):
        return "understood"
    for owner in struct.__mro__:
        module = sys.modules.get(owner.__module__)
        if name in getattr(module, "INERT", ()):
            return "inert"
        if name in getattr(module, "UNSUPPORTED", ()):
            return "unsupported"
    return "understood"


def _parts(kind: inspect.Type) -> Iterator[inspect.Type]:
    """The type, what it wraps, and the members of a union; not what a list holds."""
    yield kind
    if isinstance(kind, inspect.Metadata):
        yield from _parts(kind.type)
    elif isinstance(kind, inspect.UnionType):
        for member in kind.types:
            yield from _parts(member)


def _structs(kind: inspect.Type) -> Iterator[type[msgspec.Struct]]:
    for part in _parts(kind):
        if isinstance(part, inspect.StructType):
            yield part.cls
        elif isinstance(part, inspect.CollectionType):
            yield from _structs(part.item_type)
        elif isinstance(part, inspect.DictType):
            yield from _structs(part.value_type)


def _words(kind: inspect.Type) -> str:
    words: dict[str, None] = {}
    for part in _parts(kind):
        if isinstance(part, inspect.CollectionType):
            words[f"list of {_plural(_words(part.item_type))}"] = None
        elif isinstance(part, inspect.StructType):
            words[f"[{part.cls.__name__}](#{part.cls.__name__.lower()})"] = None
        elif isinstance(part, inspect.LiteralType):
            words.update(dict.fromkeys(f"`{msgspec.json.encode(value).decode()}`" for value in part.values))
        elif type(part) in _WORDS:
            words[_WORDS[type(part)]] = None
    return " or ".join(words) or "any"


def _plural(words: str) -> str:
    if " or " in words:
        return f"({words})"
    return words if words.endswith((")", "`")) or words == "any" or words.startswith("list of") else words + "s"
