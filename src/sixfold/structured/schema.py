"""A walk over a JSON schema that refuses what would not be enforced, by its place and name.

The library ignores keywords that it does not know; here none is ignored but annotations, which say nothing about the
value. Checked as well: the form of each keyword, that references stay inside the schema and lead somewhere, and sizes.
The library's own check (`check.py`) follows, for what depends on combinations.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from sixfold.errors import InvalidRequest

__all__ = ["MAX_DEPTH", "MAX_ENUM", "MAX_NODES", "MAX_PROPERTIES", "check_schema"]

MAX_DEPTH = 32
"""Schemas inside schemas."""
MAX_NODES = 1_000
"""Schemas in all."""
MAX_PROPERTIES = 500
"""Of all objects together."""
MAX_ENUM = 1_000
"""Values of all `enum`s together."""
MAX_LEAST = 10_000
"""Of `minLength` and the like."""
MAX_NUMBER = 2**53
MAX_MERGED_PATTERNS = 8
"""Different patterns and formats of a schema in which schemas are merged. Each may meet each, and
whether anything is left of them takes three times as long to see with every one more."""

TYPES = frozenset({"array", "boolean", "integer", "null", "number", "object", "string"})
ANNOTATIONS = frozenset(
    {"$comment", "$schema", "default", "deprecated", "description", "examples", "readOnly", "title", "writeOnly"}
)
_NAMING = frozenset({"$defs", "$id", "definitions"})
FORMATS = frozenset({"date", "date-time", "duration", "email", "hostname", "ipv4", "ipv6", "time", "uri", "uuid"})


class _Fault(Exception):
    def __init__(self, where: str, reason: str, *, unsupported: bool = False) -> None:
        super().__init__(reason)
        self.where, self.reason, self.unsupported = where, reason, unsupported


class _Edge(NamedTuple):
    """A subschema that looks at the same value as the schema that holds it."""

    source: str
    target: str


def check_schema(schema: Any, param: str) -> None:
    """Raises: InvalidRequest: `param`; the message has the JSON pointer of the fault and the keyword."""
    walk = _Walk()
    try:
        walk.schema(schema, "#", 0)
        walk.check_references()
    except _Fault as fault:
        where = fault.where if len(fault.where) <= 120 else fault.where[:119] + "\N{HORIZONTAL ELLIPSIS}"
        raise InvalidRequest(
            f"{param}: {where}: {fault.reason}",
            param=param,
            code="unsupported_schema" if fault.unsupported else "invalid_schema",
        ) from None


class _Walk:
    """One schema's traversal: what was seen, and what was counted."""

    def __init__(self) -> None:
        self.places: set[str] = set()
        self.references: list[tuple[str, str]] = []
        self.edges: list[_Edge] = []
        self.n_properties = self.n_enum = 0
        self.patterns: set[str] = set()
        self.merged_at = ""

    def schema(self, schema: Any, at: str, depth: int) -> None:
        self.places.add(at)
        if len(self.places) > MAX_NODES:
            raise _Fault(at, f"there are more than {MAX_NODES} schemas")
        if depth > MAX_DEPTH:
            raise _Fault(at, f"schemas are nested more than {MAX_DEPTH} deep")
        if isinstance(schema, bool):
            return
        if not isinstance(schema, dict):
            raise _Fault(at, "a schema must be an object or a boolean")
        for key, value in schema.items():
            if key in ANNOTATIONS:
                continue
            check = _KEYWORDS.get(key)
            if check is None:
                raise _Fault(at, f"the keyword {_clip(key)} is not supported", unsupported=True)
            check(self, value, f"{at}/{_escaped(key)}", depth)
        _check_together(schema, at)
        if _merges(schema):
            self.merged_at = self.merged_at or at
        if self.merged_at and len(self.patterns) > MAX_MERGED_PATTERNS:
            raise _Fault(
                self.merged_at,
                f"a schema that merges others (allOf, or anyOf, oneOf and $ref beside other keywords) may have "
                f"{MAX_MERGED_PATTERNS} different patterns and formats",
            )

    def same_value(self, schema: Any, at: str, depth: int) -> None:
        """A subschema for the same value."""
        self.edges.append(_Edge(at.rsplit("/", 2)[0], at))
        self.schema(schema, at, depth + 1)

    def check_references(self) -> None:
        """Each leads to a schema that was looked at, and none back to itself before it has said anything."""
        after: dict[str, list[str]] = {}
        for source, target in self.references:
            if target not in self.places:
                raise _Fault(f"{source}/$ref", f"there is no schema at {_clip(target)}")
            after.setdefault(source, []).append(target)
        for edge in self.edges:
            after.setdefault(edge.source, []).append(edge.target)
        done: set[str] = set()
        for start in after:
            self._check_cycle(start, after, done)

    def _check_cycle(self, start: str, after: dict[str, list[str]], done: set[str]) -> None:
        on_path: dict[str, None] = {}
        stack: list[tuple[str, bool]] = [(start, False)]
        while stack:
            place, left = stack.pop()
            if left:
                on_path.pop(place)
                done.add(place)
            elif place in on_path:
                raise _Fault(place, "$ref leads back to itself")
            elif place not in done:
                on_path[place] = None
                stack.append((place, True))
                stack.extend((target, False) for target in after.get(place, ()))

    # ---- keywords ---------------------------------------------------------------------------------------------------

    def type(self, value: Any, at: str, depth: int) -> None:
        names = value if isinstance(value, list) and value else [value]
        for name in names:
            if not isinstance(name, str) or name not in TYPES:
                raise _Fault(at, f"type must be one of {', '.join(sorted(TYPES))}, or a list of them")

    def enum(self, value: Any, at: str, depth: int) -> None:
        if not isinstance(value, list) or not value:
            raise _Fault(at, "enum must be a list with values")
        self.n_enum += len(value)
        if self.n_enum > MAX_ENUM:
            raise _Fault(at, f"enums have more than {MAX_ENUM} values in all")
        self.const(value, at, depth)

    def const(self, value: Any, at: str, depth: int) -> None:
        """The library keeps larger numbers as the largest of an int64."""
        left = [value]
        while left:
            one = left.pop()
            if isinstance(one, dict | list):
                left.extend(one.values() if isinstance(one, dict) else one)
            elif type(one) in (int, float):
                self.number(one, at, depth)

    def schemas(self, value: Any, at: str, depth: int) -> None:
        """Names -> schemas."""
        if not isinstance(value, dict):
            raise _Fault(at, "must be an object of schemas")
        for name, schema in value.items():
            self.schema(schema, f"{at}/{_escaped(name)}", depth + 1)

    def properties(self, value: Any, at: str, depth: int) -> None:
        self.n_properties += len(value) if isinstance(value, dict) else 0
        if self.n_properties > MAX_PROPERTIES:
            raise _Fault(at, f"there are more than {MAX_PROPERTIES} properties in all")
        self.schemas(value, at, depth)

    def pattern_properties(self, value: Any, at: str, depth: int) -> None:
        self.properties(value, at, depth)
        self.patterns.update(value)

    def subschema(self, value: Any, at: str, depth: int) -> None:
        self.schema(value, at, depth + 1)

    def items(self, value: Any, at: str, depth: int) -> None:
        if isinstance(value, list):
            self.list_of_schemas(value, at, depth)
        else:
            self.subschema(value, at, depth)

    def list_of_schemas(self, value: Any, at: str, depth: int) -> None:
        if not isinstance(value, list):
            raise _Fault(at, "must be a list of schemas")
        for i, schema in enumerate(value):
            self.schema(schema, f"{at}/{i}", depth + 1)

    def combination(self, value: Any, at: str, depth: int) -> None:
        if not isinstance(value, list) or not value:
            raise _Fault(at, "must be a list with schemas")
        for i, schema in enumerate(value):
            self.same_value(schema, f"{at}/{i}", depth)

    def required(self, value: Any, at: str, depth: int) -> None:
        if not isinstance(value, list) or not all(isinstance(name, str) for name in value):
            raise _Fault(at, "required must be a list of strings")
        self.n_properties += len(value)
        if self.n_properties > 2 * MAX_PROPERTIES:
            raise _Fault(at, f"there are more than {MAX_PROPERTIES} properties in all")

    def least(self, value: Any, at: str, depth: int) -> None:
        if type(value) is not int or value < 0:
            raise _Fault(at, "must be an integer from 0")
        if value > MAX_LEAST:
            raise _Fault(at, f"must be at most {MAX_LEAST}")

    def most(self, value: Any, at: str, depth: int) -> None:
        if type(value) is not int or not 0 <= value <= MAX_NUMBER:
            raise _Fault(at, "must be an integer from 0")

    def number(self, value: Any, at: str, depth: int) -> None:
        if type(value) not in (int, float) or not -MAX_NUMBER <= value <= MAX_NUMBER:
            raise _Fault(at, "must be a number of at most 2**53")

    def multiple(self, value: Any, at: str, depth: int) -> None:
        self.number(value, at, depth)
        if value <= 0:
            raise _Fault(at, "multipleOf must be above 0")

    def text(self, value: Any, at: str, depth: int) -> None:
        if not isinstance(value, str):
            raise _Fault(at, "must be a string")

    def pattern(self, value: Any, at: str, depth: int) -> None:
        self.text(value, at, depth)
        self.patterns.add(value)

    def format(self, value: Any, at: str, depth: int) -> None:
        self.pattern(value, at, depth)
        if value not in FORMATS:
            raise _Fault(at, f"the format {_clip(value)} is not supported", unsupported=True)

    def id(self, value: Any, at: str, depth: int) -> None:
        self.text(value, at, depth)
        if at != "#/$id":
            raise _Fault(at, "the keyword $id is supported in the outermost schema alone", unsupported=True)

    def reference(self, value: Any, at: str, depth: int) -> None:
        self.text(value, at, depth)
        if value != "#" and not value.startswith("#/"):
            raise _Fault(at, "$ref must point into this schema (#/...)", unsupported=True)
        self.references.append((at.rsplit("/", 1)[0], value))


