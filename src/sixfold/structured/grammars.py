"""What a caller asks for -> the text of a grammar. Cheap checks only; `check_grammar` compiles.

Sizes are bounded here, before any library sees the text. All functions raise `InvalidRequest` with the given `param`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

import msgspec

from sixfold.errors import InvalidRequest
from sixfold.structured.schema import check_schema

__all__ = [
    "MAX_GRAMMAR_CHARS",
    "WHITESPACE",
    "choice_grammar",
    "embedded_schema",
    "json_object_grammar",
    "json_schema_grammar",
    "lark_grammar",
    "regex_grammar",
    "schema_grammar",
]

MAX_SCHEMA_CHARS = 65_536
MAX_GRAMMAR_CHARS = 32_768
MAX_REGEX_CHARS = 8_192
MAX_CHOICES = 1_000
MAX_CHOICE_CHARS = 32_768
"""Of all choices together."""

WHITESPACE = r"(\n {0,12}| )"
"""Between two JSON tokens: nothing, one blank, or a new line with an indent. More would let a model fill its answer
with it."""

_LARK_TOKENS = re.compile(
    r"""//[^\n]*|"(?:\\.|[^"\\\n])*"|/(?:\\.|[^/\\\n])+/|(?P<directive>%\w+)|(?P<special><\[)"""
    r"""|(?P<temperature>\btemperature\s*=)""",
    re.DOTALL,
)


def json_schema_grammar(schema_text: str, *, param: str) -> str:
    """JSON that a schema describes, keys in the order of its `properties`.

    Args:
        schema_text: the schema as the caller wrote it.
    """
    if len(schema_text) > MAX_SCHEMA_CHARS:
        raise _too_large("the schema", MAX_SCHEMA_CHARS, param)
    try:
        schema = msgspec.json.decode(schema_text)
    except (msgspec.DecodeError, UnicodeEncodeError) as error:
        raise InvalidRequest(f"{param}: the schema is not JSON: {error}", param=param, code="invalid_schema") from None
    except RecursionError:
        raise InvalidRequest(f"{param}: the schema is nested too deeply", param=param) from None
    return schema_grammar(schema, param=param)


def schema_grammar(schema: Any, *, param: str) -> str:
    """The same for a schema that is decoded already."""
    return _schema_text(embedded_schema(schema, param=param))


def embedded_schema(schema: Any, *, param: str) -> dict[str, Any]:
    """A checked schema with bounded whitespace, as it may stand in a grammar's `json_schema`, or in a Lark grammar
    behind `%json`.

    Args:
        schema: decoded JSON.
    """
    check_schema(schema, param)
    if schema is False:
        raise InvalidRequest(f"{param}: nothing fits the schema false", param=param, code="invalid_schema")
    found = {**(schema if isinstance(schema, dict) else {}), "x-guidance": {"whitespace_pattern": WHITESPACE}}
    if len(json.dumps(found, ensure_ascii=False)) > MAX_SCHEMA_CHARS + 1024:
        raise _too_large("the schema", MAX_SCHEMA_CHARS, param)
    return found


def json_object_grammar() -> str:
    """Any JSON object."""
    return _schema_text({"type": "object", "x-guidance": {"whitespace_pattern": WHITESPACE}})


def regex_grammar(pattern: str, *, param: str) -> str:
    """Text that a regular expression matches as a whole."""
    if not pattern:
        raise InvalidRequest(f"{param} is empty", param=param)
    if len(pattern) > MAX_REGEX_CHARS:
        raise _too_large("the expression", MAX_REGEX_CHARS, param)
    escaped = re.sub(r"\\.|/|\n", lambda found: {"/": r"\/", "\n": r"\n"}.get(found[0], found[0]), pattern, flags=re.S)
    return _lark_text(f"start: /{escaped}/")


def choice_grammar(choices: Sequence[str], *, param: str) -> str:
    """One of some texts."""
    if not choices or not all(choices):
        raise InvalidRequest(f"{param} must hold texts that are not empty", param=param)
    if len(choices) > MAX_CHOICES:
        raise InvalidRequest(f"{param} has more than {MAX_CHOICES} entries", param=param)
    if sum(map(len, choices)) > MAX_CHOICE_CHARS:
        raise _too_large("the choices together", MAX_CHOICE_CHARS, param)
    # One terminal: as so many rules they would be so many items of the parser.
    return _lark_text("start: ONE\nONE: " + " | ".join(json.dumps(choice, ensure_ascii=False) for choice in choices))


def lark_grammar(grammar: str, *, param: str) -> str:
    """Text of a context-free grammar in the library's form of Lark. `%json` would let in a schema that nobody has
    looked at, and token numbers are the model's own business: both are refused."""
    if not grammar.strip():
        raise InvalidRequest(f"{param} is empty", param=param)
    if len(grammar) > MAX_GRAMMAR_CHARS:
        raise _too_large("the grammar", MAX_GRAMMAR_CHARS, param)
    for found in _LARK_TOKENS.finditer(grammar):
        if found["directive"] not in (None, "%import", "%ignore"):
            raise InvalidRequest(f"{param}: {found['directive'][:32]} is not supported", param=param)
        if found["temperature"]:
            raise InvalidRequest(f"{param}: a rule's temperature is not supported", param=param)
        if found["special"]:
            raise InvalidRequest(f"{param}: token ids (<[...]>) are not supported", param=param)
    return _lark_text(grammar)


def _schema_text(schema: dict[str, Any]) -> str:
    return json.dumps({"grammars": [{"json_schema": schema}]}, ensure_ascii=False, separators=(",", ":"))


def _lark_text(lark: str) -> str:
    return json.dumps({"grammars": [{"lark_grammar": lark}]}, ensure_ascii=False, separators=(",", ":"))


def _too_large(what: str, limit: int, param: str) -> InvalidRequest:
    return InvalidRequest(f"{param}: {what} may have {limit} characters", param=param, code="grammar_too_large")
