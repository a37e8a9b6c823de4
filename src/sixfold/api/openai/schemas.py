"""Wire types of the requests. They validate (types, unknown fields), and `/openapi.json` is made from them.

Types are strict: `true` and `"0.7"` are no numbers. `null` is the same as leaving a field out. Ranges are checked by
`SamplingParams`, so that HTTP and the Python API refuse alike. Fields are of three kinds:

- understood: they do what they say;
- inert: documented by OpenAI, cannot change the answer, accepted and not looked at (`INERT`);
- unsupported: known, but not offered here. Refused by name unless their value asks for nothing (`UNSUPPORTED`).

Anything else is an unknown field and refused.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

import msgspec

from sixfold.api.field_docs import says
from sixfold.api.fields.structured_fields import ResponseFormat, StructuredOutputsField
from sixfold.api.fields.tool_schemas import CallInHistory, NamedTool, ToolDefinition

__all__ = [
    "INERT",
    "MAX_CACHE_SALT_CHARS",
    "MAX_INPUTS",
    "MAX_MESSAGES",
    "MAX_PROMPTS",
    "UNSUPPORTED",
    "AbortRequest",
    "ApplyTemplateRequest",
    "ChatMessage",
    "ChatRequest",
    "CompletionRequest",
    "ContentPart",
    "DetokenizeRequest",
    "EmbeddingRequest",
    "GenerationRequest",
    "StreamOptions",
    "TokenizeRequest",
]

MAX_PROMPTS = 256
"""Prompts times n of one completions call."""
MAX_MESSAGES = 4096
MAX_INPUTS = 2048
"""Texts of one embeddings call."""
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
        "spaces_between_special_tokens",
        "store",
        "user",
    }
)
"""Cannot change the answer (`parallel_tool_calls` does in a chat with tools)."""

UNSUPPORTED: dict[str, tuple[Any, ...]] = {
    "audio": (),
    "best_of": (1,),
    "chat_template": (),
    "documents": ([],),
    "echo": (False,),
    "function_call": ("none", "auto"),
    "functions": ([],),
    "modalities": ([], ["text"]),
    "suffix": ("",),
    "tool_choice": ("none", "auto"),
    "tools": ([],),
    "verbosity": (),
    "web_search_options": (),
}
"""Field -> values, besides null, that ask for nothing."""


class StreamOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`stream_options`. It needs `stream`."""

    include_usage: Annotated[bool | None, says("one more event with `usage`, before `[DONE]`", False)] = None
    continuous_usage_stats: Annotated[
        bool | None, says("`usage` so far in every event; needs `include_usage`", False)
    ] = None
    include_obfuscation: Annotated[
        bool | None, says("inert: OpenAI pads streams with it against eavesdroppers", False)
    ] = None


TruncationSide = Annotated[
    Literal["left", "right"] | None, says("which end `truncate_prompt_tokens` takes away; the other is kept", "left")
]


