"""What a request asks for: everything that can be checked before the model, the store or the tokenizer is needed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sixfold.api.conversation import Tool, ToolChoice
from sixfold.api.fields.params import Limits, check_max_tokens, check_top_logprobs, sampling_params
from sixfold.api.fields.structured_fields import checked_grammar
from sixfold.api.fields.thinking import check_effort
from sixfold.api.fields.tool_fields import check_tools, named_choice, new_tool, tool_choice
from sixfold.api.http.decoding import convert
from sixfold.api.http.refusals import not_served, refuse_unsupported, unsupported
from sixfold.api.openai.schemas import GenerationRequest
from sixfold.api.responses.items import Item, read_items
from sixfold.api.responses.schemas import (
    GENERATION_FIELDS,
    UNSUPPORTED,
    FunctionTool,
    NamedFunctionTool,
    ResponsesRequest,
    TextFormat,
)
from sixfold.errors import InvalidRequest
from sixfold.sampling_params import SamplingParams
from sixfold.structured import json_object_grammar

__all__ = ["Asked", "format_grammar", "read"]

LOGPROBS = "message.output_text.logprobs"
ENCRYPTED_REASONING = "reasoning.encrypted_content"
"""Asked for by clients that store nothing, so that they can send the reasoning back. Here it is readable as it is."""

MAX_INCLUDE = 16
MAX_METADATA = 16
MAX_METADATA_KEY_CHARS = 64
MAX_METADATA_CHARS = 512

FORMATS = ("text", "json_object", "json_schema")
TEXT = TextFormat(type="text")


@dataclass(frozen=True, kw_only=True)
class Asked:
    """A request in our words."""

    request: ResponsesRequest
    items: list[Item]
    tools: list[Tool]
    tool_choice: ToolChoice
    text_format: TextFormat
    generation: GenerationRequest
    """The fields that all endpoints have."""
    limits: Limits
    params: SamplingParams


def read(request: ResponsesRequest, defaults: Mapping[str, Any], ignored: list[str] | None) -> Asked:
    """Check what needs nothing but the request.

    Args:
        defaults: fields of `SamplingParams` for what the request leaves out.
        ignored: gets the names of unknown fields; None refuses them.

    Raises:
        InvalidRequest: `param` is the field as the caller wrote it.
    """
    refuse_unsupported(request, UNSUPPORTED)
    if request.stream_options is not None and not request.stream:
        raise InvalidRequest("stream_options needs stream: true", param="stream_options")
    _check_metadata(request.metadata)
    _check_reasoning(request)
    text_format = _text_format(request)
    limits = _limits(request)
    generation = GenerationRequest(**{name: getattr(request, name) for name in GENERATION_FIELDS})
    params = sampling_params(generation, limits, defaults)
    tools = _tools(request.tools or [], ignored)
    return Asked(
        request=request,
        tools=tools,
        tool_choice=_tool_choice(request.tool_choice, tools),
        items=read_items(request.input, ignored),
        text_format=text_format,
        generation=generation,
        limits=limits,
        params=params,
    )


def _limits(request: ResponsesRequest) -> Limits:
    max_tokens = request.max_output_tokens
    check_max_tokens(max_tokens, "max_output_tokens")
    include = request.include or []
    if len(include) > MAX_INCLUDE:
        raise InvalidRequest(f"include has more than {MAX_INCLUDE} entries", param="include")
    for name in include:
        if name not in (LOGPROBS, ENCRYPTED_REASONING):
            raise not_served("include", name, (LOGPROBS, ENCRYPTED_REASONING))
    top = request.top_logprobs or 0
    if top and LOGPROBS not in include:
        raise InvalidRequest(f'top_logprobs needs include: ["{LOGPROBS}"]', param="top_logprobs")
    check_top_logprobs(top)
    return Limits(
        max_tokens=max_tokens,
        max_tokens_field="max_output_tokens",
        prompt_field="input",
        logprobs=top if LOGPROBS in include else None,
        logprobs_field="top_logprobs",
    )


def _check_metadata(metadata: dict[str, str] | None) -> None:
    if metadata is None:
        return
    if len(metadata) > MAX_METADATA:
        raise InvalidRequest(f"metadata has more than {MAX_METADATA} pairs", param="metadata")
    for key, value in metadata.items():
        if len(key) > MAX_METADATA_KEY_CHARS or len(value) > MAX_METADATA_CHARS:
            raise InvalidRequest(
                f"metadata: a key has at most {MAX_METADATA_KEY_CHARS} characters, a value {MAX_METADATA_CHARS}",
                param="metadata",
            )


def _text_format(request: ResponsesRequest) -> TextFormat:
    text = request.text
    if text is None:
        return TEXT
    if text.verbosity not in (None, "medium"):
        raise unsupported("text.verbosity")
    format = text.format or TEXT
    if format.type not in FORMATS:
        raise InvalidRequest(f"text.format.type must be one of {', '.join(FORMATS)}", param="text.format.type")
    for name in ("schema", "name"):
        if (getattr(format, name) is not None) != (format.type == "json_schema"):
            verb = "is required by" if format.type == "json_schema" else "belongs to"
            raise InvalidRequest(f"text.format.{name} {verb} the type json_schema", param=f"text.format.{name}")
    return format


def _check_reasoning(request: ResponsesRequest) -> None:
    reasoning = request.reasoning
    if reasoning is None:
        return
    check_effort(reasoning.effort, "reasoning.effort")
    for name in ("summary", "generate_summary"):
        if getattr(reasoning, name) not in (None, "auto"):
            raise unsupported(f"reasoning.{name}")


def _tools(tools: list[dict[str, Any]], ignored: list[str] | None) -> list[Tool]:
    check_tools(tools, "tools")
    names: set[str] = set()
    out = []
    for i, document in enumerate(tools):
        where = f"tools[{i}]"
        if document.get("type") != "function":
            raise not_served(f"{where}.type", document.get("type"), ("function",))
        tool = convert(FunctionTool, document, where, ignored)
        out.append(new_tool(tool, tool.parameters, names, where))
    return out


def _tool_choice(choice: str | dict[str, Any] | None, tools: list[Tool]) -> ToolChoice:
    if not isinstance(choice, dict):
        return tool_choice(choice, tools)
    if choice.get("type") != "function":
        raise not_served("tool_choice.type", choice.get("type"), ("function",))
    return named_choice(convert(NamedFunctionTool, choice, "tool_choice", None).name, tools, "tool_choice.name")


def format_grammar(format: TextFormat) -> str:
    """The grammar of `text.format`, compiled once to see that it can be. Takes milliseconds: use a thread.

    Raises:
        InvalidRequest: the schema cannot be enforced.
    """
    return json_object_grammar() if format.schema is None else checked_grammar(format.schema, "text.format.schema")
