"""The kill matrix on real processes: every cell is tried, and compared with what `cells.py` says.

    python -m tests.chaos.matrix                                     96 cells, about seven minutes
    python -m tests.chaos.matrix --role engine --phase decode        some of them

Prints a table in Markdown. The exit status is 1 when a cell has another outcome than written down. Run from a checkout.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import functools
import json
import subprocess
import sys
import time
from dataclasses import dataclass, field

from tests.chaos.cells import CELLS, FAULTS, PHASES, ROLES, Cell, Outcome, expected
from tests.chaos.clients import Answer, Callers, bodies
from tests.chaos.site import Site, take_charge, wait_for

from sixfold.engine.progress import Count

__all__ = ["Observation", "main", "try_cell"]

N_TOKENS = 60
STEP_MS = 8
HANG_S = 1.5
LOADING_HANG_S = 30.0
"""A worker that is held while it loads does nothing, for as long as the others need to come so far. Processes that are
stopped have five seconds whatever this is."""
PROMPT = "a prompt that takes a while to read " * 12
FLAGS = ("--max-num-batched-tokens", "32", "--drain-timeout-s", "25")
N_TRIES = 3
N_PROCESSES = 3
"""That the supervisor starts."""
STOPPED_FOR_S = 1.0
"""The supervisor, which nobody replaces."""
STARVED_FOR_S = 1.0
BODIES = bodies("scripted", N_TOKENS)
LONG_BODIES = bodies("scripted", N_TOKENS, PROMPT)


class PhaseMissed(Exception):
    """Answers had ended before all of them were under way: the machine is busy, and the fault was never made."""


@dataclass
class Observation:
    """What came of a fault."""

    ends: list[str] = field(default_factory=list)
    """Of the answers that were under way."""
    exit: int | None = None
    """The server's status; None: it went on."""
    restarts: dict[str, int] = field(default_factory=dict)
    faults: list[str] = field(default_factory=list)
    """Whatever no outcome allows."""
    hit: tuple[str, int] | None = None
    """Role and id of a process that may survive it."""
    survived: bool | None = None
    """Whether that process is there in the end; None: nobody looked."""
    all_started: bool | None = None
    """Whether the supervisor had started all processes when it was hit; None: nobody looked."""

    def __str__(self) -> str:
        parts = [f"{n} {end}" for end, n in sorted(collections.Counter(self.ends).items())]
        parts += [f"{role} restarted" for role, n in self.restarts.items() if n]
        parts += [f"status {self.exit}"] if self.exit is not None else ["serves"]
        return ", ".join(parts + self.faults)

    def differs(self, cell: Cell, outcome: Outcome) -> str:
        """In what it is not the expected one; empty: it is."""
        faults = list(self.faults)
        faults += [f"an answer ended as {end}" for end in set(self.ends) - outcome.answers]
        if self.exit is None and outcome.exits and not outcome.may_go_on:
            faults.append("the server went on")
        if self.exit is not None and self.exit not in outcome.exits:
            faults.append(f"the server ended with {self.exit}")
        if self.all_started is False and self.exit is None:
            faults.append("ready, though not all processes had been started")
        if self.survived is not None and cell.fault == "memory":
            # Where two things may come of it, each is one of them as a whole.
            if self.survived and "broken" in self.ends:
                faults.append("connections broke of a process that lives")
            if self.exit is None and self.survived != (not self.restarts.get(cell.role)):
                faults.append("it lives and was started again" if self.survived else "it is gone, and no other came")
        if self.exit is None and outcome.restarts is not None:
            was = self.restarts.get(cell.role, 0) > 0
            if was != outcome.restarts:
                faults.append("it was started again" if was else "it was not started again")
        return "; ".join(faults)


@functools.cache
def undisturbed() -> tuple[list[Answer], list[Answer]]:
    """Answers to BODIES and to LONG_BODIES when nothing happens."""
    with Site("scripted", *FLAGS) as site:
        if not site.server.wait_announced():
            raise RuntimeError(site.server.output)
        return Callers(site.server.url, BODIES).join(), Callers(site.server.url, LONG_BODIES).join()


