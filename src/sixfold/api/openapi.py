"""`/openapi.json`: made from the types that validate requests, so that it cannot say anything else."""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import msgspec

from sixfold import __version__
from sixfold.api.anthropic.wire import CountTokensRequest, MessagesRequest
from sixfold.api.errors import ANTHROPIC, AnthropicErrorEnvelope, ErrorEnvelope, shape_of
from sixfold.api.schemas import ChatRequest, CompletionRequest, DetokenizeRequest, TokenizeRequest

__all__ = ["OPERATIONS", "Operation", "document"]

POST_ERRORS = (400, 403, 404, 408, 413, 415, 429, 500, 503, 504)


class Operation(NamedTuple):
    """One method of one path."""

    method: str
    path: str
    summary: str
    request: type[msgspec.Struct] | None = None
    answer: str = "application/json"
    errors: tuple[int, ...] = (403, 500)


OPERATIONS = (
    Operation("post", "/v1/chat/completions", "Answer a chat", ChatRequest, errors=POST_ERRORS),
    Operation("post", "/v1/completions", "Continue texts", CompletionRequest, errors=POST_ERRORS),
    Operation("post", "/v1/messages", "Answer a chat, in Anthropic's shapes", MessagesRequest, errors=POST_ERRORS),
    Operation("post", "/v1/messages/count_tokens", "Tokens of a prompt", CountTokensRequest, errors=POST_ERRORS),
    Operation("post", "/tokenize", "Text or chat to token ids", TokenizeRequest, errors=POST_ERRORS),
    Operation("post", "/detokenize", "Token ids to text", DetokenizeRequest, errors=POST_ERRORS),
    Operation("get", "/", "Where to go from here, for people", answer="text/plain"),
    Operation("get", "/v1/models", "The served models"),
    Operation("get", "/v1/models/{id}", "One served model", errors=(403, 404, 500)),
    Operation("get", "/health", "Whether requests are taken", errors=(403, 500, 503)),
    Operation("get", "/readyz", "Whether requests are taken", errors=(403, 500, 503)),
    Operation("get", "/livez", "Whether the process lives"),
    Operation("get", "/version", "Version and build"),
    Operation("get", "/metrics", "Metrics in Prometheus' format", answer="text/plain"),
    Operation("get", "/openapi.json", "This document"),
)
"""Every route of the server; the route table is checked against it."""


@functools.cache
def document() -> bytes:
    """The document, rendered once."""
    kinds: list[type[msgspec.Struct]] = [op.request for op in OPERATIONS if op.request is not None]
    kinds += [ErrorEnvelope, AnthropicErrorEnvelope]
    _, components = msgspec.json.schema_components(kinds, ref_template="#/components/schemas/{name}")
    paths: dict[str, dict[str, Any]] = {}
    for op in OPERATIONS:
        paths.setdefault(op.path, {})[op.method] = _operation(op)
    return msgspec.json.encode(
        {
            "openapi": "3.1.0",
            "info": {"title": "Sixfold", "version": __version__, "license": {"name": "Apache-2.0"}},
            "paths": paths,
            "components": {"schemas": components},
        }
    )


def _operation(op: Operation) -> dict[str, Any]:
    answers: dict[str, Any] = {"200": {"description": "OK", "content": {op.answer: {}}}}
    if op.request is not None and "stream" in op.request.__struct_fields__:
        answers["200"]["content"]["text/event-stream"] = {}
    envelope = AnthropicErrorEnvelope if shape_of(op.path) is ANTHROPIC else ErrorEnvelope
    error = {"application/json": {"schema": {"$ref": f"#/components/schemas/{envelope.__name__}"}}}
    for status in op.errors:
        answers[str(status)] = {"description": "Error", "content": error}
    out: dict[str, Any] = {"summary": op.summary, "responses": answers}
    if op.request is not None:
        schema = {"$ref": f"#/components/schemas/{op.request.__name__}"}
        out["requestBody"] = {"required": True, "content": {"application/json": {"schema": schema}}}
    if "{id}" in op.path:
        out["parameters"] = [{"name": "id", "in": "path", "required": True, "schema": {"type": "string"}}]
    return out
