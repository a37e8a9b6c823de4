"""Tools of a request, checked: wire types -> `Tool` and `ToolChoice`."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import msgspec

from sixfold.api.conversation import Tool, ToolChoice
from sixfold.api.fields.tool_schemas import NamedTool, ToolDefinition
from sixfold.api.http.errors import clip
from sixfold.api.http.refusals import not_served, unsupported
from sixfold.errors import InvalidRequest

__all__ = ["MAX_TOOLS", "MAX_TOOLS_BYTES", "check_tools", "named_choice", "new_tool", "tool_choice", "tools_of"]

MAX_TOOLS = 128
MAX_TOOLS_BYTES = 256 << 10
"""Of all tools, written as JSON."""
NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")

_MODES = ("auto", "none", "required")


def tools_of(definitions: Sequence[ToolDefinition] | None) -> list[Tool]:
    """
    Raises:
        InvalidRequest: `param` names the tool and its field.
    """
    definitions = definitions or []
    check_tools(definitions, "tools")
    names: set[str] = set()
    tools = []
    for i, definition in enumerate(definitions):
        where = f"tools[{i}]"
        if definition.type != "function":
            raise not_served(f"{where}.type", definition.type, ("function",))
        function = definition.function
        if function is None:
            raise InvalidRequest(f"{where}.function is required", param=f"{where}.function", code="missing_field")
        tools.append(new_tool(function, function.parameters, names, f"{where}.function"))
    return tools


def check_tools(definitions: Sequence[Any], field: str) -> None:
    """Raises: InvalidRequest: they are too many, or too long together."""
    if len(definitions) > MAX_TOOLS:
        raise InvalidRequest(f"{field} has more than {MAX_TOOLS} entries", param=field)
    if len(msgspec.json.encode(definitions)) > MAX_TOOLS_BYTES:
        raise InvalidRequest(f"{field} has more than {MAX_TOOLS_BYTES} bytes", param=field)


class _Named(Protocol):
    """What all wire types of a tool have, whatever they call its schema."""

    name: str
    description: str | None
    strict: bool | None


def new_tool(
    definition: _Named, parameters: Mapping[str, Any] | None, seen: set[str], where: str, schema: str = "parameters"
) -> Tool:
    """A tool, checked.

    Args:
        seen: names of the tools before it; its own is added.
        where: place of the definition in the request.
        schema: what the caller calls the parameters.

    Raises:
        InvalidRequest: the name is wrong or there already, or the parameters are no schema of an object.
    """
    name, field = definition.name, f"{where}.name"
    if not NAME.fullmatch(name):
        raise InvalidRequest(f"{field} must be 1 to 64 letters, digits, _ and -", param=field)
    if name in seen:
        raise InvalidRequest(f"{field}: there is another tool of the name {name}", param=field)
    seen.add(name)
    kind = (parameters or {}).get("type", "object")
    if kind != "object":
        raise InvalidRequest(f"{where}.{schema}.type must be object", param=f"{where}.{schema}")
    return Tool(
        name=name, description=definition.description, parameters=parameters or {}, strict=bool(definition.strict)
    )


def tool_choice(choice: str | NamedTool | None, tools: Sequence[Tool]) -> ToolChoice:
    """
    Raises:
        InvalidRequest: `param` is `tool_choice`, or what of it is wrong.
    """
    if choice is None:
        return ToolChoice("auto")
    if isinstance(choice, str):
        if choice not in _MODES:
            raise InvalidRequest(f"tool_choice must be {', '.join(_MODES)} or name a function", param="tool_choice")
        if choice == "required" and not tools:
            raise InvalidRequest("tool_choice required needs tools", param="tool_choice")
        return ToolChoice(choice)  # type: ignore[arg-type]
    for name in ("allowed_tools", "custom"):
        if choice.type == name or getattr(choice, name) is not None:
            raise unsupported(f"tool_choice.{name}")
    if choice.type != "function":
        raise InvalidRequest("tool_choice.type must be function", param="tool_choice.type")
    if choice.function is None:
        raise InvalidRequest("tool_choice.function is required", param="tool_choice.function", code="missing_field")
    return named_choice(choice.function.name, tools, "tool_choice.function.name")


def named_choice(name: str, tools: Sequence[Tool], field: str) -> ToolChoice:
    """Raises: InvalidRequest: there is no such tool."""
    if name not in {tool.name for tool in tools}:
        raise InvalidRequest(f"{field}: there is no tool of the name {clip(name, 64)}", param=field)
    return ToolChoice("named", name)
