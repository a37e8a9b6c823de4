"""`GET /debug/waits`: every place of the server where time goes, what it has come to, and why a wait is there."""

from __future__ import annotations

import msgspec

from sixfold.api.call import Call
from sixfold.observability import meter
from sixfold.observability.meter import N_BUCKETS, SiteTotals, bucket_end_ns
from sixfold.observability.site import Site
from sixfold.observability.sites import SITES

__all__ = ["WaitList", "WaitSite", "register", "waits"]


class WaitSite(msgspec.Struct, omit_defaults=True):
    """One site, all processes together. Times are microseconds since the server's start."""

    name: str
    component: str
    kind: str
    what: str
    where: str
    protects: str = ""
    test: str = ""
    meanwhile: str = ""
    lever: str = ""
    part_of: str = ""
    """Name of the site whose time this one is a part of."""
    bound: str = ""
    timed: bool = True
    """False: it is registered and not counted."""
    count: int = 0
    total_us: float = 0
    mean_us: float = 0
    p50_us: float = 0
    """Of the histogram: the upper bound of a bucket, which doubles from one to the next."""
    p99_us: float = 0
    max_us: float = 0
    waiting: int = 0
    """Who waits there now, of those who say so when they begin."""
    waiting_since_us: float = 0
    """For how long somebody has."""


class WaitList(msgspec.Struct):
    """`GET /debug/waits`."""

    data: list[WaitSite]
    object: str = "list"


async def waits(call: Call) -> None:
    """`GET /debug/waits`: sites by total time, the register's order where nothing was counted."""
    observatory = call.context.observatory
    totals = [] if observatory is None else [one.totals() for _, one in observatory.processes.meters()]
    sites = [_site(site, [of_process[index] for of_process in totals]) for index, site in enumerate(SITES)]
    sites.sort(key=lambda site: -site.total_us)
    await call.respond(200, msgspec.json.encode(WaitList(sites)))


def register() -> WaitList:
    """The register alone: what there is to say without a server."""
    return WaitList([_site(site, []) for site in SITES])


def _site(site: Site, totals: list[SiteTotals]) -> WaitSite:
    known = WaitSite(component=site.component, **{**site._asdict(), "kind": site.kind.value})
    count = sum(one.count for one in totals)
    known.waiting = sum(one.n_waiting for one in totals)
    since_ns = min((one.since_ns for one in totals if one.since_ns), default=0)
    if since_ns:
        known.waiting_since_us = (meter.now() - since_ns) / 1e3
    if count:
        known.count = count
        known.total_us = sum(one.total_ns for one in totals) / 1e3
        known.mean_us = known.total_us / count
        known.max_us = max(one.longest_ns for one in totals) / 1e3
        buckets = [sum(one.buckets[bucket] for one in totals) for bucket in range(N_BUCKETS)]
        known.p50_us = min(known.max_us, _quantile(buckets, 0.5))
        known.p99_us = min(known.max_us, _quantile(buckets, 0.99))
    return known


def _quantile(buckets: list[int], share: float) -> float:
    """Microseconds: the upper bound of the bucket in which the quantile lies."""
    left = share * sum(buckets)
    for bucket, count in enumerate(buckets):
        left -= count
        if left <= 0:
            return bucket_end_ns(bucket) / 1e3
    return bucket_end_ns(N_BUCKETS) / 1e3
