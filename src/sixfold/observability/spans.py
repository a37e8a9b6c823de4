"""One call as spans, by OpenTelemetry's conventions for HTTP servers and for generative AI; without its library.

    POST /v1/chat/completions                            the call; its parent is the caller's `traceparent`
      chat MODEL                                         what the model was asked for, and what that took
        receive, template, tokenize, admission, queue, prefill, decode, detokenize, write

A phase lies from the begin of its first state to the end of its last one (`timeline.py`); `sixfold.busy_ms` is the time
in them. Never a span per token: `decode` is one, with an event for each preemption and each restart of the engine. No
text of any prompt or answer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from sixfold.observability.timeline import Interval, RequestTimeline, State

__all__ = ["EndedCall", "SpanPlan", "Value", "plan_spans"]

Value = str | int | float | bool | list[str]
"""Of an attribute."""

PHASES: tuple[tuple[str, frozenset[State]], ...] = (
    ("receive", frozenset({State.RECEIVE, State.PARSE, State.THREAD, State.GRAMMAR, State.RESUME})),
    ("template", frozenset({State.TEMPLATE})),
    ("tokenize", frozenset({State.TOKENIZE})),
    ("admission", frozenset({State.SUBMIT, State.ADMISSION})),
    (
        "queue",
        frozenset({State.HELD, State.QUEUED, State.QUEUED_SLOTS, State.QUEUED_BLOCKS, State.QUEUED_BUDGET}),
    ),
    ("prefill", frozenset({State.PREFILL})),
    ("decode", frozenset({State.DECODE})),
    ("detokenize", frozenset({State.DELIVER})),
    ("write", frozenset({State.FINISH, State.SOCKET})),
)

EVENTS = {State.PREEMPTED: "preempted", State.RESTART: "engine restarted"}
"""States that are told as events of `decode`, or of the phase before it."""


@dataclass(frozen=True, kw_only=True)
class EndedCall:
    """A call that is over, as its API process saw it. Times are CLOCK_MONOTONIC ns."""

    request_id: str
    method: str
    path: str
    """Of the route: never what a caller wrote."""
    start_ns: int
    end_ns: int
    status: int
    """0: the client left before there was one."""
    fault: str | None = None
    parent: Mapping[str, str] = field(default_factory=dict)
    """Its headers `traceparent` and `tracestate`, as they came."""
    server: tuple[str, int] = ("", 0)
    operation: str = ""
    """`chat`, `text_completion`, `embeddings`; "": nothing was asked of the model."""
    attributes: Mapping[str, Value] = field(default_factory=dict)
    """Of the model's span."""
    model: str = ""


@dataclass
class SpanPlan:
    """One span, and those below it."""

    name: str
    start_ns: int
    end_ns: int
    attributes: dict[str, Value] = field(default_factory=dict)
    events: list[tuple[str, int]] = field(default_factory=list)
    """(name, when)."""
    children: list[SpanPlan] = field(default_factory=list)
    is_server: bool = False
    error: str = ""
    """What kind of error it ended with, "" for none."""


def plan_spans(call: EndedCall, timeline: RequestTimeline | None = None) -> SpanPlan:
    """The call's span with everything below it.

    Args:
        timeline: of the whole server; None: it is not known, and there are no phases.
    """
    root = SpanPlan(f"{call.method} {call.path}", call.start_ns, call.end_ns, is_server=True)
    root.attributes = {
        "http.request.method": call.method,
        "http.route": call.path,
        "url.path": call.path,
        "sixfold.request_id": call.request_id,
    }
    if call.status:
        root.attributes["http.response.status_code"] = call.status
    _name_server(root, call)
    root.error = (call.fault or str(call.status)) if call.status >= 500 or not call.status else ""
    if call.operation:
        root.children.append(_model_span(call, timeline))
    return root


def _model_span(call: EndedCall, timeline: RequestTimeline | None) -> SpanPlan:
    span = SpanPlan(f"{call.operation} {call.model}", call.start_ns, call.end_ns)
    span.attributes = {
        "gen_ai.operation.name": call.operation,
        "gen_ai.provider.name": "sixfold",
        "gen_ai.request.model": call.model,
        "gen_ai.response.model": call.model,
        **call.attributes,
    }
    _name_server(span, call)
    span.error = call.fault or ""
    if timeline is not None:
        span.children = _phases(call, timeline.states)
    return span


def _name_server(span: SpanPlan, call: EndedCall) -> None:
    host, port = call.server
    if host:
        span.attributes["server.address"] = host
        span.attributes["server.port"] = port


def _phases(call: EndedCall, states: Sequence[Interval]) -> list[SpanPlan]:
    found = []
    for name, wanted in PHASES:
        own = [state for state in states if state.state in wanted]
        if not own:
            continue
        first = max(call.start_ns, min(state.start_ns for state in own))
        last = min(call.end_ns, max(state.end_ns for state in own))
        span = SpanPlan(name, first, max(first, last))
        span.attributes["sixfold.busy_ms"] = sum(state.end_ns - state.start_ns for state in own) / 1e6
        steps = [state.step for state in own if state.step >= 0]
        if steps:
            span.attributes["sixfold.step_first"], span.attributes["sixfold.step_last"] = min(steps), max(steps)
        found.append(span)
    computing = [span for span in found if span.name in ("prefill", "decode")]
    for state in states:
        if state.state in EVENTS and computing:
            computing[-1].events.append((EVENTS[state.state], state.start_ns))
    return found
