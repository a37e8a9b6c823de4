"""Wire types of `POST /v1/messages` and `POST /v1/messages/count_tokens`. As in `api/openai/schemas.py`, they validate,
and `/openapi.json` is made from them; fields are understood, inert, or refused by name unless they ask for nothing.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar

import msgspec

from sixfold.api.field_docs import says

__all__ = [
    "INERT",
    "UNSUPPORTED",
    "Block",
    "CountTokensRequest",
    "CustomTool",
    "InputMessage",
    "JsonFormat",
    "MessagesRequest",
    "OutputConfig",
    "RedactedThinkingBlock",
    "TextBlock",
    "ThinkingBlock",
    "ThinkingConfig",
    "ToolResultBlock",
    "ToolSelection",
    "ToolUseBlock",
]

UNSUPPORTED: dict[str, tuple[Any, ...]] = {
    "allowed_callers": ([], ["direct"]),
    "citations": ([],),
    "container": (),
    "context_management": ({"edits": []}, {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]}),
    "defer_loading": (False,),
    "diagnostics": (),
    "input_examples": ([],),
    "mcp_servers": ([],),
    "speed": ("standard",),
    "toolset_name": (),
}
"""Field -> values, besides null, that ask for nothing."""

INERT = frozenset(
    {
        "cache_control",
        "caller",
        "eager_input_streaming",
        "inference_geo",
        "metadata",
        "service_tier",
        "signature",
        "user_profile_id",
    }
)
"""Cannot change the answer."""


class TextBlock(msgspec.Struct, kw_only=True, forbid_unknown_fields=True, tag_field="type", tag="text"):
    """Text of either side, of `system`, or of a tool's result."""

    text: Annotated[str, says("not empty")]
    citations: Annotated[Any, says("only empty")] = None
    cache_control: Annotated[Any, says("what can be cached is, without it")] = None


class ThinkingBlock(msgspec.Struct, kw_only=True, forbid_unknown_fields=True, tag_field="type", tag="thinking"):
    """What the model thought in an earlier answer; the signature is not looked at."""

    thinking: Annotated[str, says("handed to the chat template as `reasoning_content`")]
    signature: Annotated[str | None, says("not looked at")] = None
    cache_control: Annotated[Any, says("what can be cached is, without it")] = None


class RedactedThinkingBlock(
    msgspec.Struct, kw_only=True, forbid_unknown_fields=True, tag_field="type", tag="redacted_thinking"
):
    """Thoughts that only another server can read: left out of the prompt."""

    data: Annotated[str, says("not looked at")]
    cache_control: Annotated[Any, says("what can be cached is, without it")] = None


class ToolUseBlock(msgspec.Struct, kw_only=True, forbid_unknown_fields=True, tag_field="type", tag="tool_use"):
    """A call that the model made in an earlier answer."""

    id: Annotated[str, says("as it came; each once in a turn")]
    name: Annotated[str, says("of the tool")]
    input: Annotated[dict[str, Any], says("what it was called with")]
    caller: Annotated[Any, says("accepted")] = None
    toolset_name: Annotated[Any, says("only null")] = None
    cache_control: Annotated[Any, says("what can be cached is, without it")] = None


class ToolResultBlock(msgspec.Struct, kw_only=True, forbid_unknown_fields=True, tag_field="type", tag="tool_result"):
    """What a call came to."""

    tool_use_id: Annotated[str, says("of a `tool_use` in the message before")]
    content: Annotated[str | list[Block] | None, says("text or blocks of type text")] = None
    is_error: Annotated[bool | None, says("leads the text with `Error: `", False)] = None
    toolset_name: Annotated[Any, says("only null")] = None
    cache_control: Annotated[Any, says("what can be cached is, without it")] = None


Block = TextBlock | ThinkingBlock | RedactedThinkingBlock | ToolUseBlock | ToolResultBlock


