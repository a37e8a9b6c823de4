"""Where the time of one request went: every instant of it in exactly one state, each state stamped at both ends.

The stamps are made where things happen: by the API process per request, by the engine per request and step, by the
worker per step. Here they are put together. All clocks are CLOCK_MONOTONIC, one for all processes of a machine.
Nothing is found by subtraction: what no state claims stays visible as `RequestTimeline.unclaimed_ns`.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field

__all__ = ["Interval", "RequestTimeline", "State"]


class State(enum.StrEnum):
    """What happens to a request. Where several things do at once (its last token is written while the next one is
    computed), the state is the one that is later in this list: the one that its next token depends on."""

    # In the API process.
    RECEIVE = "receive"
    """Its body is arriving."""
    PARSE = "parse"
    """Decoding, checking; whatever of its preparation is done on the event loop."""
    THREAD = "thread"
    """Waits for a thread for texts."""
    GRAMMAR = "grammar"
    """A grammar is compiled to see that it can be."""
    TEMPLATE = "template"
    """Its conversation is rendered."""
    TOKENIZE = "tokenize"
    """Its text becomes tokens."""
    RESUME = "resume"
    """A thread is done, and the event loop has not seen it yet."""
    DELIVER = "deliver"
    """Tokens become text and leave: detokenizing, parsing, rendering, writing."""
    FINISH = "finish"
    """The document, or the last events, are made and written."""
    SOCKET = "socket"
    """Its last bytes are written, as fast as its client reads."""

    # Tokens on their way back.
    TO_API = "to_api"
    """From the engine's sending to the API process's reading."""
    OUTBOX = "outbox"
    """Committed, and not sent yet: the next step is planned first."""
    COMMIT = "commit"
    """The step's result is applied."""
    RESULT = "result"
    """From the worker's answer to its commit."""

    # On the way to the next token.
    SUBMIT = "submit"
    """From the API process's sending to the engine's reading."""
    ADMISSION = "admission"
    """The engine has it and has not queued it yet; long only for suspects of a crash."""
    HELD = "held"
    """Another choice computes the prompt that they share."""
    QUEUED = "queued"
    """Waits for the next step to be planned."""
    QUEUED_SLOTS = "queued_slots"
    """As many choices run as may."""
    QUEUED_BLOCKS = "queued_blocks"
    """Too few blocks are free."""
    QUEUED_BUDGET = "queued_budget"
    """The step's tokens are given to others."""
    PREEMPTED = "preempted"
    """It lost its place and waits for a new one."""
    PREEMPTING = "preempting"
    """It lost its place, and an outstanding step still refers to its blocks."""
    TURN = "turn"
    """It has its place, but no part in the next step: no block, or others' turn."""
    HANDED_OVER = "handed_over"
    """A step with it is on its way to the worker, or waits there for the one before."""
    PREFILL = "prefill"
    """In a step that computes its prompt, or computes it again."""
    DECODE = "decode"
    """In a step that computes its next token."""
    RESTART = "restart"
    """The engine was lost, and the next one is not there yet."""


@dataclass(frozen=True, slots=True)
class Interval:
    """From one stamp to another."""

    start_ns: int
    """CLOCK_MONOTONIC."""
    end_ns: int
    state: State
    site: str = ""
    """The place in the code, as in `sites.py`, where one place is meant."""
    process: str = ""
    """`api 0`, `engine`, `worker 0`."""
    step: int = -1
    """Of the engine, -1 where none is meant."""
    uid: int = 0
    """Of the engine's request; one call may have several."""
    choice: int = 0


@dataclass(slots=True)
class RequestTimeline:
    """One call."""

    request_id: str
    """As its caller sees it."""
    uids: list[int]
    start_ns: int
    """Its headers were complete."""
    end_ns: int
    """Its answer was written, or nobody reads it any more; for one that is in flight: now."""
    is_done: bool
    intervals: list[Interval] = field(default_factory=list)
    """Everything that is known of it, by start; they overlap."""
    states: list[Interval] = field(default_factory=list)
    """One after the other, each instant in one at most; what is left out is unclaimed."""
    path: str = ""
    status: int = 0
    """Of HTTP; 0: not yet."""
    fault: str = ""
    """An error's code, where the call did not end well."""
    process: str = ""
    """The API process: `api 0`."""

    @property
    def wall_ns(self) -> int:
        return self.end_ns - self.start_ns

    @property
    def unclaimed_ns(self) -> int:
        return self.wall_ns - sum(part.end_ns - part.start_ns for part in self.states)

    def sums(self) -> dict[State, int]:
        """State -> nanoseconds, for the states that it was in."""
        found: dict[State, int] = {}
        for part in self.states:
            found[part.state] = found.get(part.state, 0) + part.end_ns - part.start_ns
        return found
