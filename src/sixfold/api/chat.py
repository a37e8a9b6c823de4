"""`POST /v1/chat/completions`: messages in, the assistant's message out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import msgspec

from sixfold.api.answer import AnswerFacts, collect
from sixfold.api.call import Call
from sixfold.api.context import ApiContext
from sixfold.api.decoding import read_request
from sixfold.api.generation import Generation, TotalUsage
from sixfold.api.logprobs import ChatLogprobs, ShownEntries
from sixfold.api.params import Limits, execution_requests, sampling_params, text_options, wants_usage
from sixfold.api.schemas import MAX_MESSAGES, ChatMessage, ChatRequest, unsupported, unsupported_part
from sixfold.api.stream import Renderer, stream
from sixfold.detokenizer import ChoiceDelta
from sixfold.errors import InvalidRequest
from sixfold.sampling_params import MAX_LOGPROBS, MAX_TOKENS
from sixfold.text import ROLES, ChatTemplate

__all__ = ["create_chat_completion", "template_messages", "template_of"]

ECHOED_FIELDS = ("refusal", "annotations", "audio", "function_call", "tool_calls")

json = msgspec.json.encode


async def create_chat_completion(call: Call) -> None:
    """Handle one call."""
    context = call.context
    with context.admitted():
        request, ignored = await read_request(call, ChatRequest)
        limits = _limits(request)
        params = sampling_params(request, limits, context.client.sampling_defaults)
        messages = template_messages(request.messages)
        context.check_model(request.model)
        context.check_room(params.n)
        prompt = await render_prompt(context, messages)
        requests = execution_requests(context, request, params, limits, [prompt])
        generation = Generation(context, requests, text_options(params))
        answer = _Answer(**vars(AnswerFacts.of("chatcmpl-", context, request, params)), prompt=prompt)
        await generation.start(call.request_id, answer.id)
    headers = call.ignored_header(ignored)
    if request.stream:
        await stream(call, generation, _Stream(answer, wants_usage(request)), headers)
    else:
        choices = _Choices(answer)
        await collect(call, generation, choices.add, choices.document, headers)


def template_messages(messages: list[ChatMessage]) -> list[dict[str, Any]]:
    """Wire messages -> what the template sees.

    Text parts are joined by newlines; `developer` is what OpenAI's newer clients call `system`.

    Raises:
        InvalidRequest: `param` is `messages`, or names the message and its field.
    """
    if not messages:
        raise InvalidRequest("messages is empty", param="messages")
    if len(messages) > MAX_MESSAGES:
        raise InvalidRequest(f"messages has more than {MAX_MESSAGES} entries", param="messages")
    return [_template_message(f"messages[{i}]", message) for i, message in enumerate(messages)]


async def render_prompt(context: ApiContext, messages: list[dict[str, Any]]) -> list[int]:
    """The chat as token ids, made beside the event loop.

    Raises:
        InvalidRequest: there is no template, or it refuses these messages.
        ContextLengthExceeded: the prompt is too long, whatever its tokens are.
    """
    template, tokenizer = template_of(context), context.client.tokenizer

    def render() -> list[int]:
        parts = template.render_parts(messages)
        context.prompt_length.check(parts, "messages")
        ids = tokenizer.encode_parts([parts])[0]
        tokenizer.lead_with_bos(ids)
        return ids

    ids = await context.in_thread(render)
    if not ids:
        raise InvalidRequest("the chat template made an empty prompt of these messages", param="messages")
    return ids


def template_of(context: ApiContext) -> ChatTemplate:
    """Raises: InvalidRequest: the model has none."""
    template = context.client.chat_template
    if template is None:
        raise InvalidRequest(
            "this model has no chat template; use /v1/completions", param="messages", code="no_chat_template"
        )
    return template


def _template_message(where: str, message: ChatMessage) -> dict[str, Any]:
    if message.role not in ROLES:
        raise InvalidRequest(f"{where}.role must be one of {', '.join(sorted(ROLES))}", param=f"{where}.role")
    for name in ECHOED_FIELDS:
        if getattr(message, name) not in (None, [], ""):
            raise unsupported(f"{where}.{name}")
    out: dict[str, Any] = {
        "role": "system" if message.role == "developer" else message.role,
        "content": _text(f"{where}.content", message),
    }
    if message.name is not None:
        out["name"] = message.name
    if message.tool_call_id is not None:
        out["tool_call_id"] = message.tool_call_id
    return out


def _text(where: str, message: ChatMessage) -> str:
    content = message.content
    if isinstance(content, str):
        return content
    if not content:
        raise InvalidRequest(f"{where} must be text or a list of text parts", param=where)
    for index, part in enumerate(content):
        if part.type != "text":
            raise unsupported_part(where, index, part.type)
        if part.text is None:
            raise InvalidRequest(f"{where}: part {index} has no text", param=where)
    return "\n".join([part.text or "" for part in content])


def _limits(request: ChatRequest) -> Limits:
    old, new = request.max_tokens, request.max_completion_tokens
    if old is not None and new is not None and old != new:
        raise InvalidRequest("max_tokens and max_completion_tokens differ; give one", param="max_completion_tokens")
    field = "max_tokens" if new is None else "max_completion_tokens"
    max_tokens = old if new is None else new
    if max_tokens is not None and not 1 <= max_tokens <= MAX_TOKENS:
        raise InvalidRequest(f"{field} must be between 1 and {MAX_TOKENS}, not {max_tokens}", param=field)
    top = request.top_logprobs
    if top is not None and not request.logprobs:
        raise InvalidRequest("top_logprobs needs logprobs: true", param="top_logprobs")
    if top is not None and not 0 <= top <= MAX_LOGPROBS:
        raise InvalidRequest(f"top_logprobs must be between 0 and {MAX_LOGPROBS}", param="top_logprobs")
    return Limits(
        max_tokens=max_tokens,
        max_tokens_field=field,
        prompt_field="messages",
        logprobs=(top or 0) if request.logprobs else None,
        logprobs_field="top_logprobs",
    )


@dataclass(frozen=True, kw_only=True)
class _Answer(AnswerFacts):
    prompt: list[int]


class _Logprobs:
    """Log-probabilities of all choices."""

    def __init__(self, answer: _Answer) -> None:
        self._shown = answer.shown
        self._choices = [ShownEntries(answer.shown) for _ in range(answer.n)] if answer.shown is not None else []

    def render(self, delta: ChoiceDelta) -> ChatLogprobs | None:
        if self._shown is None:
            return None
        return self._shown.chat(self._choices[delta.index].take(delta))


class AssistantMessage(msgspec.Struct):
    """`choices[].message`."""

    content: str
    role: Literal["assistant"] = "assistant"
    refusal: None = None


class ChatChoice(msgspec.Struct):
    """One of `choices`."""

    index: int
    message: AssistantMessage
    logprobs: ChatLogprobs | None
    finish_reason: str | None
    stop_reason: int | str | None = None
    token_ids: list[int] | msgspec.UnsetType = msgspec.UNSET


class ChatCompletion(msgspec.Struct):
    """The whole answer."""

    id: str
    object: str
    created: int
    model: str
    system_fingerprint: str
    choices: list[ChatChoice]
    usage: TotalUsage
    prompt_token_ids: list[int] | msgspec.UnsetType = msgspec.UNSET


class _Choices:
    """Gathers the whole answer."""

    def __init__(self, answer: _Answer) -> None:
        self._answer = answer
        self._deltas: list[list[ChoiceDelta]] = [[] for _ in range(answer.n)]

    def add(self, deltas: list[ChoiceDelta]) -> None:
        for delta in deltas:
            self._deltas[delta.index].append(delta)

    def document(self, generation: Generation) -> bytes:
        answer = self._answer
        logprobs = _Logprobs(answer)
        document = ChatCompletion(
            answer.id,
            "chat.completion",
            answer.created,
            answer.model,
            answer.fingerprint,
            [self._choice(deltas, logprobs) for deltas in self._deltas],
            generation.usage(),
        )
        if answer.token_ids:
            document.prompt_token_ids = answer.prompt
        return json(document)

    def _choice(self, deltas: list[ChoiceDelta], logprobs: _Logprobs) -> ChatChoice:
        answer = self._answer
        last = deltas[-1]
        parts = [part for part in map(logprobs.render, deltas) if part is not None]
        choice = ChatChoice(
            last.index,
            AssistantMessage("".join([delta.text for delta in deltas])),
            ChatLogprobs([entry for part in parts for entry in part.content]) if answer.shown is not None else None,
            last.finish_reason,
            answer.stop_reason(last),
        )
        if answer.token_ids:
            choice.token_ids = [token_id for delta in deltas for token_id in delta.token_ids]
        return choice


class ChunkDelta(msgspec.Struct, omit_defaults=True):
    """`choices[].delta`: the role comes once, with a choice's first event."""

    role: str | msgspec.UnsetType = msgspec.UNSET
    content: str | msgspec.UnsetType = msgspec.UNSET


