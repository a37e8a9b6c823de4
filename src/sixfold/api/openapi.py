"""`/openapi.json`: made from the types that validate requests, so that it cannot say anything else.

`OPERATIONS` has every route once. A new route adds its line here and in `app.py`; its types bring their own fields.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

import msgspec

from sixfold import __version__
from sixfold.api import admin
from sixfold.api.anthropic.answers import AnswerMessage
from sixfold.api.anthropic.messages import TokenCount
from sixfold.api.anthropic.wire import CountTokensRequest, MessagesRequest
from sixfold.api.call import Call
from sixfold.api.debug.feed import MIN_PERIOD_MS
from sixfold.api.debug.frames import LiveFrame
from sixfold.api.debug.health import Health
from sixfold.api.debug.live import MAX_FRAMES, MAX_PERIOD_MS
from sixfold.api.debug.requests import RequestDetail, RequestList
from sixfold.api.debug.traces import MAX_SECONDS, Trace
from sixfold.api.debug.waits import WaitList
from sixfold.api.field_docs import field_docs, structs_of
from sixfold.api.fields.params import TIMEOUT_HEADER
from sixfold.api.http.errors import ANTHROPIC, STATUS_OF_CODE, TABLE, AnthropicErrorEnvelope, ErrorEnvelope, shape_of
from sixfold.api.openai.chat_answer import ChatCompletion
from sixfold.api.openai.chat_parts import PartedChoice
from sixfold.api.openai.completions import Completion
from sixfold.api.openai.schemas import (
    AbortRequest,
    ApplyTemplateRequest,
    ChatRequest,
    CompletionRequest,
    DetokenizeRequest,
    EmbeddingRequest,
    TokenizeRequest,
)
from sixfold.api.responses.document import ItemList, Response, ResponseDeleted
from sixfold.api.responses.schemas import ResponsesRequest
from sixfold.api.tokenize import DetokenizeResponse, TokenizeResponse

__all__ = ["OPERATIONS", "Operation", "document", "openapi", "statuses"]

ALWAYS = (400, 401, 403, 405, 408, 431, 500, 503)
"""What any path may answer: broken HTTP, no valid key, a `Host` or a method that is not allowed, slow or large headers,
faults, too many connections."""

POST_ERRORS = (404, 413, 415, 429)
"""Of whatever takes a body and a permit."""
GENERATION_ERRORS = (*POST_ERRORS, 499, 504)
"""What may happen to a request in the engine besides."""


class Operation(NamedTuple):
    """One method of one path."""

    method: str
    path: str
    summary: str
    request: type[msgspec.Struct] | None = None
    answer: str = "application/json"
    """Media type."""
    errors: tuple[int, ...] = ()
    """Statuses besides 200 and `ALWAYS`."""
    response: type[msgspec.Struct] | None = None
    """Type of the answer's document."""
    examples: Mapping[str, Any] = {}
    """Name -> a request's body."""
    query: Mapping[str, tuple[str, int, int]] = {}
    """Name -> (description, least, greatest) of a whole number in the query, not required."""


_MESSAGES = [{"role": "user", "content": "Say hello."}]

