"""Answers of `POST /v1/messages`: the whole message, or its events.

    message_start                      with the first token: the usage, cached tokens included, is known then
    content_block_start, _delta, _stop one block after the other: thinking, text, tool_use
    message_delta                      stop reason and usage
    message_stop
    ping                               every 15 s without another event
    error                              a fault after the first byte, in place of all that would follow

Both are made of the same parts, so that the joined events are the whole message.
"""

from __future__ import annotations

import secrets
from typing import Any

import msgspec

from sixfold.api.generation import Generation
from sixfold.api.http.decoding import MAX_JSON_CONTAINERS, MAX_JSON_DEPTH
from sixfold.api.http.errors import ANTHROPIC, ErrorBody
from sixfold.api.http.json_fault import nests_too_much
from sixfold.api.parting import PartedDelta, Parting
from sixfold.api.stream import Renderer
from sixfold.detokenizer import ChoiceDelta
from sixfold.text.answer_parts import CallArguments, CallBegin, Content, Part, Reasoning

__all__ = ["UNSIGNED", "MessageEvents", "WholeMessage", "stop_of", "usage_of"]

UNSIGNED = "unsigned"
"""Signature of every thinking block: nothing here signs or checks, and clients send back only what has one."""

MAX_INPUT_DEPTH = MAX_JSON_DEPTH - 5
"""Of a call's input: in a request it stands within messages, a message, its content and a block."""

STOP_REASONS = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use"}

json = msgspec.json.encode


class MessageUsage(msgspec.Struct):
    """As Anthropic counts: the three kinds of input tokens together are the prompt."""

    input_tokens: int
    cache_creation_input_tokens: int
    cache_read_input_tokens: int
    output_tokens: int


class TextContent(msgspec.Struct, tag_field="type", tag="text"):
    text: str


class ThinkingContent(msgspec.Struct, tag_field="type", tag="thinking"):
    thinking: str
    signature: str


class ToolUseContent(msgspec.Struct, tag_field="type", tag="tool_use"):
    id: str
    name: str
    input: msgspec.Raw


class AnswerMessage(msgspec.Struct, tag_field="type", tag="message"):
    """The answer."""

    id: str
    role: str
    model: str
    content: list[TextContent | ThinkingContent | ToolUseContent]
    stop_reason: str | None
    stop_sequence: str | None
    usage: MessageUsage


class Stop(msgspec.Struct):
    """How an answer ended."""

    stop_reason: str
    stop_sequence: str | None


class AnswerHead(msgspec.Struct, frozen=True):
    """What is known before the first token."""

    id: str
    model: str
    context_ends: bool
    """The context has less room than `max_tokens` asked for."""

    @classmethod
    def of(cls, model: str, *, context_ends: bool) -> AnswerHead:
        return cls("msg_" + secrets.token_hex(16), model, context_ends)

    def message(self, content: list[Any], stop: Stop | None, generation: Generation) -> AnswerMessage:
        reason, sequence = (None, None) if stop is None else (stop.stop_reason, stop.stop_sequence)
        return AnswerMessage(self.id, "assistant", self.model, content, reason, sequence, usage_of(generation))


def usage_of(generation: Generation) -> MessageUsage:
    """Nobody is billed for writing the prefix cache: what was not read from it is plain input."""
    usage = generation.usage()
    cached = usage.prompt_tokens_details.cached_tokens
    return MessageUsage(usage.prompt_tokens - cached, 0, cached, usage.completion_tokens)


def stop_of(finish_reason: str, stop_reason: int | str | None, head: AnswerHead) -> Stop:
    if isinstance(stop_reason, str):
        return Stop("stop_sequence", stop_reason)
    if finish_reason == "length" and head.context_ends:
        return Stop("model_context_window_exceeded", None)
    return Stop(STOP_REASONS[finish_reason], None)


def new_call_id() -> str:
    return "toolu_" + secrets.token_hex(12)


class WholeMessage:
    """Gathers the whole answer."""

    def __init__(self, head: AnswerHead, parting: Parting) -> None:
        self._head = head
        self._parting = parting
        self._parts: list[Part] = []
        self._stop: Stop | None = None

    def add(self, deltas: list[ChoiceDelta]) -> None:
        for delta in self._parting.split(deltas):
            self._parts += delta.parts
            if delta.finish_reason is not None:
                self._stop = stop_of(delta.finish_reason, delta.stop_reason, self._head)

    def document(self, generation: Generation) -> bytes:
        return json(self._head.message(content_of(self._parts), self._stop, generation))


