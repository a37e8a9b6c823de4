"""A real server to be hit: its processes by role, faults, and what must not be left of it."""

from __future__ import annotations

import collections
import contextlib
import ctypes
import json
import os
import re
import resource
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.e2e.serving import Server, children_of

from sixfold.engine.progress import Count, Progress

__all__ = ["Footprint", "Site", "take_charge", "wait_for"]

MODULES = {"api": "sixfold.api.process", "engine": "sixfold.engine.engine_process", "worker": "worker_process"}
_PR_SET_CHILD_SUBREAPER = 36


def take_charge() -> None:
    """For a command: processes whose parent dies become children of this one, where they can be seen; and no server
    outlives it, whatever signal ends it."""
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda number, frame: sys.exit(128 + number))


def wait_for(what: str, there: Callable[[], Any], timeout_s: float = 20.0) -> Any:
    """Raises: TimeoutError: `what` did not come."""
    deadline = time.monotonic() + timeout_s
    while not (found := there()):
        if time.monotonic() > deadline:
            raise TimeoutError(what)
        time.sleep(0.005)
    return found


@dataclass(frozen=True)
class Footprint:
    """What an idle process takes.

    Attributes:
        descriptors: what each refers to, without the numbers of pipes and sockets.
        private_kib: resident memory that is nobody else's, and no file's.
        mapped_kib: resident pages of files and of shared memory: programs, libraries, and the rings in the run
            directory, whose size is fixed, and which are a process's as it comes to use them.
    """

    descriptors: collections.Counter[str]
    threads: int
    private_kib: int
    mapped_kib: int

    @classmethod
    def of(cls, pid: int) -> Footprint:
        status = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
        private, *mapped = (int(status[name].removesuffix("kB")) for name in ("RssAnon", "RssFile", "RssShmem"))
        descriptors: collections.Counter[str] = collections.Counter()
        for fd in os.listdir(f"/proc/{pid}/fd"):
            with contextlib.suppress(FileNotFoundError):  # the one that lists, of this process
                descriptors[re.sub(r":\[\d+\]$", "", os.readlink(f"/proc/{pid}/fd/{fd}"))] += 1
        return cls(descriptors, int(status["Threads"]), private, sum(mapped))


