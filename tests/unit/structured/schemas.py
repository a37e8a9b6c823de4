"""Schemas over every keyword that is offered, alone and together."""

from __future__ import annotations

from typing import Any

Schema = dict[str, Any]


def thing(properties: Schema, **more: Any) -> Schema:
    """An object with these properties and no others, all of them required."""
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
        **more,
    }


TEXT: Schema = {"type": "string"}
SHORT: Schema = {"type": "string", "maxLength": 8}
WHOLE: Schema = {"type": "integer"}
POINT = thing({"x": WHOLE, "y": WHOLE})
TREE = thing({"value": WHOLE, "children": {"type": "array", "items": {"$ref": "#/$defs/tree"}, "maxItems": 2}})

SCHEMAS: list[Schema] = [
    # types
    *({"type": name} for name in ("string", "integer", "number", "boolean", "null", "object", "array")),
    {},
    {"type": ["integer", "null"]},
    {"type": ["string", "boolean"]},
    {"type": ["object", "array"]},
    {"title": "a title", "description": "words", "default": 1, "examples": [2], "type": "integer"},
    {"$schema": "https://json-schema.org/draft/2020-12/schema", "$id": "https://example.com/s", "type": "boolean"},
    {"type": "string", "readOnly": True, "writeOnly": False, "deprecated": True, "$comment": "no"},
    # enum, const
    {"enum": ["red", "green", "blue"]},
    {"enum": [1, 2.5, True, None, "x"]},
    {"enum": [{"a": 1}, [1, 2], []]},
    {"enum": ['quote "', "back\\slash", "new\nline", "tab\t", "\u00e9\u4e2d\U0001f600"]},
    {"enum": ["not", "if", "uniqueItems"]},
    {"const": "fixed"},
    {"const": 42},
    {"const": {"nested": {"deep": [1, {"a": None}]}}},
    {"type": "string", "enum": ["a", "ab", "abc"], "maxLength": 2},
    {"type": "integer", "enum": [1, 2, 3, "x"]},
    {"type": ["string", "null"], "enum": ["a", None]},
    # strings
    {"type": "string", "maxLength": 0},
    {"type": "string", "minLength": 3},
    {"type": "string", "minLength": 2, "maxLength": 5},
    {"type": "string", "minLength": 4, "maxLength": 4},
    {"type": "string", "pattern": "^[a-z]+$"},
    {"type": "string", "pattern": "^[a-z]+$", "maxLength": 3},
    {"type": "string", "pattern": "^(abc|de)*$", "minLength": 2, "maxLength": 9},
    {"type": "string", "pattern": "^\\d{3}-\\d{4}$"},
    {"type": "string", "pattern": "^\\S{1,6}$"},
    {"type": "string", "pattern": "^[A-Z]{2}[0-9]{2}$"},
    {"type": "string", "pattern": "^\\+?[0-9]{1,5}$"},
    {"type": "string", "pattern": "^(yes|no)$"},
    {"type": "string", "pattern": '^"[^"]{0,3}"$'},
    {"type": "string", "pattern": "^[\u00e9\u00e8]{1,3}$"},
    {"maxLength": 3},
    *({"type": "string", "format": name} for name in ("date", "time", "date-time", "duration", "email", "hostname")),
    *({"type": "string", "format": name} for name in ("ipv4", "ipv6", "uuid", "uri")),
    {"type": "string", "format": "date", "pattern": "^20"},
    {"type": "string", "format": "email", "maxLength": 12},
    # numbers
    {"type": "integer", "minimum": 10, "maximum": 12},
    {"type": "integer", "minimum": -5, "maximum": 5},
    {"type": "integer", "exclusiveMinimum": 0, "exclusiveMaximum": 3},
    {"type": "integer", "minimum": 1000},
    {"type": "integer", "maximum": -1},
    {"type": "integer", "multipleOf": 3},
    {"type": "integer", "multipleOf": 7, "minimum": 10, "maximum": 100},
    {"type": "integer", "minimum": 99, "maximum": 1001},
    {"type": "number", "minimum": 0, "maximum": 1},
    {"type": "number", "minimum": 1.5, "exclusiveMaximum": 2},
    {"type": "number", "exclusiveMinimum": -0.5, "exclusiveMaximum": 0.5},
    {"type": "number", "maximum": -2.25},
    {"type": "number", "minimum": -1, "maximum": 1, "multipleOf": 0.5},
    {"minimum": 5, "type": ["integer", "string"], "maxLength": 4},
    # arrays
    {"type": "array", "items": WHOLE},
    {"type": "array", "items": WHOLE, "minItems": 2, "maxItems": 3},
    {"type": "array", "items": SHORT, "minItems": 1, "uniqueItems": False},
    {"type": "array", "items": {"enum": [0, 1]}, "minItems": 5, "maxItems": 5},
    {"type": "array", "maxItems": 0},
    {"type": "array", "items": False},
    {"type": "array", "items": {"type": "array", "items": {"type": "boolean"}, "maxItems": 2}, "maxItems": 2},
    {"type": "array", "prefixItems": [WHOLE, SHORT], "items": False},
    {"type": "array", "prefixItems": [WHOLE, SHORT], "items": False, "minItems": 2},
    {"type": "array", "prefixItems": [WHOLE], "items": {"type": "null"}, "minItems": 1, "maxItems": 4},
    {"type": "array", "items": {"anyOf": [WHOLE, {"type": "null"}]}, "maxItems": 5},
    {"type": "array", "items": POINT, "minItems": 1, "maxItems": 3},
    {"items": WHOLE, "type": ["array", "null"], "maxItems": 3},
    # objects
    thing({}),
    thing({"a": WHOLE}),
    thing({"name": TEXT, "age": WHOLE, "alive": {"type": "boolean"}}),
    thing({'quo"te': WHOLE, "new\nline": WHOLE, "\u00e9": WHOLE, "": WHOLE}),
    thing({"a": POINT, "b": thing({"c": thing({"d": SHORT})})}),
    {"type": "object", "properties": {"a": WHOLE, "b": SHORT}, "additionalProperties": False},
    {"type": "object", "properties": {"a": WHOLE, "b": SHORT}, "required": ["b"], "additionalProperties": False},
    {"type": "object", "properties": {"a": WHOLE, "b": SHORT}, "required": ["b", "a"]},
    {"type": "object", "required": ["a"]},
    {"type": "object", "required": ["a", "b"], "additionalProperties": WHOLE},
    {"type": "object", "additionalProperties": {"type": "boolean"}},
    {"type": "object", "additionalProperties": WHOLE, "maxProperties": 2},
    {"type": "object", "additionalProperties": WHOLE, "minProperties": 1, "maxProperties": 2},
    {"type": "object", "properties": {"a": WHOLE}, "additionalProperties": SHORT},
    {"type": "object", "properties": {"a": False, "b": WHOLE}},
    {"type": "object", "properties": {"a": True}, "required": ["a"], "additionalProperties": False},
    {"type": "object", "maxProperties": 0},
    {"type": "object", "patternProperties": {"^n_": WHOLE, "^s_": SHORT}, "additionalProperties": False},
    {"type": "object", "properties": {"id": WHOLE}, "patternProperties": {"^x": SHORT}, "additionalProperties": False},
    {"type": "object", "patternProperties": {"^[a-z]{1,3}$": {"type": "null"}}, "additionalProperties": False},
    {"properties": {"a": WHOLE}, "required": ["a"], "type": ["object", "integer"]},
    # combinations
    {"anyOf": [WHOLE, SHORT]},
    {"anyOf": [thing({"kind": {"const": "a"}, "x": WHOLE}), thing({"kind": {"const": "b"}, "y": SHORT})]},
    {"anyOf": [{"type": "string", "maxLength": 2}, {"type": "string", "pattern": "^z{5}$"}]},
    {"anyOf": [WHOLE, SHORT], "minimum": 5},
    {"oneOf": [WHOLE, SHORT]},
    {"oneOf": [{"const": 1}, {"const": 2}]},
    {"oneOf": [thing({"kind": {"const": "a"}}), thing({"kind": {"const": "b"}})]},
    {"allOf": [{"minimum": 1}, {"maximum": 3}], "type": "integer"},
    {"allOf": [{"type": "string"}, {"maxLength": 4}, {"minLength": 2}]},
    {
        "allOf": [
            {"type": "object", "properties": {"a": WHOLE}, "required": ["a"]},
            {"type": "object", "properties": {"b": SHORT}, "required": ["b"]},
        ]
    },
    {"anyOf": [{"type": "null"}, {"type": "array", "items": SHORT, "maxItems": 2}]},
    # references
    {"$defs": {"point": POINT}, "$ref": "#/$defs/point"},
    {"definitions": {"point": POINT}, "type": "array", "items": {"$ref": "#/definitions/point"}, "maxItems": 2},
    {"$defs": {"short": SHORT}, "$ref": "#/$defs/short", "minLength": 2},
    {"$defs": {"a/b~c": WHOLE}, "type": "array", "items": {"$ref": "#/$defs/a~1b~0c"}, "maxItems": 3},
    {"$defs": {"tree": TREE}, "$ref": "#/$defs/tree"},
    {"type": "object", "properties": {"next": {"$ref": "#"}}, "additionalProperties": False},
    {"$defs": {"a": {"$ref": "#/$defs/b"}, "b": SHORT}, **thing({"x": {"$ref": "#/$defs/a"}})},
    {"type": "object", "properties": {"a": SHORT, "b": {"$ref": "#/properties/a"}}, "additionalProperties": False},
    # what people ask for
    thing(
        {
            "name": {"type": "string", "minLength": 1, "maxLength": 20},
            "email": {"type": "string", "format": "email"},
            "age": {"type": "integer", "minimum": 0, "maximum": 130},
            "tags": {"type": "array", "items": {"enum": ["a", "b", "c"]}, "maxItems": 3},
            "address": {"anyOf": [{"type": "null"}, thing({"street": SHORT, "zip": {"pattern": "^\\d{5}$", **TEXT}})]},
        }
    ),
    thing({"steps": {"type": "array", "items": thing({"why": SHORT, "what": SHORT}), "maxItems": 3}, "answer": SHORT}),
    thing({"sentiment": {"enum": ["good", "bad"]}, "score": {"type": "number", "minimum": 0, "maximum": 1}}),
]
