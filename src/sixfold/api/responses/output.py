"""The parts of an answer -> its output items, as they grow. The plain answer and the stream are made by the same code.

    Reasoning   an item `reasoning`        while it lasts
    Content     an item `message`          while it lasts
    CallBegin   an item `function_call`    each

An item is open until something of another kind comes, or the answer ends.
"""

from __future__ import annotations

from collections.abc import Sequence

from sixfold.api.openai.logprobs import ChatEntry
from sixfold.api.responses.items import (
    COMPLETED,
    IN_PROGRESS,
    INCOMPLETE,
    FunctionCall,
    Message,
    OutputText,
    Reasoning,
    ReasoningText,
    new_id,
)
from sixfold.text import answer_parts
from sixfold.text.answer_parts import CallArguments, CallBegin, Part

__all__ = ["Output", "OutputItem"]

OutputItem = Message | FunctionCall | Reasoning


class Output:
    """See the module's docstring. The methods `opened`, `grew` and `closed` are for whoever tells others about it.

    Attributes:
        items: the text of the open one, the last, is empty until it is closed.
    """

    def __init__(self) -> None:
        self.items: list[OutputItem] = []
        self._open: OutputItem | None = None
        self._pieces: list[str] = []
        self._entries: list[ChatEntry] = []

    def take(self, parts: Sequence[Part], entries: Sequence[ChatEntry] = ()) -> None:
        """The next parts.

        Args:
            entries: log-probabilities of the content among them.
        """
        for part in parts:
            if isinstance(part, CallBegin):
                self._begin(FunctionCall(new_id("fc_"), new_id("call_"), part.name, "", IN_PROGRESS))
            elif isinstance(part, CallArguments):
                self._grow(part.text)
            elif isinstance(part, answer_parts.Reasoning):
                if not isinstance(self._open, Reasoning):
                    self._begin(Reasoning(new_id("rs_"), [], status=IN_PROGRESS))
                self._grow(part.text)
            else:
                self.take_text(part.text, entries)
                entries = ()

    def take_text(self, text: str, entries: Sequence[ChatEntry] = ()) -> None:
        """A piece of content."""
        if not isinstance(self._open, Message):
            self._begin(Message(new_id("msg_"), "assistant", [], IN_PROGRESS))
        self._grow(text, entries)

    def end(self, *, complete: bool) -> None:
        """No more parts come. An answer without any is an empty message."""
        if not self.items:
            self._begin(Message(new_id("msg_"), "assistant", [], IN_PROGRESS))
        self._close(COMPLETED if complete else INCOMPLETE)

    def cut(self) -> None:
        """The answer is over because of a fault, of which others are told otherwise."""
        self._finish(INCOMPLETE)

    def opened(self, index: int, item: OutputItem) -> None:
        """An item has begun."""

    def grew(self, index: int, item: OutputItem, text: str, entries: Sequence[ChatEntry]) -> None:
        """Text was added to the open item."""

    def closed(self, index: int, item: OutputItem, text: str) -> None:
        """An item is complete, as far as it will ever be."""

    def _begin(self, item: OutputItem) -> None:
        if self._open is not None:
            self._close(COMPLETED)
        self._open = item
        self.items.append(item)
        self.opened(len(self.items) - 1, item)

    def _grow(self, text: str, entries: Sequence[ChatEntry] = ()) -> None:
        assert self._open is not None
        self._pieces.append(text)
        self._entries += entries
        self.grew(len(self.items) - 1, self._open, text, entries)

    def _close(self, status: str) -> None:
        item = self._open
        text = self._finish(status)
        if item is not None:
            self.closed(len(self.items) - 1, item, text)

    def _finish(self, status: str) -> str:
        """Complete the open item; its text."""
        item, self._open = self._open, None
        text = "".join(self._pieces)
        if isinstance(item, FunctionCall):
            item.arguments = text
        elif isinstance(item, Reasoning):
            item.content = [ReasoningText(text)]
        elif isinstance(item, Message):
            item.content = [OutputText(text, logprobs=self._entries)]
        if item is not None:
            item.status = status
        self._pieces, self._entries = [], []
        return text
