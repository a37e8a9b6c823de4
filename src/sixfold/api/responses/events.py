"""The events of a streamed response. Each has its name twice, as the client expects it, and a number.

    response.created, response.in_progress
      response.output_item.added                          per item
        response.content_part.added                       messages and reasoning
          response.output_text.delta ... .done            or response.reasoning_text,
        response.content_part.done                        or response.function_call_arguments
      response.output_item.done
    response.completed | response.incomplete | response.failed

The last one is the only end there is: nothing follows it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from sixfold.api.openai.logprobs import ChatEntry
from sixfold.api.responses.document import Response
from sixfold.api.responses.items import FunctionCall, Message, OutputText, ReasoningText
from sixfold.api.responses.output import Output, OutputItem

__all__ = ["OutputEvents"]

json = msgspec.json.encode

_GROWS = {"message": "output_text", "reasoning": "reasoning_text", "function_call": "function_call_arguments"}


class OutputEvents(Output):
    """Output items that tell of themselves. `drain` gives the events that have come up since the last time."""

    def __init__(self) -> None:
        super().__init__()
        self._out: list[bytes] = []
        self._number = 0
        self._delta_head = b""

    def drain(self) -> bytes:
        out, self._out = b"".join(self._out), []
        return out

    def response_event(self, kind: str, response: Response) -> None:
        """An event that has the whole document."""
        self._event(f"response.{kind}", response=response)

    def opened(self, index: int, item: OutputItem) -> None:
        self._event("response.output_item.added", output_index=index, item=item)
        place: dict[str, Any] = {"item_id": item.id, "output_index": index}
        if not isinstance(item, FunctionCall):
            place["content_index"] = 0
            self._event("response.content_part.added", **place, part=_part(item, ""))
        kind = f"response.{_growing(item)}.delta"
        head = json({"type": kind, **place})[:-1]
        self._delta_head = b"event: %s\ndata: %s" % (kind.encode(), head)

    def grew(self, index: int, item: OutputItem, text: str, entries: Sequence[ChatEntry]) -> None:
        logprobs = b"" if not isinstance(item, Message) else b',"logprobs":' + (json(entries) if entries else b"[]")
        self._out.append(
            b'%s,"delta":%s%s,"sequence_number":%d}\n\n' % (self._delta_head, json(text), logprobs, self._number)
        )
        self._number += 1

    def closed(self, index: int, item: OutputItem, text: str) -> None:
        place: dict[str, Any] = {"item_id": item.id, "output_index": index}
        kind = f"response.{_growing(item)}.done"
        if isinstance(item, FunctionCall):
            self._event(kind, **place, name=item.name, arguments=text)
        else:
            place["content_index"] = 0
            more = {"logprobs": item.content[0].logprobs} if isinstance(item.content[0], OutputText) else {}
            self._event(kind, **place, text=text, **more)
            self._event("response.content_part.done", **place, part=item.content[0])
        self._event("response.output_item.done", output_index=index, item=item)

    def _event(self, kind: str, **fields: Any) -> None:
        data = json({"type": kind, "sequence_number": self._number, **fields})
        self._out.append(b"event: %s\ndata: %s\n\n" % (kind.encode(), data))
        self._number += 1


def _growing(item: OutputItem) -> str:
    """What the text of an item is called in events."""
    return _GROWS[type(item).__struct_config__.tag]  # type: ignore[index]


def _part(item: OutputItem, text: str) -> OutputText | ReasoningText:
    return OutputText(text) if isinstance(item, Message) else ReasoningText(text)
