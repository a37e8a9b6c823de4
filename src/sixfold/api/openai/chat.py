"""`POST /v1/chat/completions`: messages in, the assistant's message out."""

from __future__ import annotations

from dataclasses import replace

from sixfold.api.answer import AnswerFacts, collect
from sixfold.api.call import Call
from sixfold.api.conversation import Conversation, prepare, template_for
from sixfold.api.fields.params import (
    Limits,
    check_max_tokens,
    check_top_logprobs,
    deadline_s,
    execution_requests,
    sampling_params,
    text_options,
    wants_running_usage,
    wants_usage,
)
from sixfold.api.fields.structured_fields import request_grammar
from sixfold.api.fields.tool_fields import tool_choice
from sixfold.api.fields.truncation import Truncation
from sixfold.api.generation import Generation
from sixfold.api.http.decoding import by_size, read_request
from sixfold.api.openai.chat_answer import ChatAnswer, PlainChoices, PlainStream
from sixfold.api.openai.chat_parts import PartedChoices, PartedStream
from sixfold.api.openai.chat_prompt import prompt_conversation
from sixfold.api.openai.schemas import ChatRequest
from sixfold.api.parting import Parting
from sixfold.api.stream import stream
from sixfold.errors import InvalidRequest

__all__ = ["create_chat_completion"]


async def create_chat_completion(call: Call) -> None:
    """Handle one call."""
    context = call.context
    with call.admitted():
        request, ignored = await read_request(call, ChatRequest)
        limits = _limits(request)
        params = sampling_params(request, limits, context.client.sampling_defaults)
        call.label(request.request_id)
        deadline = deadline_s(call, request)
        truncation = Truncation.of(request, max_model_len=context.client.max_model_len, max_tokens=limits.max_tokens)
        conversation = await by_size(call, _conversation, request)
        context.check_model(request.model)
        call.reserve(params.n, deadline)
        template_for(context, conversation)
        conversation = replace(conversation, grammar=await request_grammar(context, request))
        prepared = await prepare(context, conversation)
        prompt = prepared.prompt_ids
        if truncation is not None:
            prompt = truncation.apply(prompt, context.client.tokenizer)
        requests = execution_requests(
            context, request, params, limits, [prompt], deadline_s=deadline, grammar=prepared.grammar
        )
        generation = Generation(context, requests, text_options(params, prepared.shown_ids))
        facts = AnswerFacts.of("chatcmpl-", context, request, params, prepared.shown_ids)
        answer = ChatAnswer(**vars(facts), prompt=prompt)
        await generation.start(call, answer.id)
    headers = call.ignored_header(ignored)
    parting = None if prepared.plain else Parting(prepared, params.n)
    reasoning = request.include_reasoning is not False
    if request.stream:
        usage = wants_usage(request)
        renderer: PlainStream | PartedStream = (
            PlainStream(answer, usage) if parting is None else PartedStream(answer, usage, parting, reasoning)
        )
        if wants_running_usage(request):
            renderer.report_usage(generation.usage)
        await stream(call, generation, renderer, headers)
    else:
        choices = PlainChoices(answer) if parting is None else PartedChoices(answer, parting, reasoning)
        await collect(call, generation, choices.add, choices.document, headers)


def _conversation(request: ChatRequest) -> Conversation:
    conversation = prompt_conversation(request.messages, request)
    return replace(
        conversation,
        tool_choice=tool_choice(request.tool_choice, conversation.tools),
        parallel_tool_calls=request.parallel_tool_calls is not False,
        any_length=request.truncate_prompt_tokens is not None,
    )


def _limits(request: ChatRequest) -> Limits:
    old, new = request.max_tokens, request.max_completion_tokens
    if old is not None and new is not None and old != new:
        raise InvalidRequest("max_tokens and max_completion_tokens differ; give one", param="max_completion_tokens")
    field = "max_tokens" if new is None else "max_completion_tokens"
    max_tokens = old if new is None else new
    check_max_tokens(max_tokens, field)
    top = request.top_logprobs
    if top is not None and not request.logprobs:
        raise InvalidRequest("top_logprobs needs logprobs: true", param="top_logprobs")
    check_top_logprobs(top)
    return Limits(
        max_tokens=max_tokens,
        max_tokens_field=field,
        prompt_field="messages",
        logprobs=(top or 0) if request.logprobs else None,
        logprobs_field="top_logprobs",
        prompt_logprobs=request.prompt_logprobs,
    )
