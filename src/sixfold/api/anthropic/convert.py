"""A request of Anthropic's shape -> what all endpoints understand: a conversation, and how to generate."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

import msgspec

from sixfold.api.anthropic.turns import template_messages
from sixfold.api.anthropic.wire import (
    UNSUPPORTED,
    CountTokensRequest,
    CustomTool,
    JsonFormat,
    MessagesRequest,
    ThinkingConfig,
    ToolSelection,
)
from sixfold.api.context import ApiContext
from sixfold.api.conversation import Conversation, Tool, ToolChoice
from sixfold.api.fields.params import Limits, check_max_tokens
from sixfold.api.fields.structured_fields import checked_grammar
from sixfold.api.fields.thinking import SOME
from sixfold.api.fields.tool_fields import check_tools, named_choice, new_tool
from sixfold.api.http.refusals import refuse_unsupported, unsupported
from sixfold.api.http.type_fault import unsupported_type
from sixfold.api.openai.schemas import GenerationRequest
from sixfold.errors import InvalidRequest
from sixfold.sampling_params import SamplingParams

__all__ = [
    "answer_grammar",
    "conversation_of",
    "generation_request",
    "in_callers_words",
    "limits_of",
    "within",
]

MIN_THINKING_BUDGET = 1024
EFFORT_OF = {"enabled": SOME, "disabled": "none", "adaptive": None}
CHOICES: dict[str, Literal["auto", "required", "none", "named"]] = {
    "auto": "auto",
    "any": "required",
    "none": "none",
    "tool": "named",
}


def conversation_of(request: CountTokensRequest) -> Conversation:
    """All that makes a prompt; checks that need neither the model nor its template.

    Raises:
        InvalidRequest: `param` names the field.
    """
    refuse_unsupported(request, UNSUPPORTED)
    _format(request)
    turns = template_messages(request.system, request.messages)
    tools = _tools(request.tools or [])
    return Conversation(
        messages=turns.messages,
        tools=tools,
        tool_choice=_choice(request.tool_choice, tools),
        parallel_tool_calls=request.tool_choice is None or not request.tool_choice.disable_parallel_tool_use,
        effort=_effort(request.thinking),
        add_generation_prompt=not turns.prefill,
        continue_final_message=turns.prefill,
        effort_field="thinking",
        parameters_field="tools[{}].input_schema",
    )


@contextmanager
def in_callers_words() -> Iterator[None]:
    """Errors about fields of `generation_request` name the caller's."""
    try:
        yield
    except InvalidRequest as error:
        if error.param != "stop" or error.code == "unknown_field":  # that one is the caller's own word
            raise
        message = error.message.replace("stop", "stop_sequences", 1)
        raise InvalidRequest(message, param="stop_sequences", code=error.code) from None


def within(params: SamplingParams, room: int) -> tuple[SamplingParams, bool]:
    """`max_tokens` is a bound and no wish: where it is above what the context leaves, that is the bound.

    Args:
        room: tokens that the context leaves.

    Returns:
        The parameters, and whether the context is what bounds the answer.
    """
    if params.max_tokens is None or params.max_tokens <= room:
        return params, False
    return msgspec.structs.replace(params, max_tokens=None), True


def generation_request(request: MessagesRequest) -> GenerationRequest:
    """How to generate, in the names of the other endpoints."""
    return GenerationRequest(
        model=request.model,
        stream=request.stream,
        temperature=request.temperature,
        top_p=request.top_p,
        top_k=request.top_k,
        seed=request.seed,
        stop=request.stop_sequences,
        priority=request.priority,
        cache_salt=request.cache_salt,
        script=request.script,
    )


def limits_of(request: MessagesRequest) -> Limits:
    """Raises: InvalidRequest: `max_tokens` is out of range."""
    check_max_tokens(request.max_tokens, "max_tokens", least=0)
    budget = request.thinking.budget_tokens if request.thinking is not None else None
    if budget is not None and budget >= request.max_tokens:
        raise InvalidRequest(
            f"thinking.budget_tokens must be below max_tokens ({request.max_tokens}), not {budget}",
            param="thinking.budget_tokens",
        )
    return Limits(
        max_tokens=request.max_tokens,
        max_tokens_field="max_tokens",
        prompt_field="messages",
        logprobs=None,
        logprobs_field="logprobs",
    )


def _tools(tools: list[CustomTool]) -> list[Tool]:
    check_tools(tools, "tools")
    names: set[str] = set()
    out = []
    for i, tool in enumerate(tools):
        where = f"tools[{i}]"
        if tool.type not in (None, "custom"):
            raise unsupported_type(where, tool.type or "")
        refuse_unsupported(tool, UNSUPPORTED, where=f"{where}.")
        out.append(new_tool(tool, tool.input_schema, names, where, "input_schema"))
    return out


def _choice(chosen: ToolSelection | None, tools: list[Tool]) -> ToolChoice:
    if chosen is None:
        return ToolChoice("auto")
    if chosen.type not in CHOICES:
        raise InvalidRequest(f"tool_choice.type must be one of {', '.join(CHOICES)}", param="tool_choice.type")
    if (chosen.type == "tool") != (chosen.name is not None):
        raise InvalidRequest("tool_choice.name belongs to the type tool, and only to it", param="tool_choice.name")
    if chosen.type == "any" and not tools:
        raise InvalidRequest("tool_choice of the type any needs tools", param="tool_choice")
    if chosen.name is not None:
        return named_choice(chosen.name, tools, "tool_choice.name")
    return ToolChoice(CHOICES[chosen.type])


def _effort(thinking: ThinkingConfig | None) -> str | None:
    """How much to think, in `Conversation`'s words."""
    if thinking is None:
        return None
    if thinking.type not in EFFORT_OF:
        raise InvalidRequest(f"thinking.type must be one of {', '.join(EFFORT_OF)}", param="thinking.type")
    if thinking.display not in (None, "summarized"):
        raise unsupported("thinking.display")
    budget = thinking.budget_tokens
    if (thinking.type == "enabled") != (budget is not None):
        raise InvalidRequest(
            "thinking.budget_tokens belongs to the type enabled, and only to it", param="thinking.budget_tokens"
        )
    if budget is not None and budget < MIN_THINKING_BUDGET:
        raise InvalidRequest(
            f"thinking.budget_tokens must be at least {MIN_THINKING_BUDGET}, not {budget}",
            param="thinking.budget_tokens",
        )
    return EFFORT_OF[thinking.type]


async def answer_grammar(context: ApiContext, request: CountTokensRequest) -> str:
    """Of the answer's text, empty for none; made and compiled beside the event loop.

    Raises:
        InvalidRequest: the schema cannot be enforced; `param` is the field that it stands in.
    """
    where, wanted = _format(request)
    return "" if wanted is None else await context.threads.run(checked_grammar, wanted.schema, f"{where}.schema")


def _format(request: CountTokensRequest) -> tuple[str, JsonFormat | None]:
    """The shape that the answer must have, and the field in which it was asked for."""
    config = request.output_config
    if config is not None and config.effort is not None:
        raise unsupported("output_config.effort")
    new, old = config.format if config is not None else None, request.output_format
    if new is not None and old is not None:
        raise InvalidRequest("output_format is the older name of output_config.format; give one", param="output_format")
    where, wanted = ("output_config.format", new) if new is not None else ("output_format", old)
    if wanted is not None and wanted.type != "json_schema":
        raise unsupported(f"{where}.type")
    return where, wanted