class Site:
    """A server with a run root of its own, ended and swept on exit.

    Args:
        arguments: of `sixfold serve`.
        script: of the scripted executor, as JSON; empty: there is none.
        holds: the worker loads until `let_load`; needs a script.
    """

    def __init__(self, *arguments: str, script: str = "", holds: bool = False) -> None:
        self.root = Path(tempfile.mkdtemp(prefix="chaos-"))
        self._held = self.root / "held"
        if holds:
            self._held.touch()
            script = json.dumps({**json.loads(script), "load_while": str(self._held)})
        if script:
            (self.root / "script.json").write_text(script)
            arguments = (*arguments, "--script", str(self.root / "script.json"))
        self.run_root = self.root / "run"
        self.run_root.mkdir()
        self.server = Server(*arguments, run_root=self.run_root)
        self._limits: dict[int, tuple[int, int]] = {}
        self._others = set(children_of(os.getpid()))
        """Processes of somebody else: servers that other tests share."""

    def __enter__(self) -> Site:
        self.server.launch()
        return self

    def __exit__(self, *_: object) -> None:
        pids = [self.server.process.pid, *children_of(self.server.process.pid)]
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.server.stop(signal.SIGKILL)
        shutil.rmtree(self.root, ignore_errors=True)

    # -- processes ------------------------------------------------------------------------------------------------

    def pid(self, role: str) -> int | None:
        """Of a role's process: `supervisor`, `api` (the first), `api 1`, `engine`, `worker`."""
        supervisor = self.server.process.pid
        if role == "supervisor":
            return supervisor if self.server.process.poll() is None else None
        try:
            children = Path(f"/proc/{supervisor}/task/{supervisor}/children").read_text().split()
        except OSError:
            return None
        for child in map(int, children):
            title = _title(child)
            if title.startswith(f"sixfold: {role}") or MODULES.get(role, "nothing") in title:
                return child
        return None

    def wait_pid(self, role: str) -> int:
        pid: int = wait_for(f"a process of {role}", lambda: self.pid(role))
        return pid

    def counts(self) -> memoryview | None:
        """The server's progress counters; None: there are none yet."""
        for folder in self.run_root.iterdir():
            with contextlib.suppress(OSError, ValueError):
                return Progress.open(str(folder)).counts
        return None

    def wait_count(self, count: Count, least: int = 1) -> None:
        wait_for(f"{count.name} of {least}", lambda: (c := self.counts()) is not None and c[count] >= least)

    def let_load(self) -> None:
        """Let the worker end its loading."""
        self._held.unlink(missing_ok=True)

    # -- faults ---------------------------------------------------------------------------------------------------

    def hit(self, role: str, fault: str, pid: int) -> None:
        """A process that is gone already is not hit."""
        with contextlib.suppress(ProcessLookupError):
            if fault == "memory":
                limits = resource.prlimit(pid, resource.RLIMIT_AS)
                self._limits[pid] = limits
                resource.prlimit(pid, resource.RLIMIT_AS, (1 << 20, limits[1]))
            else:
                os.kill(pid, signal.Signals[f"SIG{fault}"])

    def mend(self, fault: str, pid: int) -> None:
        """Take a fault back that can be taken back."""
        with contextlib.suppress(ProcessLookupError):
            if fault == "memory":
                resource.prlimit(pid, resource.RLIMIT_AS, self._limits.pop(pid))
            elif fault == "STOP":
                os.kill(pid, signal.SIGCONT)

    @contextlib.contextmanager
    def frozen(self, pid: int) -> Iterator[None]:
        """A process that does nothing meanwhile."""
        os.kill(pid, signal.SIGSTOP)
        wait_for("a process that stands", lambda: _state(pid) == "T")
        try:
            yield
        finally:
            os.kill(pid, signal.SIGCONT)

    # -- afterwards -----------------------------------------------------------------------------------------------

    def wait_end(self, timeout_s: float = 30.0) -> int | None:
        """The supervisor's status; None: it lives on."""
        with contextlib.suppress(TimeoutError):
            wait_for("the end", lambda: self.server.process.poll() is not None, timeout_s)
        return self.server.process.poll()

    def restarts(self) -> dict[str, int]:
        """Role -> processes that were started again."""
        counts = self.counts()
        if counts is None:
            return {}
        return {
            "engine": counts[Count.RESTARTS_ENGINE],
            "worker": counts[Count.RESTARTS_WORKER],
            "api": counts[Count.RESTARTS_API],
        }

    def footprints(self) -> dict[int, Footprint]:
        """Of the supervisor and its children."""
        return {pid: Footprint.of(pid) for pid in (self.server.process.pid, *self.server.children())}

    def sockets(self) -> int:
        """Unix sockets that have a name in the run directory."""
        return Path("/proc/net/unix").read_text().count(str(self.run_root))

    def leftovers(self) -> str:
        """What is left of a server that has ended, after a while; empty: nothing."""
        supervisor = self.server.process.pid
        # Whatever this process has adopted meanwhile is an orphan; dead ones are buried.
        found: list[str] = []
        deadline = time.monotonic() + 5.0
        while True:
            found = [
                f"process {title}"
                for pid, title in _living(os.getpid()).items()
                if pid != supervisor and pid not in self._others and "sixfold" in title
            ]
            found += [f"file {path.name}" for path in self.run_root.iterdir()]
            found += ["socket"] * self.sockets()
            if not found or time.monotonic() > deadline:
                return ", ".join(found)
            time.sleep(0.02)


def _title(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ").strip()
    except OSError:
        return ""


def _state(pid: int) -> str:
    """As of proc(5): `R`, `S`, `T` ..."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def _living(parent: int) -> dict[int, str]:
    """Children that have not ended; those that have, and were nobody's, are waited for."""
    living = {}
    for pid, title in children_of(parent).items():
        if title:
            living[pid] = title
        else:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)
    return living
