"""Intervals and timelines -> a trace in Chrome's format, which https://ui.perfetto.dev opens.

The format is "Trace Event Format" of the Chromium project. Used of it:

    M        names and order of processes and threads
    X        slices: a stay at a site of a meter; on one thread they nest
    b e n    a request: its states one after the other, nested in it; instants
    s t f    an arrow from slice to slice, between processes
    C        counters: KV blocks, requests

Two groups of processes. Control path: requests, API processes, the engine, the workers' own thread. Data path: what
computes, and the blocks. A wait is coloured, and has its category (`cat`), by its class (`sites.py`). Times are
microseconds since the trace's begin.

Pure: what is known goes in, the document comes out. `trace_check.py` tells whether such a document is right.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol, TypeVar

from sixfold.observability.meter import Stay
from sixfold.observability.site import Kind, Site
from sixfold.observability.sites import SITES
from sixfold.observability.timeline import RequestTimeline, State
from sixfold.roles import ENGINE

__all__ = ["CONTROL_PATH", "DATA_PATH", "CounterSample", "ProcessTrack", "chrome_trace"]

CONTROL_PATH = "Control path"
DATA_PATH = "Data path"

COLOURS: dict[Kind, str] = {
    Kind.WORK: "thread_state_running",
    Kind.INVARIANT: "bad",
    Kind.OVERLAPPABLE: "good",
    Kind.SHRINKABLE: "yellow",
    Kind.IDLE: "grey",
}
"""Class -> `cname`, from the format's list of reserved colours."""

COMPUTE = frozenset({"worker.forward", "worker.sample"})
"""Sites of the data path, with their parts."""

IN_THREADS = frozenset({"api.template", "api.tokenize"})
"""Sites of an API process's threads for texts."""

OF_A_LOOP = frozenset({"engine.inbox", "engine.result", "worker.step", "worker.idle"})
"""Waits of a process as a whole; the others are those of one request, and many may wait at the same time."""

STEP_ROUTE = (
    "engine.handover",
    "worker.prepare",
    "worker.forward",
    "worker.sample",
    "worker.reply",
    "engine.commit",
    "engine.frame",
)
"""The arrow of a step, until its outputs leave the engine."""

OUTPUT_ROUTE = ("api.receive", "api.deliver")
"""Where it goes on, in each API process."""

STEP_STATES = frozenset({State.PREFILL, State.DECODE})


class ProcessTrack(NamedTuple):
    """One process of the server, as its meter shows it."""

    role: str
    """`api 0`, `engine`, `worker 0`."""
    pid: int
    intervals: Sequence[Stay]


class CounterSample(NamedTuple):
    """What the engine held at one moment."""

    at_ns: int
    blocks_free: int
    blocks_cached: int
    blocks_held: int
    running: int
    waiting: int


class Timed(Protocol):
    """Something with a begin and an end, CLOCK_MONOTONIC ns."""

    @property
    def start_ns(self) -> int: ...

    @property
    def end_ns(self) -> int: ...


S = TypeVar("S", bound=Timed)


class _Slice(NamedTuple):
    """An interval where it is drawn."""

    pid: int
    tid: int
    ts: float
    end_ns: int
    start_ns: int


def chrome_trace(
    tracks: Sequence[ProcessTrack],
    requests: Sequence[RequestTimeline],
    counters: Sequence[CounterSample] = (),
    *,
    start_ns: int,
    end_ns: int,
) -> dict[str, Any]:
    """The document, ready for a JSON encoder.

    Args:
        start_ns, end_ns: CLOCK_MONOTONIC; what lies outside is cut off.
    """
    drawing = _Drawing(start_ns, max(end_ns, start_ns))
    if requests:
        drawing.requests(requests)
    for track in tracks:
        drawing.process(track)
    drawing.counters(counters)
    drawing.step_arrows()
    drawing.submissions(requests)
    return drawing.document()


class _Submission(NamedTuple):
    """A request on its way to the engine."""

    start_ns: int
    end_ns: int
    request: RequestTimeline


