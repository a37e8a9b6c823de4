"""Wire types of the requests. They validate (types, unknown fields), and `/openapi.json` is made from them.

Types are strict: `true` and `"0.7"` are no numbers. `null` is the same as leaving a field out. Ranges are checked by
`SamplingParams`, so that HTTP and the Python API refuse alike. Fields are of three kinds:

- understood: they do what they say;
- inert: documented by OpenAI, cannot change the answer, accepted and not looked at (`INERT`);
- unsupported: known, but not offered here. Refused by name unless their value asks for nothing (`UNSUPPORTED`).

Anything else is an unknown field and refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar

import msgspec
from msgspec import Meta

from sixfold.api.errors import clip
from sixfold.api.tool_schemas import CallInHistory, NamedTool, ToolDefinition
from sixfold.errors import InvalidRequest

__all__ = [
    "INERT",
    "MAX_CACHE_SALT_CHARS",
    "MAX_MESSAGES",
    "MAX_PROMPTS",
    "UNSUPPORTED",
    "ChatMessage",
    "ChatRequest",
    "CompletionRequest",
    "ContentPart",
    "DetokenizeRequest",
    "GenerationRequest",
    "StreamOptions",
    "TokenizeRequest",
    "refuse_unsupported",
    "unsupported",
    "unsupported_part",
]

MAX_PROMPTS = 256
"""Prompts times n of one completions call."""
MAX_MESSAGES = 4096
MAX_CACHE_SALT_CHARS = 256

INERT = frozenset(
    {
        "metadata",
        "parallel_tool_calls",
        "prediction",
        "prompt_cache_key",
        "prompt_cache_retention",
        "safety_identifier",
        "service_tier",
        "store",
        "user",
    }
)
"""Cannot change the answer (`parallel_tool_calls` does in a chat with tools)."""

UNSUPPORTED: dict[str, tuple[Any, ...]] = {
    "audio": (),
    "best_of": (1,),
    "function_call": ("none", "auto"),
    "functions": ([],),
    "modalities": ([], ["text"]),
    "reasoning_effort": (),
    "response_format": ({"type": "text"},),
    "suffix": ("",),
    "tool_choice": ("none", "auto"),
    "tools": ([],),
    "verbosity": (),
    "web_search_options": (),
}
"""Field -> values, besides null, that ask for nothing."""


class StreamOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`include_obfuscation` pads OpenAI's streams against eavesdroppers; it is accepted and does nothing here."""

    include_usage: bool | None = None
    include_obfuscation: bool | None = None


class GenerationRequest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Fields that both endpoints have."""

    OFFERED: ClassVar[frozenset[str]] = frozenset()
    """Of `UNSUPPORTED`, what this endpoint offers."""

    model: Annotated[str, Meta(description="a served model's name; left out: the served model")] | None = None
    max_tokens: Annotated[int, Meta(description="tokens to generate; default: what the context leaves")] | None = None
    n: Annotated[int, Meta(description="choices per prompt")] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    temperature: Annotated[float, Meta(description="0 is greedy")] | None = None
    top_p: float | None = None
    top_k: Annotated[int, Meta(description="0 and -1 are off")] | None = None
    min_p: float | None = None
    seed: Annotated[int, Meta(description="64-bit; equal requests with equal seeds give equal tokens")] | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    include_stop_str_in_output: bool | None = None
    skip_special_tokens: Annotated[bool, Meta(description="control tokens have no text")] | None = None
    ignore_eos: Annotated[bool, Meta(description="the model's end tokens do not end the answer")] | None = None
    min_tokens: Annotated[int, Meta(description="no stop token can be drawn before")] | None = None
    repetition_penalty: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    logit_bias: Annotated[dict[int, float], Meta(description="token id -> added to its logit")] | None = None
    priority: Annotated[int, Meta(description="lower runs earlier under the priority policy")] | None = None
    cache_salt: Annotated[str, Meta(description="only equal salts share cached blocks")] | None = None
    return_token_ids: bool | None = None
    script: Annotated[list[str | int], Meta(description="scripted executor only: the tokens that come out")] | None = (
        None
    )
    # inert
    user: str | None = None
    metadata: Any = None
    store: bool | None = None
    service_tier: str | None = None
    prompt_cache_key: str | None = None
    prompt_cache_retention: str | None = None
    safety_identifier: str | None = None
    prediction: Any = None
    parallel_tool_calls: bool | None = None
    # unsupported
    response_format: Any = None
    tools: Any = None
    tool_choice: Any = None


class CompletionRequest(GenerationRequest, kw_only=True, forbid_unknown_fields=True):
    """`POST /v1/completions`."""

    prompt: Annotated[str | list[str | int | list[int]], Meta(description="text, texts, token ids, or lists of them")]
    echo: Annotated[bool, Meta(description="the prompt is part of the answer")] | None = None
    logprobs: Annotated[int, Meta(description="alternatives per token, up to 20")] | None = None
    best_of: int | None = None
    suffix: str | None = None


class ContentPart(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A part of a message. Only `text` is served."""

    type: str
    text: str | None = None
    cache_control: Any = None


