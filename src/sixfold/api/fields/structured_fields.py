"""`response_format` and `structured_outputs`: wire types, and the grammar that they ask for."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Protocol

import msgspec

from sixfold.api.context import ApiContext
from sixfold.api.field_docs import says
from sixfold.errors import InvalidRequest
from sixfold.observability.calls import stage
from sixfold.observability.timeline import State
from sixfold.structured import StructuredOutputs, check_grammar, json_object_grammar, schema_grammar

__all__ = [
    "JsonSchemaFormat",
    "ResponseFormat",
    "StructuredOutputsField",
    "asks_for_structure",
    "checked_grammar",
    "request_grammar",
]

MAX_NAME_CHARS = 64


class JsonSchemaFormat(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """`response_format.json_schema`."""

    name: Annotated[str | None, says("up to 64 characters, for the caller's own use")] = None
    description: Annotated[str | None, says("for the caller's own use: the model does not see it")] = None
    schema: Annotated[Any, says("JSON schema of the answer; required")] = None
    strict: Annotated[bool | None, says("inert: a schema is always enforced, or refused", True)] = None


class ResponseFormat(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """`response_format`, as OpenAI has it."""

    type: Annotated[Literal["text", "json_object", "json_schema"], says("`json_object`: any JSON object")]
    json_schema: Annotated[JsonSchemaFormat | None, says("for type `json_schema`")] = None


class StructuredOutputsField(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """`structured_outputs`, as vLLM has it: exactly one of its fields."""

    json: Annotated[Any, says("JSON schema of the answer: an object, or its text")] = None
    regex: Annotated[str | None, says("the whole answer matches this expression")] = None
    choice: Annotated[list[str] | None, says("the answer is one of up to 1000 texts")] = None
    grammar: Annotated[str | None, says("the answer follows this grammar, in llguidance's form of Lark")] = None


class _Asking(Protocol):
    response_format: ResponseFormat | None
    structured_outputs: StructuredOutputsField | None


def asks_for_structure(request: _Asking) -> bool:
    """Whether the answer shall follow anything. `text` asks for nothing."""
    format_ = request.response_format
    return request.structured_outputs is not None or (format_ is not None and format_.type != "text")


async def request_grammar(context: ApiContext, request: _Asking) -> str:
    """What the answer must follow, for `Sampling.grammar`; "": nothing. Made and compiled beside the event loop.

    Raises:
        InvalidRequest: `param` is the field; it asks for too much, for nothing, or for what cannot be enforced.
    """
    if request.response_format is not None:
        _check_form(request.response_format)
    if not asks_for_structure(request):
        return ""
    return await context.threads.run(_grammar, request)


def _check_form(format_: ResponseFormat) -> None:
    own = format_.json_schema
    if format_.type == "json_schema":
        if own is None or own.schema is None:
            missing = "json_schema" if own is None else "json_schema.schema"
            raise InvalidRequest(
                f"response_format.{missing} is required for type json_schema",
                param="response_format",
                code="missing_field",
            )
        if own.name is not None and len(own.name) > MAX_NAME_CHARS:
            raise InvalidRequest(
                f"response_format.json_schema.name is longer than {MAX_NAME_CHARS} characters", param="response_format"
            )
    elif own is not None:
        raise InvalidRequest("response_format.json_schema needs type json_schema", param="response_format")


def _grammar(request: _Asking) -> str:
    stage(State.GRAMMAR)
    format_, outputs = request.response_format, request.structured_outputs
    if outputs is not None:
        if format_ is not None and format_.type != "text":
            raise InvalidRequest(
                "response_format and structured_outputs exclude each other; give one", param="structured_outputs"
            )
        param = "structured_outputs"
        grammar = StructuredOutputs(**msgspec.structs.asdict(outputs)).grammar_text(param=param)
    elif format_ is not None and format_.json_schema is not None:
        return checked_grammar(format_.json_schema.schema, "response_format")
    else:
        return json_object_grammar()
    check_grammar(grammar, param=param)
    return grammar


def checked_grammar(schema: Any, param: str) -> str:
    """The grammar of a JSON schema, compiled once to see that it can be. Takes milliseconds: use a thread.

    Raises:
        InvalidRequest: the schema cannot be enforced; `param` as given.
    """
    stage(State.GRAMMAR)
    grammar = schema_grammar(schema, param=param)
    check_grammar(grammar, param=param)
    return grammar
