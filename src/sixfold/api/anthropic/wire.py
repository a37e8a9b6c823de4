"""Wire types of `POST /v1/messages` and `POST /v1/messages/count_tokens`. As in `api/schemas.py`, they validate, and
`/openapi.json` is made from them; fields are understood, inert, or refused by name unless they ask for nothing.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar

import msgspec
from msgspec import Meta

__all__ = [
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
    "Thinking",
    "ThinkingBlock",
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


class TextBlock(msgspec.Struct, kw_only=True, forbid_unknown_fields=True, tag_field="type", tag="text"):
    """Text of either side, of `system`, or of a tool's result."""

    text: str
    citations: Any = None
    cache_control: Any = None


class ThinkingBlock(msgspec.Struct, kw_only=True, forbid_unknown_fields=True, tag_field="type", tag="thinking"):
    """What the model thought in an earlier answer; the signature is not looked at."""

    thinking: str
    signature: str | None = None
    cache_control: Any = None


class RedactedThinkingBlock(
    msgspec.Struct, kw_only=True, forbid_unknown_fields=True, tag_field="type", tag="redacted_thinking"
):
    """Thoughts that only another server can read: left out of the prompt."""

    data: str
    cache_control: Any = None


class ToolUseBlock(msgspec.Struct, kw_only=True, forbid_unknown_fields=True, tag_field="type", tag="tool_use"):
    """A call that the model made in an earlier answer."""

    id: str
    name: str
    input: dict[str, Any]
    caller: Any = None
    toolset_name: Any = None
    cache_control: Any = None


class ToolResultBlock(msgspec.Struct, kw_only=True, forbid_unknown_fields=True, tag_field="type", tag="tool_result"):
    """What a call came to."""

    tool_use_id: str
    content: Annotated[str | list[Block], Meta(description="text or blocks of type text")] | None = None
    is_error: bool | None = None
    toolset_name: Any = None
    cache_control: Any = None


Block = TextBlock | ThinkingBlock | RedactedThinkingBlock | ToolUseBlock | ToolResultBlock


class InputMessage(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """One message; several of one role in a row are one turn."""

    role: Annotated[str, Meta(description="user, assistant or system")]
    content: str | list[Block]


class CustomTool(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A tool that the caller runs. Tools that a server would run are refused by their type."""

    name: str
    input_schema: Annotated[dict[str, Any], Meta(description="JSON Schema of an object")]
    description: str | None = None
    type: Annotated[str, Meta(description="custom")] | None = None
    strict: Annotated[bool, Meta(description="the input follows the schema")] | None = None
    allowed_callers: Any = None
    defer_loading: Any = None
    input_examples: Any = None
    # inert
    cache_control: Any = None
    eager_input_streaming: bool | None = None


class ToolSelection(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """`tool_choice`."""

    type: Annotated[str, Meta(description="auto, any, tool or none")]
    name: Annotated[str, Meta(description="with tool: which")] | None = None
    disable_parallel_tool_use: bool | None = None


class Thinking(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """`thinking`."""

    type: Annotated[str, Meta(description="enabled, disabled or adaptive")]
    budget_tokens: Annotated[int, Meta(description="at least 1024; a target, which nothing enforces")] | None = None
    display: Annotated[str, Meta(description="only summarized: thoughts are shown whole")] | None = None


class JsonFormat(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The shape of the answer's text."""

    type: Annotated[str, Meta(description="json_schema")]
    schema: dict[str, Any]


class OutputConfig(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """`output_config`."""

    format: JsonFormat | None = None
    effort: Any = None


class CountTokensRequest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """`POST /v1/messages/count_tokens`: all that makes a prompt."""

    SERVED_TYPES: ClassVar = {".tools[]": frozenset({"custom"})}
    OFFERED: ClassVar = frozenset({"tools", "tool_choice"})
    INSIDE: ClassVar = {
        "messages": InputMessage,
        "tools": CustomTool,
        "tool_choice": ToolSelection,
        "thinking": Thinking,
        "output_config": OutputConfig,
    }

    messages: list[InputMessage]
    model: Annotated[str, Meta(description="a served model's name; left out: the served model")] | None = None
    system: Annotated[str | list[Block], Meta(description="text or blocks of type text")] | None = None
    tools: list[CustomTool] | None = None
    tool_choice: ToolSelection | None = None
    thinking: Thinking | None = None
    output_config: OutputConfig | None = None
    output_format: Annotated[JsonFormat, Meta(description="the older name of output_config.format")] | None = None
    # inert
    cache_control: Any = None
    user_profile_id: str | None = None
    # unsupported
    context_management: Any = None
    mcp_servers: Any = None
    speed: Any = None


class MessagesRequest(CountTokensRequest, kw_only=True, forbid_unknown_fields=True):
    """`POST /v1/messages`."""

    max_tokens: Annotated[int, Meta(description="tokens to generate at the most; 0 reads the prompt into the cache")]
    stop_sequences: list[str] | None = None
    stream: bool | None = None
    temperature: Annotated[float, Meta(description="0 is greedy")] | None = None
    top_p: float | None = None
    top_k: Annotated[int, Meta(description="0 and -1 are off")] | None = None
    # beyond Anthropic's
    seed: Annotated[int, Meta(description="64-bit; equal requests with equal seeds give equal tokens")] | None = None
    priority: Annotated[int, Meta(description="lower runs earlier under the priority policy")] | None = None
    cache_salt: Annotated[str, Meta(description="only equal salts share cached blocks")] | None = None
    script: Annotated[list[str | int], Meta(description="scripted executor only: the tokens that come out")] | None = (
        None
    )
    # inert
    inference_geo: str | None = None
    metadata: Any = None
    service_tier: str | None = None
    # unsupported
    container: Any = None
    diagnostics: Any = None
