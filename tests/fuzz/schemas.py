"""Anything as a schema, an expression, a list of choices or a grammar: it is refused with 400, or it compiles."""

from __future__ import annotations

import json
import signal
import sys
from random import Random
from types import FrameType
from typing import Any

from tests.fuzz import fuzzing
from tests.fuzz.fuzzing import damaged_text, nudged, spliced
from tests.fuzz.mutations import changed

from sixfold.errors import InvalidRequest
from sixfold.structured import StructuredOutputs
from sixfold.structured.check import check_grammar

Case = tuple[str, Any]
"""(field of `StructuredOutputs`, its value)"""

REGRESSIONS: list[Case] = []
CPU_S_MAX = 20.0
MESSAGE_CHARS_MAX = 1000

SCHEMAS: list[Any] = [
    {
        "type": "object",
        "properties": {
            "name": {"type": "string", "minLength": 1, "maxLength": 20, "pattern": "^[a-z]+$"},
            "age": {"type": "integer", "minimum": 0, "exclusiveMaximum": 150, "multipleOf": 2},
            "tags": {"type": "array", "items": {"enum": ["a", 1, None]}, "minItems": 1, "maxItems": 3},
            "when": {"type": "string", "format": "date-time"},
        },
        "required": ["name"],
        "additionalProperties": False,
    },
    {
        "$defs": {"node": {"type": "object", "properties": {"next": {"$ref": "#/$defs/node"}, "v": {"const": [1.5]}}}},
        "anyOf": [{"$ref": "#/$defs/node"}, {"type": ["null", "boolean"]}],
    },
    {"allOf": [{"type": "object"}, {"properties": {"a": True, "b": False}, "minProperties": 1}]},
    {"type": "array", "prefixItems": [{"type": "number"}], "additionalItems": {"oneOf": [{"type": "string"}]}},
    {"patternProperties": {"^x-": {"type": "string"}}, "maxProperties": 3, "title": "t", "description": "d"},
    True,
]
REGEXES = [r"[a-z]{2,5}(foo|bar)?\d+\.\d*", r"(?i)a/b\n[^\]\\]*", r"\p{L}+|\u{1F600}", r"(a|b)*c{0,1000}"]
GRAMMARS = [
    'start: "a" b* | /[0-9]+/\nb: "x" (","  "y")~2..3\n%ignore / +/\n',
    'start: expr\nexpr: expr /[+]/ term | term\nterm: /[0-9]+/ | "(" expr ")"\n',
    "%import common.INT\nstart: INT // comment\n",
]
MARKS = (
    "(",
    ")",
    "[",
    "]",
    "{",
    "}",
    "{1000000}",
    "{0,99999}",
    "*",
    "+",
    "?",
    "|",
    "\\",
    "\\1",
    "(?=a)",
    "(?<x>",
    "(?R)",
)
MARKS += (
    "/",
    "//",
    '"',
    ":",
    "\n",
    "%json {}",
    "%ignore ",
    "<[1]>",
    "<s>",
    "start",
    "~1..2000",
    "@",
    "\x00",
    "é",
    "\ud800",
)
MARKS += ("[" * 300, "(" * 300, "a" * 5000, "(a*)*" * 20, "\\p{Greek}", "[^\\x00-\\xff]", "$", "^", "&", "-")


def case(rng: Random) -> Case:
    kind = rng.choice(("json", "json", "json", "regex", "choice", "grammar"))
    if kind == "regex":
        return kind, damaged_text(spliced(rng.choice(REGEXES), rng.choice(REGEXES), rng), rng, MARKS)
    if kind == "grammar":
        return kind, damaged_text(rng.choice(GRAMMARS), rng, MARKS)
    if kind == "choice":
        return kind, [
            rng.choice(("a", "é", '"', "\\", "\n", "", "x" * 300, "\ud800", "</s>"))
            for _ in range(rng.choice((0, 1, 5, 1001)))
        ]
    schema = rng.choice(SCHEMAS)
    if isinstance(schema, dict):
        for _ in range(rng.randint(1, 3)):
            schema = nudged(schema, rng) if rng.random() < 0.7 else changed(schema, rng)
            if not isinstance(schema, dict):
                return kind, schema
            if rng.random() < 0.3:
                _graft(schema, rng)
    if rng.random() < 0.03:
        for _ in range(rng.choice((20, 70, 400))):
            schema = {rng.choice(("not", "items", "anyOf", "properties")): schema}
    return kind, schema if rng.random() < 0.8 else damaged_text(json.dumps(schema), rng, MARKS)


def _graft(schema: dict[str, Any], rng: Random) -> None:
    """Something of another schema, somewhere."""
    donor = rng.choice([one for one in SCHEMAS if isinstance(one, dict)])
    key = rng.choice(sorted(donor))
    place = schema
    while rng.random() < 0.6:
        inner = [value for value in place.values() if isinstance(value, dict)]
        if not inner:
            break
        place = rng.choice(inner)
    place[key] = json.loads(json.dumps(rng.choice((donor[key], {"$ref": "#"}, {"$ref": "#/properties/name"}, donor))))


def check(one: Case) -> None:
    kind, value = one

    def too_long(_: int, __: FrameType | None) -> None:
        raise AssertionError(f"takes more than {CPU_S_MAX:g} s")

    before = signal.signal(signal.SIGVTALRM, too_long)
    signal.setitimer(signal.ITIMER_VIRTUAL, CPU_S_MAX)
    try:
        check_grammar(StructuredOutputs(**{kind: value}).grammar_text(param="p"), param="p")
    except InvalidRequest as error:
        assert error.param == "p" and error.message.encode()[:1] == b"p" and len(error.message) < MESSAGE_CHARS_MAX
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)


if __name__ == "__main__":
    sys.exit(fuzzing.main(sys.modules[__name__]))  # type: ignore[arg-type]
