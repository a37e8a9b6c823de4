"""`GET /debug/trace?seconds=N`, `GET /debug/timeline/{id}`: what the server did, or one request's part, as a Chrome
trace. Made in a thread, of what all processes have noted anyway; nothing is switched on for it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import msgspec

from sixfold.api.call import Call
from sixfold.api.debug.requests import not_among_the_latest
from sixfold.errors import InvalidRequest, NotReady, Overloaded
from sixfold.observability.observatory import Observatory
from sixfold.observability.timeline import RequestTimeline
from sixfold.roles import kind_of

if TYPE_CHECKING:
    from sixfold.observability.chrome_trace import CounterSample

__all__ = ["MAX_SECONDS", "Trace", "timeline", "trace"]

MAX_SECONDS = 60
MAX_AT_ONCE = 4
"""Documents under way in one API process, each of seconds of work and megabytes: beyond it, 429."""
MAX_REQUESTS = 256
"""In one trace: the latest."""
MARGIN_NS = 1_000_000
"""Before and behind one request."""
DEFAULT_SECONDS = 5


class Trace(msgspec.Struct):
    """A document in Chrome's Trace Event Format: https://ui.perfetto.dev opens it."""

    traceEvents: list[dict[str, Any]]
    displayTimeUnit: str
    otherData: dict[str, Any]


async def trace(call: Call) -> None:
    """`GET /debug/trace`."""
    seconds = _seconds(call)
    observatory = _observatory(call)
    counters = _counters(call)

    def made() -> bytes:
        snapshot = observatory.snapshot()
        end_ns = snapshot.now_ns
        start_ns = end_ns - round(seconds * 1e9)
        calls = [one for one in snapshot.calls if not one[1].end_ns or one[1].end_ns > start_ns][:MAX_REQUESTS]
        requests = [snapshot.timeline(*one) for one in calls]
        return _document(observatory, requests, counters, start_ns, end_ns)

    with _place(call):
        await call.respond(200, await call.context.threads.aside(made))


async def timeline(call: Call) -> None:
    """`GET /debug/timeline/{id}`."""
    observatory = _observatory(call)
    label = call.scope["path_params"]["id"]
    counters = _counters(call)

    def made() -> bytes | None:
        request = observatory.snapshot().find(label)
        if request is None:
            return None
        return _document(observatory, [request], counters, request.start_ns - MARGIN_NS, request.end_ns + MARGIN_NS)

    with _place(call):
        body = await call.context.threads.aside(made)
        if body is None:
            raise not_among_the_latest()
        await call.respond(200, body)


@contextmanager
def _place(call: Call) -> Iterator[None]:
    """One of MAX_AT_ONCE, while a document is made and sent.

    Raises:
        Overloaded: all are taken.
    """
    context = call.context
    if context.n_traces >= MAX_AT_ONCE:
        raise Overloaded(f"{MAX_AT_ONCE} traces are being made already", retry_after_s=5.0)
    context.n_traces += 1
    try:
        yield
    finally:
        context.n_traces -= 1


def _document(
    observatory: Observatory,
    requests: list[RequestTimeline],
    counters: Iterable[CounterSample],
    start_ns: int,
    end_ns: int,
) -> bytes:
    from sixfold.observability.chrome_trace import ProcessTrack, chrome_trace

    tracks = [ProcessTrack(role, meter.pid, meter.recent(start_ns)) for role, meter in observatory.processes.meters()]
    tracks.sort(key=lambda track: ("api", "engine", "worker").index(kind_of(track.role)))
    return msgspec.json.encode(chrome_trace(tracks, requests[::-1], list(counters), start_ns=start_ns, end_ns=end_ns))


def _counters(call: Call) -> list[CounterSample]:
    from sixfold.observability.chrome_trace import CounterSample  # no start waits for it

    return [
        CounterSample(
            at_ns,
            stats.blocks_free,
            stats.blocks_cached,
            stats.blocks_total - stats.blocks_free - stats.blocks_cached,
            stats.running,
            stats.waiting,
        )
        for at_ns, stats in call.context.client.recent_stats
    ]


def _observatory(call: Call) -> Observatory:
    if call.context.observatory is None:
        raise NotReady("this process keeps no traces")
    return call.context.observatory


def _seconds(call: Call) -> float:
    """The one parameter of the query.

    Raises:
        InvalidRequest: another one, or its value is out of range.
    """
    seconds = float(DEFAULT_SECONDS)
    for name, value in call.query():
        if name != "seconds":
            raise InvalidRequest("the query may hold `seconds` alone", param="query", code="unknown_field")
        try:
            seconds = float(value)
        except ValueError:
            seconds = 0.0
        if not 0 < seconds <= MAX_SECONDS:
            raise InvalidRequest(f"seconds must be above 0 and at most {MAX_SECONDS}", param="seconds")
    return seconds
