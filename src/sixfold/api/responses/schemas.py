"""Wire types of `POST /v1/responses`. Like those of the other endpoints (`api/openai/schemas.py`), they validate.

`input`, `tools`, `tool_choice` and a message's content hold things of many types, of which a few are served. They are
taken as plain JSON first, so that what is not served is refused by its type, and not by a field that it has; then each
is converted to the strict type of its kind.
"""

from __future__ import annotations

from typing import Annotated, Any

import msgspec

from sixfold.api.field_docs import says
from sixfold.api.openai.schemas import ReasoningEffort

__all__ = [
    "GENERATION_FIELDS",
    "FunctionCallItem",
    "FunctionCallOutputItem",
    "FunctionTool",
    "ItemPart",
    "MessageItem",
    "NamedFunctionTool",
    "ReasoningItem",
    "ReasoningOptions",
    "ResponsesRequest",
    "ResponsesStreamOptions",
    "TextFormat",
    "TextSettings",
]

JsonObject = dict[str, Any]


class _Strict(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    pass


class ReasoningOptions(_Strict):
    """`reasoning`."""

    effort: ReasoningEffort = None
    summary: Annotated[str | None, says("only `auto`: reasoning comes in full")] = None
    generate_summary: Annotated[str | None, says("older name of summary")] = None


class TextFormat(_Strict):
    """`text.format`: `text`, `json_object`, or `json_schema` with a schema."""

    type: Annotated[str, says("`text`, `json_object`, `json_schema`")]
    name: Annotated[str | None, says("of the schema; returned")] = None
    schema: Annotated[JsonObject | None, says("JSON schema that the answer follows")] = None
    strict: Annotated[bool | None, says("enforced in any case", True)] = None
    description: Annotated[str | None, says("returned")] = None


class TextSettings(_Strict):
    """`text`."""

    format: Annotated[TextFormat | None, says("text, any JSON object, or JSON of a schema", "text")] = None
    verbosity: Annotated[str | None, says("only `medium`", "`medium`")] = None


class ResponsesStreamOptions(_Strict):
    """`include_obfuscation` pads OpenAI's streams against eavesdroppers; it is accepted and does nothing here."""

    include_obfuscation: Annotated[bool | None, says("inert", False)] = None


class ResponsesRequest(_Strict):
    """`POST /v1/responses`."""

    input: Annotated[
        str | list[JsonObject],
        says("text, or 1 to 4096 items: message, function_call, function_call_output, reasoning"),
    ]
    model: Annotated[str, says("a served model's name", "the served model")] | None = None
    instructions: Annotated[str, says("a system message before everything else")] | None = None
    previous_response_id: Annotated[str, says("a stored response that this one continues")] | None = None
    store: Annotated[bool, says("keep the answer", "true where the server stores any")] | None = None
    max_output_tokens: Annotated[int, says("tokens to generate, from 1", "what the context leaves")] | None = None
    stream: Annotated[bool | None, says("server-sent events", False)] = None
    stream_options: Annotated[ResponsesStreamOptions | None, says("needs `stream`")] = None
    tools: Annotated[list[JsonObject], says("up to 128 of type `function`")] | None = None
    tool_choice: Annotated[str | JsonObject, says("`none`, `auto`, `required`, or a function", "`auto`")] | None = None
    parallel_tool_calls: Annotated[bool | None, says("false: one call at most", True)] = None
    text: Annotated[TextSettings | None, says("the format of the answer")] = None
    reasoning: Annotated[ReasoningOptions | None, says("how much to think")] = None
    include: Annotated[
        list[str] | None, says("`message.output_text.logprobs`; `reasoning.encrypted_content` is inert")
    ] = None
    top_logprobs: Annotated[int, says("alternatives per token, up to 20; needs `include`", 0)] | None = None
    metadata: Annotated[dict[str, str], says("up to 16 pairs, returned with the answer", "`{}`")] | None = None
    # as in the other endpoints
    temperature: Annotated[float, says("0 to 2; 0 is greedy *", 1.0)] | None = None
    top_p: Annotated[float | None, says("above 0, to 1 *", 1.0)] = None
    top_k: Annotated[int, says("0 and -1 are off *", 0)] | None = None
    min_p: Annotated[float | None, says("0 to 1 *", 0.0)] = None
    seed: Annotated[int, says("64-bit; equal requests with equal seeds give equal tokens", "random")] | None = None
    stop: Annotated[str | list[str] | None, says("up to 16 strings that end the answer")] = None
    stop_token_ids: Annotated[list[int] | None, says("up to 128 ids that end the answer")] = None
    ignore_eos: Annotated[bool, says("the model's end tokens do not end the answer", False)] | None = None
    min_tokens: Annotated[int, says("no stop token can be drawn before", 0)] | None = None
    repetition_penalty: Annotated[float | None, says("0.01 to 2; counts prompt and answer *", 1.0)] = None
    presence_penalty: Annotated[float | None, says("-2 to 2; counts the answer", 0.0)] = None
    frequency_penalty: Annotated[float | None, says("-2 to 2; counts the answer", 0.0)] = None
    logit_bias: Annotated[dict[int, float], says("token id -> added to its logit")] | None = None
    priority: Annotated[int, says("lower runs earlier under the priority policy", 0)] | None = None
    cache_salt: Annotated[str, says("only equal salts share cached blocks")] | None = None
    timeout: Annotated[float, says("seconds from arrival; then it ends with deadline_exceeded")] | None = None
    allowed_token_ids: Annotated[list[int], says("nothing else is drawn")] | None = None
    bad_words: Annotated[list[str], says("strings that are never completed")] | None = None
    script: Annotated[list[str | int], says("scripted executor only: the tokens that come out")] | None = None
    # inert
    user: Annotated[str | None, says("returned with the answer")] = None
    service_tier: Annotated[str | None, says("there is one")] = None
    prompt_cache_key: Annotated[str | None, says("returned with the answer")] = None
    prompt_cache_retention: Annotated[str | None, says("the cache decides")] = None
    safety_identifier: Annotated[str | None, says("returned with the answer")] = None
    # unsupported
    background: Annotated[Any, says("only false")] = None
    context_management: Annotated[Any, says("only an empty list")] = None
    conversation: Annotated[Any, says("only null")] = None
    max_tool_calls: Annotated[Any, says("only null")] = None
    moderation: Annotated[Any, says("only null")] = None
    prompt: Annotated[Any, says("only null")] = None
    truncation: Annotated[Any, says("only `disabled`")] = None


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


class ItemPart(_Strict):
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


class NamedFunctionTool(_Strict):
    """`tool_choice` that names the function to call."""

    type: str
    name: str
