"""The kill matrix: who is hit, by what, when, and what must come of it. Said once, for the command and for the docs.

How each fault is made:

    KILL    SIGKILL; also what the kernel does to a process when the machine runs out of memory
    STOP    SIGSTOP; the supervisor is continued after a while, the others are not
    TERM    SIGTERM to this process alone
    memory  its limit of address space (RLIMIT_AS) is set below what it has: nothing more can be mapped. Of the
            supervisor and of API processes the limit is lifted again after a while

`python -m tests.chaos.cells` writes the table of docs/reliability.md anew.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

__all__ = ["CELLS", "FAULTS", "PAGE", "PHASES", "ROLES", "Cell", "Outcome", "expected", "page_table"]

PAGE = Path(__file__).resolve().parents[2] / "docs" / "reliability.md"
HEAD = "| process | fault | while | what comes of it |"
ROLES = ("supervisor", "api", "engine", "worker")
FAULTS = ("KILL", "STOP", "TERM", "memory")
PHASES = {
    "starting": "the process has just been started",
    "loading": "the engine and the API process wait for the worker, which loads",
    "prefill": "prompts are being read, nobody has got a token",
    "decode": "answers that are not streamed are under way",
    "streaming": "streams have shown tokens",
    "draining": "streams are under way, and the server has got SIGTERM",
}


@dataclass(frozen=True)
class Cell:
    role: str
    fault: str
    phase: str

    def __str__(self) -> str:
        return f"{self.role} {self.fault} {self.phase}"


@dataclass(frozen=True)
class Outcome:
    """What must come of a fault.

    Attributes:
        text: for the docs.
        answers: how answers that are under way may end: `whole` (the same as of an undisturbed run), `broken` (the
            connection ends, without anything that looks like an end), or `error CODE`.
        exits: statuses with which the server may end; empty: it goes on, and does so by itself.
        restarts: whether a process is started again; None: it may.
    """

    text: str
    answers: frozenset[str] = frozenset({"whole"})
    exits: frozenset[int] = frozenset()
    restarts: bool | None = False
    may_go_on: bool = False
    """Although `exits` names a status."""


def _ends(text: str, status: int, *answers: str) -> Outcome:
    return Outcome(text, frozenset(answers), frozenset({status}), None)


_GONE = _ends(
    "every process ends at once; connections break, some after the error `engine_dead`",
    -9,
    "broken",
    "error engine_dead",
)
_FAILED_START = _ends("the server ends with status 4", 4)
_NOT_STARTED = _ends("the server ends at once with status 0", 0)
_READY_LATER = Outcome("ready once it is continued")
_NEVER_HALF_READY = Outcome(
    "ready, or the server ends with status 4 (1 or 2 where an import had no memory); never ready without all processes",
    exits=frozenset({4, 1, 2}),
    may_go_on=True,
)
_READY_ANYWAY = Outcome("ready: it has started all processes")
_READY_IF_ENOUGH = Outcome(
    "ready, or the server ends with status 4, should the rest of its start need memory that it does not have",
    exits=frozenset({4}),
    may_go_on=True,
)
_UNNOTICED = Outcome("nothing; deaths meanwhile are seen to afterwards")
_NO_MEMORY_NEEDED = Outcome("nothing: it needs no memory for what is under way")
_DRAINED = _ends("answers end as ever, then the server with status 0", 0, "whole")
_CUT_SHORT = _ends("a second signal: streams end with the error `draining`, status 0", 0, "error draining")
_TOLD_THEN_ENDED = _ends(
    "its streams end with the error `draining`, then the server with status 0", 0, "error draining"
)
_PAUSE = Outcome("a pause; the same answers", restarts=True)
_PERHAPS_PAUSE = Outcome("a pause if it needs memory; the same answers", restarts=None)
_BREAKS = Outcome("its connections break; it is started again", frozenset({"broken"}), restarts=True)
_TOLD = Outcome(
    "its answers end with the error `draining`; it is started again", frozenset({"error draining"}), restarts=True
)
_STARVES = Outcome(
    "what needs memory fails, or it ends as if killed; the rest is the same",
    frozenset({"whole", "broken", "error internal_error", "error 500"}),
    restarts=None,
)
_DRAINED_WITH_PAUSE = _ends("a pause; the same answers, then status 0", 0, "whole")
_PERHAPS_DRAINED_WITH_PAUSE = _ends("a pause if it needs memory; the same answers, then status 0", 0, "whole")
_BROKEN_THEN_ENDED = _ends("its connections break, then the server ends with status 0", 0, "broken")
_STARVED_THEN_ENDED = _ends(
    "what needs memory fails, or it ends as if killed; then the server with status 0",
    0,
    *_STARVES.answers,
    "error draining",
)

_BEFORE = ("starting", "loading")


def expected(cell: Cell) -> Outcome:
    """What must come of it."""
    is_early, is_late = cell.phase in _BEFORE, cell.phase == "draining"
    match cell.role, cell.fault:
        case "supervisor", "KILL":
            return _GONE
        case "supervisor", "STOP":
            return _READY_LATER if is_early else _DRAINED if is_late else _UNNOTICED
        case "supervisor", "TERM":
            return _NOT_STARTED if is_early else _CUT_SHORT if is_late else _DRAINED
        case "supervisor", "memory":
            early = _NEVER_HALF_READY if cell.phase == "starting" else _READY_ANYWAY
            return early if is_early else _DRAINED if is_late else _NO_MEMORY_NEEDED
        case "api", "memory" if cell.phase == "loading":
            return _READY_IF_ENOUGH
        case _, _ if is_early:
            return _FAILED_START
        case "api", "memory":
            return _STARVED_THEN_ENDED if is_late else _STARVES
        case "api", "TERM":
            return _TOLD_THEN_ENDED if is_late else _TOLD
        case "api", _:
            return _BROKEN_THEN_ENDED if is_late else _BREAKS
        case _, _ if is_late:
            return _PERHAPS_DRAINED_WITH_PAUSE if cell.fault == "memory" else _DRAINED_WITH_PAUSE
        case _, "memory":
            return _PERHAPS_PAUSE
        case _:
            return _PAUSE


CELLS = tuple(Cell(role, fault, phase) for role in ROLES for fault in FAULTS for phase in PHASES)


def page_table() -> str:
    """The matrix as a table in Markdown: processes, faults and phases of the same outcome share a row."""
    lines = [HEAD, "|---|---|---|---|"]
    by_rows: dict[tuple[tuple[str, str, str], ...], list[str]] = {}
    for role in ROLES:
        by_rows.setdefault(tuple(_rows(role)), []).append(role)
    for rows, roles in by_rows.items():
        lines += [f"| {', '.join(roles)} | {faults} | {phases} | {text} |" for faults, phases, text in rows]
    return "\n".join(lines) + "\n"


def _rows(role: str) -> Iterator[tuple[str, str, str]]:
    """Faults, phases, text."""
    by_phases: dict[tuple[str, str], list[str]] = {}
    for fault in FAULTS:
        by_text: dict[str, list[str]] = {}
        for phase in PHASES:
            by_text.setdefault(expected(Cell(role, fault, phase)).text, []).append(phase)
        for text, phases in by_text.items():
            by_phases.setdefault((", ".join(phases), text), []).append(fault)
    for (phases_named, text), faults in by_phases.items():
        yield ", ".join(faults), phases_named, text


if __name__ == "__main__":
    before, _, behind = PAGE.read_text().partition(HEAD)
    PAGE.write_text(before + page_table() + "\n" + behind.partition("\n\n")[2])
