"""The documents of `GET /debug/live`: what one frame of the feed holds.

Numbers that identify (uids) are hexadecimal text: JavaScript's numbers have 53 bits.
"""

from __future__ import annotations

import base64
import time
from typing import TYPE_CHECKING, Any

import msgspec

from sixfold.api.debug.timing import PlaceFrame, SiteFrame, SpanFrame
from sixfold.messages import ChoiceView, EngineStats, EngineView

if TYPE_CHECKING:
    from sixfold.api.call import Call
    from sixfold.api.context import ApiContext
    from sixfold.api.generation import Generation

__all__ = [
    "PAGE_CELLS",
    "ChoiceFrame",
    "EndedFrame",
    "LiveFrame",
    "MapFrame",
    "RequestFrame",
    "changed_pages",
    "ended_frame",
    "frame_of",
    "state_of",
]

PAGE_CELLS = 256
"""Of the block map: a page is sent again when one of its cells has changed."""

MAX_REQUESTS = 256
"""In one frame: the oldest."""


class ChoiceFrame(msgspec.Struct, frozen=True):
    """A choice in the engine: see `ChoiceView`."""

    uid: str
    choice: int
    state: str
    reason: str
    prompt: int
    computed: int
    output: int
    cached: int
    blocks: int
    slot: int
    incarnation: int
    limit: int


class RequestFrame(msgspec.Struct, frozen=True):
    """A call that is being answered by this API process."""

    id: str
    """Of the answer, once there is one; before, and where an answer has none, the call's label."""
    label: str
    path: str
    stage: str
    """`receive`: its body arrives. `prepare`: it is parsed, rendered, tokenized. `submit`: the engine is asked.
    `engine`: the engine has it."""
    uids: list[str]
    age_ms: float


class EndedFrame(msgspec.Struct, frozen=True):
    """A request of this API process that has ended."""

    id: str
    label: str
    path: str
    uids: list[str]
    reasons: list[str]
    """Per choice: `stop`, `length`, `abort`, `timeout` or `error`."""
    prompt: int
    output: int
    cached: int
    ms: float
    """From its arrival."""


class MapFrame(msgspec.Struct, frozen=True):
    """The block map: pages that have changed since the frame before, all of them in the first."""

    cells: int
    blocks_per_cell: int
    page_cells: int
    pages: list[tuple[int, str]]
    """(number, 16-bit little-endian cells in base64): 0 free, 1 cached, 2 shared, 3 + slot held by the choice there."""


class LiveFrame(msgspec.Struct, frozen=True, omit_defaults=True):
    """One event of the feed."""

    time_ms: float
    """CLOCK_MONOTONIC, when the frame was made."""
    engine_time_ms: float
    """When the engine was looked at; 0 before the first time."""
    state: str
    """`ready`, `starting`, `restarting`, `draining` or `dead`."""
    epoch: int
    step: int
    outstanding: int
    stats: EngineStats
    choices: list[ChoiceFrame]
    requests: list[RequestFrame]
    n_calls: int
    """Calls that this API process answers now, watchers among them."""
    n_preparing: int
    n_watchers: int
    map: MapFrame | None = None
    """This and what follows is made for each watcher: what has changed since its last frame."""
    ended: list[EndedFrame] = []
    sites: list[SiteFrame] = []
    """In the first frame."""
    places: list[PlaceFrame] = []
    spans: list[SpanFrame] = []


def frame_of(context: ApiContext, view: EngineView | None, now_s: float, n_watchers: int) -> LiveFrame:
    """What there is to see now."""
    return LiveFrame(
        time_ms=now_s * 1e3,
        engine_time_ms=view.time_ns / 1e6 if view is not None else 0.0,
        state=state_of(context),
        epoch=context.client.engine_epoch,
        step=view.step_id if view is not None else 0,
        outstanding=view.outstanding if view is not None else 0,
        stats=view.stats if view is not None else context.client.stats,
        choices=[_choice(choice) for choice in view.choices] if view is not None else [],
        requests=_requests(context, now_s),
        n_calls=len(context.calls),
        n_preparing=context.admission.n_preparing,
        n_watchers=n_watchers,
    )


def ended_frame(generation: Generation, call: Call) -> EndedFrame:
    """What there was to see of a request, at its end."""
    usage = generation.usage()
    return EndedFrame(
        id=generation.names[-1],
        label=generation.names[0],
        path=call.scope["path"],
        uids=[f"{uid:x}" for uid in generation.uids],
        reasons=generation.reasons(),
        prompt=usage.prompt_tokens,
        output=usage.completion_tokens,
        cached=usage.prompt_tokens_details.cached_tokens,
        ms=(time.monotonic() - call.arrival_s) * 1e3,
    )


def state_of(context: ApiContext) -> str:
    """In one word, how the server is."""
    client = context.client
    if client.dead is not None:
        return "dead"
    if context.admission.draining:
        return "draining"
    if client.ready:
        return "ready"
    return "restarting" if client.restarting else "starting"


def changed_pages(view: EngineView, before: EngineView | None) -> MapFrame:
    """The block map for somebody who has seen the view `before`, or none."""
    new = view.cells
    old = before.cells if before is not None and len(before.cells) == len(new) else b""
    size = 2 * PAGE_CELLS
    pages = [
        (start // size, base64.b64encode(new[start : start + size]).decode())
        for start in range(0, len(new), size)
        if new[start : start + size] != old[start : start + size]
    ]
    return MapFrame(len(new) // 2, view.blocks_per_cell, PAGE_CELLS, pages)


def _choice(view: ChoiceView) -> ChoiceFrame:
    return ChoiceFrame(
        f"{view.uid:x}",
        view.choice,
        view.state,
        view.reason,
        view.n_prompt,
        view.n_computed,
        view.n_output,
        view.n_cached,
        view.n_blocks,
        view.slot,
        view.incarnation,
        view.limit,
    )


def _requests(context: ApiContext, now_s: float) -> list[RequestFrame]:
    of_call: dict[Any, Any] = {generation.call: generation for generation in context.generations}
    found = []
    for call in sorted(context.calls, key=lambda call: call.arrival_s):
        generation = of_call.get(call)
        if generation is None and call.scope.get("method") != "POST":
            continue
        if generation is not None:
            stage = "engine" if generation.is_accepted else "submit"
            identity, uids = generation.names[-1], [f"{uid:x}" for uid in generation.uids]
        else:
            stage = "prepare" if call.body_bytes else "receive"
            identity, uids = call.request_id, []
        age_ms = (now_s - call.arrival_s) * 1e3
        found.append(RequestFrame(identity, call.request_id, call.scope["path"], stage, uids, age_ms))
        if len(found) == MAX_REQUESTS:
            break
    return found