@dataclass
class _Drawing:
    """The document while it is made."""

    start_ns: int
    end_ns: int
    metadata: list[dict[str, Any]] = field(default_factory=list)
    events: list[dict[str, Any]] = field(default_factory=list)
    n_processes: int = 0
    by_step: dict[tuple[str, int], list[tuple[str, _Slice]]] = field(default_factory=dict)
    """(site's name, step) -> (role, slice)."""
    n_threads: dict[str, tuple[int, int]] = field(default_factory=dict)
    """Role -> (pid of its control path, threads so far)."""
    receives: list[_Slice] = field(default_factory=list)
    """Of the engine, where messages are read."""
    engine_pid: int = 0

    def document(self) -> dict[str, Any]:
        self.events.sort(key=lambda event: event["ts"])  # stable: an end stays before the begin that follows it
        return {
            "traceEvents": self.metadata + self.events,
            "displayTimeUnit": "ms",
            "otherData": {"clock": "CLOCK_MONOTONIC", "start_ns": self.start_ns, "end_ns": self.end_ns},
        }

    # -- names ----------------------------------------------------------------------------------------------------

    def named_process(self, group: str, name: str) -> int:
        self.n_processes += 1
        pid = self.n_processes
        order = pid + (1000 if group == DATA_PATH else 0)
        self._name(pid, 0, "process_name", {"name": f"{group}: {name}"})
        self._name(pid, 0, "process_sort_index", {"sort_index": order})
        return pid

    def named_thread(self, pid: int, tid: int, name: str) -> None:
        self._name(pid, tid, "thread_name", {"name": name})
        self._name(pid, tid, "thread_sort_index", {"sort_index": tid})

    def _name(self, pid: int, tid: int, kind: str, args: dict[str, Any]) -> None:
        self.metadata.append({"ph": "M", "name": kind, "pid": pid, "tid": tid, "args": args})

    def ts(self, at_ns: int) -> float:
        """Microseconds since the begin, within the trace."""
        return (min(max(at_ns, self.start_ns), self.end_ns) - self.start_ns) / 1000

    # -- processes ------------------------------------------------------------------------------------------------

    def process(self, track: ProcessTrack) -> None:
        """The slices of one process: in the group of the control path, and what it computes in the other one."""
        shown = [interval for interval in track.intervals if self._is_seen(interval)]
        control = self.named_process(CONTROL_PATH, f"{track.role} (pid {track.pid})")
        if track.role == ENGINE:
            self.engine_pid = control
        groups: dict[str, list[Stay]] = {"loop": [], "texts": [], "waits": []}
        computed = []
        for interval in shown:
            site = SITES[interval.site]
            if site.name in COMPUTE or site.part_of in COMPUTE:
                computed.append(interval)
            elif site.name in IN_THREADS:
                groups["texts"].append(interval)
            else:
                groups["loop" if site.kind is Kind.WORK or site.name in OF_A_LOOP else "waits"].append(interval)
        tid = 0
        for name, intervals in groups.items():
            tid = self._lanes(track.role, control, tid, name, intervals)
        self.n_threads[track.role] = (control, tid)
        if computed:
            data = self.named_process(DATA_PATH, f"{track.role}, computing")
            self._lanes(track.role, data, 0, "compute", computed)

    def _lanes(self, role: str, pid: int, tid: int, name: str, intervals: list[Stay]) -> int:
        """Draw intervals on as many threads as it takes for each to nest. Returns: the last thread's id."""
        for number, lane in enumerate(lanes(intervals, nest=name in ("loop", "compute")), 1):
            tid += 1
            self.named_thread(pid, tid, name if number == 1 else f"{name} {number}")
            for interval in lane:
                self._meter_slice(role, pid, tid, interval)
        return tid

    def _meter_slice(self, role: str, pid: int, tid: int, interval: Stay) -> None:
        site = SITES[interval.site]
        args = _explained(site)
        if interval.step:
            args["step"] = interval.step
        if interval.uid:
            args["uid"] = f"{interval.uid:x}"
        drawn = self._slice(pid, tid, site.name, site.kind, interval, args)
        if interval.step:
            self.by_step.setdefault((site.name, interval.step), []).append((role, drawn))
        if site.name == "engine.receive":
            self.receives.append(drawn)

    def _slice(self, pid: int, tid: int, name: str, kind: Kind, stay: Timed, args: dict[str, Any]) -> _Slice:
        ts, end = self.ts(stay.start_ns), self.ts(stay.end_ns)
        where = {"pid": pid, "tid": tid, "ts": ts, "dur": round(end - ts, 3)}
        self.events.append({"ph": "X", "name": name, "cat": kind.value, **where, "cname": COLOURS[kind], "args": args})
        return _Slice(pid, tid, ts, stay.end_ns, stay.start_ns)

    # -- requests -------------------------------------------------------------------------------------------------

    def requests(self, requests: Sequence[RequestTimeline]) -> None:
        """A track per request, with its states nested in it."""
        pid = self.named_process(CONTROL_PATH, "requests")
        for number, request in enumerate(requests, 1):
            if request.end_ns <= self.start_ns or request.start_ns >= self.end_ns:
                continue
            common = {"cat": "request", "id": f"{number:x}", "pid": pid, "tid": 0}
            first, last = self.ts(request.start_ns), self.ts(request.end_ns)
            args = {"uids": [f"{uid:x}" for uid in request.uids], "unclaimed_us": request.unclaimed_ns / 1000}
            self.events.append({"ph": "b", "name": request.request_id, "ts": first, **common, "args": args})
            has_token = False
            at = first
            for state in request.states:
                begin, end = max(at, self.ts(state.start_ns)), min(last, self.ts(state.end_ns))
                if end <= begin:
                    continue  # outside the trace
                at = end
                name = state.state.value
                more = {"args": {"site": state.site, "step": state.step}, "cname": _state_colour(state.site)}
                self.events.append({"ph": "b", "name": name, "ts": begin, **common, **more})
                if state.state is State.DELIVER and not has_token:
                    has_token = True
                    self.events.append({"ph": "n", "name": "first token", "ts": begin, **common})
                elif state.state is State.PREEMPTED:
                    self.events.append({"ph": "n", "name": "preempted", "ts": begin, **common})
                self.events.append({"ph": "e", "name": name, "ts": end, **common})
            self.events.append({"ph": "e", "name": request.request_id, "ts": last, **common})

    # -- arrows ---------------------------------------------------------------------------------------------------

    def step_arrows(self) -> None:
        """Hand-over -> worker -> commit -> frame, and on into each API process."""
        for step in sorted({step for _, step in self.by_step}):
            begins = [drawn.ts for _, drawn in self.by_step.get((STEP_ROUTE[0], step), [])]
            # An engine that was restarted numbers its steps anew: each hand-over opens the time of one step.
            for begin, end in zip(begins or [0.0], [*begins[1:], math.inf], strict=True):
                self._step_arrow(step, begin, end)

    def _step_arrow(self, step: int, begin: float, end: float) -> None:
        def found(name: str) -> list[tuple[str, _Slice]]:
            return [one for one in self.by_step.get((name, step), []) if begin <= one[1].ts < end]

        identity = f"{step:x} {begin:g}"
        route = [drawn for name in STEP_ROUTE for _, drawn in found(name)[:1]]
        self._arrow("step", identity, route)
        outputs: dict[str, list[_Slice]] = {}
        for name in OUTPUT_ROUTE:
            for role, drawn in found(name):
                outputs.setdefault(role, []).append(drawn)
        for _, frame in found(STEP_ROUTE[-1])[:1]:
            for role, slices in outputs.items():
                self._arrow("output", f"{identity} {role}", [frame, *slices])

    def submissions(self, requests: Iterable[RequestTimeline]) -> None:
        """Submission, a slice of its API process -> the engine's reading -> the first step."""
        found: dict[str, list[_Submission]] = {}
        for request in requests:
            for part in request.intervals:
                is_own = part.process == request.process and part.process in self.n_threads
                if part.state is State.SUBMIT and is_own and self._is_seen(part):
                    submission = _Submission(part.start_ns, part.end_ns, request)
                    found.setdefault(part.process, []).append(submission)
        for role, submissions in found.items():
            pid, tid = self.n_threads[role]
            for lane in lanes(submissions, nest=False):
                tid += 1
                self.named_thread(pid, tid, "submissions")
                for submission in lane:
                    request = submission.request
                    args = {"request": request.request_id}
                    drawn = self._slice(pid, tid, "submit", _KINDS["api.verdict"], submission, args)
                    for uid in request.uids:
                        route = [drawn, *self._first_stops(request, uid)]
                        self._arrow("submit", f"{uid:x} {submission.start_ns:x}", route)

    def _is_seen(self, stay: Timed) -> bool:
        return stay.end_ns > self.start_ns and stay.start_ns < self.end_ns

    def _first_stops(self, request: RequestTimeline, uid: int) -> list[_Slice]:
        own = [interval for interval in request.intervals if interval.uid == uid]
        if not own:
            return []
        read_ns = min(interval.start_ns for interval in own)
        stops = [drawn for drawn in self.receives if drawn.start_ns <= read_ns <= drawn.end_ns][:1]
        steps = [interval.step for interval in own if interval.state in STEP_STATES and interval.step > 0]
        if steps:
            handovers = self.by_step.get((STEP_ROUTE[0], min(steps)), [])
            stops += [drawn for _, drawn in handovers if drawn.end_ns >= read_ns][:1]
        return stops

    def _arrow(self, name: str, identity: str, route: list[_Slice]) -> None:
        """From slice to slice. Each end lies where its slice begins, so what begins earlier is no next stop."""
        stops: list[_Slice] = []
        for drawn in route:
            if not stops or drawn.ts >= stops[-1].ts:
                stops.append(drawn)
        if len(stops) < 2:
            return
        for place, stop in enumerate(stops):
            phase = "s" if place == 0 else "f" if place == len(stops) - 1 else "t"
            event: dict[str, Any] = {"ph": phase, "name": name, "cat": "flow", "id": f"{name} {identity}"}
            event |= {"pid": stop.pid, "tid": stop.tid, "ts": stop.ts}
            if phase == "f":
                event["bp"] = "e"
            self.events.append(event)

    # -- counters -------------------------------------------------------------------------------------------------

    def counters(self, samples: Sequence[CounterSample]) -> None:
        shown = [sample for sample in samples if self.start_ns <= sample.at_ns <= self.end_ns]
        if not shown:
            return
        blocks = self.named_process(DATA_PATH, "KV blocks")
        queue = self.engine_pid or self.named_process(CONTROL_PATH, ENGINE)
        for sample in shown:
            ts = self.ts(sample.at_ns)
            held = {"held": sample.blocks_held, "cached": sample.blocks_cached, "free": sample.blocks_free}
            self.events.append({"ph": "C", "name": "KV blocks", "pid": blocks, "tid": 0, "ts": ts, "args": held})
            waiting = {"running": sample.running, "waiting": sample.waiting}
            self.events.append({"ph": "C", "name": "choices", "pid": queue, "tid": 0, "ts": ts, "args": waiting})


