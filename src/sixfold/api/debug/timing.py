"""For the feed: what each process of the server did since somebody looked last, and what its places add up to.

Read from the meters' shared memory: whoever is measured takes no part in it.
"""

from __future__ import annotations

from collections import deque

import msgspec

from sixfold.observability.meter import now
from sixfold.observability.observatory import Observatory
from sixfold.observability.sites import SITES
from sixfold.roles import slug

__all__ = ["SITE_FRAMES", "MeterFeed", "PlaceFrame", "SiteFrame", "SpanFrame"]

MAX_SPANS = 400
"""Of one process, at one look: the latest."""
KEPT = 4000
"""Spans for watchers who have not taken them yet."""
LOOK_NS = 50_000_000
PLACES_NS = 500_000_000


class SiteFrame(msgspec.Struct, frozen=True):
    """A place where time goes: see `observability/site.py`."""

    name: str
    kind: str
    what: str


class SpanFrame(msgspec.Struct, frozen=True, array_like=True):
    """One stay at a place. An array, in this order."""

    role: str
    site: int
    """Index in the list of sites, which the first frame has."""
    start_ms: float
    """CLOCK_MONOTONIC."""
    ms: float
    step: int
    uid: str
    """Of the request, in hexadecimal digits; empty where it belongs to none."""


class PlaceFrame(msgspec.Struct, frozen=True, array_like=True):
    """What a process spent at a place, since the server's start. An array, in this order."""

    role: str
    site: int
    count: int
    total_ms: float
    longest_ms: float
    waiting: int
    """Who is there now."""
    since_ms: float
    """For how long somebody has been there without a break."""


SITE_FRAMES = [SiteFrame(site.name, site.kind.value, site.what) for site in SITES]


class MeterFeed:
    """See the module's docstring. For as long as somebody watches.

    Args:
        observatory: of the server; None: there is nothing to be read.
    """

    def __init__(self, observatory: Observatory | None) -> None:
        self._observatory = observatory
        self._read: dict[str, int] = {}
        self._spans: deque[SpanFrame] = deque(maxlen=KEPT)
        self.n_spans = 0
        """Ever."""
        self.places: list[PlaceFrame] = []
        self.places_ns = 0
        self._looked_ns = 0

    def look(self) -> None:
        """Read what is new, unless that was done a moment ago."""
        if self._observatory is None:
            return
        at = now()
        if at - self._looked_ns < LOOK_NS:
            return
        self._looked_ns = at
        for role, meter in self._observatory.processes.meters():
            # What was before somebody looked is left alone.
            self._read[role], intervals = meter.after(self._read.get(role, meter.n_written), MAX_SPANS)
            for start_ns, end_ns, site, step, uid in intervals:
                name = f"{uid:x}" if uid else ""
                self._spans.append(SpanFrame(slug(role), site, start_ns / 1e6, (end_ns - start_ns) / 1e6, step, name))
            self.n_spans += len(intervals)
        if at - self.places_ns > PLACES_NS:
            self.places_ns = at
            self.places = [
                PlaceFrame(
                    slug(role),
                    site,
                    one.count,
                    one.total_ns / 1e6,
                    one.longest_ns / 1e6,
                    one.n_waiting,
                    (at - one.since_ns) / 1e6 if one.since_ns else 0.0,
                )
                for role, meter in self._observatory.processes.meters()
                for site, one in enumerate(meter.totals())
                if one.count or one.n_waiting
            ]

    def spans_after(self, n: int) -> list[SpanFrame]:
        """Those after the first `n` ever, as far as they are kept."""
        n_new = min(self.n_spans - n, len(self._spans))
        return list(self._spans)[len(self._spans) - n_new :]