def try_cell(cell: Cell) -> Observation:
    """Start a server, bring it into the phase, hit, and see.

    Raises:
        PhaseMissed: in each of N_TRIES.
    """
    for _ in range(N_TRIES - 1):
        with contextlib.suppress(PhaseMissed):
            return _try_once(cell)
    return _try_once(cell)


def _try_once(cell: Cell) -> Observation:
    seen = Observation()
    script = json.dumps({"step_ms": STEP_MS})
    is_loading = cell.phase == "loading"
    flags = (*FLAGS, "--hang-timeout-s", str(LOADING_HANG_S if is_loading else HANG_S))
    with Site("scripted", *flags, script=script, holds=is_loading) as site:
        try:
            if cell.phase in ("starting", "loading"):
                _hit_early(site, cell, seen)
            else:
                _hit_late(site, cell, seen)
            if seen.exit is None and expected(cell).exits and not expected(cell).may_go_on:
                seen.exit = site.wait_end()
            if seen.exit is None:
                _check_serves(site, seen)
        except (TimeoutError, AssertionError, RuntimeError, subprocess.TimeoutExpired) as fault:
            seen.faults.append(f"{type(fault).__name__}: {fault}")
        if "Traceback" in site.server.output and cell.fault != "memory":
            seen.faults.append("a traceback")
        try:
            site.server.stop()
        except subprocess.TimeoutExpired:
            seen.faults.append("it does not end")
        if left := site.leftovers():
            seen.faults.append(f"left: {left}")
        if seen.faults:
            print(f"{cell}\n{site.server.output}", file=sys.stderr)
    return seen


def _hit_early(site: Site, cell: Cell, seen: Observation) -> None:
    """Before the server is ready. The worker loads until it is hit, however long the others need to come so far."""
    if cell.phase == "loading":
        wait_for("the engine at the worker's door", lambda: _loads(site))
        pid = site.wait_pid(cell.role)
    elif cell.role == "supervisor":
        site.wait_pid("worker")
        pid = site.wait_pid(cell.role)
    else:
        pid = site.wait_pid(cell.role)
    if cell == Cell("supervisor", "memory", "starting"):
        with site.frozen(pid):  # so that what it had started is known
            site.hit(cell.role, cell.fault, pid)
            seen.all_started = len(site.server.children()) == N_PROCESSES
    else:
        site.hit(cell.role, cell.fault, pid)
    if cell.role == "supervisor" and cell.fault == "STOP":
        time.sleep(STOPPED_FOR_S)
        site.mend(cell.fault, pid)
    site.let_load()
    wait_for(
        "the server's start or end", lambda: site.server.wait_announced(0.01) or site.server.process.poll() is not None
    )
    if cell.fault == "memory" and site.server.process.poll() is None:
        site.mend(cell.fault, pid)
    seen.exit = site.server.process.poll()


def _loads(site: Site) -> bool:
    counts = site.counts()
    return counts is not None and bool(
        counts[Count.ENGINE_ATTACHING] and counts[Count.API_TURNS] and not counts[Count.WORKER_LOADED]
    )