class InputMessage(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """One message; several of one role in a row are one turn."""

    role: Annotated[str, says("user, assistant or system")]
    content: Annotated[str | list[Block], says("text, or blocks")]


class CustomTool(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A tool that the caller runs. Tools that a server would run are refused by their type."""

    name: Annotated[str, says("1 to 64 letters, digits, _ and -; each once")]
    input_schema: Annotated[dict[str, Any], says("JSON Schema of an object")]
    description: Annotated[str | None, says("for the model")] = None
    type: Annotated[str | None, says("custom")] = None
    strict: Annotated[bool | None, says("the input follows the schema")] = None
    allowed_callers: Annotated[Any, says("only `direct`")] = None
    defer_loading: Annotated[Any, says("only false")] = None
    input_examples: Annotated[Any, says("only empty")] = None
    # inert
    cache_control: Annotated[Any, says("what can be cached is, without it")] = None
    eager_input_streaming: Annotated[bool | None, says("inputs are streamed as they come")] = None


class ToolSelection(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """`tool_choice`."""

    type: Annotated[str, says("auto, any, tool or none")]
    name: Annotated[str | None, says("with tool: which")] = None
    disable_parallel_tool_use: Annotated[bool | None, says("at most one call", False)] = None


class ThinkingConfig(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """`thinking`."""

    type: Annotated[str, says("enabled, disabled or adaptive")]
    budget_tokens: Annotated[int | None, says("at least 1024; a target, which nothing enforces")] = None
    display: Annotated[str | None, says("only summarized: thoughts are shown whole")] = None


class JsonFormat(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The shape of the answer's text."""

    type: Annotated[str, says("json_schema")]
    schema: Annotated[dict[str, Any], says("JSON schema of the answer; enforced, or refused")]


class OutputConfig(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """`output_config`."""

    format: Annotated[JsonFormat | None, says("the shape of the answer's text")] = None
    effort: Annotated[Any, says("only null")] = None


class CountTokensRequest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """`POST /v1/messages/count_tokens`: all that makes a prompt."""

    SERVED_TYPES: ClassVar = {".tools[]": frozenset({"custom"})}
    OFFERED: ClassVar = frozenset({"tools", "tool_choice"})
    INSIDE: ClassVar = {
        "messages": InputMessage,
        "tools": CustomTool,
        "tool_choice": ToolSelection,
        "thinking": ThinkingConfig,
        "output_config": OutputConfig,
    }

    messages: Annotated[list[InputMessage], says("1 to 4096 messages")]
    model: Annotated[str | None, says("name of the served model; another is 404", "the served model")] = None
    system: Annotated[str | list[Block] | None, says("text or blocks of type text")] = None
    tools: Annotated[list[CustomTool] | None, says("up to 128 tools that the caller runs")] = None
    tool_choice: Annotated[ToolSelection | None, says("whether and which tools are called", "`auto`")] = None
    thinking: Annotated[ThinkingConfig | None, says("the switch of the chat template", "what the template does")] = None
    output_config: Annotated[OutputConfig | None, says("the shape of the answer")] = None
    output_format: Annotated[JsonFormat | None, says("the older name of output_config.format")] = None
    # inert
    cache_control: Annotated[Any, says("what can be cached is, without it")] = None
    user_profile_id: Annotated[str | None, says("accepted")] = None
    # unsupported
    context_management: Annotated[Any, says("only without edits, or with one that keeps all thinking")] = None
    mcp_servers: Annotated[Any, says("only empty")] = None
    speed: Annotated[Any, says("only `standard`")] = None


class MessagesRequest(CountTokensRequest, kw_only=True, forbid_unknown_fields=True):
    """`POST /v1/messages`."""

    max_tokens: Annotated[int, says("tokens to generate at the most; 0 reads the prompt into the cache")]
    stop_sequences: Annotated[list[str] | None, says("up to 16 non-empty strings of up to 256 characters")] = None
    stream: Annotated[bool | None, says("server-sent events", False)] = None
    temperature: Annotated[float | None, says("0 to 2; 0 is greedy", "what the model's files recommend, else 1")] = None
    top_p: Annotated[float | None, says("above 0, to 1", "what the model's files recommend, else 1")] = None
    top_k: Annotated[int | None, says("0 and -1 are off", "what the model's files recommend, else 0")] = None
    # beyond Anthropic's
    seed: Annotated[int | None, says("64-bit; equal requests with equal seeds give equal tokens")] = None
    priority: Annotated[int | None, says("lower runs earlier under the priority policy")] = None
    cache_salt: Annotated[str | None, says("only equal salts share cached blocks")] = None
    script: Annotated[
        list[str | int] | None, says("`--executor scripted` only: the tokens that come out; -1 fails there")
    ] = None
    # inert
    inference_geo: Annotated[str | None, says("accepted")] = None
    metadata: Annotated[Any, says("accepted")] = None
    service_tier: Annotated[str | None, says("accepted")] = None
    # unsupported
    container: Annotated[Any, says("only null")] = None
    diagnostics: Annotated[Any, says("only null")] = None
