"""Wire types of tools and calls in a chat, as OpenAI writes them."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import Meta

__all__ = ["CallInHistory", "FunctionDefinition", "FunctionInHistory", "NamedFunction", "NamedTool", "ToolDefinition"]


class FunctionDefinition(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A function that the model may call."""

    name: Annotated[str, Meta(description="1 to 64 letters, digits, _ and -; each once")]
    description: str | None = None
    parameters: Annotated[dict[str, Any], Meta(description="JSON schema of an object")] | None = None
    strict: bool | None = None


class ToolDefinition(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """One of `tools`. Only `function` is served."""

    type: str
    function: FunctionDefinition | None = None
    cache_control: Any = None


class NamedFunction(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Which function."""

    name: str


class NamedTool(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """`tool_choice` as an object. Only `function` is served."""

    type: str
    function: NamedFunction | None = None
    allowed_tools: Any = None
    custom: Any = None


class FunctionInHistory(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """What was called."""

    name: str
    arguments: Annotated[str, Meta(description="JSON; what is no object counts as an empty one")]


class CallInHistory(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """One of an assistant message's `tool_calls`. `index` is what a gathered stream may have kept."""

    id: str
    type: str = "function"
    function: FunctionInHistory
    index: int | None = None
