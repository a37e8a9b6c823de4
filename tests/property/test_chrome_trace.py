"""Whatever the meters and timelines hold, the trace is right; and whatever is wrong with a trace, the check sees it."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sixfold.observability.chrome_trace import CounterSample, ProcessTrack, chrome_trace
from sixfold.observability.meter import Stay
from sixfold.observability.sites import SITES
from sixfold.observability.timeline import Interval, RequestTimeline, State
from sixfold.observability.trace_check import check_trace

IDS = {site.name: number for number, site in enumerate(SITES)}
TIMES = st.integers(0, 5000)
ROLES = ("api 0", "api 1", "engine", "worker 0")


@st.composite
def intervals(draw: st.DrawFn) -> Stay:
    start = draw(TIMES)
    end = start + draw(st.integers(0, 800))
    return Stay(start, end, draw(st.integers(0, len(SITES) - 1)), draw(st.integers(0, 6)), draw(st.integers(0, 4)))


@st.composite
def timelines(draw: st.DrawFn) -> RequestTimeline:
    marks = sorted(draw(st.lists(TIMES, min_size=2, max_size=12)))
    names = [draw(st.sampled_from(list(State))) for _ in marks[1:]]
    uid = draw(st.integers(1, 4))
    states = [
        Interval(begin, end, state, "api.verdict", draw(st.sampled_from(ROLES)), draw(st.integers(-1, 6)), uid)
        for begin, end, state in zip(marks, marks[1:], names, strict=False)
        if draw(st.booleans())
    ]
    return RequestTimeline(
        "req-1", [uid], marks[0], marks[-1], draw(st.booleans()), list(states), states, process="api 0"
    )


@settings(max_examples=150, deadline=None)
@given(
    st.lists(st.lists(intervals(), max_size=40), min_size=1, max_size=4),
    st.lists(timelines(), max_size=4),
    st.lists(TIMES, max_size=3),
    TIMES,
    TIMES,
)
def test_every_trace_is_right(
    meters: list[list[Stay]], requests: list[RequestTimeline], samples: list[int], start: int, end: int
) -> None:
    tracks = [ProcessTrack(role, 100 + i, found) for i, (role, found) in enumerate(zip(ROLES, meters, strict=False))]
    counters = [CounterSample(at, 1, 2, 3, 4, 5) for at in sorted(samples)]
    document = chrome_trace(tracks, requests, counters, start_ns=start, end_ns=end)
    assert check_trace(json.loads(json.dumps(document))) == []


def example() -> dict[str, Any]:
    """A request that is submitted, runs in step 1 and is written."""
    route = (
        ("api 0", "api.verdict", 100, 300, 0),
        ("engine", "engine.receive", 150, 250, 0),
        ("engine", "engine.handover", 300, 400, 1),
        ("worker 0", "worker.step", 10, 410, 0),
        ("worker 0", "worker.prepare", 410, 450, 1),
        ("worker 0", "worker.forward", 450, 900, 1),
        ("worker 0", "worker.reply", 910, 950, 1),
        ("engine", "engine.commit", 1000, 1050, 1),
        ("engine", "engine.frame", 1060, 1100, 1),
        ("api 0", "api.receive", 1200, 1250, 1),
        ("api 0", "api.deliver", 1250, 1300, 1),
        ("api 0", "api.thread", 20, 60, 0),
        ("api 0", "api.thread", 30, 90, 0),
    )
    tracks = []
    for pid, role in enumerate(("api 0", "engine", "worker 0"), 100):
        own = [
            Stay(start, end, IDS[name], step, 7 if name in ("api.verdict", "engine.receive") else 0)
            for process, name, start, end, step in route
            if process == role
        ]
        tracks.append(ProcessTrack(role, pid, own))
    states = [
        Interval(0, 100, State.PARSE, "api.parse", "api 0"),
        Interval(100, 200, State.SUBMIT, "api.verdict", "api 0"),
        Interval(200, 210, State.ADMISSION, "", "engine", uid=7),
        Interval(410, 950, State.PREFILL, "worker.forward", "worker 0", step=1, uid=7),
        Interval(1200, 1300, State.DELIVER, "api.deliver", "api 0", uid=7),
    ]
    request = RequestTimeline("req-1", [7], 0, 1400, True, states, states, process="api 0")
    counters = [CounterSample(500, 90, 8, 2, 1, 0)]
    return chrome_trace(tracks, [request], counters, start_ns=0, end_ns=2000)


def events_of(document: dict[str, Any], phases: str) -> list[dict[str, Any]]:
    return [event for event in document["traceEvents"] if event["ph"] in phases]


def test_what_a_trace_shows() -> None:
    document = example()
    assert check_trace(document) == []
    names = {
        event["pid"]: event["args"]["name"] for event in events_of(document, "M") if event["name"] == "process_name"
    }
    assert sorted(names.values()) == [
        "Control path: api 0 (pid 100)",
        "Control path: engine (pid 101)",
        "Control path: requests",
        "Control path: worker 0 (pid 102)",
        "Data path: KV blocks",
        "Data path: worker 0, computing",
    ]
    slices = {event["name"]: event for event in events_of(document, "X")}
    assert names[slices["worker.forward"]["pid"]].startswith("Data path")
    assert slices["worker.forward"]["ts"] == 0.45 and slices["worker.forward"]["dur"] == 0.45
    colours = {slices[name]["cname"] for name in ("worker.forward", "worker.step", "api.thread")}
    assert (
        len(colours) == 3 and slices["worker.step"]["args"]["lever"] and slices["api.thread"]["cat"] == "overlappable"
    )
    route = [(event["ph"], event["name"], event["ts"]) for event in events_of(document, "stf")]
    assert [one for one in route if one[1] == "submit"] == [
        ("s", "submit", 0.1),
        ("t", "submit", 0.15),
        ("f", "submit", 0.3),
    ]
    assert [ts for _, name, ts in route if name == "step"] == [0.3, 0.41, 0.45, 0.91, 1.0, 1.06]
    assert [ts for _, name, ts in route if name == "output"] == [1.06, 1.2, 1.25]
    track = [(event["ph"], event["name"]) for event in events_of(document, "ben")]
    assert track[0] == ("b", "req-1") and track[-1] == ("e", "req-1") and ("n", "first token") in track


def test_waits_that_overlap_lie_on_threads_of_their_own() -> None:
    credit = [event for event in events_of(example(), "X") if event["name"] == "api.thread"]
    assert len({event["tid"] for event in credit}) == 2


def first(document: dict[str, Any], phase: str) -> dict[str, Any]:
    found: dict[str, Any] = events_of(document, phase)[0]
    return found


def drop(phase: str, number: int = 0) -> Callable[[dict[str, Any]], None]:
    return lambda document: document["traceEvents"].remove(events_of(document, phase)[number])


def change(phase: str, **fields: Any) -> Callable[[dict[str, Any]], None]:
    return lambda document: first(document, phase).update(fields)


def without(phase: str, field: str) -> Callable[[dict[str, Any]], None]:
    return lambda document: first(document, phase).pop(field)


def stretch(document: dict[str, Any]) -> None:
    """The worker's wait now ends inside the slice behind it."""
    next(event for event in events_of(document, "X") if event["name"] == "worker.step")["dur"] += 0.02