class GenerationRequest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Fields that chats and completions have."""

    OFFERED: ClassVar[frozenset[str]] = frozenset()
    """Of `UNSUPPORTED` and `INERT`, what this endpoint offers."""

    model: Annotated[
        str | None, says("name of the served model, as `GET /v1/models` tells it; another is 404", "the served model")
    ] = None
    max_tokens: Annotated[
        int | None,
        says("tokens to generate per choice; from 1 in a chat, from 0 in completions", "what the context leaves"),
    ] = None
    n: Annotated[int | None, says("choices per prompt, 1 to 64; choice i draws with (seed, i)", 1)] = None
    stream: Annotated[bool | None, says("server-sent events", False)] = None
    stream_options: Annotated[StreamOptions | None, says("needs `stream`")] = None
    temperature: Annotated[float | None, says("0 to 2; 0 is greedy, ties to the lowest id *", 1.0)] = None
    top_p: Annotated[float | None, says("above 0, to 1 *", 1.0)] = None
    top_k: Annotated[int | None, says("0 and -1 are off *", 0)] = None
    min_p: Annotated[float | None, says("0 to 1 *", 0.0)] = None
    seed: Annotated[int | None, says("signed 64-bit; equal requests with equal seeds give equal tokens", "random")] = (
        None
    )
    stop: Annotated[
        str | list[str] | None,
        says("up to 16 non-empty strings of up to 256 characters; not part of the answer"),
    ] = None
    stop_token_ids: Annotated[
        list[int] | None, says("up to 128 ids; counted, and in `token_ids`, but without text")
    ] = None
    include_stop_str_in_output: Annotated[bool | None, says("the stop string stays in the text", False)] = None
    skip_special_tokens: Annotated[bool | None, says("control tokens have no text", True)] = None
    ignore_eos: Annotated[bool | None, says("the model's end tokens do not end the answer", False)] = None
    min_tokens: Annotated[int | None, says("no stop token is drawn before; at most `max_tokens`", 0)] = None
    repetition_penalty: Annotated[float | None, says("0.01 to 2; counts prompt and answer *", 1.0)] = None
    presence_penalty: Annotated[float | None, says("-2 to 2; counts the answer", 0.0)] = None
    frequency_penalty: Annotated[float | None, says("-2 to 2; counts the answer", 0.0)] = None
    logit_bias: Annotated[
        dict[int, float] | None,
        says("up to 1024 token ids, -100 (never drawn) to 100 each; a token must be left to draw"),
    ] = None
    allowed_token_ids: Annotated[
        list[int] | None, says("1 to 16384 ids: nothing else is drawn, no end token either")
    ] = None
    bad_words: Annotated[
        list[str] | None,
        says(
            "up to 128 strings of up to 64 characters whose tokens are never completed in the answer, as they stand, "
            "behind a blank, and inside a line; the same letters may still come as other tokens"
        ),
    ] = None
    prompt_logprobs: Annotated[
        int | None,
        says(
            "0 to 20 alternatives per token of the prompt: `prompt_logprobs` in the answer, one entry per token, id to "
            "`logprob`, `rank` (1 is the likeliest) and `decoded_token`, null for the first; not with `stream`",
            "off",
        ),
    ] = None
    return_tokens_as_token_ids: Annotated[
        bool | None, says('tokens in log-probabilities are written `"token_id:17"`', False)
    ] = None
    truncate_prompt_tokens: Annotated[
        int | None,
        says(
            "a longer prompt is cut to so many tokens, a BOS that the model wants among them; -1: to what `max_tokens` "
            "leaves of the context, or to all of it but one token",
            "off",
        ),
    ] = None
    truncation_side: TruncationSide = None
    timeout: Annotated[
        float | None,
        says("seconds from the request's arrival, above 0, to 86400; afterwards it ends with `deadline_exceeded`"),
    ] = None
    request_id: Annotated[
        str | None,
        says("label in the log and in `X-Request-Id`: up to 128 letters, digits and `._:-`; wins over that header"),
    ] = None
    priority: Annotated[int | None, says("32-bit; lower runs earlier under `--scheduling-policy priority`", 0)] = None
    cache_salt: Annotated[str | None, says("up to 256 characters; only equal salts share cached blocks")] = None
    response_format: Annotated[
        ResponseFormat | None, says("what the answer is: a text, a JSON object, JSON after a schema", "text")
    ] = None
    structured_outputs: Annotated[
        StructuredOutputsField | None, says("what the answer must follow: a schema, an expression, a choice, a grammar")
    ] = None
    return_token_ids: Annotated[bool | None, says("`token_ids` in every choice, and `prompt_token_ids`", False)] = None
    script: Annotated[
        list[str | int] | None, says("`--executor scripted` only: the tokens that come out; -1 fails there")
    ] = None
    # inert
    user: Annotated[str | None, says("who asks, for OpenAI's own records")] = None
    metadata: Annotated[Any, says("OpenAI's labels of stored answers")] = None
    store: Annotated[bool | None, says("whether OpenAI keeps the answer")] = None
    service_tier: Annotated[str | None, says("OpenAI's price class")] = None
    prompt_cache_key: Annotated[str | None, says("a hint for OpenAI's routing; see `cache_salt`")] = None
    prompt_cache_retention: Annotated[str | None, says("how long OpenAI keeps a prompt's cache")] = None
    safety_identifier: Annotated[str | None, says("who asks, for OpenAI's own records")] = None
    prediction: Annotated[Any, says("text that the answer may repeat, to speed it up")] = None
    parallel_tool_calls: Annotated[bool | None, says("there are no tools")] = None
    spaces_between_special_tokens: Annotated[
        bool | None, says("no blanks are ever put between tokens: a text is its tokens' bytes")
    ] = None
    # unsupported
    tools: Annotated[Any, says("only an empty list")] = None
    tool_choice: Annotated[Any, says("only `none` and `auto`")] = None


class CompletionRequest(GenerationRequest, kw_only=True, forbid_unknown_fields=True):
    """`POST /v1/completions`."""

    OFFERED: ClassVar = frozenset({"echo"})

    prompt: Annotated[
        str | list[str | int | list[int]],
        says("a text, texts, token ids, or lists of them; up to 256 choices (prompts times `n`)"),
    ]
    add_special_tokens: Annotated[
        bool | None, says("a text gets the BOS that the model wants; false: none is added", True)
    ] = None
    echo: Annotated[bool | None, says("the prompt is part of the answer, and of its log-probabilities", False)] = None
    logprobs: Annotated[int | None, says("0 to 20 alternatives per token, OpenAI's legacy lists", "off")] = None
    best_of: Annotated[int | None, says("only the value of `n`, or 1")] = None
    suffix: Annotated[str | None, says("only empty: there is no filling in the middle")] = None


class ContentPart(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A part of a message. Only `text` is served."""

    type: Annotated[str, says("`text`")]
    text: Annotated[str | None, says("the text")] = None
    cache_control: Annotated[Any, says("inert: Anthropic's mark for its prompt cache")] = None