_KEYWORDS: dict[str, Callable[[_Walk, Any, str, int], None]] = {
    "$defs": _Walk.schemas,
    "$id": _Walk.id,
    "$ref": _Walk.reference,
    "additionalItems": _Walk.subschema,
    "additionalProperties": _Walk.subschema,
    "allOf": _Walk.combination,
    "anyOf": _Walk.combination,
    "const": _Walk.const,
    "definitions": _Walk.schemas,
    "enum": _Walk.enum,
    "exclusiveMaximum": _Walk.number,
    "exclusiveMinimum": _Walk.number,
    "format": _Walk.format,
    "items": _Walk.items,
    "maxItems": _Walk.most,
    "maxLength": _Walk.most,
    "maxProperties": _Walk.most,
    "maximum": _Walk.number,
    "minItems": _Walk.least,
    "minLength": _Walk.least,
    "minProperties": _Walk.least,
    "minimum": _Walk.number,
    "multipleOf": _Walk.multiple,
    "oneOf": _Walk.combination,
    "pattern": _Walk.pattern,
    "patternProperties": _Walk.pattern_properties,
    "prefixItems": _Walk.list_of_schemas,
    "properties": _Walk.properties,
    "required": _Walk.required,
    "type": _Walk.type,
}


def _merges(schema: dict[str, Any]) -> bool:
    """Whether what holds for one value comes from several schemas."""
    says = schema.keys() - ANNOTATIONS - _NAMING
    return "allOf" in says or (len(says) > 1 and not says.isdisjoint(("anyOf", "oneOf", "$ref")))


def _check_together(schema: dict[str, Any], at: str) -> None:
    """What one keyword alone does not show."""
    least = schema.get("minProperties", 0)
    if least > max(1, len(set(schema.get("required", ())))):
        # A key may come twice in an object, and counts once.
        raise _Fault(
            f"{at}/minProperties",
            "minProperties above the number of required properties is not supported",
            unsupported=True,
        )


def _escaped(name: str) -> str:
    """A name in a JSON pointer."""
    return name.replace("~", "~0").replace("/", "~1")


def _clip(name: str) -> str:
    return name if len(name) <= 64 else name[:63] + "\N{HORIZONTAL ELLIPSIS}"
