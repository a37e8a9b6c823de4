"""Whatever the tokens are, as long as the grammar allows each: the answer is valid."""

from __future__ import annotations

import json
from typing import Any

import jsonschema
import numpy as np
import pytest

from sixfold.structured import StructuredOutputs, check_grammar, json_schema_grammar

from .schemas import SCHEMAS
from .walker import Walker

pytestmark = pytest.mark.model

FORMATS = jsonschema.FormatChecker(("date", "email", "ipv4", "ipv6", "uuid"))
"""Those that the validator knows to judge."""


def test_there_are_enough_schemas() -> None:
    assert len({json.dumps(schema) for schema in SCHEMAS}) == len(SCHEMAS) >= 100


@pytest.mark.parametrize("schema", SCHEMAS, ids=lambda schema: json.dumps(schema)[:60])
def test_every_walk_is_valid(walker: Walker, schema: dict[str, Any]) -> None:
    grammar = json_schema_grammar(json.dumps(schema), param="x")
    check_grammar(grammar, param="x")
    validator = jsonschema.Draft202012Validator(schema, format_checker=FORMATS)
    for seed in range(4):
        text = walker.answer(grammar, seed)
        validator.validate(json.loads(text))


def test_items_of_older_drafts(walker: Walker) -> None:
    schema = {"type": "array", "items": [{"type": "integer"}], "additionalItems": {"type": "boolean"}, "maxItems": 3}
    grammar = json_schema_grammar(json.dumps(schema), param="x")
    for seed in range(4):
        jsonschema.Draft7Validator(schema).validate(json.loads(walker.answer(grammar, seed)))


def test_O21_whitespace_is_bounded(walker: Walker) -> None:
    """Between JSON tokens at most a new line and twelve blanks, and nothing outside the value."""
    grammar = json_schema_grammar(json.dumps({"type": "object", "required": ["a"]}), param="x")
    blanks = [i for i, b in enumerate(walker.tokenizer.token_bytes) if b and not b.strip(b" \n\t\r")]
    matcher = walker.factory(grammar)
    words = np.zeros((walker.n_rows + 31) // 32, np.int32)
    matcher.mask(words)
    assert not [i for i in blanks if words.view(np.uint32)[i // 32] >> i % 32 & 1], "blanks before the value"
    matcher.advance(walker.tokenizer.encode("{", parse_control=False, add_bos=False))
    length = 0
    while True:
        matcher.mask(words)
        allowed = [i for i in blanks if words.view(np.uint32)[i // 32] >> i % 32 & 1]
        if not allowed:
            break
        shortest = min(allowed, key=lambda i: len(walker.tokenizer.token_bytes[i]))
        length += len(walker.tokenizer.token_bytes[shortest])
        matcher.advance([shortest])
    assert 1 <= length <= 13


CHOICES = ["yes", "no", 'a "quoted" one', "new\nline", "\u00e9\u4e2d", "back\\slash", "a/b", "yes, but"]


@pytest.mark.parametrize(
    ("outputs", "check"),
    [
        (StructuredOutputs(regex=r"[a-z]{3}-\d{2}"), lambda text: len(text) == 6 and text[3] == "-"),
        (StructuredOutputs(regex="a/b|\\/c\nd"), lambda text: text in ("a/b", "/c\nd")),
        (StructuredOutputs(choice=CHOICES), lambda text: text in CHOICES),
        (StructuredOutputs(grammar='start: "x" y+\ny: "ab" | "c"'), lambda text: text[0] == "x" and len(text) > 1),
        (StructuredOutputs(json='{"type": "integer", "maximum": 5}'), lambda text: int(text) <= 5),
        (StructuredOutputs(json={"type": "null"}), lambda text: text == "null"),
    ],
    ids=lambda value: (
        next(iter(f for f in value.__struct_fields__ if getattr(value, f))) if hasattr(value, "json") else ""
    ),
)
def test_other_kinds(walker: Walker, outputs: StructuredOutputs, check: Any) -> None:
    grammar = outputs.grammar_text()
    check_grammar(grammar, param="x")
    for seed in range(6):
        text = walker.answer(grammar, seed)
        assert check(text), text
