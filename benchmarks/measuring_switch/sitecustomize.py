"""For `measuring.py` alone: every Python process with this folder in its path stops measuring at SIGRTMIN, and begins
again at SIGRTMIN + 1. The interpreter imports this module by its name when it starts.

What is off: meters, their clock, the clock around operations of the model, histograms of requests. What a call to a
function that does nothing costs remains, so the figures of `measuring.py` are a little too low: about 50 ns a call,
where a counted interval costs 700.
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


def _nothing(*_: Any, **__: Any) -> None:
    pass


def _leave(self: Any, site: int, start_ns: int, *more: Any, **named: Any) -> None:
    """Leaves what was entered while measuring was on."""
    if start_ns:
        _ON["leave"](self, site, start_ns, *more, **named)


def _started(self: Any, started_s: float) -> None:
    self.started_s = started_s


_OFF = {"add": _nothing, "tally": _nothing, "enter": _nothing, "leave": _leave}
_TIMING_OFF = {"accepted": _nothing, "started": _started, "step": _nothing, "end": _nothing}


def _switch(number: int, _: FrameType | None) -> None:
    on = number == signal.SIGRTMIN + 1
    for name, function in (_ON if on else _OFF).items():
        setattr(Meter, name, function)
    if on:
        Meter.leave = _leave  # type: ignore[method-assign,assignment]
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


_found: list[Any] = []


def _workers() -> list[Any]:
    module = sys.modules.get("sixfold.executor.worker")
    if module is not None and not _found:
        _found.extend(each for each in gc.get_objects() if isinstance(each, module.Worker))
    return _found


for _number in (signal.SIGRTMIN, signal.SIGRTMIN + 1):
    signal.signal(_number, _switch)
