"""What API processes of one server ask each other."""

from __future__ import annotations

import msgspec

__all__ = ["AbortNamed", "ApiCounts", "CountsAsked", "Found"]


class AbortNamed(msgspec.Struct, frozen=True, tag="abort_named"):
    """How many requests do you have of this name? Answered with `Found`."""

    name: str
    tenant: str | None
    """Whose requests are looked at; None: everybody's."""
    end: bool
    """End it, if there is exactly one."""


class CountsAsked(msgspec.Struct, frozen=True, tag="counts_asked"):
    """What have you counted? Answered with `ApiCounts`."""


class Found(msgspec.Struct, frozen=True, tag="found"):
    """So many requests."""

    n: int


class ApiCounts(msgspec.Struct, frozen=True, kw_only=True, tag="api_counts"):
    """What one API process has counted since its start."""

    api_server: int
    finished: dict[str, int]
    """Finish reason -> choices."""
    aborts: dict[str, int]
    """Cause -> calls."""
    refused: list[tuple[int, str, int]]
    """Status, reason, calls."""
    streams_cut: int
    spans_dropped: int
    engine: dict[str, int]
    """Counter of the engine -> its sum over all engines of which the process has heard."""
    histograms: dict[str, tuple[list[int], float]]
    """Name -> counts per bucket, the last one without an upper bound; sum of all values."""