FAULTS: dict[str, Callable[[dict[str, Any]], Any]] = {
    "no list": lambda document: document.pop("traceEvents"),
    "unknown phase": change("X", ph="?"),
    "slice without duration": without("X", "dur"),
    "slice without thread": without("X", "tid"),
    "slice without class": without("X", "cat"),
    "negative duration": change("X", dur=-1.0),
    "negative time": change("X", ts=-1.0),
    "time is text": change("X", ts="1"),
    "time is true": change("X", ts=True),
    "track without id": without("b", "id"),
    "counter of text": change("C", args={"free": "many"}),
    "counter of nothing": change("C", args={}),
    "arrow that does not bind": change("f", bp="s"),
    "metadata without value": change("M", args={}),
    "unknown metadata": change("M", name="colour"),
    "process without name": lambda document: document["traceEvents"].pop(0),
    "process without place": lambda document: document["traceEvents"].pop(1),
    "name twice": lambda document: document["traceEvents"].insert(0, document["traceEvents"][0]),
    "name behind": lambda document: document["traceEvents"].append(document["traceEvents"].pop(0)),
    "thread without name": change("X", tid=99),
    "not in order": lambda document: document["traceEvents"].reverse(),
    "one out of order": lambda document: document["traceEvents"].insert(-1, document["traceEvents"].pop(40)),
    "slices that cross": stretch,
    "arrow without begin": drop("s"),
    "arrow without end": drop("f"),
    "arrow that begins twice": lambda document: first(document, "t").update(ph="s"),
    "arrow beside its slice": lambda document: [e.update(tid=2) for e in events_of(document, "stf")],
    "arrow into nothing": lambda document: [
        document["traceEvents"].remove(e) for e in events_of(document, "X") if e["name"] == "worker.reply"
    ],
    "arrow of two names": change("t", name="other"),
    "state that does not end": drop("e"),
    "state that does not begin": drop("b", 1),
    "request that does not begin": drop("b"),
    "instant of nothing": lambda document: document["traceEvents"].append(
        {"ph": "n", "name": "x", "cat": "request", "id": "99", "pid": 1, "tid": 0, "ts": 1e6}
    ),
}


@pytest.mark.parametrize("name", FAULTS)
def test_the_check_sees_what_is_wrong(name: str) -> None:
    document = copy.deepcopy(example())
    FAULTS[name](document)
    assert check_trace(document), name


def test_a_restarted_engine_numbers_its_steps_anew() -> None:
    route = (("engine.handover", 10), ("engine.commit", 20), ("engine.handover", 100), ("engine.commit", 110))
    intervals = [Stay(start, start + 5, IDS[name], 1, 0) for name, start in route]
    document = chrome_trace([ProcessTrack("engine", 1, intervals)], [], start_ns=0, end_ns=200)
    assert check_trace(document) == []
    arrows = [(event["ph"], event["ts"]) for event in events_of(document, "stf")]
    assert arrows == [("s", 0.01), ("f", 0.02), ("s", 0.1), ("f", 0.11)]
