"""Intervals that overlap become states that do not."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sixfold.observability.assembly import Snapshot, paint
from sixfold.observability.calls import MAX_UIDS, RECORDS, CallRecord, CallRing, read_all
from sixfold.observability.history import Event, History, Mode, Reason
from sixfold.observability.meter import Meter
from sixfold.observability.sites import (
    API_ENGINE,
    ENGINE_COMMIT,
    ENGINE_FRAME,
    ENGINE_HANDOVER,
    WORKER_PREPARE,
    WORKER_REPLY,
)
from sixfold.observability.timeline import Interval, State

ORDER = list(State)
intervals = st.lists(
    st.builds(
        lambda start, length, state: Interval(start, start + length, state),
        st.integers(0, 40),
        st.integers(0, 20),
        st.sampled_from(ORDER),
    ),
    max_size=12,
)


@given(intervals)
def test_each_instant_has_the_latest_of_its_states(parts: list[Interval]) -> None:
    painted = paint(parts, 5, 50)
    for before, after in itertools.pairwise(painted):
        assert before.end_ns <= after.start_ns
    for instant in range(60):
        here = [part.state for part in parts if part.start_ns <= instant < part.end_ns] if 5 <= instant < 50 else []
        got = [part.state for part in painted if part.start_ns <= instant < part.end_ns]
        assert got == ([max(here, key=ORDER.index)] if here else [])


def test_a_journal_goes_round_and_on() -> None:
    history = History.private(8)
    for uid in range(20):
        history.note(Event.RECEIVED, uid, choice=3, value=7, step=uid)
    kept = history.entries()
    assert [entry.uid for entry in kept] == list(range(13, 20))
    assert all(entry[2:] == (Event.RECEIVED, 3, 7, entry.uid) for entry in kept)


def test_a_successor_goes_on_with_the_journal(tmp_path: Path) -> None:
    History.create(str(tmp_path)).note(Event.EPOCH, value=1)
    History.create(str(tmp_path)).note(Event.EPOCH, value=2)
    assert [entry.value for entry in History.open(str(tmp_path)).entries()] == [1, 2]


def test_the_latest_calls_are_kept(tmp_path: Path) -> None:
    ring = CallRing.create(str(tmp_path), 0)
    for number in range(RECORDS + 3):
        ring.write(CallRecord(f"call {number}", number, end_ns=number + 1))
    found = CallRing.open(str(tmp_path), 0).records()
    assert len(found) == RECORDS and found[0].request_id == f"call {RECORDS + 2}"


def test_a_call_is_written_again_in_its_place_and_the_largest_fits(tmp_path: Path) -> None:
    ring = CallRing.create(str(tmp_path), 0)
    record = CallRecord("x" * 128, 1, path="/v1/chat/completions", uids=[(1 << 63) - 1] * MAX_UIDS)
    ring.write(record)
    for _ in range(1000):
        record.enter(State.PARSE, 1 << 62)
    record.end_ns = 1 << 62
    ring.write(record)
    assert [(kept.end_ns, len(kept.stages)) for kept in ring.records()] == [(1 << 62, 64)]


def test_calls_in_flight_end_with_their_process(tmp_path: Path) -> None:
    CallRing.create(str(tmp_path), 0).write(CallRecord("lost", 1))
    successor = CallRing.create(str(tmp_path), 0)
    successor.write(CallRecord("here", 2))
    assert [record.request_id for _, record in read_all(str(tmp_path), 1)] == ["here"]


def test_stages_never_go_back() -> None:
    record = CallRecord("call", 100)
    record.enter(State.RECEIVE, 100)
    record.enter(State.SUBMIT, 300)
    record.enter(State.DELIVER, 200)
    assert [at_ns for _, at_ns in record.stages] == [100, 300, 300]


class Scene:
    """A server's notes, written by hand, at any times."""

    def __init__(self, run_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.run_dir = str(run_dir)
        self.engine, self.worker = Meter.create(self.run_dir, "engine"), Meter.create(self.run_dir, "worker 0")
        self.api = Meter.create(self.run_dir, "api 0")
        self.ring = CallRing.create(self.run_dir, 0)
        self.history = History.create(self.run_dir)
        self._now_ns = 0
        monkeypatch.setattr("sixfold.observability.history.time.monotonic_ns", lambda: self._now_ns)
        self.note(1, Event.EPOCH)

    def note(self, at_ns: int, event: Event, **fields: int) -> None:
        self._now_ns = at_ns
        self.history.note(event, **fields)

    def step(self, number: int, begin: int, taken: int, answered: int, committed: int) -> None:
        """Every stamp is 5 long."""
        self.engine.add(ENGINE_HANDOVER, begin, begin + 5, number)
        self.worker.add(WORKER_PREPARE, taken, taken + 5, number)
        self.worker.add(WORKER_REPLY, answered - 5, answered, number)
        self.engine.add(ENGINE_COMMIT, committed, committed + 5, number)
        self.engine.add(ENGINE_FRAME, committed + 10, committed + 15, number)

    def states(self, record: CallRecord) -> list[tuple[State, int]]:
        """(state, begin) of the call, which must be in one all the time."""
        self.ring.write(record)
        found = Snapshot(self.run_dir, 1).find(record.request_id)
        assert found is not None and found.unclaimed_ns == 0
        return [(part.state, part.start_ns) for part in found.states]


def call(submitted: int, taken: int, read: int, end: int, step: int) -> CallRecord:
    """A call of request 7: submitted, taken by the engine, its last batch (of `step`) read."""
    record = CallRecord("call", 10, uids=[7], end_ns=end, ends=[(step, read)])
    for state, at_ns in (
        (State.RECEIVE, 10),
        (State.PARSE, 20),
        (State.SUBMIT, submitted),
        (None, taken),
        (State.DELIVER, read),
        (State.FINISH, read + 10),
    ):
        record.enter(state, at_ns)
    return record


def test_a_request_from_its_head_to_its_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scene = Scene(tmp_path, monkeypatch)
    scene.note(5, Event.REASON, value=Reason.BLOCKS)
    scene.note(40, Event.RECEIVED, uid=7)
    scene.note(41, Event.QUEUED, uid=7)
    scene.note(90, Event.REASON, value=Reason.SLOTS)
    scene.note(121, Event.ADMITTED, uid=7, step=4)
    scene.note(122, Event.STEPS_BEGIN, uid=7, value=Mode.PREFILL, step=4)
    scene.step(4, 120, 130, 200, 210)
    scene.note(251, Event.STEPS_END, uid=7, value=Mode.PREFILL, step=4)
    scene.note(252, Event.STEPS_BEGIN, uid=7, value=Mode.DECODE, step=5)
    scene.step(5, 250, 260, 400, 420)
    scene.step(6, 410, 430, 500, 510)
    scene.note(512, Event.CLOSED, uid=7)
    assert scene.states(call(submitted=30, taken=60, read=540, end=560, step=6)) == [
        (State.RECEIVE, 10),
        (State.PARSE, 20),
        (State.SUBMIT, 30),
        (State.ADMISSION, 40),
        (State.QUEUED_BLOCKS, 41),
        (State.QUEUED_SLOTS, 90),
        (State.HANDED_OVER, 120),
        (State.PREFILL, 130),
        (State.RESULT, 200),
        (State.COMMIT, 210),
        (State.TURN, 215),
        (State.HANDED_OVER, 250),
        (State.DECODE, 260),
        (State.RESULT, 400),
        (State.HANDED_OVER, 410),
        (State.DECODE, 430),
        (State.RESULT, 500),
        (State.COMMIT, 510),
        (State.OUTBOX, 515),
        (State.TO_API, 520),
        (State.DELIVER, 540),
        (State.FINISH, 550),
    ]


def test_a_request_that_waits_and_has_no_step_yet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scene = Scene(tmp_path, monkeypatch)
    scene.note(30, Event.RECEIVED, uid=7)
    scene.note(31, Event.QUEUED, uid=7)
    scene.note(60, Event.REASON, value=Reason.SLOTS)
    record = CallRecord("call", 10, uids=[7])
    for state, at_ns in ((State.PARSE, 10), (State.SUBMIT, 20), (None, 40)):
        record.enter(state, at_ns)
    scene.ring.write(record)
    found = Snapshot(scene.run_dir, 1).find("call")
    assert found is not None and not found.is_done
    assert [part.state for part in found.states][-2:] == [State.QUEUED, State.QUEUED_SLOTS]


def test_a_request_that_loses_its_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scene = Scene(tmp_path, monkeypatch)
    scene.note(30, Event.RECEIVED, uid=7)
    scene.note(30, Event.QUEUED, uid=7)
    scene.note(51, Event.ADMITTED, uid=7, step=1)
    scene.note(52, Event.STEPS_BEGIN, uid=7, value=Mode.PREFILL, step=1)
    scene.step(1, 50, 60, 100, 120)
    scene.note(80, Event.PREEMPTED, uid=7)
    scene.note(81, Event.STEPS_END, uid=7, value=Mode.PREFILL, step=1)
    scene.step(2, 79, 101, 140, 150)
    scene.note(124, Event.QUEUED, uid=7, value=1)
    scene.note(201, Event.ADMITTED, uid=7, step=3)
    scene.note(202, Event.STEPS_BEGIN, uid=7, value=Mode.PREFILL, step=3)
    scene.step(3, 200, 210, 300, 310)
    scene.note(312, Event.CLOSED, uid=7)
    states = scene.states(call(submitted=30, taken=40, read=330, end=350, step=3))
    assert (State.PREEMPTED, 124) in states and (State.HANDED_OVER, 200) in states
    assert [at_ns for state, at_ns in states if state is State.PREFILL] == [60, 210]


def test_a_request_under_two_engines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second engine numbers its steps anew."""
    scene = Scene(tmp_path, monkeypatch)
    scene.note(30, Event.RECEIVED, uid=7)
    scene.note(30, Event.QUEUED, uid=7)
    scene.note(51, Event.ADMITTED, uid=7, step=0)
    scene.note(52, Event.STEPS_BEGIN, uid=7, value=Mode.PREFILL, step=0)
    scene.step(0, 50, 60, 100, 120)
    scene.engine.add(ENGINE_HANDOVER, 90, 95, 1)  # never answered
    scene.note(91, Event.STEPS_END, uid=7, value=Mode.PREFILL, step=0)
    scene.note(92, Event.STEPS_BEGIN, uid=7, value=Mode.DECODE, step=1)
    scene.api.add(API_ENGINE, 150, 400)
    scene.note(350, Event.EPOCH)
    scene.note(410, Event.RECEIVED, uid=7)
    scene.note(410, Event.QUEUED, uid=7)
    scene.note(451, Event.ADMITTED, uid=7, step=0)
    scene.note(452, Event.STEPS_BEGIN, uid=7, value=Mode.PREFILL, step=0)
    scene.step(0, 450, 460, 500, 520)
    scene.note(522, Event.CLOSED, uid=7)
    assert scene.states(call(submitted=25, taken=35, read=540, end=560, step=0))[-13:] == [
        (State.PREFILL, 60),
        (State.HANDED_OVER, 100),
        (State.RESTART, 150),
        (State.SUBMIT, 400),
        (State.QUEUED, 410),
        (State.HANDED_OVER, 450),
        (State.PREFILL, 460),
        (State.RESULT, 500),
        (State.COMMIT, 520),
        (State.OUTBOX, 525),
        (State.TO_API, 530),
        (State.DELIVER, 540),
        (State.FINISH, 550),
    ]
