"""Rounds of random faults on a real server under load, and what may never come of them.

    python -m tests.chaos.random_faults --rounds 100 --clients 16 --seed 1                    about five minutes
    python -m tests.chaos.random_faults --rounds 10 --clients 16 --seed 1 --model smollm2

In each round all clients ask at once, each for one of the kinds of `clients.bodies`; one or two faults hit the engine,
the worker or one of two API processes, or the engine is to be replaced (SIGUSR1 to the supervisor), each at a random
token. So no request meets more than two. Then, of every round:

    answers         those of an undisturbed run, to the last digit of a log-probability. Where an API process was hit,
                    its answers are a part of that and break off; asked for again, they come
    blocks          free + cached = all, nothing runs, nothing waits
    processes       as many as before, none left over
    run directory   the same files; as many sockets
    descriptors     of each process those of when the server was young, kind by kind
    threads         no more than when the server was young; of an API process, its full pools
    memory          private pages: what `GROWTH_KIB` allows; pages of files: what the rings in the run directory hold

Prints a line a round and a summary. The exit status is 1 when anything was otherwise. Run from a checkout.
"""

from __future__ import annotations

import argparse
import collections
import json
import os
import random
import sys
import time
from dataclasses import dataclass, field

from tests.chaos.clients import Answer, Body, Callers, bodies, call
from tests.chaos.site import Footprint, Site, take_charge, wait_for

from sixfold.api.threads import ASIDE_THREADS, TEXT_THREADS

__all__ = ["Rounds", "main"]

HANG_S = 1.0
PROMPTS = ("", "a short beginning. ", "a long beginning, which goes on and on. " * 8)
ROLES = ("engine", "engine", "worker", "worker", "api 0", "api 1", "supervisor")
"""Of the supervisor, only an engine is wanted in place of the one that is there."""
FAULTS = ("KILL", "KILL", "STOP", "TERM", "memory")
GROWTH_KIB = {"supervisor": (512, 512), "api": (3072, 8192), "engine": (1024, 1024), "worker": (16384, 1024)}
"""Of private and of mapped memory, from the middle of a process's life to its end. What an API process maps as it first
comes to it: the library of grammars (4.7 MiB), its ring of calls (2 MiB) and of intervals (0.5 MiB). A worker's blocks
are its own from their first use."""
API_THREADS = 2 + TEXT_THREADS + ASIDE_THREADS
"""The loop's, the one that sees the supervisor's end, and the pools', which begin when there is work for them."""


