"""What an API process needs to tell of its whole server: where all processes note what they do, its own ring of calls
among them."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from sixfold.observability.meter import Meter, SiteTotals
from sixfold.observability.requests import RequestRing

if TYPE_CHECKING:
    from sixfold.observability.assembly import Snapshot

__all__ = ["Observatory"]


class Observatory:
    """See the module's docstring.

    Args:
        run_dir: of the server.
        n_api: how many API processes it has.
        api_server: this process's number.
    """

    def __init__(self, run_dir: str, n_api: int, api_server: int) -> None:
        self.run_dir = run_dir
        self.n_api = n_api
        self.calls = RequestRing.create(run_dir, api_server)

    @property
    def roles(self) -> list[str]:
        """Of all processes that have a meter, as in the names of the meters' files."""
        return ["engine", "worker-0", *(f"api-{number}" for number in range(self.n_api))]

    def snapshot(self) -> Snapshot:
        """Takes tens of milliseconds: use a thread."""
        from sixfold.observability.assembly import Snapshot  # nothing that a start needs

        return Snapshot(self.run_dir, self.n_api)

    def meters(self) -> dict[str, Meter]:
        """Role -> meter, of the processes that are there: to be read again and again."""
        found = {}
        for role in self.roles:
            with contextlib.suppress(OSError):
                found[role] = Meter.open(self.run_dir, role)
        return found

    def totals(self) -> dict[str, list[SiteTotals]]:
        """Role -> [site id], of the processes that are there."""
        return {role: meter.totals() for role, meter in self.meters().items()}
