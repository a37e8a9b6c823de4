"""Requests in flight by the names under which their callers know them, so that another connection can end one.

A request has two names: the label of its call (`X-Request-Id`), and the id in its answer. Labels are chosen by clients,
so several requests may have the same; none of them is ended by it, lest one client ends what is another's.

This is the one place that knows which requests are this process's. Where several API processes answer on one port, the
others are asked (`abort.py`).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from sixfold.errors import RequestAborted, SixfoldError

__all__ = ["OpenRequests"]


class Closable(Protocol):
    """What can be ended: see `Generation.close`."""

    def close(self, error: SixfoldError) -> None: ...


class OpenRequests:
    """See the module's docstring. Belongs to one event loop."""

    def __init__(self) -> None:
        self._by_name: dict[str, list[tuple[str, Closable]]] = {}
        """Name -> (tenant, request)."""

    def __len__(self) -> int:
        """Names that something in flight has."""
        return len(self._by_name)

    def enter(self, names: Iterable[str], request: Closable, tenant: str = "") -> None:
        for name in names:
            self._by_name.setdefault(name, []).append((tenant, request))

    def leave(self, names: Iterable[str], request: Closable, tenant: str = "") -> None:
        """The request has ended."""
        for name in names:
            found = self._by_name[name]
            found.remove((tenant, request))
            if not found:
                del self._by_name[name]

    def abort(self, name: str, tenant: str | None = "", *, end: bool = True) -> int:
        """End the request of this name, if there is exactly one: its caller gets `RequestAborted`, and the engine frees
        what it held.

        Args:
            tenant: whose requests are looked at; None: everybody's.
            end: otherwise they are only counted.

        Returns:
            How many have the name.
        """
        found = [request for owner, request in self._by_name.get(name, ()) if tenant in (None, owner)]
        if end and len(found) == 1:
            found[0].close(RequestAborted("the request was aborted by another call"))
        return len(found)
