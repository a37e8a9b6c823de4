"""Wire types of tools and calls in a chat, as OpenAI writes them."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec

from sixfold.api.field_docs import says

__all__ = ["CallInHistory", "FunctionDefinition", "FunctionInHistory", "NamedFunction", "NamedTool", "ToolDefinition"]


class FunctionDefinition(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A function that the model may call."""

    name: Annotated[str, says("1 to 64 letters, digits, _ and -; each once")]
    description: Annotated[str | None, says("what it does, for the model")] = None
    parameters: Annotated[dict[str, Any] | None, says("JSON schema of an object")] = None
    strict: Annotated[bool | None, says("arguments follow the schema exactly", False)] = None


class ToolDefinition(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """One of `tools`. Only `function` is served."""

    type: Annotated[str, says("`function`")]
    function: Annotated[FunctionDefinition | None, says("the function; required")] = None
    cache_control: Annotated[Any, says("inert: Anthropic's mark for its prompt cache")] = None


class NamedFunction(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Which function."""

    name: Annotated[str, says("of one of the tools")]


class NamedTool(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """`tool_choice` as an object. Only `function` is served."""

    type: Annotated[str, says("`function`")]
    function: Annotated[NamedFunction | None, says("the function; required")] = None
    allowed_tools: Annotated[Any, says("not supported")] = None
    custom: Annotated[Any, says("not supported")] = None


class FunctionInHistory(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """What was called."""

    name: Annotated[str, says("of one of the tools")]
    arguments: Annotated[str, says("JSON; what is no object counts as an empty one")]


class CallInHistory(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """One of an assistant message's `tool_calls`. `index` is what a gathered stream may have kept."""

    id: Annotated[str, says("as the answer had it")]
    type: Annotated[str, says("`function`", "function")] = "function"
    function: Annotated[FunctionInHistory, says("what was called")]
    index: Annotated[int | None, says("inert: of a stream's delta")] = None