class ChatMessage(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """One message. `refusal` to `function_call` are those of an answer that a client sends back as it came."""

    role: Annotated[str, says("`system`, `developer` (the same as `system`), `user`, `assistant`, `tool`")]
    content: Annotated[str | list[ContentPart] | None, says("a text, or parts of type `text`, joined by a newline")] = (
        None
    )
    name: Annotated[str | None, says("handed to the model's chat template")] = None
    tool_call_id: Annotated[str | None, says("handed to the model's chat template")] = None
    refusal: Annotated[Any, says("only empty")] = None
    annotations: Annotated[Any, says("only empty")] = None
    audio: Annotated[Any, says("only empty")] = None
    function_call: Annotated[Any, says("only empty")] = None
    tool_calls: Annotated[list[CallInHistory] | None, says("of an assistant's message")] = None
    reasoning_content: Annotated[str | None, says("what an assistant thought before it answered")] = None
    reasoning: Annotated[str | None, says("the same by its newer name")] = None


Tools = Annotated[list[ToolDefinition] | None, says("functions that the model may call")]
AddGenerationPrompt = Annotated[bool | None, says("the prompt ends with the opening of an assistant's turn", True)]
ContinueFinalMessage = Annotated[
    bool | None,
    says("the prompt ends inside the last message, an assistant's; not with `add_generation_prompt` true", False),
]
AddBos = Annotated[bool | None, says("false: no BOS but the one that the chat template writes", True)]
TemplateKwargs = Annotated[dict[str, Any] | None, says("more variables for the chat template")]
ReasoningEffort = Annotated[
    str | None,
    says(
        "none, minimal, low, medium, high, xhigh: what the chat template has a scale or a switch for", "the template's"
    ),
]


class ChatRequest(GenerationRequest, kw_only=True, forbid_unknown_fields=True):
    """`POST /v1/chat/completions`."""

    OFFERED: ClassVar = frozenset({"parallel_tool_calls", "tools", "tool_choice"})

    messages: Annotated[list[ChatMessage], says("1 to 4096 messages")]
    tools: Tools = None
    tool_choice: Annotated[
        str | NamedTool | None, says("`auto`, `none`, `required`, or one function", "`auto` with tools, else `none`")
    ] = None
    parallel_tool_calls: Annotated[bool | None, says("several calls in one answer", True)] = None
    add_generation_prompt: AddGenerationPrompt = None
    continue_final_message: ContinueFinalMessage = None
    add_special_tokens: AddBos = None
    chat_template_kwargs: TemplateKwargs = None
    reasoning_effort: ReasoningEffort = None
    include_reasoning: Annotated[bool | None, says("reasoning is part of the answer", True)] = None
    max_completion_tokens: Annotated[
        int | None, says("OpenAI's newer name of `max_tokens`; both only with one value")
    ] = None
    logprobs: Annotated[bool | None, says("log-probabilities of the tokens of the answer", False)] = None
    top_logprobs: Annotated[int | None, says("0 to 20 alternatives per token; needs `logprobs`", 0)] = None
    audio: Annotated[Any, says("only text is written")] = None
    function_call: Annotated[Any, says("OpenAI's older name of `tool_choice`")] = None
    functions: Annotated[Any, says("OpenAI's older name of `tools`")] = None
    modalities: Annotated[Any, says("only text is written")] = None
    verbosity: Annotated[Any, says("how long an answer is")] = None
    web_search_options: Annotated[Any, says("there is no search")] = None
    echo: Annotated[bool | None, says("no part of the chat is repeated in the answer")] = None
    chat_template: Annotated[Any, says("a template comes with the model alone")] = None
    documents: Annotated[Any, says("see `chat_template_kwargs`")] = None


class EmbeddingRequest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """`POST /v1/embeddings`."""

    input: Annotated[
        str | list[str | int | list[int]],
        says("a text, texts, token ids, or lists of them: up to 2048, of 300000 tokens together"),
    ]
    model: Annotated[str | None, says("name of the served model", "the served model")] = None
    encoding_format: Annotated[str | None, says("`float`, or `base64`: float32, little-endian", "`float`")] = None
    dimensions: Annotated[int | None, says("only the model's own number", "the model's")] = None
    pooling: Annotated[
        str | None, says("`mean` of the tokens' hidden states, or `last`: the last token's", "`mean`")
    ] = None
    normalize: Annotated[bool | None, says("to length 1", True)] = None
    truncate_prompt_tokens: Annotated[
        int | None,
        says(
            "a longer text is cut to so many tokens, a BOS that the model wants among them; -1: to the context", "off"
        ),
    ] = None
    truncation_side: TruncationSide = None
    priority: Annotated[int | None, says("32-bit; lower runs earlier under `--scheduling-policy priority`", 0)] = None
    cache_salt: Annotated[str | None, says("up to 256 characters; only equal salts share cached blocks")] = None
    timeout: Annotated[
        float | None,
        says("seconds from the request's arrival, above 0, to 86400; afterwards it ends with `deadline_exceeded`"),
    ] = None
    # inert
    user: Annotated[str | None, says("who asks, for OpenAI's own records")] = None


class ApplyTemplateRequest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """`POST /apply-template`: what makes the prompt of a chat."""

    OFFERED: ClassVar = frozenset({"tools"})

    messages: Annotated[list[ChatMessage], says("as in a chat")]
    model: Annotated[str | None, says("name of the served model", "the served model")] = None
    tools: Tools = None
    add_generation_prompt: AddGenerationPrompt = None
    continue_final_message: ContinueFinalMessage = None
    add_special_tokens: AddBos = None
    chat_template_kwargs: TemplateKwargs = None
    reasoning_effort: ReasoningEffort = None
    return_token_ids: Annotated[bool | None, says("`prompt_token_ids` in the answer", False)] = None


class AbortRequest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """`POST /v1/abort`."""

    id: Annotated[str, says("the `id` in an answer or its events, or the call's `X-Request-Id`; up to 256 characters")]


class TokenizeRequest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """`POST /tokenize`: either `prompt`, or `messages` and what else makes the prompt of a chat."""

    OFFERED: ClassVar = frozenset({"tools"})

    model: Annotated[str | None, says("name of the served model", "the served model")] = None
    prompt: Annotated[str | None, says("as in `/v1/completions`")] = None
    messages: Annotated[list[ChatMessage] | None, says("as in a chat; either this or `prompt`")] = None
    tools: Tools = None
    add_generation_prompt: AddGenerationPrompt = None
    continue_final_message: ContinueFinalMessage = None
    add_special_tokens: Annotated[
        bool | None, says("false: no BOS but one that stands in the prompt, or that the chat template writes", True)
    ] = None
    chat_template_kwargs: TemplateKwargs = None
    reasoning_effort: ReasoningEffort = None
    return_token_strs: Annotated[bool | None, says("`token_strs` in the answer", False)] = None


class DetokenizeRequest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """`POST /detokenize`."""

    tokens: Annotated[list[int], says("token ids")]
    model: Annotated[str | None, says("name of the served model", "the served model")] = None
    skip_special_tokens: Annotated[bool | None, says("control tokens have no text; else they are spelled", False)] = (
        None
    )
