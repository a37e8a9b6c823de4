"""Template and tokenizer work beside the event loop, so that a long prompt stops nobody else's tokens."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import ParamSpec, TypeVar

from sixfold.observability.calls import CallRecord, current
from sixfold.observability.meter import Meter, now
from sixfold.observability.sites import API_ASIDE, API_THREAD
from sixfold.observability.timeline import State

__all__ = ["LONG_TEXT_CHARS", "SHORT_TEXT_CHARS", "TextThreads"]

TEXT_THREADS = 2
"""For what is to be generated from. Templates hold the GIL and tokenization does not: one of each can proceed."""

ASIDE_THREADS = 1
"""For calls that generate nothing, of any length: they wait for each other."""

SHORT_TEXT_CHARS = 512
"""A text of up to as many is tokenized at once: at most 0.9 ms (nothing but digits of four bytes; of ASCII 0.6), and a
thread for it would cost 0.2."""

LONG_TEXT_CHARS = 64 << 10
"""Texts that will be truncated may be of any length: from here on they wait for each other (`TextThreads.aside`)."""

P = ParamSpec("P")
R = TypeVar("R")


class TextThreads:
    """See the module's docstring. Belongs to one event loop; `note` alone is called in a thread.

    The record of the call that waits (`calls.current`) goes with its work: there it enters the states of its text.

    Args:
        meter: of the process.
    """

    def __init__(self, meter: Meter) -> None:
        self._meter = meter
        self._notes: deque[tuple[int, int, int]] = deque()
        self._pool = ThreadPoolExecutor(TEXT_THREADS, thread_name_prefix="text")
        self._aside_pool = ThreadPoolExecutor(ASIDE_THREADS, thread_name_prefix="text aside")

    def at_once(self, work: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """In the event loop: for what is short."""
        record = current.get()
        before = record.state if record is not None else None
        try:
            return work(*args, **kwargs)
        finally:
            self._end(record, before)

    async def run(self, work: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """For what is to be generated from."""
        return await self._timed(self._pool, API_THREAD, work, *args, **kwargs)

    async def aside(self, work: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """The same for calls that generate nothing: no generation waits for them."""
        return await self._timed(self._aside_pool, API_ASIDE, work, *args, **kwargs)

    def note(self, site: int, started_ns: int, ended_ns: int) -> None:
        """Time that was spent in a thread: the meter has one writer, the event loop."""
        self._notes.append((site, started_ns, ended_ns))

    async def _timed(
        self, pool: ThreadPoolExecutor, site: int, work: Callable[P, R], *args: P.args, **kwargs: P.kwargs
    ) -> R:
        record, asked_ns = current.get(), now()
        before = record.state if record is not None else None

        def call() -> R:
            began_ns = now()
            self.note(site, asked_ns, began_ns)
            token = current.set(record)
            if record is not None:
                record.enter(before, began_ns)
            try:
                return work(*args, **kwargs)
            finally:
                if record is not None:
                    record.enter(State.RESUME)
                current.reset(token)

        if record is not None:
            record.enter(State.THREAD, asked_ns)
        try:
            return await asyncio.get_running_loop().run_in_executor(pool, call)
        finally:
            self._end(record, before)

    def _end(self, record: CallRecord | None, before: State | None) -> None:
        """The call goes on in the loop, in the state that it had."""
        if record is not None:
            record.enter(before)
        while self._notes:
            self._meter.add(*self._notes.popleft())

    def close(self) -> None:
        """What has not begun never will."""
        for pool in (self._pool, self._aside_pool):
            pool.shutdown(wait=False, cancel_futures=True)
