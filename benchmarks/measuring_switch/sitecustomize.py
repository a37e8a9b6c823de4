"""For `measuring.py` alone: every Python process with this folder in its path stops measuring at SIGRTMIN, and begins
again at SIGRTMIN + 1. The interpreter imports this module by its name when it starts.

What is off: the meters' clock, and with it all that they would count; the clock around operations of the model; the
histograms of requests. What is on pays for the question whether it is: about 50 ns where an interval costs 500.
"""

from __future__ import annotations

import gc
import signal
import sys
from types import FrameType
from typing import Any

from sixfold.observability import meter, metrics

Meter, Timing = meter.Meter, metrics.Timing

_ON = {name: getattr(Meter, name) for name in ("add", "tally", "enter", "leave")}
_TIMING_ON = {name: getattr(Timing, name) for name in ("accepted", "started", "step", "end")}
_now = meter.now


def _nothing(*_: Any) -> None:
    pass


def _add(self: Any, site: int, start_ns: int, end_ns: int, step: int = 0, uid: int = 0) -> None:
    """Counts what did not begin or end while measuring was off."""
    if 0 < start_ns <= end_ns:
        _ON["add"](self, site, start_ns, end_ns, step, uid)


def _tally(self: Any, site: int, took_ns: int) -> None:
    if took_ns > 0:
        _ON["tally"](self, site, took_ns)


def _enter(self: Any, site: int, start_ns: int, *more: Any) -> None:
    """Enters while measuring is on."""
    if start_ns:
        _ON["enter"](self, site, start_ns, *more)


def _leave(self: Any, site: int, start_ns: int, *more: Any, **named: Any) -> None:
    """Leaves what was entered: the switch may come between a wait's clock and either of the two."""
    if start_ns:
        _ON["leave"](self, site, start_ns, *more, **named)


def _started(self: Any, started_s: float) -> None:
    self.started_s = started_s


_TIMING_OFF = {"accepted": _nothing, "started": _started, "step": _nothing, "end": _nothing}


def _switch(number: int, _: FrameType | None) -> None:
    on = number == signal.SIGRTMIN + 1
    for name, function in (_TIMING_ON if on else _TIMING_OFF).items():
        setattr(Timing, name, function)
    before, after = (int, _now) if on else (_now, int)  # int() is 0, and takes no time
    for module in list(sys.modules.values()):
        if module.__name__.startswith("sixfold.") and getattr(module, "now", None) is before:
            module.now = after  # type: ignore[attr-defined]
    for worker in _workers():
        if on:
            worker._backend.count_times(worker.meter)
        elif hasattr(worker._backend, "_program"):
            worker._backend._program.count_times(None)


Meter.add, Meter.tally = _add, _tally  # type: ignore[method-assign,assignment]
Meter.enter, Meter.leave = _enter, _leave  # type: ignore[method-assign,assignment]

_found: list[Any] = []


def _workers() -> list[Any]:
    module = sys.modules.get("sixfold.executor.worker")
    if module is not None and not _found:
        _found.extend(each for each in gc.get_objects() if isinstance(each, module.Worker))
    return _found


for _number in (signal.SIGRTMIN, signal.SIGRTMIN + 1):
    signal.signal(_number, _switch)