OPERATIONS: tuple[Operation, ...] = (
    Operation(
        "post",
        "/v1/chat/completions",
        "Answer a chat, whole or as a stream",
        ChatRequest,
        errors=GENERATION_ERRORS,
        response=ChatCompletion,
        examples={
            "chat": {"messages": _MESSAGES, "max_tokens": 64},
            "stream": {"messages": _MESSAGES, "stream": True, "stream_options": {"include_usage": True}},
        },
    ),
    Operation(
        "post",
        "/v1/completions",
        "Continue a text, texts, or token ids; score a prompt",
        CompletionRequest,
        errors=GENERATION_ERRORS,
        response=Completion,
        examples={
            "text": {"prompt": "The capital of France is", "max_tokens": 8, "temperature": 0},
            "score": {"prompt": "The capital of France is Paris", "max_tokens": 0, "echo": True, "logprobs": 1},
        },
    ),
    Operation(
        "post",
        "/v1/responses",
        "Answer items with items, kept to be continued: see responses.md",
        ResponsesRequest,
        errors=GENERATION_ERRORS,
        response=Response,
        examples={
            "text": {"input": "Say hello.", "max_output_tokens": 64},
            "stream": {"input": _MESSAGES, "stream": True},
        },
    ),
    Operation("get", "/v1/responses/{id}", "A stored response", errors=(404,), response=Response),
    Operation("delete", "/v1/responses/{id}", "Forget a stored response", errors=(404,), response=ResponseDeleted),
    Operation(
        "get", "/v1/responses/{id}/input_items", "What a stored response answers", errors=(404,), response=ItemList
    ),
    Operation(
        "post",
        "/v1/messages",
        "Answer a chat, whole or as a stream, in Anthropic's shapes",
        MessagesRequest,
        errors=GENERATION_ERRORS,
        response=AnswerMessage,
        examples={"message": {"messages": _MESSAGES, "max_tokens": 64}},
    ),
    Operation(
        "post",
        "/v1/messages/count_tokens",
        "Tokens of the prompt that the same message makes",
        CountTokensRequest,
        errors=POST_ERRORS,
        response=TokenCount,
        examples={"count": {"messages": _MESSAGES}},
    ),
    Operation(
        "post",
        "/tokenize",
        "Text or chat to token ids",
        TokenizeRequest,
        errors=POST_ERRORS,
        response=TokenizeResponse,
        examples={"text": {"prompt": "Hello"}, "chat": {"messages": _MESSAGES}},
    ),
    Operation(
        "post",
        "/detokenize",
        "Token ids to text",
        DetokenizeRequest,
        errors=POST_ERRORS,
        response=DetokenizeResponse,
        examples={"ids": {"tokens": [1, 2, 3]}},
    ),
    Operation(
        "post",
        "/v1/embeddings",
        "One vector for each text",
        EmbeddingRequest,
        errors=GENERATION_ERRORS,
        examples={"texts": {"input": ["A cat sleeps.", "The dog barks."]}},
    ),
    Operation(
        "post", "/v1/abort", "End a request that another connection waits for", AbortRequest, errors=(*POST_ERRORS, 409)
    ),
    Operation(
        "post",
        "/apply-template",
        "A chat as the model reads it",
        ApplyTemplateRequest,
        errors=POST_ERRORS,
        examples={"chat": {"messages": _MESSAGES}},
    ),
    Operation(
        "get",
        "/",
        "Plain text for people: name, version, model, where to look, a line to try; the web page where the client "
        "accepts text/html",
        None,
        "text/plain",
        errors=(304,),
    ),
    Operation("get", "/v1/models", "The served models", response=admin.ModelList),
    Operation("get", "/v1/models/{id}", "One served model", errors=(404,), response=admin.Model),
    Operation("get", "/health", "200 while requests are taken, else 503", response=admin.Status),
    Operation("get", "/readyz", "The same as `/health`", response=admin.Status),
    Operation("get", "/livez", "200 while the process turns its event loop", response=admin.Status),
    Operation("get", "/version", "Version, backend and instruction set", response=admin.Version),
    Operation("get", "/metrics", "Metrics in Prometheus' text format", None, "text/plain"),
    Operation("get", "/openapi.json", "This description for programs"),
    Operation("get", "/page/{name}", "A file of the web page", None, "*/*", errors=(304, 404)),
    Operation(
        "get",
        "/debug/live",
        "The state of the engine and of this API process, again and again, as server-sent events; scope admin",
        answer="text/event-stream",
        errors=(429,),
        response=LiveFrame,
        query={
            "interval_ms": ("least time between two events", MIN_PERIOD_MS, MAX_PERIOD_MS),
            "frames": ("events, then the stream ends", 1, MAX_FRAMES),
        },
    ),
    Operation("get", "/debug/health", "What is loaded, limits, memory, names of keys; scope admin", response=Health),
    Operation("get", "/debug/waits", "Where the server's time goes, and why each wait is there", response=WaitList),
    Operation("get", "/debug/requests", "The latest requests, and where their time went", response=RequestList),
    Operation(
        "get",
        "/debug/requests/{id}",
        "One of them, instant by instant",
        errors=(404,),
        response=RequestDetail,
    ),
    Operation(
        "get",
        "/debug/trace",
        "What the server did in the last seconds, as a Chrome trace",
        response=Trace,
        query={"seconds": ("how far back; default 5", 1, MAX_SECONDS)},
    ),
    Operation("get", "/debug/timeline/{id}", "One request, as a Chrome trace", errors=(404,), response=Trace),
)
"""Every route of the server; the route table is checked against it."""


