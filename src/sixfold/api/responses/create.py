"""`POST /v1/responses`: items in, items out, kept to be continued."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import msgspec

from sixfold.api.answer import AnswerFacts, collect
from sixfold.api.call import Call
from sixfold.api.context import ApiContext
from sixfold.api.conversation import Conversation, Prepared, prepare, template_for
from sixfold.api.fields.params import deadline_s, execution_requests, text_options
from sixfold.api.generation import Generation
from sixfold.api.http.decoding import by_size, read_request
from sixfold.api.http.errors import ErrorBody
from sixfold.api.openai.logprobs import ChatEntry, ShownEntries
from sixfold.api.parting import Parting
from sixfold.api.responses.document import Failure, Response, Usage
from sixfold.api.responses.events import OutputEvents
from sixfold.api.responses.items import Item, check_count, decode_items, decode_output, new_id, template_messages
from sixfold.api.responses.output import Output
from sixfold.api.responses.reading import Asked, format_grammar, read
from sixfold.api.responses.schemas import ResponsesRequest
from sixfold.api.responses.store import ResponseStore, Stored
from sixfold.api.stream import Renderer, stream
from sixfold.detokenizer import ChoiceDelta
from sixfold.errors import InvalidRequest
from sixfold.text.answer_parts import Content, Reasoning

__all__ = ["create_response"]

json = msgspec.json.encode


async def create_response(call: Call) -> None:
    """Handle one call."""
    context = call.context
    with call.admitted():
        request, ignored = await read_request(call, ResponsesRequest)
        store = _store(context, request)
        asked = await by_size(
            call, read, request, context.client.sampling_defaults, ignored if context.ignore_unknown else None
        )
        deadline = deadline_s(call, asked.generation)
        context.check_model(request.model)
        call.reserve(1, deadline)
        conversation = await _conversation(call, asked)
        template_for(context, conversation)
        if asked.text_format.type != "text":
            conversation = replace(conversation, grammar=await context.threads.run(format_grammar, asked.text_format))
        prepared = await prepare(context, conversation)
        requests = execution_requests(
            context,
            asked.generation,
            asked.params,
            asked.limits,
            [prepared.prompt_ids],
            deadline_s=deadline,
            grammar=prepared.grammar,
        )
        generation = Generation(context, requests, text_options(asked.params, prepared.shown_ids))
        facts = AnswerFacts.of("", context, asked.generation, asked.params, prepared.shown_ids)
        answer = _Answer(call, asked, prepared, facts, store)
        await generation.start(call, answer.document.id)
    headers = call.ignored_header(ignored)
    if request.stream:
        await stream(call, generation, _Stream(answer), headers)
    else:
        output = Output()
        await collect(
            call,
            generation,
            lambda deltas: answer.take(deltas, output),
            lambda _: json(answer.document),
            headers,
            lambda generation: answer.settle(generation, output),
        )


def _store(context: ApiContext, request: ResponsesRequest) -> ResponseStore | None:
    """Where the answer is to be kept; None: nowhere.

    Raises:
        InvalidRequest: it needs a store, and there is none.
    """
    store = context.responses
    if store is None:
        for field in ("store", "previous_response_id"):
            if getattr(request, field) not in (None, False):
                raise InvalidRequest(
                    f"{field}: this server stores no responses (--response-store)",
                    param=field,
                    code="unsupported_field",
                )
    return None if request.store is False else store


async def _conversation(call: Call, asked: Asked) -> Conversation:
    """What is to be answered, with all that is continued.

    Raises:
        InvalidRequest: what is continued is not stored; or the items do not fit together.
        NotReady: the store cannot be read.
    """
    store, previous = call.context.responses, asked.request.previous_response_id
    messages: list[dict[str, Any]]
    if store is not None and previous is not None:
        links = await store.chain(call.tenant, previous)
        messages = await call.context.threads.run(_messages, asked, links)
    else:
        messages = await by_size(call, _messages, asked, [])
    return Conversation(
        messages=messages,
        tools=asked.tools,
        tool_choice=asked.tool_choice,
        parallel_tool_calls=asked.request.parallel_tool_calls is not False,
        effort=asked.request.reasoning.effort if asked.request.reasoning is not None else None,
        messages_field="input",
        effort_field="reasoning.effort",
        parameters_field="tools[{}].parameters",
    )


def _messages(asked: Asked, links: list[Stored]) -> list[dict[str, Any]]:
    before: list[Item] = []
    for link in links:
        before += decode_items(link.items)
        before += decode_output(link.response)
    check_count(len(before) + len(asked.items))
    return template_messages(asked.request.instructions, before, asked.items)


class _Answer:
    """One answer in the making: what is known from the start, and how it is brought to its end."""

    def __init__(
        self, call: Call, asked: Asked, prepared: Prepared, facts: AnswerFacts, store: ResponseStore | None
    ) -> None:
        self._call = call
        self._asked = asked
        self._store = store
        self._parting = Parting(prepared, 1)
        self._shown = facts.shown
        self._entries = ShownEntries(facts.shown) if facts.shown is not None else None
        self._reasoning_tokens = 0
        self._finish_reason: str | None = None
        self.document = _document(asked, facts, kept=store is not None)

    def take(self, deltas: list[ChoiceDelta], output: Output) -> None:
        """What came with one step, into the output items."""
        for delta in self._parting.split(deltas):
            if any(isinstance(part, Reasoning) for part in delta.parts):
                self._reasoning_tokens += len(delta.token_ids)
            output.take(delta.parts, self._logprobs(delta.delta, delta.parts))
            if delta.finish_reason is not None:
                self._finish_reason = delta.finish_reason

    async def settle(self, generation: Generation, output: Output) -> None:
        """The answer is over: complete the document, and keep it."""
        complete = self._finish_reason != "length"
        output.end(complete=complete)
        document = self.document
        document.ended(output.items, Usage.of(generation.usage(), self._reasoning_tokens), complete=complete)
        if self._store is not None:
            previous = self._asked.request.previous_response_id
            stored = Stored(document.id, previous, json(document), json(self._asked.items))
            document.store = await self._store.put(self._call.tenant, stored)

    def _logprobs(self, delta: ChoiceDelta, parts: list[Any]) -> list[ChatEntry]:
        """Of the tokens of this delta. Those whose text is no content have no place in the answer."""
        if self._entries is None or self._shown is None:
            return []
        entries = self._shown.chat(self._entries.take(delta)).content
        return entries if any(isinstance(part, Content) for part in parts) else []


def _document(asked: Asked, facts: AnswerFacts, *, kept: bool) -> Response:
    request, params = asked.request, asked.params
    reasoning = request.reasoning
    return Response(
        id=new_id("resp_"),
        created_at=int(time.time()),
        instructions=request.instructions,
        max_output_tokens=request.max_output_tokens,
        metadata=request.metadata or {},
        model=facts.model,
        parallel_tool_calls=request.parallel_tool_calls is not False,
        previous_response_id=request.previous_response_id,
        prompt_cache_key=request.prompt_cache_key,
        reasoning={"effort": reasoning.effort if reasoning else None, "summary": None},
        safety_identifier=request.safety_identifier,
        store=kept,
        system_fingerprint=facts.fingerprint,
        temperature=params.temperature,
        text={"format": asked.text_format, "verbosity": "medium"},
        tool_choice=request.tool_choice or "auto",
        tools=request.tools or [],
        top_logprobs=request.top_logprobs or 0,
        top_p=params.top_p,
        user=request.user,
    )


class _Stream(Renderer):
    """The answer as events."""

    done = b""

    def __init__(self, answer: _Answer) -> None:
        self._answer = answer
        self._events = OutputEvents()

    def opening(self) -> bytes:
        for kind in ("created", "in_progress"):
            self._events.response_event(kind, self._answer.document)
        return self._events.drain()

    def frames(self, deltas: list[ChoiceDelta]) -> bytes:
        self._answer.take(deltas, self._events)
        return self._events.drain()

    async def settle(self, generation: Generation) -> None:
        await self._answer.settle(generation, self._events)

    def tail(self, generation: Generation) -> bytes:
        document = self._answer.document
        self._events.response_event(document.status, document)
        return self._events.drain()

    def fault(self, status: int, error: ErrorBody, request_id: str) -> bytes:
        document = self._answer.document
        self._events.cut()
        document.failed(self._events.items, Failure.of(status, error))
        document.store = False
        self._events.response_event("failed", document)
        return self._events.drain()