def _hit_late(site: Site, cell: Cell, seen: Observation) -> None:
    """While answers are under way."""
    if not site.server.wait_announced():
        raise RuntimeError("the server did not start")
    short, long = undisturbed()
    own, whole = (LONG_BODIES, long) if cell.phase == "prefill" else (BODIES, short)
    counts = site.counts()
    assert counts is not None
    pid = site.wait_pid(cell.role)
    callers = Callers(site.server.url, own, stream=cell.phase != "decode")
    try:
        site.wait_count(Count.API_OPEN, sum(body.get("n", 1) for body in own))
    except TimeoutError:
        raise PhaseMissed from None
    if cell.phase == "prefill":
        site.wait_count(Count.ENGINE_COMMITTED, 2)
    elif cell.phase == "decode":
        site.wait_count(Count.ENGINE_COMMITTED, 20)
    else:
        callers.wait_events(8)
    if cell.phase == "draining":
        site.server.process.terminate()
        wait_for("draining", lambda: "SIGTERM: " in site.server.output)
    site.hit(cell.role, cell.fault, pid)
    if cell.fault == "memory" and cell.phase != "draining":
        _press(site, cell, seen)
    if cell.role in ("supervisor", "api") and cell.fault in ("memory", "STOP"):
        time.sleep(STARVED_FOR_S if cell.fault == "memory" else STOPPED_FOR_S)
        if cell.role == "supervisor" or cell.fault == "memory":
            site.mend(cell.fault, pid)
    for answer, right in zip(callers.join(), whole, strict=True):
        end = answer.end
        if end == "whole" and cell.phase == "decode":
            right = Answer(end, right.choices, right.usage)
        if end == "whole" and answer.content != right.content:
            end = "wrong content"
        elif not answer.is_part_of(right):
            end = "wrong part"
        seen.ends.append(end)
    if cell.fault == "memory" and cell.phase != "draining":
        seen.hit = cell.role, pid
        if cell.role in ("engine", "worker") and site.pid(cell.role) == pid:
            site.mend(cell.fault, pid)
    seen.restarts = site.restarts()
    seen.exit = site.server.process.poll()


def _press(site: Site, cell: Cell, seen: Observation) -> None:
    """Make the process need memory: a request that is far too long, and many that are queued."""
    big = {"model": "scripted", "prompt": "x" * (1 << 20), "max_tokens": 1}
    many = {"model": "scripted", "prompt": "y" * 1900, "max_tokens": 1}
    ends = {answer.end for answer in Callers(site.server.url, [big] + [many] * 64).join()}
    allowed = {"whole", "error context_length_exceeded", "error queue_full"}
    if cell.role == "api":
        allowed |= expected(cell).answers
    if ends - allowed:
        seen.faults.append(f"pressing ended as {sorted(ends - allowed)}")


def _check_serves(site: Site, seen: Observation) -> None:
    """It does what it did before, holds nothing, and ends when it is told to."""
    short, _ = undisturbed()
    wait_for("readiness", lambda: _is_ready(site))
    answers = Callers(site.server.url, BODIES).join()
    if [a.content for a in answers] != [a.content for a in short]:
        seen.faults.append("other answers afterwards")
    site.server.wait_idle()
    seen.restarts = site.restarts()
    if seen.hit is not None:
        role, pid = seen.hit
        seen.survived = site.pid(role) == pid
    status = site.server.stop()
    if status != 0:
        seen.faults.append(f"status {status} in the end")


def _is_ready(site: Site) -> bool:
    try:
        return site.server.request("GET", "/readyz")[0] == 200
    except OSError:
        return False


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, values in (("role", ROLES), ("fault", FAULTS), ("phase", tuple(PHASES))):
        parser.add_argument(f"--{name}", choices=values, action="append")
    arguments = parser.parse_args()
    take_charge()
    chosen = [
        cell
        for cell in CELLS
        if cell.role in (arguments.role or ROLES)
        and cell.fault in (arguments.fault or FAULTS)
        and cell.phase in (arguments.phase or PHASES)
    ]
    print("| process | fault | while | expected | observed | |\n|---|---|---|---|---|---|")
    n_wrong = 0
    for cell in chosen:
        outcome, seen = expected(cell), try_cell(cell)
        fault = seen.differs(cell, outcome)
        n_wrong += bool(fault)
        verdict = f"**{fault}**" if fault else "as written"
        print(f"| {cell.role} | {cell.fault} | {cell.phase} | {outcome.text} | {seen} | {verdict} |", flush=True)
    print(f"\n{len(chosen) - n_wrong} of {len(chosen)} cells as written")
    return 1 if n_wrong else 0


if __name__ == "__main__":
    sys.exit(main())