class ChunkChoice(msgspec.Struct):
    """One of a chunk's `choices`."""

    index: int
    delta: ChunkDelta
    logprobs: ChatLogprobs | None
    finish_reason: str | None
    stop_reason: int | str | None = None
    token_ids: list[int] | msgspec.UnsetType = msgspec.UNSET


class _Stream(Renderer):
    """Events of a stream. The parts of an ordinary event that never change are made once."""

    def __init__(self, answer: _Answer, usage: bool) -> None:
        self._answer = answer
        self._usage = usage
        self._head = (
            b'data: {"id":"%s","object":"chat.completion.chunk","created":%d,"model":%s,'
            b'"system_fingerprint":%s,"choices":['
            % (answer.id.encode(), answer.created, json(answer.model), json(answer.fingerprint))
        )
        self._end = b'],"usage":null' if usage else b"]"
        self._plain_end = b'},"logprobs":null,"finish_reason":null,"stop_reason":null}' + self._end + b"}\n\n"
        self._heads = [self._head + b'{"index":%d,"delta":{"content":' % index for index in range(answer.n)]
        self._begun = [False] * answer.n
        self._logprobs = _Logprobs(answer)
        self._plain = answer.shown is None and not answer.token_ids
        self._prompt_ids = b',"prompt_token_ids":' + json(answer.prompt) if answer.token_ids else b""

    def frames(self, deltas: list[ChoiceDelta]) -> bytes:
        return b"".join([self._frame(delta) for delta in deltas])

    def tail(self, generation: Generation) -> bytes:
        if not self._usage:
            return b""
        return self._head + b'],"usage":' + json(generation.usage()) + b"}\n\n"

    def _frame(self, delta: ChoiceDelta) -> bytes:
        if self._plain and delta.finish_reason is None and self._begun[delta.index]:
            return self._heads[delta.index] + json(delta.text) + self._plain_end if delta.text else b""
        return self._full_frame(delta)

    def _full_frame(self, delta: ChoiceDelta) -> bytes:
        answer = self._answer
        content = ChunkDelta()
        if not self._begun[delta.index]:
            self._begun[delta.index] = True
            content.role = "assistant"
            content.content = delta.text
        elif delta.text or delta.finish_reason is None:
            content.content = delta.text
        choice = ChunkChoice(
            delta.index, content, self._logprobs.render(delta), delta.finish_reason, answer.stop_reason(delta)
        )
        if answer.token_ids:
            choice.token_ids = delta.token_ids
        prompt_ids, self._prompt_ids = self._prompt_ids, b""
        return self._head + json(choice) + self._end + prompt_ids + b"}\n\n"
