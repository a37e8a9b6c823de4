"""`sixfold top`: what a running server does now, in the terminal."""

from __future__ import annotations

import contextlib
import os
import select
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import click
import msgspec

from sixfold.cli.remote import Unreachable, get, server_events, server_options
from sixfold.errors import SixfoldError

__all__ = ["top"]

PERIOD_MS = 250
MAX_FRAMES = 12
"""Of which `--once` makes its one: about three seconds, in which every engine that works is seen twice."""
PAUSES_S = (0.5, 1.0, 2.0, 5.0)
"""Between tries to connect, while nobody answers."""


@click.command(short_help="Watch a running server.")
@server_options
@click.option("--once", is_flag=True, help="Print one frame and exit.")
@click.option("--json", "as_json", is_flag=True, help="Print frames as JSON, one a line.")
def top(url: str, api_key: str, once: bool, as_json: bool) -> int:
    """Show what a running server does now: who runs and who waits, tokens a second, blocks. `q` quits."""
    url = url.rstrip("/")
    if as_json:
        n_frames = 1 if once else 0
        for frame in _frames(url, api_key, n_frames):
            click.echo(msgspec.json.encode(frame))
    elif once or not sys.stdout.isatty():
        _print(_frames(url, api_key, MAX_FRAMES), url)
    else:
        _watch(url, api_key)
    return 0


def _frames(url: str, key: str, n_frames: int = 0) -> Iterator[dict[str, Any]]:
    path = f"/debug/live?interval_ms={PERIOD_MS}" + (f"&frames={n_frames}" if n_frames else "")
    for data in server_events(url, path, key):
        frame = msgspec.json.decode(data, type=dict[str, Any])
        frame.pop("map", None)  # for pictures
        yield frame


def _print(feed: Iterator[dict[str, Any]], url: str) -> None:
    """The first of these that has rates, or the last one."""
    from rich.console import Console

    from sixfold.cli.top_view import Rates, draw, has_rates

    rates: dict[str, float] = {}
    seen = Rates()
    frames: list[dict[str, Any]] = []
    for frame in feed:
        frames.append(frame)
        rates = seen.take(frame)
        if has_rates(frames):
            break
    Console(width=None if sys.stdout.isatty() else 80).print(draw(frames[-1], rates, url, rows=200))


class _Latest:
    """The newest frame, fetched by a thread of its own, which connects again whenever it has to."""

    def __init__(self, url: str, key: str) -> None:
        self._url, self._key = url, key
        self.frame: dict[str, Any] | None = None
        self.note = "connecting"
        self.fault: SixfoldError | None = None
        """What ends the command: a refusal that another try would not change."""
        threading.Thread(target=self._run, name="feed", daemon=True).start()

    def _run(self) -> None:
        tries = 0
        while self.fault is None:
            try:
                for frame in _frames(self._url, self._key):
                    self.frame, self.note, tries = frame, "", 0
                raise Unreachable("the server has ended the connection")
            except Unreachable as error:
                pause_s = PAUSES_S[min(tries, len(PAUSES_S) - 1)]
                tries += 1
                self.note = f"{error.message}; trying again"
                time.sleep(pause_s)
            except SixfoldError as error:
                self.fault = error


def _watch(url: str, key: str) -> None:
    """Raises: SixfoldError: the server refuses, or there is none to begin with."""
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    from sixfold.cli.top_view import Rates, draw

    get(url, "/livez")  # a wrong address is told at once
    console = Console()
    latest, rates, shown = _Latest(url, key), Rates(), None
    with _keys() as pressed, Live(console=console, screen=console.is_terminal, auto_refresh=False) as live:
        smooth: dict[str, float] = {}
        while True:
            if pressed(PERIOD_MS / 1e3) in ("q", "Q", "\x03", "\x04"):
                return
            if latest.fault is not None:
                raise latest.fault
            frame = latest.frame
            if frame is None:
                live.update(Text(latest.note), refresh=True)
                continue
            if frame is not shown:
                shown, smooth = frame, rates.take(frame)
            picture = draw(frame, smooth, f"{url}   q quits", max(1, console.height - 7), latest.note)
            live.update(picture, refresh=True)


@contextlib.contextmanager
def _keys() -> Iterator[Any]:
    """A function that waits for a key at most so many seconds, and gives it, or ""."""
    if not sys.stdin.isatty():

        def no_keys(seconds: float) -> str:
            time.sleep(seconds)
            return ""

        yield no_keys
        return
    import termios
    import tty

    fd = sys.stdin.fileno()
    before = termios.tcgetattr(fd)

    def pressed(seconds: float) -> str:
        ready, _, _ = select.select([fd], [], [], seconds)
        return os.read(fd, 1).decode("latin-1") if ready else ""

    try:
        tty.setcbreak(fd)
        yield pressed
    finally:
        termios.tcsetattr(fd, termios.TCSADRAIN, before)
