"""What the processes of a server are called, in one spelling: `supervisor`, `engine`, `worker 0`, `api 0`, `api 1`, ...

So in titles, log lines and traces. Where a blank is in the way, in names of files and labels of metrics, it is `slug`.
"""

from __future__ import annotations

__all__ = ["ENGINE", "SUPERVISOR", "WORKER", "api_index", "api_role", "is_api", "kind_of", "slug"]

SUPERVISOR = "supervisor"
ENGINE = "engine"
WORKER = "worker 0"

_API = "api "


def api_role(index: int) -> str:
    """`api 1`"""
    return f"{_API}{index}"


def api_index(role: str) -> int | None:
    """`api 1` -> 1; None of any other process."""
    return int(role.removeprefix(_API)) if is_api(role) else None


def is_api(role: str) -> bool:
    """Whether it is an API process's."""
    return role.startswith(_API)


def kind_of(role: str) -> str:
    """`api 1` -> `api`"""
    return role.partition(" ")[0]


def slug(role: str) -> str:
    """`api 1` -> `api-1`"""
    return role.replace(" ", "-")
