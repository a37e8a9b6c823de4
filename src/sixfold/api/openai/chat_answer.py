"""What a chat's answer looks like where its text is its content: one document, or a stream of events."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import msgspec

from sixfold.api.answer import AnswerFacts
from sixfold.api.generation import Generation, TotalUsage
from sixfold.api.openai.logprobs import ChatLogprobs, PromptLogprobs, ShownEntries
from sixfold.api.stream import Renderer
from sixfold.detokenizer import ChoiceDelta

__all__ = ["AllLogprobs", "ChatAnswer", "ChatStream", "PlainChoices", "PlainStream"]

json = msgspec.json.encode


@dataclass(frozen=True, kw_only=True)
class ChatAnswer(AnswerFacts):
    """`AnswerFacts` of a chat."""

    prompt: list[int]

    def document(self, choices: Sequence[msgspec.Struct], generation: Generation) -> bytes:
        """The whole answer."""
        document = ChatCompletion(
            self.id, "chat.completion", self.created, self.model, self.fingerprint, choices, generation.usage()
        )
        document.prompt_logprobs = self.prompt_logprobs(generation, 0, self.prompt)
        if self.token_ids:
            document.prompt_token_ids = self.prompt
        return json(document)


class AllLogprobs:
    """Log-probabilities of all choices."""

    def __init__(self, answer: ChatAnswer) -> None:
        self._shown = answer.shown
        self._choices = [ShownEntries(answer.shown) for _ in range(answer.n)] if answer.shown is not None else []

    def render(self, delta: ChoiceDelta) -> ChatLogprobs | None:
        if self._shown is None:
            return None
        return self._shown.chat(self._choices[delta.index].take(delta))

    def joined(self, deltas: list[ChoiceDelta]) -> ChatLogprobs | None:
        """Those of a choice's deltas, which are all there."""
        parts = [part for part in map(self.render, deltas) if part is not None]
        return ChatLogprobs([entry for part in parts for entry in part.content]) if self._shown is not None else None


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
    choices: Sequence[msgspec.Struct]
    usage: TotalUsage
    prompt_token_ids: list[int] | msgspec.UnsetType = msgspec.UNSET
    prompt_logprobs: PromptLogprobs | msgspec.UnsetType = msgspec.UNSET


class PlainChoices:
    """Gathers the whole answer."""

    def __init__(self, answer: ChatAnswer) -> None:
        self._answer = answer
        self._deltas: list[list[ChoiceDelta]] = [[] for _ in range(answer.n)]

    def add(self, deltas: list[ChoiceDelta]) -> None:
        for delta in deltas:
            self._deltas[delta.index].append(delta)

    def document(self, generation: Generation) -> bytes:
        logprobs = AllLogprobs(self._answer)
        return self._answer.document([self._choice(deltas, logprobs) for deltas in self._deltas], generation)

    def _choice(self, deltas: list[ChoiceDelta], logprobs: AllLogprobs) -> ChatChoice:
        answer = self._answer
        last = deltas[-1]
        choice = ChatChoice(
            last.index,
            AssistantMessage("".join([delta.text for delta in deltas])),
            logprobs.joined(deltas),
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


class ChatStream:
    """What the events of a chat's stream have in common, however its answers are rendered."""

    def __init__(self, answer: ChatAnswer, usage: bool) -> None:
        self._answer = answer
        self._usage = usage
        self._head = (
            b'data: {"id":"%s","object":"chat.completion.chunk","created":%d,"model":%s,'
            b'"system_fingerprint":%s,"choices":['
            % (answer.id.encode(), answer.created, json(answer.model), json(answer.fingerprint))
        )
        self._end = b'],"usage":null' if usage else b"]"
        self._begun = [False] * answer.n
        self._plain = answer.shown is None and not answer.token_ids
        self._running_usage: Callable[[], TotalUsage] | None = None
        self._logprobs = AllLogprobs(answer)
        self._prompt_ids = b',"prompt_token_ids":' + json(answer.prompt) if answer.token_ids else b""

    def report_usage(self, usage: Callable[[], TotalUsage]) -> None:
        """Put what it gives into every event from now on."""
        self._running_usage = usage
        self._plain = False

    def tail(self, generation: Generation) -> bytes:
        """See `Renderer`."""
        if not self._usage:
            return b""
        return self._head + b'],"usage":' + json(generation.usage()) + b"}\n\n"

    def _begins(self, index: int) -> bool:
        """Whether this is the choice's first event; asked once for each."""
        begun, self._begun[index] = self._begun[index], True
        return not begun

    def _event(self, choice: msgspec.Struct) -> bytes:
        prompt_ids, self._prompt_ids = self._prompt_ids, b""
        end = self._end if self._running_usage is None else b'],"usage":' + json(self._running_usage())
        return self._head + json(choice) + end + prompt_ids + b"}\n\n"


class PlainStream(ChatStream, Renderer):
    """The parts of an ordinary event that never change are made once."""

    def __init__(self, answer: ChatAnswer, usage: bool) -> None:
        super().__init__(answer, usage)
        self._plain_end = b'},"logprobs":null,"finish_reason":null,"stop_reason":null}' + self._end + b"}\n\n"
        self._heads = [self._head + b'{"index":%d,"delta":{"content":' % index for index in range(answer.n)]

    def frames(self, deltas: list[ChoiceDelta]) -> bytes:
        return b"".join([self._frame(delta) for delta in deltas])

    def _frame(self, delta: ChoiceDelta) -> bytes:
        if self._plain and delta.finish_reason is None and self._begun[delta.index]:
            return self._heads[delta.index] + json(delta.text) + self._plain_end if delta.text else b""
        return self._full_frame(delta)

    def _full_frame(self, delta: ChoiceDelta) -> bytes:
        answer = self._answer
        content = ChunkDelta()
        if self._begins(delta.index):
            content.role = "assistant"
            content.content = delta.text
        elif delta.text or delta.finish_reason is None:
            content.content = delta.text
        choice = ChunkChoice(
            delta.index, content, self._logprobs.render(delta), delta.finish_reason, answer.stop_reason(delta)
        )
        if answer.token_ids:
            choice.token_ids = delta.token_ids
        return self._event(choice)
