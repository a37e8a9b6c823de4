"""`POST /v1/messages` and `POST /v1/messages/count_tokens`, as Anthropic's clients speak them."""

from __future__ import annotations

from dataclasses import replace

import msgspec

from sixfold.api.answer import collect
from sixfold.api.anthropic.answers import AnswerHead, MessageEvents, WholeMessage
from sixfold.api.anthropic.convert import (
    answer_grammar,
    conversation_of,
    generation_request,
    in_callers_words,
    limits_of,
    within,
)
from sixfold.api.anthropic.wire import CountTokensRequest, MessagesRequest
from sixfold.api.call import Call
from sixfold.api.conversation import prepare, prompt_ids, template_for
from sixfold.api.fields.params import deadline_s, execution_requests, sampling_params, text_options
from sixfold.api.generation import Generation
from sixfold.api.http.decoding import by_size, read_request
from sixfold.api.parting import Parting
from sixfold.api.stream import stream

__all__ = ["count_tokens", "create_message"]


class TokenCount(msgspec.Struct):
    """Tokens of the prompt that the same request to `/v1/messages` makes."""

    input_tokens: int


async def create_message(call: Call) -> None:
    """Handle one call."""
    context = call.context
    with call.admitted(), in_callers_words():
        request, ignored = await read_request(call, MessagesRequest)
        limits = limits_of(request)
        conversation = await by_size(call, conversation_of, request)
        generic = generation_request(request)
        params = sampling_params(generic, limits, context.client.sampling_defaults)
        deadline = deadline_s(call, generic)
        context.check_model(request.model)
        call.reserve(params.n, deadline)
        template_for(context, conversation)
        conversation = replace(conversation, grammar=await answer_grammar(context, request))
        prepared = await prepare(context, conversation)
        room = context.client.max_model_len - len(prepared.prompt_ids)
        params, context_ends = within(params, room)
        requests = execution_requests(
            context,
            generic,
            params,
            limits,
            [prepared.prompt_ids],
            deadline_s=deadline,
            grammar=prepared.grammar,
        )
        generation = Generation(context, requests, text_options(params, prepared.shown_ids))
        head = AnswerHead.of(context.client.model_name, context_ends=context_ends)
        await generation.start(call, head.id)
    headers = call.ignored_header(ignored)
    parting = Parting(prepared, 1)
    if request.stream:
        await stream(call, generation, MessageEvents(head, generation, parting, plain=prepared.plain), headers)
    else:
        message = WholeMessage(head, parting)
        await collect(call, generation, message.add, message.document, headers)


async def count_tokens(call: Call) -> None:
    """Handle one call."""
    context = call.context
    with call.admitted(generates=False):
        request, ignored = await read_request(call, CountTokensRequest)
        conversation = await by_size(call, conversation_of, request)
        context.check_model(request.model)
        template = template_for(context, conversation)
        ids = await context.threads.aside(prompt_ids, template, context.client.tokenizer, conversation)
    await call.respond(200, msgspec.json.encode(TokenCount(len(ids))), headers=call.ignored_header(ignored))
