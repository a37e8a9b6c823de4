"""What the scripted server answers to everything, and what clients ask.

The answer is a text, a call of `weather`, and JSON that follows `SCHEMA`: each client reads out of it what it asked
for. All that a grammar leaves open has few values, so that an answer which the grammar bends away from the script is
short and right as well.
"""

from __future__ import annotations

import json
from typing import Any

MODEL = "scripted"
ANSWER = '{"name": "weather", "arguments": {"unit": "celsius"}}'
ARGUMENTS = {"unit": "celsius"}
UNITS = ("celsius", "fahrenheit")
PARAMETERS: dict[str, Any] = {
    "type": "object",
    "properties": {"unit": {"type": "string", "enum": list(UNITS)}},
    "required": ["unit"],
    "additionalProperties": False,
}
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"name": {"type": "string", "enum": ["weather"]}, "arguments": PARAMETERS},
    "required": ["name", "arguments"],
    "additionalProperties": False,
}
FUNCTION: dict[str, Any] = {"name": "weather", "description": "The weather here", "parameters": PARAMETERS}
TOOL: dict[str, Any] = {"type": "function", "function": FUNCTION}
HELLO = [{"role": "user", "content": "Hello"}]


def check_arguments(arguments: str | dict[str, Any]) -> None:
    """They follow `PARAMETERS`."""
    found = json.loads(arguments) if isinstance(arguments, str) else arguments
    assert set(found) == {"unit"} and found["unit"] in UNITS, found


def check_document(text: str) -> None:
    """It follows `SCHEMA`."""
    found = json.loads(text)
    assert set(found) == {"name", "arguments"} and found["name"] == "weather", found
    check_arguments(found["arguments"])


def raises(kind: type[BaseException], call: Any, *arguments: Any, **fields: Any) -> Any:
    """The exception that the call ends with, which must be of this class."""
    try:
        call(*arguments, **fields)
    except kind as error:
        return error
    raise AssertionError(f"no {kind.__name__}")
