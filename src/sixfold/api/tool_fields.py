"""Tools of a request, checked: wire types -> `Tool` and `ToolChoice`."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from sixfold.api.conversation import Tool, ToolChoice
from sixfold.api.errors import clip
from sixfold.api.schemas import unsupported
from sixfold.api.tool_schemas import NamedTool, ToolDefinition
from sixfold.errors import InvalidRequest

__all__ = ["MAX_TOOLS", "MAX_TOOLS_BYTES", "check_tool", "check_tools", "tool_choice", "tools_of"]

MAX_TOOLS = 128
MAX_TOOLS_BYTES = 256 << 10
"""Of all tools, written as JSON."""
MAX_DESCRIPTION_CHARS = 64 << 10
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
            raise InvalidRequest(
                f"{where}.type: only tools of type function are supported, not {clip(definition.type, 64)}",
                param=f"{where}.type",
                code="unsupported_field",
            )
        function = definition.function
        if function is None:
            raise InvalidRequest(f"{where}.function is required", param=f"{where}.function", code="missing_field")
        check_tool(function.name, function.parameters, names, f"{where}.function.name", f"{where}.function.parameters")
        tools.append(
            Tool(
                name=function.name,
                description=function.description,
                parameters=function.parameters or {},
                strict=bool(function.strict),
            )
        )
    return tools


def check_tools(definitions: Sequence[Any], field: str) -> None:
    """Raises: InvalidRequest: they are too many, or too long together."""
    if len(definitions) > MAX_TOOLS:
        raise InvalidRequest(f"{field} has more than {MAX_TOOLS} entries", param=field)
    if len(msgspec.json.encode(definitions)) > MAX_TOOLS_BYTES:
        raise InvalidRequest(f"{field} has more than {MAX_TOOLS_BYTES} bytes", param=field)


def check_tool(
    name: str, parameters: Mapping[str, Any] | None, seen: set[str], name_field: str, parameters_field: str
) -> None:
    """
    Args:
        seen: names of the tools before it; its own is added.

    Raises:
        InvalidRequest: the name is wrong or there already, or the parameters are no schema of an object.
    """
    if not NAME.fullmatch(name):
        raise InvalidRequest(f"{name_field} must be 1 to 64 letters, digits, _ and -", param=name_field)
    if name in seen:
        raise InvalidRequest(f"{name_field}: there is another tool of the name {name}", param=name_field)
    seen.add(name)
    kind = (parameters or {}).get("type", "object")
    if kind != "object":
        raise InvalidRequest(f"{parameters_field}.type must be object", param=parameters_field)


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
    if choice.function.name not in {tool.name for tool in tools}:
        raise InvalidRequest(
            f"tool_choice.function.name: there is no tool of the name {clip(choice.function.name, 64)}",
            param="tool_choice.function.name",
        )
    return ToolChoice("named", choice.function.name)
