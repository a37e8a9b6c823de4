"""What `sixfold top` draws: one frame of the live feed as a table for a terminal of 80 columns or more."""

from __future__ import annotations

from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

__all__ = ["Rates", "draw", "has_rates"]

BAR_CELLS = 40
REASONS = {
    "slots": "for a slot",
    "blocks": "for blocks",
    "step": "next step",
    "order": "in line",
    "budget": "for its turn",
    "leader": "for its prompt",
}


class Rates:
    """Tokens a second, of all and of each choice, from one view of the engine to the next: several frames may show the
    same view."""

    def __init__(self) -> None:
        self._last: dict[str, Any] | None = None
        self._smooth: dict[str, float] = {}

    def take(self, frame: dict[str, Any]) -> dict[str, float]:
        """Key of a choice, "" for all -> tokens a second, smoothed over about a second."""
        last = self._last
        if last is not None and _view(last) == _view(frame):
            if not frame["stats"]["running"]:  # an idle engine sends no views
                self._smooth = {}
            return self._smooth
        self._last = frame
        if last is None or last["epoch"] != frame["epoch"] or not last["engine_time_ms"]:
            self._smooth = {}
            return {}
        seconds = (frame["engine_time_ms"] - last["engine_time_ms"]) / 1e3
        before = {key_of(choice): choice["output"] for choice in last["choices"]}
        counts = {key_of(choice): choice["output"] - before.get(key_of(choice), 0) for choice in frame["choices"]}
        counts[""] = frame["stats"]["generated_tokens"] - last["stats"]["generated_tokens"]
        if seconds > 0:
            weight = min(1.0, seconds)
            old = self._smooth
            self._smooth = {
                key: old.get(key, n / seconds) * (1 - weight) + n / seconds * weight for key, n in counts.items()
            }
        return self._smooth


def has_rates(frames: list[dict[str, Any]]) -> bool:
    """Whether these frames show all that is needed for rates: two views, or an engine without work."""
    views = {_view(frame) for frame in frames if frame["engine_time_ms"]}
    stats = frames[-1]["stats"]
    return len(views) > 1 or (len(frames) > 1 and bool(views) and not stats["running"] and not stats["waiting"])


def _view(frame: dict[str, Any]) -> tuple[int, float]:
    """Differs between two views of the engine."""
    return frame["epoch"], frame["engine_time_ms"]


def key_of(choice: dict[str, Any]) -> str:
    return f"{choice['uid']}:{choice['choice']}"


def draw(frame: dict[str, Any], rates: dict[str, float], url: str, rows: int, note: str = "") -> RenderableType:
    """A frame as something that rich prints.

    Args:
        url: of the server, and what else the first line shall say.
        rows: lines that there are for choices, at least 1.
        note: about the connection; empty while it stands.
    """
    stats = frame["stats"]
    total = stats["blocks_total"] or 1
    held = stats["blocks_total"] - stats["blocks_free"] - stats["blocks_cached"]
    head = Text.assemble(
        ("sixfold top", "bold"),
        f"  {url}  ",
        (note or frame["state"], "bold red" if note else "green" if frame["state"] == "ready" else "yellow"),
    )
    lines = [
        head,
        Text(
            f"run {stats['running']}  wait {stats['waiting']}  preparing {frame['n_preparing']}"
            f"  step {frame['step']} (+{frame['outstanding']})  {rates.get('', 0):.0f} tokens/s"
            f"  engine {frame['epoch']}"
        ),
        _pool(held / total, stats["blocks_cached"] / total, held, stats),
        Text(
            f"tokens: {stats['prompt_tokens']} read, {stats['cached_tokens']} of them cached; "
            f"{stats['generated_tokens']} drawn; preempted {stats['preemptions']}",
            style="dim",
        ),
    ]
    return Group(*lines, _table(frame, rates, rows))


def _pool(held: float, cached: float, n_held: int, stats: dict[str, Any]) -> Text:
    n = round(held * BAR_CELLS)
    m = min(BAR_CELLS - n, round(cached * BAR_CELLS))
    return Text.assemble(
        "blocks ",
        ("█" * n, "cyan"),
        ("▒" * m, "dim cyan"),
        ("·" * (BAR_CELLS - n - m), "dim"),
        f" {n_held} held, {stats['blocks_cached']} cached",
    )


def _table(frame: dict[str, Any], rates: dict[str, float], rows: int) -> RenderableType:
    names = {uid: request["id"] for request in frame["requests"] for uid in request["uids"]}
    table = Table(box=None, pad_edge=False, expand=False, header_style="dim")
    table.add_column("REQUEST", no_wrap=True, max_width=24)
    table.add_column("STATE", no_wrap=True, max_width=15)
    for name in ("PROMPT", "DRAWN", "TOK/S", "BLOCKS"):
        table.add_column(name, justify="right", no_wrap=True)
    lines: list[tuple[str, ...]] = []
    for choice in frame["choices"]:
        lines.append(
            (
                _short(names.get(choice["uid"], choice["uid"])) + (f"#{choice['choice']}" if choice["choice"] else ""),
                _state(choice),
                f"{min(choice['computed'], choice['prompt'])}/{choice['prompt']}",
                str(choice["output"]),
                f"{rates.get(key_of(choice), 0):.0f}",
                str(choice["blocks"]),
            )
        )
    for request in frame["requests"]:
        if not request["uids"]:
            lines.append((_short(request["id"]), request["stage"], "", "", "", ""))
    for line in lines[:rows]:
        table.add_row(*(Text(cell) for cell in line))
    if len(lines) <= rows:
        return table
    return Group(table, Text(f"and {len(lines) - rows} more", style="dim"))


def _state(choice: dict[str, Any]) -> str:
    if choice["state"] == "running":
        return "writes" if choice["output"] else "reads"
    if choice["reason"]:
        return REASONS.get(choice["reason"], str(choice["reason"]))
    return str(choice["state"])


def _short(name: str) -> str:
    return name if len(name) <= 22 else f"{name[:10]}~{name[-10:]}"