class ChatMessage(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """One message. `refusal` to `function_call` are those of an answer that a client sends back as it came."""

    role: str
    content: str | list[ContentPart] | None = None
    name: str | None = None
    tool_call_id: str | None = None
    refusal: Any = None
    annotations: Any = None
    audio: Any = None
    function_call: Any = None
    tool_calls: Annotated[list[CallInHistory], Meta(description="of an assistant's message")] | None = None
    reasoning_content: Annotated[str, Meta(description="what an assistant thought before it answered")] | None = None
    reasoning: Annotated[str, Meta(description="the same by its newer name")] | None = None


class ChatRequest(GenerationRequest, kw_only=True, forbid_unknown_fields=True):
    """`POST /v1/chat/completions`."""

    OFFERED: ClassVar = frozenset({"tools", "tool_choice"})

    messages: list[ChatMessage]
    tools: Annotated[list[ToolDefinition], Meta(description="functions that the model may call")] | None = None
    tool_choice: Annotated[str | NamedTool, Meta(description="auto, none, required, or a function")] | None = None
    chat_template_kwargs: Annotated[dict[str, Any], Meta(description="more variables for the chat template")] | None = (
        None
    )
    include_reasoning: Annotated[bool, Meta(description="reasoning is part of the answer; default true")] | None = None
    max_completion_tokens: Annotated[int, Meta(description="OpenAI's newer name of max_tokens")] | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Meta(description="alternatives per token, up to 20; needs logprobs")] | None = None
    audio: Any = None
    function_call: Any = None
    functions: Any = None
    modalities: Any = None
    reasoning_effort: Any = None
    verbosity: Any = None
    web_search_options: Any = None


class TokenizeRequest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """`POST /tokenize`: either `prompt` or `messages`."""

    model: str | None = None
    prompt: str | None = None
    messages: list[ChatMessage] | None = None
    add_special_tokens: Annotated[bool, Meta(description="a prompt gets the model's BOS; default true")] | None = None
    add_generation_prompt: Annotated[bool, Meta(description="of the chat template; default true")] | None = None
    return_token_strs: bool | None = None


class DetokenizeRequest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """`POST /detokenize`."""

    tokens: list[int]
    model: str | None = None
    skip_special_tokens: Annotated[bool, Meta(description="default false: control tokens are spelled")] | None = None


def unsupported(field: str) -> InvalidRequest:
    """A field that asks for what is known but not offered here."""
    return InvalidRequest(f"{field} is not supported by this server", param=field, code="unsupported_field")


def unsupported_part(where: str, index: int, kind: str) -> InvalidRequest:
    """A part of a message that is not text.

    Args:
        where: the message's content.
        index: of the part in it.
        kind: its type.
    """
    return InvalidRequest(
        f"{where}: only parts of type text are supported; part {index} is of type {clip(kind, 64)}",
        param=where,
        code="unsupported_field",
    )


def refuse_unsupported(
    request: msgspec.Struct, asks_for_nothing: Mapping[str, tuple[Any, ...]] = UNSUPPORTED, *, where: str = ""
) -> None:
    """Refuse what is known but not offered.

    Args:
        asks_for_nothing: field -> values, besides null, that are taken all the same.
        where: the object's place in the request, with a dot behind it.

    Raises:
        InvalidRequest: a field asks for what this server does not offer; `param` names it.
    """
    for name in type(request).__struct_fields__:
        neutral = asks_for_nothing.get(name)
        if neutral is None or name in getattr(request, "OFFERED", ()):
            continue
        value = getattr(request, name)
        if value is not None and not any(value == ok and type(value) is type(ok) for ok in neutral):
            raise unsupported(where + name)
