"""What an answer says, part by part, free of any wire format.

ChoiceDelta --Parting--> PartedDelta: content, reasoning, calls; finish reason
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from sixfold.api.conversation import Prepared
from sixfold.detokenizer import ChoiceDelta
from sixfold.messages import TokenLogprobs
from sixfold.text.answer_parts import Content, Part

__all__ = ["PartedDelta", "Parting"]


class PartedDelta(msgspec.Struct, frozen=True):
    """A `ChoiceDelta` taken apart."""

    index: int
    """Of the choice."""
    parts: list[Part]
    finish_reason: str | None
    """`stop`, `length`, or `tool_calls` where the answer ended by itself and has at least one call."""
    delta: ChoiceDelta
    """As it came."""

    @property
    def token_ids(self) -> list[int]:
        return self.delta.token_ids

    @property
    def stop_reason(self) -> int | str | None:
        return self.delta.stop_reason

    @property
    def logprobs(self) -> list[TokenLogprobs] | None:
        return self.delta.logprobs


class Parting:
    """Takes the answers of one call apart, all its choices.

    Args:
        n: choices.
    """

    def __init__(self, prepared: Prepared, n: int) -> None:
        self._parsers = [prepared.parser() for _ in range(n)]

    def split(self, deltas: Sequence[ChoiceDelta]) -> list[PartedDelta]:
        """What came with one step. Deltas that say nothing new give an entry all the same, without parts."""
        return [self._split(delta) for delta in deltas]

    def _split(self, delta: ChoiceDelta) -> PartedDelta:
        parser = self._parsers[delta.index]
        finish: str | None = delta.finish_reason
        if parser is None:
            return PartedDelta(delta.index, [Content(delta.text)] if delta.text else [], finish, delta)
        parts = parser.push(delta.text) if delta.text else []
        if finish is not None:
            parts += parser.finish()
            if finish == "stop" and parser.n_calls:
                finish = "tool_calls"
        return PartedDelta(delta.index, parts, finish, delta)
