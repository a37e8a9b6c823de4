"""From stamps to states: what each process noted by itself, put together for one call.

    calls          per call: its stages in the API process, and which batch brought its end       (api i)
    history        per choice: queued, admitted, in which steps, preempted, closed                (engine)
    meters         per step: handed over, taken up by the worker, answered, committed, sent       (engine, worker 0)
                   per loss of an engine: from the loss to the next one's welcome                 (api i)

Steps are numbered anew by every engine, so a step is known by its number and by the engine that was there at its time.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import zip_longest

from sixfold.observability import meter
from sixfold.observability.calls import API_STATES, CallRecord, read_all
from sixfold.observability.history import ENTRIES, Entry, Event, History, Mode, Reason
from sixfold.observability.meter import RING, Meter
from sixfold.observability.sites import (
    API_ENGINE,
    ENGINE_COMMIT,
    ENGINE_FRAME,
    ENGINE_HANDOVER,
    WORKER_PREPARE,
    WORKER_REPLY,
)
from sixfold.observability.timeline import Interval, RequestTimeline, State
from sixfold.roles import ENGINE, WORKER, api_role

__all__ = ["Snapshot", "paint"]

_QUEUED = {
    Reason.STEP: State.QUEUED,
    Reason.SLOTS: State.QUEUED_SLOTS,
    Reason.BLOCKS: State.QUEUED_BLOCKS,
    Reason.BUDGET: State.QUEUED_BUDGET,
}
_RANK = {state: rank for rank, state in enumerate(State)}
_SITES = {
    State.RECEIVE: "api.body",
    State.PARSE: "api.parse",
    State.THREAD: "api.thread",
    State.TEMPLATE: "api.template",
    State.TOKENIZE: "api.tokenize",
    State.SUBMIT: "api.verdict",
    State.DELIVER: "api.detokenize",
    State.SOCKET: "api.send",
    State.OUTBOX: "engine.outbox",
    State.COMMIT: "engine.commit",
    State.RESULT: "engine.result",
    State.ADMISSION: "engine.suspects",
    State.HELD: "engine.held",
    State.QUEUED: "engine.step",
    State.QUEUED_SLOTS: "engine.slots",
    State.QUEUED_BLOCKS: "engine.blocks",
    State.QUEUED_BUDGET: "engine.budget",
    State.PREEMPTED: "engine.blocks",
    State.PREEMPTING: "engine.preempting",
    State.TURN: "engine.turn",
    State.HANDED_OVER: "engine.handover",
    State.PREFILL: "worker.forward",
    State.DECODE: "worker.forward",
    State.RESTART: "api.engine",
}
"""Where a state is spent, as far as that is one place."""

Span = tuple[int, int]


@dataclass(slots=True)
class _Step:
    """Stamps of one step, CLOCK_MONOTONIC ns; 0: not there (yet, or any more)."""

    launched: int = 0
    taken: int = 0
    answered: int = 0
    commit: Span = (0, 0)
    frame: Span = (0, 0)


class Snapshot:
    """All that a server's processes noted, as far as it is kept, at one moment. Reading it takes tens of milliseconds.

    Args:
        run_dir: of the server.
        n_api: how many API processes it has.
    """

    def __init__(self, run_dir: str, n_api: int) -> None:
        # Calls first: what they refer to is noted by then.
        self.calls = read_all(run_dir, n_api)
        self.now_ns = meter.now()
        entries = _history(run_dir)
        self._epochs = [entry.at_ns for entry in entries if entry.event == Event.EPOCH]
        self._reasons = [entry for entry in entries if entry.event == Event.REASON]
        self._reason_times = [entry.at_ns for entry in self._reasons]
        self._entries: dict[int, list[Entry]] = defaultdict(list)
        for entry in entries:
            if entry.uid:
                self._entries[entry.uid].append(entry)
        self._steps: dict[tuple[int, int], _Step] = defaultdict(_Step)
        self._last_step: dict[int, int] = {}
        self.since_ns = entries[0].at_ns if len(entries) >= ENTRIES - 1 else 0
        """Of calls that began before, something has been overwritten."""
        for role in (ENGINE, WORKER):
            stamps = _stamps(run_dir, role)
            self._stamp(stamps)
            if len(stamps) >= RING - 1:
                self.since_ns = max(self.since_ns, stamps[0].end_ns)
        self._losses: list[list[Span]] = []
        for api in range(n_api):
            stamps = _stamps(run_dir, api_role(api))
            self._losses.append([(start, end) for start, end, site, _, _ in stamps if site == API_ENGINE])

    def _stamp(self, stamps: Iterable[meter.Stay]) -> None:
        for start, end, site, number, _ in stamps:
            if site not in (ENGINE_HANDOVER, WORKER_PREPARE, WORKER_REPLY, ENGINE_COMMIT, ENGINE_FRAME):
                continue
            epoch = self._epoch(start)
            step = self._steps[epoch, number]
            if site == ENGINE_HANDOVER:
                step.launched = start
                self._last_step[epoch] = max(self._last_step.get(epoch, 0), number)
            elif site == WORKER_PREPARE:
                step.taken = start
            elif site == WORKER_REPLY:
                step.answered = end
            elif site == ENGINE_COMMIT:
                step.commit = (start, end)
            else:
                step.frame = (start, end)

    def _epoch(self, at_ns: int) -> int:
        return bisect_right(self._epochs, at_ns)

    # -- one call -------------------------------------------------------------------------------------------------

    def timelines(self, n_max: int | None = None) -> Iterator[RequestTimeline]:
        """Of the latest calls, newest first."""
        for api, record in self.calls[:n_max]:
            yield self.timeline(api, record)

    def find(self, request_id: str) -> RequestTimeline | None:
        """The newest call of this label."""
        for api, record in self.calls:
            if record.request_id == request_id:
                return self.timeline(api, record)
        return None

    def timeline(self, api: int, record: CallRecord) -> RequestTimeline:
        """The states of a call of API process `api`."""
        end_ns = record.end_ns or self.now_ns
        process = api_role(api)
        intervals: list[Interval] = []
        windows: list[Span] = []
        for (number, start), (_, after) in zip(record.stages, [*record.stages[1:], (0, end_ns)], strict=True):
            state = API_STATES[number]
            if state is not None:
                intervals.append(Interval(start, after, state, _SITES.get(state, ""), process))
            if state is None or state is State.SUBMIT:
                windows.append((start, after))
        engine = [part for uid in record.uids for part in self._engine_intervals(uid, self._losses[api])]
        engine += self._deliveries(record, [part.end_ns for part in engine if part.state is State.COMMIT])
        intervals += _clipped(engine, windows)
        intervals.sort(key=lambda part: (part.start_ns, part.end_ns))
        timeline = RequestTimeline(
            request_id=record.request_id,
            uids=record.uids,
            start_ns=record.start_ns,
            end_ns=end_ns,
            is_done=record.end_ns > 0,
            intervals=intervals,
            path=record.path,
            status=record.status,
            fault=record.fault,
            process=process,
        )
        timeline.states = paint(intervals, record.start_ns, end_ns)
        return timeline

    def _deliveries(self, record: CallRecord, committed: list[int]) -> Iterator[Interval]:
        """How the last tokens came back.

        Args:
            committed: when the call's own steps were.
        """
        for number, read_ns in record.ends:
            step = self._steps.get((self._epoch(read_ns), number))
            if step is None or not step.frame[0]:
                continue
            # Of several steps that were committed in one turn, the call's last may be an earlier one.
            since_ns = max((at_ns for at_ns in committed if at_ns <= step.frame[0]), default=step.commit[1])
            if since_ns:
                yield _interval(since_ns, step.frame[0], State.OUTBOX, ENGINE, number)
            # The engine goes on while the API process reads: what both do at once is the reading.
            yield _interval(step.frame[0], max(read_ns, step.frame[0]), State.TO_API, ENGINE, number)

    def _engine_intervals(self, uid: int, losses: list[Span]) -> Iterator[Interval]:
        entries = self._entries.get(uid, [])
        for start, end in losses:
            yield _interval(start, end, State.RESTART, ENGINE, uid=uid)
            again = next((e.at_ns for e in entries if e.event == Event.RECEIVED and e.at_ns >= end), None)
            if again is not None:
                yield _interval(end, again, State.SUBMIT, ENGINE, uid=uid)
        lost_ns = [start for start, _ in losses]
        for epoch in sorted({self._epoch(entry.at_ns) for entry in entries}):
            of_epoch = [entry for entry in entries if self._epoch(entry.at_ns) == epoch]
            until_ns = self.now_ns
            if epoch < len(self._epochs):  # that engine is gone: what was open then ended with it
                until_ns = max((at_ns for at_ns in lost_ns if at_ns < self._epochs[epoch]), default=of_epoch[-1].at_ns)
            for choice in sorted({entry.choice for entry in of_epoch}):
                own = [e for e in of_epoch if e.choice == choice or e.event == Event.RECEIVED]
                yield from _Choice(self, own, epoch, until_ns, uid, choice).intervals()

    def _queued(self, start: int, end: int) -> Iterator[tuple[int, int, State]]:
        """Parts of a wait in the queue by their reasons."""
        index = bisect_right(self._reason_times, start) - 1
        reason = self._reasons[index].value if index >= 0 else Reason.STEP
        for entry in self._reasons[index + 1 :]:
            if entry.at_ns >= end:
                break
            yield start, entry.at_ns, _QUEUED[Reason(reason)]
            start, reason = entry.at_ns, entry.value
        yield start, end, _QUEUED[Reason(reason)]


class _Choice:
    """One choice under one engine.

    Args:
        until_ns: what is open ends here.
    """

    def __init__(
        self, snapshot: Snapshot, entries: list[Entry], epoch: int, until_ns: int, uid: int, choice: int
    ) -> None:
        self._snapshot = snapshot
        self._entries = entries
        self._epoch = epoch
        self._until_ns = until_ns
        self._uid = uid
        self._choice = choice

    def intervals(self) -> Iterator[Interval]:
        yield from self._waits()
        steps = list(self._steps())
        for number, step, mode in steps:
            yield from self._step(number, step, mode)
        leaves = [entry.at_ns for entry in self._entries if entry.event in (Event.PREEMPTED, Event.CLOSED)]
        for (number, step, _), following in zip_longest(steps, steps[1:]):
            done_ns = step.commit[1]
            if not done_ns:
                continue
            ends = [at_ns for at_ns in leaves if at_ns > step.launched]
            if following is not None:
                ends.append(following[1].launched)
            next_ns = min(ends, default=self._until_ns)
            if next_ns > done_ns:
                yield self._interval(done_ns, next_ns, State.TURN, number)

    def _waits(self) -> Iterator[Interval]:
        """Everything but steps."""
        since_ns, state = 0, State.ADMISSION
        for entry in [*self._entries, None]:
            if entry is not None and entry.event in (Event.STEPS_BEGIN, Event.STEPS_END):
                continue
            if since_ns:
                end_ns = entry.at_ns if entry is not None else self._until_ns
                if state is State.QUEUED:
                    for start, end, why in self._snapshot._queued(since_ns, end_ns):
                        yield self._interval(start, end, why)
                else:
                    yield self._interval(since_ns, end_ns, state)
            if entry is None:
                return
            since_ns = entry.at_ns
            if entry.event == Event.RECEIVED:
                state = State.ADMISSION
            elif entry.event == Event.HELD:
                state = State.HELD
            elif entry.event == Event.QUEUED:
                state = State.PREEMPTED if entry.value else State.QUEUED
            elif entry.event == Event.PREEMPTED:
                state = State.PREEMPTING
            else:  # ADMITTED, CLOSED: the steps say the rest
                since_ns = 0

    def _steps(self) -> Iterator[tuple[int, _Step, Mode]]:
        closed_ns = next((entry.at_ns for entry in self._entries if entry.event == Event.CLOSED), self._until_ns)
        known = self._snapshot._steps
        begun: tuple[int, Mode] | None = None
        for entry in [*self._entries, None]:
            if entry is not None and entry.event == Event.STEPS_BEGIN:
                begun = (entry.step, Mode(entry.value))
            elif begun is not None and (entry is None or entry.event == Event.STEPS_END):
                last = entry.step if entry is not None else self._snapshot._last_step.get(self._epoch, -1)
                for number in range(begun[0], last + 1):
                    step = known.get((self._epoch, number))
                    if step is not None and step.launched and step.launched <= closed_ns:
                        yield number, step, begun[1]
                begun = None

    def _step(self, number: int, step: _Step, mode: Mode) -> Iterator[Interval]:
        until_ns = self._until_ns
        yield self._interval(step.launched, step.taken or until_ns, State.HANDED_OVER, number)
        if step.taken:
            state = State.PREFILL if mode is Mode.PREFILL else State.DECODE
            yield self._interval(step.taken, step.answered or until_ns, state, number)
        if step.answered:
            yield self._interval(step.answered, step.commit[0] or until_ns, State.RESULT, number)
        if step.commit[0]:
            yield self._interval(*step.commit, State.COMMIT, number)

    def _interval(self, start: int, end: int, state: State, step: int = -1) -> Interval:
        process = WORKER if state in (State.PREFILL, State.DECODE) else ENGINE
        return _interval(start, end, state, process, step, self._uid, self._choice)


def paint(intervals: list[Interval], start_ns: int, end_ns: int) -> list[Interval]:
    """Each instant its latest state, in the order of `State`; neighbours of one state and step become one.

    Args:
        start_ns, end_ns: what lies outside is cut off.
    """
    borders: list[tuple[int, int, Interval]] = []
    for part in intervals:
        start, end = max(part.start_ns, start_ns), min(part.end_ns, end_ns)
        if start < end:
            borders += [(start, 1, part), (end, 0, part)]
    borders.sort(key=lambda border: border[:2])
    here: dict[int, list[Interval]] = {}
    painted: list[Interval] = []
    since_ns = start_ns
    for at_ns, begins, part in borders:
        if here and at_ns > since_ns:
            top = here[max(here)][-1]
            last = painted[-1] if painted else None
            if last is not None and last.end_ns == since_ns and (last.state, last.step) == (top.state, top.step):
                since_ns = painted.pop().start_ns
            painted.append(Interval(since_ns, at_ns, top.state, top.site, top.process, top.step, top.uid, top.choice))
        since_ns = at_ns
        rank = _RANK[part.state]
        if begins:
            here.setdefault(rank, []).append(part)
        else:
            here[rank].remove(part)
            if not here[rank]:
                del here[rank]
    return painted


def _interval(
    start: int, end: int, state: State, process: str, step: int = -1, uid: int = 0, choice: int = 0
) -> Interval:
    return Interval(start, end, state, _SITES.get(state, ""), process, step, uid, choice)


def _clipped(intervals: Iterable[Interval], windows: list[Span]) -> Iterator[Interval]:
    """The parts that lie in one of the windows."""
    for part in intervals:
        for start, end in windows:
            start, end = max(start, part.start_ns), min(end, part.end_ns)
            if start < end:
                yield Interval(start, end, part.state, part.site, part.process, part.step, part.uid, part.choice)


def _history(run_dir: str) -> list[Entry]:
    """Nothing where the engine has not begun yet."""
    try:
        return History.open(run_dir).entries()
    except OSError:
        return []


def _stamps(run_dir: str, role: str) -> list[meter.Stay]:
    """Nothing where the process has not begun yet."""
    try:
        return Meter.open(run_dir, role).recent()
    except OSError:
        return []
