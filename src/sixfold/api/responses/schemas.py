"""Wire types of `POST /v1/responses`. Like those of the other endpoints (`api/schemas.py`), they validate.

`input`, `tools`, `tool_choice` and a message's content hold things of many types, of which a few are served. They are
taken as plain JSON first, so that what is not served is refused by its type, and not by a field that it has; then each
is converted to the strict type of its kind.
"""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import Meta

__all__ = [
    "GENERATION_FIELDS",
    "ContentPart",
    "FunctionCallItem",
    "FunctionCallOutputItem",
    "FunctionTool",
    "MessageItem",
    "NamedTool",
    "ReasoningItem",
    "ReasoningOptions",
    "ResponsesRequest",
    "ResponsesStreamOptions",
    "TextFormat",
    "TextOptions",
]

JsonObject = dict[str, Any]


class _Strict(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    pass


class ReasoningOptions(_Strict):
    """`reasoning`."""

    effort: Annotated[
        str | None, Meta(description="none, minimal, low, medium, high, xhigh: what the chat template has a switch for")
    ] = None
    summary: Annotated[str | None, Meta(description="only `auto`: reasoning comes in full")] = None
    generate_summary: Annotated[str | None, Meta(description="older name of summary")] = None


class TextFormat(_Strict):
    """`text.format`: `text`, `json_object`, or `json_schema` with a schema."""

    type: Annotated[str, Meta(description="`text`, `json_object`, `json_schema`")]
    name: Annotated[str | None, Meta(description="of the schema; returned")] = None
    schema: Annotated[JsonObject | None, Meta(description="JSON schema that the answer follows")] = None
    strict: Annotated[bool | None, Meta(description="enforced in any case")] = None
    description: Annotated[str | None, Meta(description="returned")] = None


class TextOptions(_Strict):
    """`text`."""

    format: Annotated[TextFormat | None, Meta(description="text, any JSON object, or JSON of a schema")] = None
    verbosity: Annotated[str | None, Meta(description="only `medium`")] = None


class ResponsesStreamOptions(_Strict):
    """`include_obfuscation` pads OpenAI's streams against eavesdroppers; it is accepted and does nothing here."""

    include_obfuscation: Annotated[bool | None, Meta(description="inert")] = None


class ResponsesRequest(_Strict):
    """`POST /v1/responses`."""

    input: Annotated[
        str | list[JsonObject],
        Meta(description="text, or items: message, function_call, function_call_output, reasoning"),
    ]
    model: Annotated[str, Meta(description="a served model's name; left out: the served model")] | None = None
    instructions: Annotated[str, Meta(description="a system message before everything else")] | None = None
    previous_response_id: Annotated[str, Meta(description="a stored response that this one continues")] | None = None
    store: Annotated[bool, Meta(description="keep the answer; default true where the server stores any")] | None = None
    max_output_tokens: Annotated[int, Meta(description="tokens to generate; default: all that fit")] | None = None
    stream: Annotated[bool | None, Meta(description="server-sent events")] = None
    stream_options: Annotated[ResponsesStreamOptions | None, Meta(description="needs stream")] = None
    tools: Annotated[list[JsonObject], Meta(description="of type function")] | None = None
    tool_choice: Annotated[str | JsonObject, Meta(description="none, auto, required, or a function")] | None = None
    parallel_tool_calls: Annotated[bool | None, Meta(description="false: one call at most")] = None
    text: Annotated[TextOptions | None, Meta(description="the format of the answer")] = None
    reasoning: Annotated[ReasoningOptions | None, Meta(description="how much to think")] = None
    include: Annotated[
        list[str] | None, Meta(description="`message.output_text.logprobs`; `reasoning.encrypted_content` is inert")
    ] = None
    top_logprobs: Annotated[int, Meta(description="alternatives per token, up to 20; needs include")] | None = None
    metadata: Annotated[dict[str, str], Meta(description="up to 16 pairs, returned with the answer")] | None = None
    # as in the other endpoints
    temperature: Annotated[float, Meta(description="0 is greedy")] | None = None
    top_p: Annotated[float | None, Meta(description="above 0, to 1")] = None
    top_k: Annotated[int, Meta(description="0 and -1 are off")] | None = None
    min_p: Annotated[float | None, Meta(description="0 to 1")] = None
    seed: Annotated[int, Meta(description="64-bit; equal requests with equal seeds give equal tokens")] | None = None
    stop: Annotated[str | list[str] | None, Meta(description="up to 16 strings that end the answer")] = None
    stop_token_ids: Annotated[list[int] | None, Meta(description="up to 128 ids that end the answer")] = None
    ignore_eos: Annotated[bool, Meta(description="the model's end tokens do not end the answer")] | None = None
    min_tokens: Annotated[int, Meta(description="no stop token can be drawn before")] | None = None
    repetition_penalty: Annotated[float | None, Meta(description="0.01 to 2; counts prompt and answer")] = None
    presence_penalty: Annotated[float | None, Meta(description="-2 to 2; counts the answer")] = None
    frequency_penalty: Annotated[float | None, Meta(description="-2 to 2; counts the answer")] = None
    logit_bias: Annotated[dict[int, float], Meta(description="token id -> added to its logit")] | None = None
    priority: Annotated[int, Meta(description="lower runs earlier under the priority policy")] | None = None
    cache_salt: Annotated[str, Meta(description="only equal salts share cached blocks")] | None = None
    timeout: Annotated[float, Meta(description="seconds from arrival; then it ends with deadline_exceeded")] | None = (
        None
    )
    allowed_token_ids: Annotated[list[int], Meta(description="nothing else is drawn")] | None = None
    bad_words: Annotated[list[str], Meta(description="strings that are never completed")] | None = None
    script: Annotated[list[str | int], Meta(description="scripted executor only: the tokens that come out")] | None = (
        None
    )
    # inert
    user: Annotated[str | None, Meta(description="returned with the answer")] = None
    service_tier: Annotated[str | None, Meta(description="there is one")] = None
    prompt_cache_key: Annotated[str | None, Meta(description="returned with the answer")] = None
    prompt_cache_retention: Annotated[str | None, Meta(description="the cache decides")] = None
    safety_identifier: Annotated[str | None, Meta(description="returned with the answer")] = None
    # unsupported
    background: Annotated[Any, Meta(description="only false")] = None
    context_management: Annotated[Any, Meta(description="only an empty list")] = None
    conversation: Annotated[Any, Meta(description="only null")] = None
    max_tool_calls: Annotated[Any, Meta(description="only null")] = None
    moderation: Annotated[Any, Meta(description="only null")] = None
    prompt: Annotated[Any, Meta(description="only null")] = None
    truncation: Annotated[Any, Meta(description="only `disabled`")] = None


UNSUPPORTED: dict[str, tuple[Any, ...]] = {
    "background": (False,),
    "context_management": ([],),
    "conversation": (),
    "max_tool_calls": (),
    "moderation": (),
    "prompt": (),
    "truncation": ("disabled",),
}
"""Field -> values, besides null, that ask for nothing."""

INERT = frozenset({"user", "service_tier", "prompt_cache_key", "prompt_cache_retention", "safety_identifier"})
"""Cannot change the answer; some are returned with it."""

GENERATION_FIELDS = (
    "allowed_token_ids",
    "bad_words",
    "cache_salt",
    "frequency_penalty",
    "ignore_eos",
    "logit_bias",
    "min_p",
    "min_tokens",
    "presence_penalty",
    "priority",
    "repetition_penalty",
    "script",
    "seed",
    "stop",
    "stop_token_ids",
    "temperature",
    "timeout",
    "top_k",
    "top_p",
)
"""Of the same name and meaning in `GenerationRequest`."""


class MessageItem(_Strict):
    """An item of type `message`, which may be left out. `phase` is a label of OpenAI's models."""

    role: str
    content: str | list[JsonObject]
    type: str | None = None
    id: str | None = None
    status: str | None = None
    phase: None = None


class ContentPart(_Strict):
    """A part of a message: `input_text` or `output_text`. The other fields are those of an answer sent back."""

    type: str
    text: str
    annotations: list[JsonObject] | None = None
    logprobs: list[JsonObject] | None = None
    prompt_cache_breakpoint: Any = None


class FunctionCallItem(_Strict):
    """A call that the model made."""

    type: str
    call_id: str
    name: str
    arguments: str
    id: str | None = None
    status: str | None = None
    namespace: None = None
    caller: None = None


class FunctionCallOutputItem(_Strict):
    """What a called function answered."""

    type: str
    call_id: str
    output: str | list[JsonObject]
    id: str | None = None
    status: str | None = None
    name: str | None = None
    namespace: None = None
    caller: None = None


class ReasoningPart(_Strict):
    type: str
    text: str


class ReasoningItem(_Strict):
    """What the model thought. Only in the clear: another server's `encrypted_content` cannot be read here."""

    type: str
    id: str | None = None
    summary: list[ReasoningPart] | None = None
    content: list[ReasoningPart] | None = None
    encrypted_content: Any = None
    status: str | None = None


class FunctionTool(_Strict):
    """A function that the model may call."""

    type: str
    name: str
    description: str | None = None
    parameters: JsonObject | None = None
    strict: bool | None = None


class NamedTool(_Strict):
    """`tool_choice` that names the function to call."""

    type: str
    name: str
