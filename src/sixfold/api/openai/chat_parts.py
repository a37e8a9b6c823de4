"""What a chat's answer looks like where its text is taken apart: content, reasoning, calls of tools."""

from __future__ import annotations

import secrets
from typing import Literal

import msgspec

from sixfold.api.generation import Generation
from sixfold.api.openai.chat_answer import AllLogprobs, ChatAnswer, ChatStream
from sixfold.api.openai.logprobs import ChatLogprobs
from sixfold.api.parting import PartedDelta, Parting
from sixfold.api.stream import Renderer
from sixfold.detokenizer import ChoiceDelta
from sixfold.text.answer_parts import CallArguments, CallBegin, Content, Part, Reasoning

__all__ = ["PartedChoices", "PartedStream"]


def call_id() -> str:
    """Of a new call."""
    return f"call_{secrets.token_hex(12)}"


class CalledFunction(msgspec.Struct):
    """A call's function; `arguments` is JSON."""

    name: str
    arguments: str


class ToolCall(msgspec.Struct):
    """One of `choices[].message.tool_calls`."""

    id: str
    function: CalledFunction
    type: Literal["function"] = "function"


class PartedMessage(msgspec.Struct):
    """`choices[].message`."""

    content: str | None
    role: Literal["assistant"] = "assistant"
    refusal: None = None
    reasoning_content: str | msgspec.UnsetType = msgspec.UNSET
    reasoning: str | msgspec.UnsetType = msgspec.UNSET
    tool_calls: list[ToolCall] | msgspec.UnsetType = msgspec.UNSET


class PartedChoice(msgspec.Struct):
    """One of `choices`."""

    index: int
    message: PartedMessage
    logprobs: ChatLogprobs | None
    finish_reason: str | None
    stop_reason: int | str | None = None
    token_ids: list[int] | msgspec.UnsetType = msgspec.UNSET


class PartedChoices:
    """Gathers the whole answer. `reasoning`: whether it is shown."""

    def __init__(self, answer: ChatAnswer, parting: Parting, reasoning: bool) -> None:
        self._answer = answer
        self._parting = parting
        self._reasoning = reasoning
        self._deltas: list[list[PartedDelta]] = [[] for _ in range(answer.n)]

    def add(self, deltas: list[ChoiceDelta]) -> None:
        for delta in self._parting.split(deltas):
            self._deltas[delta.index].append(delta)

    def document(self, generation: Generation) -> bytes:
        logprobs = AllLogprobs(self._answer)
        choices = [self._choice(deltas, logprobs) for deltas in self._deltas]
        return self._answer.document(choices, generation)

    def _choice(self, deltas: list[PartedDelta], logprobs: AllLogprobs) -> PartedChoice:
        answer = self._answer
        last = deltas[-1]
        choice = PartedChoice(
            last.index,
            self._message([part for delta in deltas for part in delta.parts]),
            logprobs.joined([delta.delta for delta in deltas]),
            last.finish_reason,
            answer.stop_reason(last.delta),
        )
        if answer.token_ids:
            choice.token_ids = [token_id for delta in deltas for token_id in delta.token_ids]
        return choice

    def _message(self, parts: list[Part]) -> PartedMessage:
        content = "".join([part.text for part in parts if isinstance(part, Content)])
        reasoning = "".join([part.text for part in parts if isinstance(part, Reasoning)])
        calls = [ToolCall(call_id(), CalledFunction(part.name, "")) for part in parts if isinstance(part, CallBegin)]
        for part in parts:
            if isinstance(part, CallArguments):
                calls[part.index].function.arguments += part.text
        reasoning = reasoning if self._reasoning else ""
        message = PartedMessage(content or (None if calls or reasoning else ""))
        if reasoning:
            message.reasoning_content = message.reasoning = reasoning
        if calls:
            message.tool_calls = calls
        return message


class FunctionDelta(msgspec.Struct, omit_defaults=True):
    """The name comes once, with the call's first."""

    arguments: str
    name: str | msgspec.UnsetType = msgspec.UNSET


class CallDelta(msgspec.Struct, omit_defaults=True):
    """One of a delta's `tool_calls`: `id`, `type` and the name come once, with the call's first."""

    index: int
    function: FunctionDelta
    id: str | msgspec.UnsetType = msgspec.UNSET
    type: str | msgspec.UnsetType = msgspec.UNSET


class PartedChunkDelta(msgspec.Struct, omit_defaults=True):
    """`choices[].delta`."""

    role: str | msgspec.UnsetType = msgspec.UNSET
    content: str | msgspec.UnsetType | None = msgspec.UNSET
    reasoning_content: str | msgspec.UnsetType = msgspec.UNSET
    reasoning: str | msgspec.UnsetType = msgspec.UNSET
    tool_calls: list[CallDelta] | msgspec.UnsetType = msgspec.UNSET


class PartedChunkChoice(msgspec.Struct):
    """One of a chunk's `choices`."""

    index: int
    delta: PartedChunkDelta
    logprobs: ChatLogprobs | None
    finish_reason: str | None
    stop_reason: int | str | None = None
    token_ids: list[int] | msgspec.UnsetType = msgspec.UNSET


class PartedStream(ChatStream, Renderer):
    """One event per choice and step that has news. `reasoning`: whether it is shown."""

    def __init__(self, answer: ChatAnswer, usage: bool, parting: Parting, reasoning: bool) -> None:
        super().__init__(answer, usage)
        self._parting = parting
        self._reasoning = reasoning

    def frames(self, deltas: list[ChoiceDelta]) -> bytes:
        return b"".join([self._frame(delta) for delta in self._parting.split(deltas)])

    def _frame(self, delta: PartedDelta) -> bytes:
        answer = self._answer
        content = self._content(delta.parts)
        logprobs = self._logprobs.render(delta.delta)
        if content is None:
            has_entries = logprobs is not None and logprobs.content
            if delta.finish_reason is None and not has_entries and not answer.token_ids:
                return b""
            content = PartedChunkDelta()
        if self._begins(delta.index):
            content.role = "assistant"
            if content.content is msgspec.UNSET:
                content.content = "" if content.tool_calls is msgspec.UNSET else None
        choice = PartedChunkChoice(delta.index, content, logprobs, delta.finish_reason, answer.stop_reason(delta.delta))
        if answer.token_ids:
            choice.token_ids = delta.token_ids
        return self._event(choice)

    def _content(self, parts: list[Part]) -> PartedChunkDelta | None:
        """None where nothing of them is shown."""
        out: PartedChunkDelta | None = None
        for part in parts:
            if isinstance(part, Reasoning) and not self._reasoning:
                continue
            out = out or PartedChunkDelta()
            _add(out, part)
        return out


def _add(out: PartedChunkDelta, part: Part) -> None:
    match part:
        case Content(text):
            out.content = (out.content or "") + text
        case Reasoning(text):
            out.reasoning_content = out.reasoning = (out.reasoning or "") + text
        case CallBegin(index, name):
            call = CallDelta(index, FunctionDelta("", name), call_id(), "function")
            out.tool_calls = [*(out.tool_calls or []), call]
        case CallArguments(index, text):
            calls = out.tool_calls = out.tool_calls or []
            if calls and calls[-1].index == index:
                calls[-1].function.arguments += text
            else:
                calls.append(CallDelta(index, FunctionDelta(text)))