def lanes(intervals: Iterable[S], *, nest: bool) -> list[list[S]]:
    """Spread intervals over as few lanes as a greedy walk finds, in each of which they nest, or follow one another.

    Args:
        nest: one interval may lie inside another one on its lane.
    """
    found: list[tuple[list[S], list[int]]] = []
    for interval in sorted(intervals, key=lambda one: (one.start_ns, -one.end_ns)):
        lane, open_ends = next((one for one in found if _has_room(one[1], interval, nest)), ([], []))
        if not lane:
            found.append((lane, open_ends))
        lane.append(interval)
        open_ends.append(interval.end_ns)
    return [lane for lane, _ in found]


def _has_room(open_ends: list[int], interval: Timed, nest: bool) -> bool:
    while open_ends and open_ends[-1] <= interval.start_ns:
        open_ends.pop()
    return not open_ends or (nest and interval.end_ns <= open_ends[-1])


def _explained(site: Site) -> dict[str, Any]:
    """What a wait says of itself; work says nothing."""
    if site.kind is Kind.WORK:
        return {}
    reasons = {"protects": site.protects, "meanwhile": site.meanwhile, "lever": site.lever}
    return {"class": site.kind.value, "what": site.what, **{name: text for name, text in reasons.items() if text}}


_KINDS = {site.name: site.kind for site in SITES}


def _state_colour(site: str) -> str:
    return COLOURS[_KINDS.get(site, Kind.WORK)]
