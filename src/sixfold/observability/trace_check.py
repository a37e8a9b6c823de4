"""Whether a document in Chrome's trace format is right: what a viewer would draw wrongly, or leave out without a word.

Every event has the fields of its phase. Events are in the order of time, names first. Every process and thread with
events has a name. Slices of a thread nest. Every arrow begins once, ends once, and sits on slices. What a request's
track opens it closes, in order.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping
from typing import Any

__all__ = ["MAX_FAULTS", "check_trace"]

MAX_FAULTS = 100
"""That are told."""

FIELDS: dict[str, dict[str, type | tuple[type, ...]]] = {
    "M": {"args": dict},
    "X": {"ts": (int, float), "dur": (int, float), "cat": str},
    "b": {"ts": (int, float), "cat": str, "id": str},
    "e": {"ts": (int, float), "cat": str, "id": str},
    "n": {"ts": (int, float), "cat": str, "id": str},
    "s": {"ts": (int, float), "cat": str, "id": str},
    "t": {"ts": (int, float), "cat": str, "id": str},
    "f": {"ts": (int, float), "cat": str, "id": str, "bp": str},
    "C": {"ts": (int, float), "args": dict},
}
"""Phase -> fields besides `name`, `pid` and `tid`."""

METADATA = {
    "process_name": ("name", str),
    "process_sort_index": ("sort_index", int),
    "thread_name": ("name", str),
    "thread_sort_index": ("sort_index", int),
}

Event = Mapping[str, Any]


def check_trace(document: Any) -> list[str]:
    """What is wrong with it, at most MAX_FAULTS sentences; empty: nothing."""
    if not isinstance(document, Mapping) or not isinstance(document.get("traceEvents"), list):
        return ["traceEvents is missing, or is no list"]
    events = document["traceEvents"]
    faults = [f"event {i}: {fault}" for i, event in enumerate(events) for fault in _field_faults(event)]
    if not faults:  # the rest relies on the fields
        for check in (_order_faults, _name_faults, _nesting_faults, _flow_faults, _track_faults):
            faults += check(events)
    return faults[:MAX_FAULTS]


def _field_faults(event: Any) -> list[str]:
    if not isinstance(event, Mapping) or event.get("ph") not in FIELDS:
        return ["it has no phase that is known"]
    wanted: dict[str, type | tuple[type, ...]] = {"name": str, "pid": int, "tid": int, **FIELDS[event["ph"]]}
    faults = [
        f"{event['ph']} needs {name}"
        for name, kind in wanted.items()
        if not isinstance(event.get(name), kind) or isinstance(event.get(name), bool)
    ]
    if faults:
        return faults
    faults = [f"{name} is negative" for name in ("ts", "dur") if event.get(name, 0) < 0]
    if event["ph"] == "M":
        name, kind = METADATA.get(event["name"], ("", str))
        if not name or not isinstance(event["args"].get(name), kind):
            faults.append(f"{event['name']} is no metadata with its value")
    elif event["ph"] == "C" and not (
        event["args"] and all(isinstance(value, int | float) for value in event["args"].values())
    ):
        faults.append("a counter's args must be numbers")
    elif event["ph"] == "f" and event["bp"] != "e":
        faults.append('an arrow\'s end must have bp "e": else it belongs to whatever slice comes next')
    return faults


def _order_faults(events: list[Event]) -> list[str]:
    faults = []
    last, timed = 0.0, False
    for index, event in enumerate(events):
        if event["ph"] == "M":
            if timed:
                faults.append(f"event {index}: a name behind what it names")
        elif event["ts"] < last:
            faults.append(f"event {index}: it is earlier than the one before")
        else:
            last, timed = event["ts"], True
    return faults


def _name_faults(events: list[Event]) -> list[str]:
    named: dict[str, set[Any]] = {name: set() for name in METADATA}
    faults = []
    for event in events:
        if event["ph"] == "M":
            key = event["pid"] if event["name"].startswith("process") else (event["pid"], event["tid"])
            if key in named[event["name"]]:
                faults.append(f"{key} has {event['name']} twice")
            named[event["name"]].add(key)
    used = {event["pid"] for event in events if event["ph"] != "M"}
    threads = {(event["pid"], event["tid"]) for event in events if event["ph"] in "Xstf"}
    faults += [f"process {pid} has no name" for pid in sorted(used - named["process_name"])]
    faults += [f"process {pid} has no place" for pid in sorted(used - named["process_sort_index"])]
    faults += [f"thread {thread} has no name" for thread in sorted(threads - named["thread_name"])]
    return faults


def _slices(events: list[Event]) -> dict[tuple[int, int], list[tuple[int, int]]]:
    """(pid, tid) -> (begin, end) in ns, by begin, the longer first."""
    found: dict[tuple[int, int], list[tuple[int, int]]] = {}
    for event in events:
        if event["ph"] == "X":
            begin = round(event["ts"] * 1000)
            found.setdefault((event["pid"], event["tid"]), []).append((begin, begin + round(event["dur"] * 1000)))
    for slices in found.values():
        slices.sort(key=lambda one: (one[0], -one[1]))
    return found


def _nesting_faults(events: list[Event]) -> list[str]:
    faults = []
    for thread, slices in _slices(events).items():
        open_ends: list[int] = []
        for begin, end in slices:
            while open_ends and open_ends[-1] <= begin:
                open_ends.pop()
            if open_ends and end > open_ends[-1]:
                faults.append(f"thread {thread}: the slice at {begin / 1000} us ends after the one that it lies in")
            open_ends.append(end)
    return faults


def _flow_faults(events: list[Event]) -> list[str]:
    faults = []
    flows: dict[tuple[str, str], list[Event]] = {}
    for event in events:
        if event["ph"] in "stf":
            flows.setdefault((event["cat"], event["id"]), []).append(event)
    threads = _slices(events)
    longest = {thread: max((end - begin for begin, end in slices), default=0) for thread, slices in threads.items()}
    for key, flow in flows.items():
        phases = "".join(event["ph"] for event in flow)
        if phases != "s" + "t" * (len(phases) - 2) + "f":
            faults.append(f"arrow {key[1]!r} has the parts {phases}: it must begin, pass and end")
        if len({event["name"] for event in flow}) > 1:
            faults.append(f"arrow {key[1]!r} has several names")
        for event in flow:
            thread, at = (event["pid"], event["tid"]), round(event["ts"] * 1000)
            slices = threads.get(thread, [])
            index = bisect_right(slices, (at, 1 << 62))
            while index > 0 and slices[index - 1][0] >= at - longest[thread]:
                index -= 1
                if slices[index][1] >= at:
                    break
            else:
                faults.append(f"arrow {key[1]!r}: there is no slice at {event['ts']} us on thread {thread}")
    return faults


def _track_faults(events: list[Event]) -> list[str]:
    faults = []
    open_names: dict[tuple[str, str, int], list[str]] = {}
    for event in events:
        if event["ph"] in "ben":
            track = event["cat"], event["id"], event["pid"]
            names = open_names.setdefault(track, [])
            if event["ph"] == "b":
                names.append(event["name"])
            elif not names:
                faults.append(f"track {track}: {event['name']!r} with nothing open")
            elif event["ph"] == "e" and names.pop() != event["name"]:
                faults.append(f"track {track}: {event['name']!r} ends, and another one is open")
    return faults + [f"track {track}: {names} do not end" for track, names in open_names.items() if names]