@dataclass
class Rounds:
    """A server under faults, and what was found."""

    site: Site
    model: str
    n_clients: int
    random: random.Random
    n_tokens: int
    faults: list[str] = field(default_factory=list)
    """What may never be."""
    hits: collections.Counter[str] = field(default_factory=collections.Counter)
    asked: int = 0
    broken: int = 0
    """Answers that broke off with their API process."""
    sizes: dict[tuple[str, int], list[Footprint]] = field(default_factory=dict)
    """Process, by role and id -> what it took whenever it was idle."""

    def begin(self) -> None:
        """The undisturbed run, and what the server takes then."""
        self.bodies = [body for prompt in PROMPTS for body in bodies(self.model, self.n_tokens, prompt)]
        self.right = Callers(self.site.server.url, self.bodies).join()
        ends = {answer.end for answer in self.right}
        if ends != {"whole"}:
            raise RuntimeError(f"undisturbed answers end as {ends}")
        for _ in range(2):
            Callers(self.site.server.url, self.bodies).join()
        self.site.server.wait_idle(20.0)
        self.n_children = len(self.site.server.children())
        self.files = self._files()
        self.n_sockets = self.site.sockets()
        self.young = {_role(title): Footprint.of(pid) for pid, title in self._processes().items()}
        self._look()

    def play(self, number: int) -> str:
        """One round. Returns: what was done, in a line."""
        chosen = [self.random.randrange(len(self.bodies)) for _ in range(self.n_clients)]
        callers = Callers(self.site.server.url, [self.bodies[i] for i in chosen])
        done: list[str] = []
        hit: list[tuple[str, int]] = []
        expected = self.n_clients * self.n_tokens
        for _ in range(self.random.choice((1, 1, 2))):
            role, fault = self.random.choice(ROLES), self.random.choice(FAULTS)
            fault = "USR1" if role == "supervisor" else fault
            if fault == "memory" and any("memory" in text for text in done):
                fault = "KILL"
            restarts = sum(self.site.restarts().values())
            n_wanted = _n_events(callers) + self.random.randrange(1, expected // 3)
            wait_for("tokens", lambda n=n_wanted: _n_events(callers) >= n or callers.all_ended, 60.0)  # type: ignore[misc]
            pid = self.site.pid(role)
            if pid is None:
                continue
            self.site.hit(role, fault, pid)
            hit.append((fault, pid))
            done.append(f"{role} {fault}")
            self.hits[f"{role.split()[0]} {fault}"] += 1
            if fault != "memory":
                wait_for(
                    "a successor",
                    lambda n=restarts: sum(self.site.restarts().values()) > n or callers.all_ended,  # type: ignore[misc]
                )
        answers = callers.join()
        for fault, pid in hit:
            self.site.mend(fault, pid)
        self._check_answers(number, chosen, answers, may_break=any(text.startswith("api") for text in done))
        self._check_server(number)
        return ", ".join(done) or "nothing"

    def _check_answers(self, number: int, chosen: list[int], answers: list[Answer], *, may_break: bool) -> None:
        for i, answer in zip(chosen, answers, strict=True):
            self.asked += 1
            right = self.right[i]
            if answer.end == "whole" and answer.content == right.content:
                continue
            if may_break and answer.end in ("broken", "error draining", "error internal_error"):
                self.broken += 1
                if not answer.is_part_of(right):
                    self.faults.append(f"round {number}: an answer that broke off is no part of the right one")
                again = self._ask_again(self.bodies[i])
                if again.end != "whole" or again.content != right.content:
                    self.faults.append(f"round {number}: asked again, an answer ends as {again.end}, or is another")
                continue
            self.faults.append(
                f"round {number}: {self.bodies[i]['prompt'][-12:]!r} ended as {answer.end}, or is another"
            )

    def _ask_again(self, body: Body) -> Answer:
        """As a client does that is told to try again."""
        for _ in range(20):
            answer = call(self.site.server.url, {**body, "stream": True, "stream_options": {"include_usage": True}})
            if answer.end == "whole":
                break
            time.sleep(0.1)
        return answer

    def _check_server(self, number: int) -> None:
        try:
            wait_for("all processes", lambda: len(self._processes()) == self.n_children + 1)
            wait_for("readiness", self._is_ready)
            self.site.server.wait_idle(20.0)
            wait_for("as many sockets as before", lambda: self.site.sockets() == self.n_sockets)
            wait_for("the files of the run directory", lambda: self._files() == self.files)
            wait_for("descriptors and threads as before", lambda: not self._excess())
        except (TimeoutError, AssertionError) as fault:
            self.faults.append(f"round {number}: {fault}; {self._excess()}")
        self._look()

    def _is_ready(self) -> bool:
        try:
            return self.site.server.request("GET", "/readyz")[0] == 200
        except OSError:
            return False

    def _processes(self) -> dict[int, str]:
        children = {p: t for p, t in self.site.server.children().items() if t.startswith("sixfold: ")}
        return {self.site.server.process.pid: "sixfold: supervisor", **children}

    def _files(self) -> list[str]:
        return sorted(name for _, _, names in os.walk(self.site.run_root) for name in names)

    def _excess(self) -> str:
        """Which process takes more than one of its role did when the server was young."""
        found = []
        for pid, title in self._processes().items():
            role, now = _role(title), Footprint.of(pid)
            young = self.young[role]
            if more := now.descriptors - young.descriptors:
                found.append(f"{role} has more descriptors: {dict(more)}")
            n_threads = API_THREADS if role.startswith("api") else young.threads
            if now.threads > n_threads:
                found.append(f"{role} has {now.threads} threads instead of {n_threads}")
        return ", ".join(found)

    def _look(self) -> None:
        for pid, title in self._processes().items():
            self.sizes.setdefault((_role(title).split()[0], pid), []).append(Footprint.of(pid))

    def growth_kib(self) -> dict[str, tuple[int, int]]:
        """Role -> most that a process of it has grown from the middle of its life to its end, in private and in mapped
        pages: what is filled once (caches, tables, arenas) is filled by then."""
        most: dict[str, tuple[int, int]] = {}
        for (role, _), sizes in self.sizes.items():
            middle, end = sizes[len(sizes) // 2], sizes[-1]
            private, mapped = most.get(role, (0, 0))
            most[role] = (
                max(private, end.private_kib - middle.private_kib),
                max(mapped, end.mapped_kib - middle.mapped_kib),
            )
        return most


def _role(title: str) -> str:
    return title.removeprefix("sixfold: ")


def _n_events(callers: Callers) -> int:
    return sum(answer.n_events for answer in callers.answers)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--clients", type=int, default=16)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--model", default="scripted")
    arguments = parser.parse_args()
    take_charge()
    is_scripted = arguments.model == "scripted"
    flags = ["--hang-timeout-s", str(HANG_S), "--api-server-count", "2", "--max-num-seqs", "32"]
    flags += ["--num-kv-blocks", "128"] if is_scripted else ["--max-model-len", "512"]
    script = json.dumps({"step_ms": 4}) if is_scripted else ""
    started = time.monotonic()
    with Site(arguments.model, *flags, script=script) as site:
        if not site.server.wait_announced():
            raise SystemExit(site.server.output)
        rounds = Rounds(
            site, arguments.model, arguments.clients, random.Random(arguments.seed), 60 if is_scripted else 32
        )
        rounds.begin()
        n_rounds = 0
        for number in range(1, arguments.rounds + 1):
            n_faults = len(rounds.faults)
            try:
                line = rounds.play(number)
            except TimeoutError as fault:
                rounds.faults.append(f"round {number}: {fault} did not come")
                line = "given up"
            except SystemExit:
                rounds.faults.append("ended by a signal")
                break
            n_rounds = number
            new = rounds.faults[n_faults:]
            print(f"{number:4} {line}{''.join(f'  ** {text}' for text in new)}", flush=True)
            if site.server.process.poll() is not None:
                rounds.faults.append("the server has ended")
                break
        growth = rounds.growth_kib()
        for role, grown in growth.items():
            if any(n > allowed for n, allowed in zip(grown, GROWTH_KIB[role], strict=True)):
                rounds.faults.append(f"{role} grew by {grown} KiB")
        restarts = site.restarts()
        status = site.server.stop()
        left = site.leftovers()
        if status != 0:
            rounds.faults.append(f"the server ended with {status}")
        if left:
            rounds.faults.append(f"left: {left}")
        if rounds.faults:
            print(site.server.output, file=sys.stderr)
    print(f"\n{n_rounds} rounds in {time.monotonic() - started:.0f} s, seed {arguments.seed}, {arguments.model}")
    print(f"faults: {dict(sorted(rounds.hits.items()))}")
    print(f"restarts: {restarts}")
    print(
        f"answers: {rounds.asked}, of which {rounds.broken} broke off with their API process and were asked for again"
    )
    print(f"growth in the second half of a process's life, at most, KiB of (private, mapped) memory: {growth}")
    print("\n".join(rounds.faults) or "nothing lost, nothing left")
    return 1 if rounds.faults else 0


if __name__ == "__main__":
    sys.exit(main())
