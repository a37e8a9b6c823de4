"""What is accepted works to its end, at sizes that people use; what costs too much is refused."""

from __future__ import annotations

import itertools
import json
import random
from typing import Any

import numpy as np
import pytest

from sixfold.errors import InvalidRequest
from sixfold.structured import (
    Matcher,
    MatcherFactory,
    Vocabulary,
    check,
    check_grammar,
    choice_grammar,
    json_schema_grammar,
    lark_grammar,
    regex_grammar,
)

BYTES = MatcherFactory(lambda: Vocabulary([*(bytes([i]) for i in range(256)), b"<end>"], {256}, [256]))


def schema_grammar(schema: Any) -> str:
    return json_schema_grammar(json.dumps(schema), param="x")


def follow(grammar: str, text: str) -> Matcher:
    """Each byte of the text is allowed, and the text may be the answer."""
    check_grammar(grammar, param="x")
    matcher = BYTES(grammar)
    words = np.zeros(9, np.int32)
    for at, byte in enumerate(text.encode()):
        matcher.mask(words)
        assert words.view(np.uint32)[byte // 32] >> byte % 32 & 1, f"{text[at : at + 9]} is not allowed"
        matcher.advance([byte])
    assert matcher.may_end
    return matcher


def test_O22_a_thousand_choices() -> None:
    choices = [f"choice number {i * 7919}" for i in range(1000)]
    grammar = choice_grammar(choices, param="x")
    for text in random.Random(1).sample(choices, 20):
        follow(grammar, text)


def test_a_machine_that_stands_still_refuses_no_grammar(monkeypatch: pytest.MonkeyPatch) -> None:
    grammar = choice_grammar(["yes", "no"], param="x")
    check_grammar(grammar, param="x")
    looks = iter((0.0, 1.0, 1.0, 1.001))
    monkeypatch.setattr(check.time, "thread_time", lambda: next(looks))
    check_grammar(grammar, param="x")
    seconds = itertools.count()
    monkeypatch.setattr(check.time, "thread_time", lambda: float(next(seconds)))
    with pytest.raises(InvalidRequest, match="too long to compile") as refused:
        check_grammar(grammar, param="x")
    assert refused.value.code == "grammar_too_large"


@pytest.mark.parametrize(
    "choices", [["a", "ab", "abc"], ["yes", "yes, but", "ye"], ["x", "x"], [" ", "  "], ["\n", "\0"]]
)
def test_choices_that_begin_alike(choices: list[str]) -> None:
    for text in choices:
        follow(choice_grammar(choices, param="x"), text)


@pytest.mark.parametrize("n", [60, 500])
def test_O22_objects_of_many_optional_properties(n: int) -> None:
    schema = {
        "type": "object",
        "properties": {f"name_{i}": {"type": "integer"} for i in range(n)},
        "additionalProperties": False,
    }
    follow(schema_grammar(schema), json.dumps({f"name_{i}": i for i in range(0, n, 7)}, separators=(",", ":")))
    follow(schema_grammar(schema), "{}")


@pytest.mark.parametrize("keyword", ["minLength", "maxLength"])
def test_O22_long_strings_of_counted_length(keyword: str) -> None:
    """The automaton has a state for each character."""
    follow(schema_grammar({"type": "string", keyword: 10_000}), json.dumps("lorem ipsum " * 833 + "abcd"))


def test_O22_long_answers_of_a_counted_expression() -> None:
    follow(regex_grammar("[a-z ]{1,20000}", param="x"), "lorem ipsum " * 1000)


def test_a_regex_of_nothing() -> None:
    for pattern in ("()", "a{0}", "^$"):
        follow(regex_grammar(pattern, param="x"), "")


@pytest.mark.parametrize("how", ["allOf", "$ref", "nested"])
def test_O23_patterns_that_would_be_intersected(how: str) -> None:
    """Whether anything is left takes three times as long with each more: 20 of them take minutes."""
    patterns = [{"type": "string", "pattern": f".*{i}.{{3}}"} for i in range(20)]
    schemas = {
        "allOf": {"allOf": patterns},
        "$ref": {
            "$defs": {f"d{i}": {**p, "$ref": f"#/$defs/d{i + 1}"} for i, p in enumerate(patterns)} | {"d20": {}},
            "$ref": "#/$defs/d0",
        },
        "nested": {"allOf": [{"type": "object", "properties": {"a": p}} for p in patterns]},
    }
    with pytest.raises(InvalidRequest) as caught:
        schema_grammar(schemas[how])
    assert "8 different patterns" in caught.value.message


def test_many_patterns_that_are_not_intersected() -> None:
    properties = {f"p{i}": {"type": "string", "pattern": f"^{i}[a-z]+$"} for i in range(40)}
    choice = {"anyOf": [{"type": "object", "properties": properties}, {"type": "null"}], "description": "optional"}
    follow(schema_grammar({"$defs": {"c": choice}, "type": "array", "items": {"$ref": "#/$defs/c"}}), "[null]")


def test_O23_what_takes_long_to_compile_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check, "COMPILE_S", -1.0)
    with pytest.raises(InvalidRequest) as caught:
        check_grammar(schema_grammar({}), param="response_format")
    assert caught.value.code == "grammar_too_large" and caught.value.param == "response_format"


def test_O23_a_limit_behind_the_first_bytes_is_found_by_the_check() -> None:
    many = " | ".join(f'"{i}"' for i in range(3000))
    with pytest.raises(InvalidRequest):
        check_grammar(lark_grammar(f'start: "x" ({many})', param="x"), param="x")
