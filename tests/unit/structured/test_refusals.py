"""What cannot be enforced, or costs too much, is refused with its place and name, before it costs anything."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from typing import Any

import pytest

from sixfold.errors import InvalidRequest
from sixfold.structured import (
    GrammarError,
    MatcherFactory,
    Vocabulary,
    check_grammar,
    choice_grammar,
    json_object_grammar,
    json_schema_grammar,
    lark_grammar,
    regex_grammar,
)

BYTES = MatcherFactory(lambda: Vocabulary([*(bytes([i]) for i in range(256)), b"<end>"], {256}, [256]))


def refusal(schema: Any) -> InvalidRequest:
    with pytest.raises(InvalidRequest) as caught:
        check_grammar(json_schema_grammar(json.dumps(schema), param="response_format"), param="response_format")
    assert caught.value.param == "response_format"
    assert caught.value.message.startswith("response_format: ")
    assert len(caught.value.message) < 400
    return caught.value


UNENFORCED = {
    "not": {"type": "string"},
    "if": True,
    "then": True,
    "else": True,
    "uniqueItems": True,
    "contains": {"type": "integer"},
    "minContains": 1,
    "maxContains": 2,
    "dependentRequired": {"a": ["b"]},
    "dependentSchemas": {"a": {}},
    "dependencies": {"a": ["b"]},
    "propertyNames": {"pattern": "^a"},
    "unevaluatedItems": False,
    "unevaluatedProperties": False,
    "contentEncoding": "base64",
    "contentMediaType": "text/plain",
    "contentSchema": {},
    "$anchor": "here",
    "$dynamicAnchor": "here",
    "$dynamicRef": "#here",
    "$recursiveRef": "#",
    "$vocabulary": {},
    "nullable": True,
    "discriminator": {"propertyName": "kind"},
    "id": "x",
    "x-guidance": {"lenient": True},
    "frobnicate": 1,
    "maxlength": 3,
}


@pytest.mark.parametrize("name", UNENFORCED)
def test_O22_unenforced_keyword_is_refused(name: str) -> None:
    for schema, place in (
        ({name: UNENFORCED[name]}, "#"),
        ({"type": "object", "properties": {"a/b": {name: UNENFORCED[name]}}}, "#/properties/a~1b"),
        ({"type": "array", "items": {"anyOf": [{}, {name: UNENFORCED[name]}]}}, "#/items/anyOf/1"),
        ({"$defs": {"unused": {name: UNENFORCED[name]}}}, "#/$defs/unused"),
    ):
        error = refusal(schema)
        assert error.code == "unsupported_schema"
        assert place in error.message and name in error.message


@pytest.mark.parametrize(
    ("schema", "said"),
    [
        ({"type": "string", "format": "regex"}, "#/format"),
        ({"type": "integer", "format": "int32"}, "int32"),
        ({"$id": "x", "properties": {"a": {"$id": "y"}}}, "#/properties/a/$id"),
        ({"type": "object", "minProperties": 2}, "minProperties"),
        ({"type": "object", "properties": {"a": {}}, "maxProperties": 1}, "maxProperties"),
        ({"oneOf": [{"type": "integer"}, {"type": "number"}]}, "oneOf"),
        ({"type": "string", "pattern": "(?=a)b"}, "look-around"),
        ({"type": "string", "pattern": "(a)\\1"}, "backreference"),
        ({"$ref": "https://example.com/schema"}, "#/$ref"),
        ({"$ref": "other.json#/x"}, "#/$ref"),
        ({"$ref": "#name"}, "#/$ref"),
    ],
)
def test_O22_what_is_enforced_in_part_is_refused(schema: Any, said: str) -> None:
    error = refusal(schema)
    assert error.code == "unsupported_schema" and said in error.message


@pytest.mark.parametrize(
    ("schema", "place"),
    [
        ({"type": "object", "properties": {"t": {"type": "str"}}}, "#/properties/t/type"),
        ({"type": 5}, "#/type"),
        ({"type": []}, "#/type"),
        ("x", "#"),
        (5, "#"),
        ([], "#"),
        (False, "false"),
        ({"properties": []}, "#/properties"),
        ({"properties": {"a": 5}}, "#/properties/a"),
        ({"required": "a"}, "#/required"),
        ({"required": [1]}, "#/required"),
        ({"enum": []}, "#/enum"),
        ({"enum": "a"}, "#/enum"),
        ({"anyOf": []}, "#/anyOf"),
        ({"allOf": {}}, "#/allOf"),
        ({"prefixItems": {}}, "#/prefixItems"),
        ({"minLength": -1}, "#/minLength"),
        ({"minLength": 1.5}, "#/minLength"),
        ({"maxItems": True}, "#/maxItems"),
        ({"minimum": "1"}, "#/minimum"),
        ({"multipleOf": 0}, "#/multipleOf"),
        ({"pattern": 1}, "#/pattern"),
        ({"additionalProperties": 1}, "#/additionalProperties"),
        ({"$defs": {"unused": {"type": "str"}}, "type": "integer"}, "#/$defs/unused/type"),
        ({"$ref": 1}, "#/$ref"),
        ({"$ref": "#/$defs/zz"}, "#/$ref"),
        ({"$ref": "#/enum/0", "enum": [{}]}, "#/$ref"),
        ({"$ref": "#"}, "leads back"),
        ({"$defs": {"A": {"$ref": "#/$defs/A"}}, "$ref": "#/$defs/A"}, "leads back"),
        (
            {
                "$defs": {"A": {"$ref": "#/$defs/B"}, "B": {"allOf": [{"$ref": "#/$defs/A"}]}},
                "properties": {"x": {"$ref": "#/$defs/A"}},
            },
            "leads back",
        ),
        ({"type": "integer", "minimum": 5, "maximum": 3}, "minimum"),
        ({"type": "object", "required": ["a"], "additionalProperties": False}, "'a'"),
        ({"type": "string", "pattern": "["}, "unclosed"),
    ],
)
def test_O20_faulty_schema_is_refused_with_its_place(schema: Any, place: str) -> None:
    error = refusal(schema)
    assert error.code == "invalid_schema" and place in error.message


def nested(depth: int, step: Callable[[Any], Any]) -> Any:
    schema: Any = {"type": "integer"}
    for _ in range(depth):
        schema = step(schema)
    return schema


def tripled(schema: Any) -> Any:
    return {"oneOf": [schema, {"type": "array", "items": schema}, {"type": "string"}]}


@pytest.mark.parametrize(
    "schema",
    [
        nested(33, lambda inner: {"properties": {"a": inner}}),
        nested(60, lambda inner: {"items": inner}),
        nested(9, tripled),
        {"enum": list(range(1001))},
        {"anyOf": [{"enum": list(range(600))}, {"enum": list(range(600, 1200))}]},
        {"properties": {f"p{i}": {} for i in range(501)}},
        {"type": "array", "minItems": 1_000_000_000},
        {"type": "string", "minLength": 1_000_000},
        {"type": "integer", "maximum": 10**300},
        {"type": "integer", "enum": [1e20]},
        {"const": [{"id": 2**64}]},
        {"type": "string", "enum": ["x" * 70_000]},
        {"type": "string", "pattern": "(" * 3000 + "a" + ")" * 3000},
    ],
    ids=lambda schema: json.dumps(schema)[:40],
)
def test_O23_too_much_is_refused(schema: Any) -> None:
    refusal(schema)


def test_O23_a_text_too_deep_for_a_reader_is_refused() -> None:
    with pytest.raises(InvalidRequest):
        json_schema_grammar('{"items":' * 5000 + "1" + "}" * 5000, param="x")
    with pytest.raises(InvalidRequest):
        json_schema_grammar('{"a', param="x")


def test_O23_legal_recursion_is_not_refused() -> None:
    tree = {"type": "object", "properties": {"c": {"type": "array", "items": {"$ref": "#"}}}, "required": ["c"]}
    check_grammar(json_schema_grammar(json.dumps(tree), param="x"), param="x")


@pytest.mark.parametrize(
    "make",
    [
        lambda: regex_grammar("", param="p"),
        lambda: regex_grammar("a" * 9000, param="p"),
        lambda: regex_grammar("(?=a)", param="p"),
        lambda: regex_grammar("[", param="p"),
        lambda: choice_grammar([], param="p"),
        lambda: choice_grammar(["a", ""], param="p"),
        lambda: choice_grammar(["a"] * 1001, param="p"),
        lambda: choice_grammar(["a" * 40_000], param="p"),
        lambda: lark_grammar(" ", param="p"),
        lambda: lark_grammar("start: missing", param="p"),
        lambda: lark_grammar('start: "a"\n' * 4000, param="p"),
        lambda: lark_grammar('start: %json {"frobnicate": 1}', param="p"),
        lambda: lark_grammar("start: <[5]>", param="p"),
        lambda: lark_grammar("start: <|im_end|>", param="p"),
        lambda: lark_grammar('start[temperature=0.5]: "a"', param="p"),
        lambda: lark_grammar("start: start", param="p"),
    ],
)
def test_other_kinds_are_refused_by_their_field(make: Callable[[], str]) -> None:
    with pytest.raises(InvalidRequest) as caught:
        check_grammar(make(), param="p")
    assert caught.value.param == "p"


def test_a_directive_in_a_string_is_a_string() -> None:
    check_grammar(lark_grammar('start: "%json" /%json/ // %json', param="p"), param="p")


def test_a_limit_is_an_error_and_not_an_end() -> None:
    """`(.|\\n)*a(.|\\n){20}` needs a state for every set of positions: at some token it is over, and says so."""
    rng = random.Random(1)
    matcher = BYTES(regex_grammar(r"(.|\n)*a(.|\n){20}", param="p"))
    with pytest.raises(GrammarError):
        for _ in range(20_000):
            matcher.advance([rng.choice(b"ab")])
    with pytest.raises(GrammarError):
        matcher.advance([97])


def test_a_token_that_does_not_fit_is_an_error() -> None:
    with pytest.raises(GrammarError):
        BYTES(json_object_grammar()).advance(list(b"{}x"))
