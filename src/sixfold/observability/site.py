"""What is said of one place where time goes."""

from __future__ import annotations

import enum
from typing import NamedTuple

__all__ = ["Kind", "Site"]


class Kind(enum.Enum):
    """What kind of time it is; of a wait: why it is there."""

    WORK = "work"
    """The processor does something for somebody."""
    INVARIANT = "invariant"
    """A wait that protects a property: which, and which test fails without it."""
    OVERLAPPABLE = "overlappable"
    """A wait while something else runs, or could: what."""
    SHRINKABLE = "shrinkable"
    """A wait that protects nothing and can be made shorter: by which lever."""
    IDLE = "idle"
    """Nothing is to be done."""


class Site(NamedTuple):
    """One place where time goes."""

    name: str
    """`component.what`, in lower case."""
    kind: Kind
    where: str
    """`file: function, function; file: function`, below src/sixfold/."""
    what: str
    """What it is, in a few words."""
    protects: str = ""
    """INVARIANT: the property that would not hold without the wait."""
    test: str = ""
    """INVARIANT: `file::test` below tests/ that fails without the wait."""
    meanwhile: str = ""
    """OVERLAPPABLE: what runs, or could run, at the same time."""
    lever: str = ""
    """SHRINKABLE: what makes it shorter."""
    part_of: str = ""
    """Name of the site whose time this one is a part of. Parts are totals alone: their intervals are not kept."""
    bound: str = ""
    """Of a wait: after what time it is over at the latest, or what ends it."""
    timed: bool = True
    """Whether a meter counts it; a wait of a start or an end is only registered."""

    @property
    def component(self) -> str:
        return self.name.partition(".")[0]

    @property
    def places(self) -> list[str]:
        """`where`, as one `file: function` each."""
        found = []
        for part in self.where.split("; "):
            file, _, functions = part.partition(": ")
            found += [f"{file}: {function}" for function in functions.split(", ")]
        return found