def content_of(parts: list[Part]) -> list[TextContent | ThinkingContent | ToolUseContent]:
    """The blocks that the parts make up."""
    content: list[TextContent | ThinkingContent | ToolUseContent] = []
    arguments: list[list[str]] = []
    for part in parts:
        last = content[-1] if content else None
        if isinstance(part, Content):
            if isinstance(last, TextContent):
                last.text += part.text
            else:
                content.append(TextContent(part.text))
        elif isinstance(part, Reasoning):
            if isinstance(last, ThinkingContent):
                last.thinking += part.text
            else:
                content.append(ThinkingContent(part.text, UNSIGNED))
        elif isinstance(part, CallBegin):
            content.append(ToolUseContent(new_call_id(), part.name, msgspec.Raw(b"{}")))
            arguments.append([])
        else:
            arguments[part.index].append(part.text)
    calls = [block for block in content if isinstance(block, ToolUseContent)]
    for call, pieces in zip(calls, arguments, strict=True):
        call.input = _object("".join(pieces))
    return content


def _object(text: str) -> msgspec.Raw:
    """The text of a JSON object as it is; an empty one where the answer was cut short, or the model wrote none, or one
    that could not be sent back: numbers that nobody can read, or deeper than a request may be."""
    raw = text.encode("utf-8")
    try:
        value = msgspec.json.decode(raw)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        value = None
    if not isinstance(value, dict) or nests_too_much(raw, MAX_INPUT_DEPTH, MAX_JSON_CONTAINERS):
        return msgspec.Raw(b"{}")
    return msgspec.Raw(raw)


def event(name: bytes, document: bytes) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (name, document)


class MessageEvents(Renderer):
    """Events of a stream. An ordinary piece of text is put between bytes that are made once for its block.

    Args:
        plain: all text is content.
    """

    ping = event(b"ping", b'{"type":"ping"}')
    done = b""

    def __init__(self, head: AnswerHead, generation: Generation, parting: Parting, *, plain: bool) -> None:
        self._head = head
        self._generation = generation
        self._parting = parting
        self._plain = plain
        self._begun = False
        self._kind: type[Part] | None = None
        """Of the block that is open."""
        self._n_blocks = 0
        self._delta_head = b""
        self._stop: Stop | None = None

    def frames(self, deltas: list[ChoiceDelta]) -> bytes:
        if self._plain and self._kind is Content and len(deltas) == 1:
            delta = deltas[0]
            if delta.finish_reason is None:
                return self._delta_head + json(delta.text) + b"}}\n\n" if delta.text else b""
        return b"".join([self._frame(delta) for delta in self._parting.split(deltas)])

    def tail(self, generation: Generation) -> bytes:
        delta = json({"type": "message_delta", "delta": self._stop, "usage": usage_of(generation)})
        return self._close() + event(b"message_delta", delta) + event(b"message_stop", b'{"type":"message_stop"}')

    def fault(self, status: int, error: ErrorBody, request_id: str) -> bytes:
        return event(b"error", ANTHROPIC.document(status, error, request_id))

    def _frame(self, delta: PartedDelta) -> bytes:
        frames = [] if self._begun else [self._start()]
        frames += [self._part(part) for part in delta.parts]
        if delta.finish_reason is not None:
            self._stop = stop_of(delta.finish_reason, delta.stop_reason, self._head)
        return b"".join(frames)

    def _start(self) -> bytes:
        self._begun = True
        message = self._head.message([], None, self._generation)
        return event(b"message_start", json({"type": "message_start", "message": message}))

    def _part(self, part: Part) -> bytes:
        if isinstance(part, CallBegin):
            block = ToolUseContent(new_call_id(), part.name, msgspec.Raw(b"{}"))
            return self._open(CallArguments, block, b"input_json_delta", b"partial_json")
        begin = b""
        if isinstance(part, Content) and self._kind is not Content:
            begin = self._open(Content, TextContent(""), b"text_delta", b"text")
        elif isinstance(part, Reasoning) and self._kind is not Reasoning:
            begin = self._open(Reasoning, ThinkingContent("", ""), b"thinking_delta", b"thinking")
        return begin + self._delta_head + json(part.text) + b"}}\n\n"

    def _open(self, kind: type[Part], block: Any, delta: bytes, key: bytes) -> bytes:
        """Begin a block; `self._delta_head` leads each of its pieces."""
        closing = self._close()
        self._kind = kind
        index = self._n_blocks
        self._n_blocks += 1
        self._delta_head = (
            b'event: content_block_delta\ndata: {"type":"content_block_delta","index":%d,"delta":{"type":"%b","%b":'
            % (index, delta, key)
        )
        start = {"type": "content_block_start", "index": index, "content_block": block}
        return closing + event(b"content_block_start", json(start))

    def _close(self) -> bytes:
        """End the block that is open."""
        if self._kind is None:
            return b""
        index = self._n_blocks - 1
        signature = b""
        if self._kind is Reasoning:
            delta = {"type": "signature_delta", "signature": UNSIGNED}
            document = json({"type": "content_block_delta", "index": index, "delta": delta})
            signature = event(b"content_block_delta", document)
        self._kind = None
        return signature + event(b"content_block_stop", json({"type": "content_block_stop", "index": index}))
