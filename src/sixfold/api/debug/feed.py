"""The live feed: views of the engine, to everybody who watches this API process.

The engine sends one stream of views, however many watch, and none when nobody does. Each watcher gets the newest view
when it has taken the one before: who is slow sees fewer, and nothing is ever kept for anybody.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Iterator
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

HEARTBEAT_S = 0.25
"""A frame comes at the latest then, though the engine be silent: so a watcher knows that it is connected."""

_encode = msgspec.json.Encoder().encode


class Watcher:
    """One who watches. Made by `LiveFeed.joined`."""

    def __init__(self, feed: LiveFeed, period_s: float) -> None:
        self._feed = feed
        self.period_s = period_s
        self._seen: EngineView | None = None
        self._n_seen = feed.n_views if feed.view is None else -1
        self._n_ended = feed.n_ended
        self._n_spans = feed.timing.n_spans
        self._places_ns = -1
        """Of the totals that it has seen; -1: it has seen nothing yet."""
        self._last_s = 0.0

    async def next(self) -> bytes | None:
        """The next frame's JSON: at the earliest a period after the last one, when there is something new, else after
        HEARTBEAT_S. None: the feed is closed."""
        wait_s = self._last_s + self.period_s - time.monotonic()
        if wait_s > 0 and not self._feed.closed:
            await asyncio.sleep(wait_s)
        await self._feed.wait_news(self._n_seen, HEARTBEAT_S - self.period_s)
        if self._feed.closed:
            return None
        self._last_s = time.monotonic()
        self._n_seen = self._feed.n_views
        view, before, self._seen = self._feed.view, self._seen, self._feed.view
        return self._feed.frame()[:-1] + self._own_parts(view, before) + b"}"

    def _own_parts(self, view: EngineView | None, before: EngineView | None) -> bytes:
        """What has changed since this watcher's last frame, as members of a JSON object."""
        feed, parts = self._feed, b""
        if view is not None:
            parts += b',"map":' + _encode(changed_pages(view, before))
        if self._n_ended != feed.n_ended:
            parts += b',"ended":' + _encode(feed.ended_since(self._n_ended))
            self._n_ended = feed.n_ended
        feed.timing.look()
        if self._places_ns < 0:
            parts += b',"sites":' + _encode(SITE_FRAMES)
        if self._places_ns != feed.timing.places_ns:
            parts += b',"places":' + _encode(feed.timing.places)
            self._places_ns = feed.timing.places_ns
        if self._n_spans != feed.timing.n_spans:
            parts += b',"spans":' + _encode(feed.timing.spans_after(self._n_spans))
            self._n_spans = feed.timing.n_spans
        return parts


class LiveFeed:
    """See the module's docstring. Belongs to one event loop."""

    def __init__(self, context: ApiContext) -> None:
        self._context = context
        self._watchers: set[Watcher] = set()
        self._news: asyncio.Event | None = None
        self.view: EngineView | None = None
        self.n_views = 0
        self.closed = False
        self.n_ended = 0
        self.timing = MeterFeed(None)
        self._ended: deque[EndedFrame] = deque(maxlen=MAX_ENDED)
        self._frame: tuple[int, float, bytes] = (-1, 0.0, b"")
        """(views at that time, when, JSON): for those who look at the same moment."""

    @property
    def is_watched(self) -> bool:
        return bool(self._watchers)

    def add_ended(self, generation: Generation, call: Call) -> None:
        """What `call` asked for has ended. Only to be told while somebody watches."""
        self.n_ended += 1
        self._ended.append(ended_frame(generation, call))
        self._wake()

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

    async def wait_news(self, n_seen: int, seconds: float) -> None:
        """Returns when there is a later view than `n_seen`, the feed is closed, or the time is over."""
        if self.n_views != n_seen or self.closed:
            return
        if self._news is None:
            self._news = asyncio.Event()
        try:
            await asyncio.wait_for(self._news.wait(), max(seconds, 0.01))
        except TimeoutError:
            return

    def frame(self) -> bytes:
        """The part of a frame that is the same for all."""
        n_views, made_s, encoded = self._frame
        now_s = time.monotonic()
        if n_views != self.n_views or now_s - made_s > MIN_PERIOD_MS / 1e3:
            encoded = _encode(frame_of(self._context, self.view, now_s, len(self._watchers)))
            self._frame = (self.n_views, now_s, encoded)
        return encoded

    def _ask(self) -> None:
        """Tell the engine how often somebody looks; nobody: not at all."""
        if self._watchers:
            period_s = min(watcher.period_s for watcher in self._watchers)
            self._context.client.watch(max(MIN_PERIOD_MS, round(period_s * 1e3)), self._on_view)
        else:
            self._context.client.watch(0, self._on_view)
            self.view, self._frame = None, (-1, 0.0, b"")
            self._ended.clear()
            self.timing = MeterFeed(None)

    def _on_view(self, view: EngineView) -> None:
        self.view = view
        self.n_views += 1
        self._wake()

    def _wake(self) -> None:
        if self._news is not None:
            self._news.set()
            self._news = None
