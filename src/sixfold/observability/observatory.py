"""What an API process needs to tell of its whole server: where all processes note what they do, its own ring of calls
among them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sixfold.observability.calls import CallRing
from sixfold.observability.processes import Processes

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
        self._run_dir = run_dir
        self._n_api = n_api
        self.processes = Processes(run_dir, n_api)
        self.calls = CallRing.create(run_dir, api_server)

    def snapshot(self) -> Snapshot:
        """Takes tens of milliseconds: use a thread."""
        from sixfold.observability.assembly import Snapshot  # nothing that a start needs

        return Snapshot(self._run_dir, self._n_api)
