"""`GET /debug/requests`, `GET /debug/requests/{id}`: where the time of the latest calls went, instant by instant."""

from __future__ import annotations

from typing import Any

import msgspec

from sixfold.api.call import Call
from sixfold.errors import RouteNotFound
from sixfold.observability.timeline import RequestTimeline

__all__ = ["RequestDetail", "RequestList", "RequestStates", "not_among_the_latest", "request", "requests"]

MAX_LISTED = 100
"""Of the latest calls, in one answer."""


class RequestStates(msgspec.Struct):
    """One call. Times are microseconds."""

    id: str
    path: str
    api_server: str
    status: int
    """0: it has not begun to answer."""
    fault: str
    is_done: bool
    is_whole: bool
    """False: what was noted of its beginning has been overwritten."""
    age_us: float
    """Since its headers were complete."""
    wall_us: float
    """Until its answer was written; of one in flight: until now."""
    unclaimed_us: float
    """In no state."""
    states: dict[str, float]
    """State -> time in it. They add up to `wall_us`, less `unclaimed_us`."""


class StateInterval(msgspec.Struct, omit_defaults=True):
    """A stay in one state."""

    state: str
    start_us: float
    """Since the call's begin."""
    end_us: float
    site: str = ""
    process: str = ""
    step: int = -1
    """Of the engine; left out where none is meant."""
    uid: int = 0
    choice: int = 0


class RequestList(msgspec.Struct):
    """`GET /debug/requests`: newest first."""

    data: list[RequestStates]
    object: str = "list"


class RequestDetail(RequestStates):
    """`GET /debug/requests/{id}`."""

    timeline: list[StateInterval]
    """Exclusive, in order."""


async def requests(call: Call) -> None:
    """`GET /debug/requests`."""
    observatory = call.context.observatory

    def listed() -> bytes:
        found = []
        if observatory is not None:
            snapshot = observatory.snapshot()
            found = [
                RequestStates(**_sums(one, snapshot.now_ns, snapshot.since_ns))
                for one in snapshot.timelines(MAX_LISTED)
            ]
        return msgspec.json.encode(RequestList(found))

    await call.respond(200, await call.context.threads.aside(listed))


async def request(call: Call) -> None:
    """`GET /debug/requests/{id}`."""
    observatory = call.context.observatory
    id = call.scope["path_params"]["id"]

    def detailed() -> bytes | None:
        if observatory is None:
            return None
        snapshot = observatory.snapshot()
        found = snapshot.find(id)
        if found is None:
            return None
        parts = [
            StateInterval(
                part.state,
                (part.start_ns - found.start_ns) / 1e3,
                (part.end_ns - found.start_ns) / 1e3,
                part.site,
                part.process,
                part.step,
                part.uid,
                part.choice,
            )
            for part in found.states
        ]
        return msgspec.json.encode(RequestDetail(**_sums(found, snapshot.now_ns, snapshot.since_ns), timeline=parts))

    body = await call.context.threads.aside(detailed)
    if body is None:
        raise not_among_the_latest()
    await call.respond(200, body)


def not_among_the_latest() -> RouteNotFound:
    """For a label that no call that is kept has."""
    return RouteNotFound("no such request among the latest; /debug/requests lists them")


def _sums(found: RequestTimeline, now_ns: int, since_ns: int) -> dict[str, Any]:
    return {
        "id": found.request_id,
        "path": found.path,
        "api_server": found.process,
        "status": found.status,
        "fault": found.fault,
        "is_done": found.is_done,
        "is_whole": found.start_ns >= since_ns,
        "age_us": (now_ns - found.start_ns) / 1e3,
        "wall_us": found.wall_ns / 1e3,
        "unclaimed_us": found.unclaimed_ns / 1e3,
        "states": {state.value: spent_ns / 1e3 for state, spent_ns in found.sums().items()},
    }
