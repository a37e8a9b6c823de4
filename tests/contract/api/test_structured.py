"""`response_format` and `structured_outputs`: forms, refusals, and what comes out where a grammar is kept."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from string import ascii_letters
from typing import Any

import jsonschema
import pytest

from .conftest import Answer, Target, post_bytes

SCHEMA = {
    "type": "object",
    "properties": {"a": {"type": "integer"}, "b": {"type": "string", "maxLength": 6}},
    "required": ["a", "b"],
    "additionalProperties": False,
}
END = ("<|endoftext|>", "<|im_end|>")


def json_schema(schema: Any, **fields: Any) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema, **fields}}


@pytest.fixture
def enforcing(target: Target) -> Target:
    """A server whose worker draws: the fake engine knows no grammars."""
    if target.submitted is not None:
        pytest.skip("the fake engine plays its script whatever the grammar")
    return target


def both(target: Target, **fields: Any) -> list[Answer]:
    return [target.chat(**fields), target.complete(**fields)]


def refused(target: Target, param: str, **fields: Any) -> dict[str, Any]:
    """The error, the same on both endpoints, streamed or not; nothing reached the engine, and others are served."""
    before = target.submitted
    answers = [answer for stream in (False, True) for answer in both(target, stream=stream, **fields)]
    assert {answer.status for answer in answers} == {400}, [answer.body for answer in answers]
    errors = [answer.error for answer in answers]
    assert all(error == errors[0] for error in errors)
    assert errors[0]["param"].split(".")[0] == param
    assert target.submitted == before
    target.check_alive()
    return errors[0]


@pytest.mark.parametrize(
    ("schema", "place"),
    [
        ({"type": "object", "properties": {"t": {"type": "str"}}}, "#/properties/t/type"),
        ({"type": 5}, "#/type"),
        ("x", "#"),
        ({"properties": []}, "#/properties"),
        ({"required": "a"}, "#/required"),
    ],
)
def test_O20_bad_schema(target: Target, schema: Any, place: str) -> None:
    assert place in refused(target, "response_format", response_format=json_schema(schema))["message"]
    assert place in refused(target, "structured_outputs", structured_outputs={"json": schema or {}})["message"] or (
        schema == "x"
    )


def test_O20_an_open_stream_goes_on(target: Target) -> None:
    """It stays open while schemas are refused: its client reads only then."""
    body = {"prompt": "hi", "max_tokens": 400, "ignore_eos": True, "stream": True, "script": ["a"] * 400}
    wrong = [{"type": 5}, {"$ref": "#"}, {"uniqueItems": True}, {"enum": list(range(100_000))}, "x"]
    with target.connect() as sock:
        sock.sendall(post_bytes("/v1/completions", body, "Connection: close\r\n"))
        seen = sock.recv(1)
        for schema in wrong:
            assert target.complete(response_format=json_schema(schema)).status == 400
        while piece := sock.recv(65536):
            seen += piece
    assert seen.count(b'"text":"a"') == 400 or target.submitted is None
    assert b'"finish_reason":"length"' in seen and b"data: [DONE]" in seen
    target.check_alive()


def test_O21_no_endless_whitespace(enforcing: Target) -> None:
    bias = {str(enforcing.token(c)): 100 for c in (" ", "\n", "\t")}
    for answer in both(enforcing, response_format=json_schema(SCHEMA), logit_bias=bias, max_tokens=400, seed=1):
        [choice] = answer.json["choices"]
        text = choice["text"] if "text" in choice else choice["message"]["content"]
        assert choice["finish_reason"] == "stop"
        assert text == text.strip()
        assert max(len(run) for run in "".join(c if c in " \n\t" else "x" for c in text).split("x")) <= 20
        jsonschema.validate(json.loads(text), SCHEMA)


@pytest.mark.parametrize("keyword", ["uniqueItems", "not", "frobnicate", "dependentRequired"])
def test_O22_unenforced_keyword(target: Target, keyword: str) -> None:
    schema = {"type": "object", "properties": {"x": {keyword: True}}}
    error = refused(target, "response_format", response_format=json_schema(schema))
    assert error["code"] == "unsupported_schema"
    assert keyword in error["message"] and "#/properties/x" in error["message"]


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "string", "pattern": "^[a-z]+$", "maxLength": 3},
        {"type": "integer", "minimum": 10, "maximum": 12},
        {"type": "object", "patternProperties": {"^a": {"type": "null"}}, "additionalProperties": False},
        {"type": "integer", "multipleOf": 3, "minimum": 0, "maximum": 99},
        {"type": "object", "required": ["a"], "additionalProperties": {"type": "boolean"}},
        {"enum": ["not", "uniqueItems"], "title": "t", "description": "d", "default": 1, "examples": [1]},
    ],
    ids=lambda schema: json.dumps(schema)[:40],
)
def test_O22_enforced_keywords(enforcing: Target, schema: dict[str, Any]) -> None:
    quotes = {str(enforcing.token(c)): 3 for c in '"}'}
    body = enforcing.complete(
        response_format=json_schema(schema), n=20, seed=5, temperature=1.0, max_tokens=300, logit_bias=quotes
    ).json
    ended = [choice["text"] for choice in body["choices"] if choice["finish_reason"] == "stop"]
    assert len(ended) >= 15
    for text in ended:
        jsonschema.validate(json.loads(text), schema)


@pytest.mark.parametrize(
    "schema",
    [
        {"$defs": {"A": {"$ref": "#/$defs/A"}}, "$ref": "#/$defs/A"},
        {"$ref": "#/$defs/zz"},
        {"$ref": "http://127.0.0.1:9/schema"},
        {"enum": list(range(100_000))},
        {"type": "array", "minItems": 1_000_000_000},
    ],
    ids=lambda schema: json.dumps(schema)[:40],
)
def test_O23_hostile_schema(target: Target, schema: Any) -> None:
    refused(target, "response_format", response_format=json_schema(schema))


def test_O23_legal_recursion(enforcing: Target) -> None:
    node = {"type": "object", "properties": {"c": {"type": "array", "items": {"$ref": "#"}, "maxItems": 1}}}
    schema = {**node, "required": ["c"], "additionalProperties": False}
    script = ['{"c":[{"c":[]}]}']
    answer = enforcing.complete(response_format=json_schema(schema), script=list(script[0]), max_tokens=50).json
    assert answer["choices"][0]["text"] == script[0]
    assert answer["choices"][0]["finish_reason"] == "stop"


@pytest.mark.parametrize("end", END)
def test_O24_no_end_before_the_end(enforcing: Target, end: str) -> None:
    fields = {"response_format": json_schema(SCHEMA), "max_tokens": 200, "seed": 3}
    bias = {str(enforcing.token(end)): 100}
    own = enforcing.token("<|im_start|>")
    for more in (
        {"logit_bias": bias},
        {"script": [end]},
        {"logit_bias": {str(own): 100}, "stop_token_ids": [own]},
    ):
        for answer in both(enforcing, **fields, **more):
            [choice] = answer.json["choices"]
            text = choice["text"] if "text" in choice else choice["message"]["content"]
            assert choice["finish_reason"] == "stop", text
            jsonschema.validate(json.loads(text), SCHEMA)


def test_O24_other_endings(enforcing: Target) -> None:
    whole = '{"a":1,"b":"xyz"}'
    fields: dict[str, Any] = {"response_format": json_schema(SCHEMA), "script": [*whole, "a", "a"]}
    [choice] = enforcing.complete(**fields, max_tokens=100).json["choices"]
    assert (choice["text"], choice["finish_reason"]) == (whole, "stop")
    [choice] = enforcing.complete(**fields, max_tokens=5).json["choices"]
    assert (choice["text"], choice["finish_reason"]) == (whole[:5], "length")
    [choice] = enforcing.complete(**fields, max_tokens=100, stop="y").json["choices"]
    assert (choice["text"], choice["finish_reason"], choice["stop_reason"]) == ('{"a":1,"b":"x', "stop", "y")


@pytest.mark.parametrize(
    ("response_format", "said"),
    [
        ({"type": "json_schema"}, "json_schema is required"),
        ({"type": "json_schema", "schema": {}}, "json_schema"),
        ({"type": "json_schema", "json_schema": {"name": "x"}}, "schema is required"),
        ({"type": "xml"}, "response_format.type must be one of text, json_object, json_schema, not xml"),
        ({}, "type"),
        ("json_object", "object"),
        ({"type": "text", "json_schema": {"schema": {}}}, "json_schema"),
        ({"type": "json_schema", "json_schema": {"schema": {}, "name": "x" * 65}}, "name"),
    ],
    ids=str,
)
def test_O25_incomplete_format(target: Target, response_format: Any, said: str) -> None:
    assert said in refused(target, "response_format", response_format=response_format)["message"]


def test_O25_nothing_is_asked_for(target: Target) -> None:
    plain = [a.json["choices"] for a in both(target, max_tokens=4, temperature=0)]
    for value in (None, {"type": "text"}):
        answers = both(target, response_format=value, structured_outputs=None, max_tokens=4, temperature=0)
        assert [answer.json["choices"] for answer in answers] == plain


def test_O25_json_object(enforcing: Target) -> None:
    for answer in both(
        enforcing, response_format={"type": "json_object"}, script=[*'{"k":[1,{}]}', "x"], max_tokens=50
    ):
        [choice] = answer.json["choices"]
        text = choice["text"] if "text" in choice else choice["message"]["content"]
        assert (json.loads(text), choice["finish_reason"]) == ({"k": [1, {}]}, "stop")


@pytest.mark.parametrize(
    "outputs",
    [
        {},
        {"regex": "a", "choice": ["b"]},
        {"regex": ""},
        {"regex": "(?=a)"},
        {"regex": 5},
        {"choice": []},
        {"choice": ["a", 1]},
        {"choice": [""]},
        {"grammar": "start: nowhere"},
        {"grammar": "start: %json {}"},
        {"json": "{"},
        {"json": 5},
        {"whitespace_pattern": " "},
    ],
    ids=str,
)
def test_structured_outputs_are_checked(target: Target, outputs: Any) -> None:
    refused(target, "structured_outputs", structured_outputs=outputs)


@pytest.mark.parametrize(
    ("outputs", "said"),
    [
        ({"regex": "(a"}, 'the expression "(a" cannot be used: unclosed group'),
        ({"regex": "a/(b\n"}, "cannot be used: unclosed group"),
        ({"regex": "(" * 500}, "cannot be used: unclosed group"),
        ({"grammar": "start: a\na: nowhere"}, 'at 2(4): unknown name: "nowhere"'),
    ],
    ids=str,
)
def test_what_is_wrong_with_an_expression_is_one_sentence(target: Target, outputs: Any, said: str) -> None:
    message = refused(target, "structured_outputs", structured_outputs=outputs)["message"]
    assert message.startswith("structured_outputs: ") and message.endswith(said) and len(message) < 200


def test_both_fields_exclude_each_other(target: Target) -> None:
    refused(
        target,
        "structured_outputs",
        response_format={"type": "json_object"},
        structured_outputs={"regex": "a"},
    )


@pytest.mark.parametrize(
    ("outputs", "whole"),
    [
        ({"regex": "[a-c]{3}"}, "abc"),
        ({"choice": ["alpha", "beta"]}, "beta"),
        ({"grammar": 'start: "a" b*\nb: "xy"'}, "axyxy"),
        ({"json": {"type": "array", "items": {"type": "integer"}}}, "[1,2]"),
        ({"json": '{"const": "\u00e9"}'}, '"\u00e9"'),
    ],
    ids=str,
)
def test_structured_outputs_hold(enforcing: Target, outputs: Any, whole: str) -> None:
    script = [bytes([byte]).decode("latin-1") if byte < 128 else byte for byte in whole.encode()]
    for answer in both(enforcing, structured_outputs=outputs, script=script, max_tokens=40):
        [choice] = answer.json["choices"]
        text = choice["text"] if "text" in choice else choice["message"]["content"]
        assert (text, choice["finish_reason"]) == (whole, "stop")


def test_what_contradicts_a_structure_is_refused(target: Target) -> None:
    fields: dict[str, Any] = {"response_format": {"type": "json_object"}}
    ends = [target.token(end) for end in END]
    refused(target, "ignore_eos", ignore_eos=True, **fields)
    refused(target, "allowed_token_ids", allowed_token_ids=[97, 98], **fields)
    refused(target, "logit_bias", logit_bias={str(i): -100 for i in ends}, **fields)


def test_nothing_left_to_draw_fails_this_request_alone(enforcing: Target) -> None:
    for fields in (
        {"logit_bias": {str(i): -100 for i in b"0123456789"}, "structured_outputs": {"regex": "[0-9]+"}},
        {"min_tokens": 3, "structured_outputs": {"choice": ["a"]}},
    ):
        error = enforcing.complete(**fields, max_tokens=9)
        assert error.status == 500
        assert "no token is left to draw" in error.error["message"]
        enforcing.check_alive()


# Forty characters, then more ways to go on than the parser has room for.
LIMIT_LATER = (
    "start: BEGIN (" + "|".join(f'"{a}{b}"' for a in ascii_letters for b in ascii_letters) + ")\nBEGIN: /[xy]{40}/"
)


@pytest.mark.parametrize("chat", [False, True])
def test_O23_a_limit_while_generating_fails_this_request_alone(enforcing: Target, chat: bool) -> None:
    ask = enforcing.chat if chat else enforcing.complete
    fields: dict[str, Any] = {"structured_outputs": {"grammar": LIMIT_LATER}, "max_tokens": 100, "seed": 1}
    alone = enforcing.complete("others", max_tokens=50, seed=1).json["choices"][0]
    with ThreadPoolExecutor(3) as pool:
        others = [pool.submit(enforcing.complete, "others", max_tokens=50, seed=1) for _ in range(2)]
        whole = ask(**fields)
        events = ask(**fields, stream=True).events
        assert [other.result().json["choices"][0] for other in others] == [alone] * 2
    assert whole.status == 500
    assert whole.error["code"] == events[-1]["error"]["code"]
    assert whole.error["message"] == events[-1]["error"]["message"]
    assert "limit of its grammar" in whole.error["message"]
    assert not any(choice.get("finish_reason") for event in events[:-1] for choice in event["choices"])
    enforcing.check_alive()


def test_logprobs_under_a_grammar_are_those_of_the_model(enforcing: Target) -> None:
    body = enforcing.chat(
        structured_outputs={"choice": ["a"]}, script=["z"], logprobs=True, top_logprobs=2, max_tokens=5
    ).json
    [entry] = body["choices"][0]["logprobs"]["content"]
    assert entry["token"] == "a" and entry["logprob"] < -30
    assert entry["top_logprobs"][0]["token"] == "z"