async def openapi(call: Call) -> None:
    """`GET /openapi.json`."""
    await call.respond(200, document())


@functools.cache
def document() -> bytes:
    """The document, rendered once."""
    requests = structs_of([op.request for op in OPERATIONS if op.request is not None])
    answers = [op.response for op in OPERATIONS if op.response is not None]
    kinds: list[type[msgspec.Struct]] = list(
        dict.fromkeys([*requests, *answers, PartedChoice, ErrorEnvelope, AnthropicErrorEnvelope])
    )
    schemas, components = msgspec.json.schema_components(kinds, ref_template="#/components/schemas/{name}")
    refs = dict(zip(kinds, schemas, strict=True))  # types of one name in two modules have longer names there
    for struct in requests:
        _describe_fields(components[refs[struct]["$ref"].rpartition("/")[2]], struct)
    # A chat's choices are of two types, of which one has all that the other has.
    components["ChatCompletion"]["properties"]["choices"]["items"] = refs[PartedChoice]
    components.pop(msgspec.Struct.__name__, None)
    paths: dict[str, dict[str, Any]] = {}
    for op in OPERATIONS:
        paths.setdefault(op.path, {})[op.method] = _operation(op, refs)
    return msgspec.json.encode(
        {
            "openapi": "3.1.0",
            "info": {"title": "Sixfold", "version": __version__, "license": {"name": "Apache-2.0"}},
            "paths": paths,
            "components": {"schemas": components},
        }
    )


def statuses(op: Operation) -> list[int]:
    """All that the operation may answer with."""
    return sorted({200, *ALWAYS, *op.errors})


def _describe_fields(schema: dict[str, Any], struct: type[msgspec.Struct]) -> None:
    """Say what takes effect where a field is left out: the types themselves only know that it may be."""
    for doc in field_docs(struct):
        field = schema["properties"][doc.name]
        field.pop("default", None)
        field["description"] = doc.description
        if isinstance(doc.default, bool | int | float):
            field["default"] = doc.default
        elif doc.default is not None:
            field["description"] += f"; default: {doc.default}"
        if doc.kind != "understood":
            field["description"] = f"{doc.kind}: {doc.description}"


def _operation(op: Operation, refs: Mapping[type[msgspec.Struct], dict[str, Any]]) -> dict[str, Any]:
    answer = {} if op.response is None else {"schema": refs[op.response]}
    answers: dict[str, Any] = {"200": {"description": "OK", "content": {op.answer: answer}}}
    if op.request is not None and "stream" in op.request.__struct_fields__:
        answers["200"]["content"]["text/event-stream"] = {}
    envelope = AnthropicErrorEnvelope if shape_of(op.path) is ANTHROPIC else ErrorEnvelope
    error = {"application/json": {"schema": refs[envelope]}}
    for status in statuses(op)[1:]:
        if status == 304:
            answers["304"] = {"description": "The file that the caller has is the one that is here"}
            continue
        answers[str(status)] = {"description": f"Error: {', '.join(_codes(status))}", "content": error}
    out: dict[str, Any] = {"summary": op.summary, "responses": answers}
    parameters = [_header("X-Request-Id", "a label, echoed in the answer", {"type": "string"})]
    if op.request is not None:
        content: dict[str, Any] = {"schema": refs[op.request]}
        if op.examples:
            content["examples"] = {name: {"value": value} for name, value in op.examples.items()}
        out["requestBody"] = {"required": True, "content": {"application/json": content}}
        if "timeout" in op.request.__struct_fields__:
            kind = {"type": "integer", "minimum": 1}
            parameters.append(_header(TIMEOUT_HEADER, "milliseconds; as the field timeout", kind))
    for name in re.findall(r"{(\w+)}", op.path):
        parameters.append({"name": name, "in": "path", "required": True, "schema": {"type": "string"}})
    for name, (description, least, greatest) in op.query.items():
        number = {"type": "integer", "minimum": least, "maximum": greatest}
        parameters.append({"name": name, "in": "query", "description": description, "schema": number})
    out["parameters"] = parameters
    return out


def _codes(status: int) -> list[str]:
    rows = [row for row in TABLE.values() if row.status == status]
    return [row.code or row.type for row in rows] + [code for code, own in STATUS_OF_CODE.items() if own == status]


def _header(name: str, description: str, schema: dict[str, Any]) -> dict[str, Any]:
    return {"name": name, "in": "header", "description": description, "schema": schema}
