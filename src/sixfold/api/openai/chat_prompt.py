"""All that makes the prompt of a chat: wire fields -> `Conversation`. The chat, and what only shows its prompt."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from sixfold.api.conversation import Conversation
from sixfold.api.fields.template_kwargs import check_template_kwargs
from sixfold.api.fields.thinking import check_effort
from sixfold.api.fields.tool_fields import tools_of
from sixfold.api.fields.tool_schemas import ToolDefinition
from sixfold.api.openai.chat_messages import template_messages
from sixfold.api.openai.schemas import ChatMessage
from sixfold.errors import InvalidRequest

__all__ = ["PROMPT_OPTIONS", "prompt_conversation"]


class _Asking(Protocol):
    tools: list[ToolDefinition] | None
    add_generation_prompt: bool | None
    continue_final_message: bool | None
    add_special_tokens: bool | None
    chat_template_kwargs: dict[str, Any] | None
    reasoning_effort: str | None


PROMPT_OPTIONS = tuple(_Asking.__annotations__)
"""Names of the fields beside `messages`."""


def prompt_conversation(messages: Sequence[ChatMessage], request: _Asking) -> Conversation:
    """What the request shows to the model.

    Raises:
        InvalidRequest: `param` names the field.
    """
    continues = bool(request.continue_final_message)
    if continues and request.add_generation_prompt:
        raise InvalidRequest(
            "continue_final_message and add_generation_prompt exclude each other", param="continue_final_message"
        )
    if continues and messages and messages[-1].role != "assistant":
        raise InvalidRequest(
            "continue_final_message needs a last message of role assistant", param="continue_final_message"
        )
    check_effort(request.reasoning_effort, "reasoning_effort")
    return Conversation(
        messages=template_messages(messages),
        tools=tools_of(request.tools),
        template_kwargs=check_template_kwargs(request.chat_template_kwargs),
        effort=request.reasoning_effort,
        add_generation_prompt=request.add_generation_prompt is not False,
        continue_final_message=continues,
        adds_bos=request.add_special_tokens is not False,
    )
