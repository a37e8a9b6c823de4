"""Schemas at random, over every keyword that is offered, with what people do not write: bounds that contradict each
other, names of every script, references in circles."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

__all__ = ["random_schema"]

NAMES = (*'a b id na\u00efve \u4e2d\u6587 \U0001f600 quo"te x/y ~t $ref'.split(), "", "a b", "new\nline")
TEXTS = (*NAMES, "\u2028", "__proto__", "null", "\\", "\0", "\x7f", "abc")
NUMBERS = (0, 1, -1, 5, 10, 100, -7, 0.5, -2.25, 1e-3, 1.1, 2**53, 3.14159, 99.999)
PATTERNS = r"^a+$ a ^[^x]*$ ^\d{2,3}$ b$ ^x ^$ . ^.{2,4}$ ^(a|b)*c?$ [\s\S] ^\w+\s\w+$ ^[\"\\]+$ ^a|b$".split()
PATTERNS += [r"\.", r"^\S+@\S+$", r"^\D$", "^[\u4e00-\u9fff]{1,2}$", "^a{0}$", "^\u00e9$"]
FORMATS = ("date", "date-time", "duration", "email", "hostname", "ipv4", "ipv6", "time", "uri", "uuid")
TYPES = ("string", "integer", "number", "boolean", "null", "object", "array")
PLAIN = TYPES[:5]


def _value(rng: random.Random, depth: int = 0) -> Any:
    kinds: list[Callable[[], Any]] = [
        lambda: rng.randint(-5, 5),
        lambda: rng.choice((1.5, 1e-7, 1e9, 0.1)),
        lambda: rng.choice(TEXTS),
        lambda: None,
        lambda: rng.random() < 0.5,
        lambda: [_value(rng, depth + 1) for _ in range(rng.randrange(3))],
        lambda: {rng.choice(NAMES): _value(rng, depth + 1) for _ in range(rng.randrange(3))},
    ]
    return rng.choice(kinds[: 7 if depth < 2 else 5])()


def _object(rng: random.Random, depth: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "object"}
    if rng.random() < 0.9:
        schema["properties"] = {rng.choice(NAMES): _schema(rng, depth + 1) for _ in range(rng.randrange(4))}
    if rng.random() < 0.6:
        schema["required"] = [name for name in schema.get("properties", {}) if rng.random() < 0.6]
        schema["required"] += [rng.choice(NAMES)] * (rng.random() < 0.15)
    if rng.random() < 0.6:
        schema["additionalProperties"] = rng.choice((False, False, True, _schema(rng, depth + 1)))
    if rng.random() < 0.15:
        schema["patternProperties"] = {rng.choice(PATTERNS): _schema(rng, depth + 1) for _ in range(rng.randrange(3))}
    for keyword in ("minProperties", "maxProperties"):
        if rng.random() < 0.15:
            schema[keyword] = rng.randrange(4)
    return schema


def _array(rng: random.Random, depth: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "array"}
    if rng.random() < 0.8:
        schema["items"] = _schema(rng, depth + 1)
    if rng.random() < 0.3:
        schema["prefixItems"] = [_schema(rng, depth + 1) for _ in range(rng.randrange(3))]
    if rng.random() < 0.4:
        schema["minItems"] = rng.randrange(4)
    if rng.random() < 0.5:
        schema["maxItems"] = rng.choice((0, 1, 2, 3, 5, 10**6, 2**53))
    return schema


def _combination(rng: random.Random, depth: int) -> dict[str, Any]:
    keyword = rng.choice(("anyOf", "oneOf", "allOf"))
    schema: dict[str, Any] = {keyword: [_schema(rng, depth + 1) for _ in range(rng.randrange(1, 4))]}
    if rng.random() < 0.3:
        schema["type"] = rng.choice(("string", "object", ["string", "null"], "integer"))
    return schema


def _bounds(rng: random.Random, schema: dict[str, Any]) -> None:
    """What limits strings and numbers, sometimes where there are none."""
    if schema.get("type") == "string" or rng.random() < 0.1:
        if rng.random() < 0.4:
            schema["pattern"] = rng.choice(PATTERNS)
        if rng.random() < 0.3:
            schema["minLength"] = rng.randrange(5)
        if rng.random() < 0.4:
            schema["maxLength"] = rng.choice((0, 1, 3, 8, 1000, 10**6))
        if rng.random() < 0.15:
            schema["format"] = rng.choice(FORMATS)
    if schema.get("type") in ("integer", "number") or rng.random() < 0.07:
        for keyword in ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"):
            if rng.random() < 0.25:
                schema[keyword] = rng.choice(NUMBERS)
        if rng.random() < 0.2:
            schema["multipleOf"] = rng.choice((1, 2, 3, 0.5, 7, 0.25, 1.5, 100))


def _schema(rng: random.Random, depth: int) -> dict[str, Any]:
    kind = rng.random()
    schema: dict[str, Any] = {}
    if depth > 3 or kind < 0.25:
        schema = {"type": rng.choice(PLAIN)} if rng.random() < 0.9 else {}
    elif kind < 0.5:
        schema = _object(rng, depth)
    elif kind < 0.68:
        schema = _array(rng, depth)
    elif kind < 0.8:
        schema = _combination(rng, depth)
    elif kind < 0.86:
        schema = {"enum": [_value(rng) for _ in range(rng.randrange(5))]}
    elif kind < 0.9:
        schema = {"const": _value(rng)}
    elif kind < 0.96:
        schema = {"$ref": rng.choice(("#/$defs/A", "#/$defs/B", "#", "#/$defs/a~1b"))}
    else:
        schema = {"type": rng.sample(TYPES, rng.randrange(1, 4))}
    _bounds(rng, schema)
    if rng.random() < 0.06:
        schema["enum"] = [_value(rng) for _ in range(3)]
    return schema


def random_schema(seed: int) -> dict[str, Any]:
    """Often one that must be refused."""
    rng = random.Random(seed)
    schema = _schema(rng, 0)
    return {**schema, "$defs": {name: _schema(rng, 2) for name in ("A", "B", "a/b")}}
