"""The answer's document: its request's settings, its output, and how it ended."""

from __future__ import annotations

import time
from typing import Any

import msgspec

from sixfold.api.generation import TotalUsage
from sixfold.api.http.errors import ErrorBody
from sixfold.api.responses.output import OutputItem

__all__ = ["Failure", "ItemList", "Response", "ResponseDeleted", "Usage"]


class InputDetails(msgspec.Struct, frozen=True):
    cached_tokens: int
    cache_write_tokens: int = 0


class OutputDetails(msgspec.Struct, frozen=True):
    reasoning_tokens: int


class Usage(msgspec.Struct, frozen=True):
    """Tokens under this API's names."""

    input_tokens: int
    input_tokens_details: InputDetails
    output_tokens: int
    output_tokens_details: OutputDetails
    total_tokens: int

    @classmethod
    def of(cls, usage: TotalUsage, reasoning_tokens: int) -> Usage:
        return cls(
            usage.prompt_tokens,
            InputDetails(usage.prompt_tokens_details.cached_tokens),
            usage.completion_tokens,
            OutputDetails(reasoning_tokens),
            usage.total_tokens,
        )


class Failure(msgspec.Struct, frozen=True):
    """Why a response failed, in the few words that this API has for it."""

    code: str
    message: str

    @classmethod
    def of(cls, status: int, error: ErrorBody) -> Failure:
        return cls("rate_limit_exceeded" if status == 429 else "server_error", error.message)


class Incomplete(msgspec.Struct, frozen=True):
    reason: str = "max_output_tokens"


class Response(msgspec.Struct, kw_only=True):
    """`object: response`. What is null in every answer is there because clients look for it."""

    id: str
    object: str = "response"
    created_at: int
    status: str = "in_progress"
    background: bool = False
    completed_at: int | None = None
    error: Failure | None = None
    incomplete_details: Incomplete | None = None
    instructions: str | None
    max_output_tokens: int | None
    max_tool_calls: None = None
    metadata: dict[str, str]
    model: str
    output: list[OutputItem] = []
    parallel_tool_calls: bool
    previous_response_id: str | None
    prompt_cache_key: str | None
    reasoning: dict[str, Any]
    safety_identifier: str | None
    service_tier: str = "default"
    store: bool
    system_fingerprint: str
    temperature: float
    text: dict[str, Any]
    tool_choice: Any
    tools: list[dict[str, Any]]
    top_logprobs: int
    top_p: float
    truncation: str = "disabled"
    usage: Usage | None = None
    user: str | None

    def ended(self, output: list[OutputItem], usage: Usage, *, complete: bool) -> None:
        """The answer is over, by itself or because there was no room for more."""
        self.output, self.usage = output, usage
        if complete:
            self.status, self.completed_at = "completed", int(time.time())
        else:
            self.status, self.incomplete_details = "incomplete", Incomplete()

    def failed(self, output: list[OutputItem], failure: Failure) -> None:
        """The answer is over because of a fault."""
        self.status, self.error, self.output = "failed", failure, output


class ResponseDeleted(msgspec.Struct):
    """`DELETE /v1/responses/{id}`."""

    id: str
    object: str = "response"
    deleted: bool = True


class ItemList(msgspec.Struct):
    """`GET /v1/responses/{id}/input_items`."""

    data: list[Any]
    first_id: str | None
    last_id: str | None
    has_more: bool
    object: str = "list"
