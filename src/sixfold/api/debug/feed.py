"""The live feed: views of the engine, to everybody who watches this API process.

The engine sends one stream of views, however many watch, and none when nobody does. A view begins a round: all who wait
get a frame of it, which is the same for those who have seen the same round before. Who has not taken its last frame yet
skips rounds, and nothing is ever kept for anybody. Frames are made in the thread that answers requests, so rounds come
the later, the more frames cost: all watchers together get one part in COST_FACTOR of its time.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import msgspec

from sixfold.api.debug.frames import EndedFrame, changed_pages, ended_frame, frame_of
from sixfold.api.debug.timing import SITE_FRAMES, MeterFeed
from sixfold.errors import NotReady, Overloaded
from sixfold.messages import EngineView

if TYPE_CHECKING:
    from sixfold.api.call import Call
    from sixfold.api.context import ApiContext
    from sixfold.api.generation import Generation

__all__ = ["MAX_WATCHERS", "MIN_PERIOD_MS", "LiveFeed", "Watcher"]

MAX_WATCHERS = 32
"""In one API process: beyond it, 429."""

MAX_ENDED = 64
"""Requests that have ended, for watchers who have not seen it yet."""

MIN_PERIOD_MS = 16

COST_FACTOR = 20
MAX_PERIOD_S = 2.0
"""Between two frames, whatever they cost: the page takes a longer silence for a lost connection."""

MAX_MADE = 64
"""Parts of frames that are kept for the next watcher who wants the same."""

HEARTBEAT_S = 0.25
"""A round begins at the latest then, though the engine be silent: so a watcher knows that it is connected."""

_encode = msgspec.json.Encoder().encode


class Watcher:
    """One who watches. Made by `LiveFeed.joined`."""

    def __init__(self, feed: LiveFeed, period_s: float) -> None:
        self._feed = feed
        self.period_s = period_s
        self._seen: EngineView | None = None
        self._round = feed.n_rounds if feed.view is None else -1
        """The last one that it has seen."""
        self._n_ended = feed.n_ended
        self._n_spans = feed.timing.n_spans
        self._places_ns = -1
        """Of the totals that it has seen; -1: it has seen nothing yet."""
        self._last_s = 0.0

    async def next(self) -> bytes | None:
        """The next frame's JSON: of a round that it has not seen, at the earliest a period after its last one. None:
        the feed is closed."""
        wait_s = self._last_s + self.period_s - time.monotonic()
        if wait_s > 0 and not self._feed.closed:
            await asyncio.sleep(wait_s)
        await self._feed.wait_round(self._round)
        if self._feed.closed:
            return None
        self._last_s = time.monotonic()
        made = self._feed.frame()[:-1] + self._own_parts() + b"}"
        self._feed.pay(time.monotonic() - self._last_s)
        return made

    def _own_parts(self) -> bytes:
        """What has changed since this watcher's last frame, as members of a JSON object. Who saw the same frame last
        gets the same bytes."""
        feed, parts = self._feed, b""
        view, before, self._seen = feed.view, self._seen, feed.view
        if view is not None:
            since = self._round if before is not None else -1
            parts += feed.made(("map", since, feed.n_rounds), lambda: changed_pages(view, before))
        self._round = feed.n_rounds
        if (since := self._n_ended) != feed.n_ended:
            parts += feed.made(("ended", since, feed.n_ended), lambda: feed.ended_since(since))
            self._n_ended = feed.n_ended
        feed.timing.look()
        if self._places_ns < 0:
            parts += feed.made(("sites", 0, 0), lambda: SITE_FRAMES)
        if self._places_ns != feed.timing.places_ns:
            parts += feed.made(("places", 0, feed.timing.places_ns), lambda: feed.timing.places)
            self._places_ns = feed.timing.places_ns
        if (n := self._n_spans) != feed.timing.n_spans:
            parts += feed.made(("spans", n, feed.timing.n_spans), lambda: feed.timing.spans_after(n))
            self._n_spans = feed.timing.n_spans
        return parts


class LiveFeed:
    """See the module's docstring. Belongs to one event loop."""

    def __init__(self, context: ApiContext) -> None:
        self._context = context
        self._watchers: set[Watcher] = set()
        self._news: asyncio.Event | None = None
        self._newest: EngineView | None = None
        self.view: EngineView | None = None
        """Of the latest round."""
        self.n_rounds = 0
        self._round_s = self._due_s = 0.0
        """When the latest round began, and when the next one may."""
        self._cost_s = 0.0
        """What frames of the latest round took to make."""
        self._timer: asyncio.TimerHandle | None = None
        self._timer_s = 0.0
        self.closed = False
        self.n_ended = 0
        self.timing = MeterFeed(None)
        self._ended: deque[EndedFrame] = deque(maxlen=MAX_ENDED)
        self._frame = b""
        """The part of this round's frames that is the same for all; empty: it must be made."""
        self._made: dict[tuple[str, int, int], bytes] = {}

    @property
    def is_watched(self) -> bool:
        return bool(self._watchers)

    def add_ended(self, generation: Generation, call: Call) -> None:
        """What `call` asked for has ended. Only to be told while somebody watches."""
        self.n_ended += 1
        self._ended.append(ended_frame(generation, call))
        self._plan_round(self._due_s)

    def ended_since(self, n_ended: int) -> list[EndedFrame]:
        """Those after the first `n_ended`, as far as they are kept."""
        n = min(self.n_ended - n_ended, len(self._ended))
        return list(self._ended)[len(self._ended) - n :]

    @contextmanager
    def joined(self, period_ms: int) -> Iterator[Watcher]:
        """Watch, while this is entered.

        Raises:
            Overloaded: too many do.
            NotReady: the server stops.
        """
        if self.closed:
            raise NotReady("the server is shutting down", code="draining", retry_after_s=5.0)
        if len(self._watchers) >= MAX_WATCHERS:
            raise Overloaded(f"{MAX_WATCHERS} connections watch this process already", retry_after_s=5.0)
        if not self._watchers:
            self.timing = MeterFeed(self._context.observatory)
        watcher = Watcher(self, max(period_ms, MIN_PERIOD_MS) / 1e3)
        self._watchers.add(watcher)
        self._ask()
        try:
            yield watcher
        finally:
            self._watchers.discard(watcher)
            self._ask()

    def close(self) -> None:
        """End every stream. Idempotent."""
        self.closed = True
        self._wake()

    async def wait_round(self, seen: int) -> None:
        """Returns when there is a later round than `seen`, or the feed is closed."""
        if self.n_rounds == seen and not self.closed:
            if self._news is None:
                self._news = asyncio.Event()
            await self._news.wait()

    def pay(self, cost_s: float) -> None:
        """A frame took so long to make: the next round comes the later."""
        self._cost_s += cost_s
        self._due_s = self._round_s + min(max(COST_FACTOR * self._cost_s, MIN_PERIOD_MS / 1e3), MAX_PERIOD_S)

    def made(self, key: tuple[str, int, int], make: Callable[[], object]) -> bytes:
        """A member of a frame's JSON, made once for all who want the same.

        Args:
            key: its name, since when it counts, and until when.
        """
        found = self._made.get(key)
        if found is None:
            if len(self._made) >= MAX_MADE:
                self._made.clear()
            found = self._made[key] = b',"%s":%s' % (key[0].encode(), _encode(make()))
        return found

    def frame(self) -> bytes:
        """The part of a frame that is the same for all."""
        if not self._frame:
            self._frame = _encode(frame_of(self._context, self.view, time.monotonic(), len(self._watchers)))
        return self._frame

    def _ask(self) -> None:
        """Tell the engine how often somebody looks; nobody: not at all."""
        self._frame = b""
        if self._watchers:
            period_s = min(watcher.period_s for watcher in self._watchers)
            self._context.client.watch(max(MIN_PERIOD_MS, round(period_s * 1e3)), self._on_view)
            self._plan_round(time.monotonic() + HEARTBEAT_S)
        else:
            self._context.client.watch(0, self._on_view)
            self.view = self._newest = None
            self._ended.clear()
            self._made.clear()
            self.timing = MeterFeed(None)
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None

    def _on_view(self, view: EngineView) -> None:
        self._newest = view
        self._plan_round(self._due_s)

    def _plan_round(self, at_s: float) -> None:
        """The next round begins then, if none does earlier."""
        now_s = time.monotonic()
        if at_s <= now_s:
            self._begin_round()
        elif self._timer is None or self._timer_s > at_s:
            if self._timer is not None:
                self._timer.cancel()
            self._timer_s = at_s
            self._timer = asyncio.get_running_loop().call_later(at_s - now_s, self._begin_round)

    def _begin_round(self) -> None:
        """All who wait get a frame, of one and the same moment."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        now_s = time.monotonic()
        if now_s < self._due_s:
            self._plan_round(self._due_s)
            return
        if not self._watchers:
            return
        self.view = self._newest
        self.n_rounds += 1
        self._round_s, self._cost_s, self._frame = now_s, 0.0, b""
        self.pay(0.0)
        self._plan_round(now_s + HEARTBEAT_S)
        self._wake()

    def _wake(self) -> None:
        if self._news is not None:
            self._news.set()
            self._news = None
