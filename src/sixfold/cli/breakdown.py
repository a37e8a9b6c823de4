"""The work of `sixfold bench --breakdown`: where a step's time goes, in a real server under a real load.

Batches of streams, one batch size after another. A batch's window opens when every stream has its first token and
closes when the first of them ends: all steps in it decode that many rows and nothing else. What the server's meters
count meanwhile (`/metrics`), divided by the steps, is the table.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from sixfold.errors import RequestFailed

if TYPE_CHECKING:
    from sixfold.cli.measurement import Prompts
    from sixfold.config import Config

__all__ = ["Breakdown", "break_down", "print_breakdown"]


@dataclass(frozen=True)
class Breakdown:
    """One batch size."""

    batch: int
    steps: int
    us: dict[str, dict[str, float]]
    """Process -> site or `site/part` -> microseconds per step. Waits are left out."""
    cpu_us: dict[str, float]
    """Process -> CPU time per step, all its threads together."""


def break_down(
    config: Config, prompts: Prompts, batches: tuple[int, ...], prompt_tokens: int, output_tokens: int
) -> list[Breakdown]:
    """Start a server for this command alone, and load it.

    Args:
        config: resolved; with room for the largest batch.
        output_tokens: of each stream.

    Raises:
        KeyboardInterrupt: a signal ended it.
        RequestFailed: a call was refused, or the streams of a batch never ran all at once.
    """
    from sixfold.engine.supervisor import EXIT_INTERRUPTED, serve

    found: list[Breakdown] = []
    faults: list[Exception] = []

    def work(url: str) -> None:
        try:
            asyncio.run(_load(url, prompts, batches, prompt_tokens, output_tokens, found.append))
        except Exception as fault:  # noqa: BLE001 - raised below: the server has to end first
            faults.append(fault)

    status = serve(config, work)
    if status == EXIT_INTERRUPTED:
        raise KeyboardInterrupt  # the streams that it cut off say nothing about the server
    if faults:
        fault = faults[0]
        raise fault.exceptions[0] if isinstance(fault, ExceptionGroup) else fault
    if status or len(found) < len(batches):
        raise RequestFailed("the server ended before the measurement")
    return found


async def _load(
    url: str,
    prompts: Prompts,
    batches: tuple[int, ...],
    prompt_tokens: int,
    output_tokens: int,
    take: Callable[[Breakdown], None],
) -> None:
    address = urlsplit(url)
    host, port = address.hostname or "", address.port or 0
    for batch in batches:
        for count in (1, output_tokens):  # first of all the prompts: then they are in the prefix cache
            window = _Window(host, port, batch) if count > 1 else None
            async with asyncio.TaskGroup() as streams:
                for index in range(batch):
                    prompt = prompts.make("breakdown", index, prompt_tokens)
                    streams.create_task(_stream(host, port, prompt, count, window))
            if window is not None:
                take(await window.result())


class _Window:
    """Looks at the server's counters when all streams have begun, and when the first ends."""

    def __init__(self, host: str, port: int, batch: int) -> None:
        self._host, self._port, self._batch = host, port, batch
        self._n_begun = 0
        self._looks: list[asyncio.Task[_Counts]] = []

    def begun(self) -> None:
        self._n_begun += 1
        if self._n_begun == self._batch:
            self._looks.append(asyncio.ensure_future(_look(self._host, self._port)))

    def almost_ended(self) -> None:
        """A stream has nearly all its tokens: looking takes a few steps, too."""
        if len(self._looks) == 1:
            self._looks.append(asyncio.ensure_future(_look(self._host, self._port)))

    async def result(self) -> Breakdown:
        """Raises: RequestFailed: the window never opened."""
        if len(self._looks) < 2:
            raise RequestFailed(
                f"{self._batch} streams never ran all at once: raise --max-num-seqs or --kv-cache-memory, or ask for "
                "more --output-tokens"
            )
        before, after = await asyncio.gather(*self._looks)
        steps = int(after.stays["engine"]["engine.commit"] - before.stays["engine"]["engine.commit"])
        us = {
            process: {
                site: 1e6 * (seconds - before.seconds[process].get(site, 0.0)) / steps
                for site, seconds in sites.items()
                if seconds > before.seconds[process].get(site, 0.0)
            }
            for process, sites in after.seconds.items()
        }
        cpu = {process: 1e6 * (seconds - before.cpu[process]) / steps for process, seconds in after.cpu.items()}
        for sites in us.values():
            _scale_parts(sites)
        return Breakdown(self._batch, steps, us, cpu)


def _scale_parts(sites: dict[str, float]) -> None:
    """Parts of a site that were timed in some stays alone become parts of all its time."""
    for whole in {name.partition("/")[0] for name in sites if name.startswith("api.") and "/" in name}:
        parts = [name for name in sites if name.startswith(f"{whole}/")]
        total = sum(sites[part] for part in parts)
        for part in parts:
            sites[part] *= sites[whole] / total


@dataclass(frozen=True)
class _Counts:
    """The server's counters at one moment."""

    seconds: dict[str, dict[str, float]]
    stays: dict[str, dict[str, float]]
    cpu: dict[str, float]


async def _look(host: str, port: int) -> _Counts:
    from prometheus_client.parser import text_string_to_metric_families

    reader, writer = await asyncio.open_connection(host, port)
    try:
        writer.write(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        text = (await reader.read()).partition(b"\r\n\r\n")[2].decode()
    finally:
        writer.close()
    counts = _Counts({}, {}, {})
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            labels = sample.labels
            if sample.name == "sixfold_process_cpu_seconds_total":
                counts.cpu[labels["process"]] = sample.value
            elif sample.name == "sixfold_part_seconds_total":
                counts.seconds.setdefault(labels["process"], {})[f"{labels['site']}/{labels['part']}"] = sample.value
            elif sample.name == "sixfold_site_stays_total":
                counts.stays.setdefault(labels["process"], {})[labels["site"]] = sample.value
            elif sample.name == "sixfold_site_seconds_total" and labels["kind"] == "work":
                counts.seconds.setdefault(labels["process"], {})[labels["site"]] = sample.value
    return counts


async def _stream(host: str, port: int, prompt: list[int], n_tokens: int, window: _Window | None) -> None:
    body = json.dumps(
        {"prompt": prompt, "max_tokens": n_tokens, "ignore_eos": True, "temperature": 0, "stream": True}
    ).encode()
    reader, writer = await asyncio.open_connection(host, port, limit=1 << 20)
    try:
        head = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        writer.write(head + b"Content-Length: %d\r\nConnection: close\r\n\r\n" % len(body) + body)
        status = (await reader.readline()).split(b" ")
        n_events = 0
        async for line in reader:
            if not line.startswith(b"data:"):
                continue
            n_events += 1
            if window is None:
                continue
            if n_events == 1:
                window.begun()
            if n_events == n_tokens * 3 // 4:
                window.almost_ended()
        if len(status) < 2 or status[1] != b"200":
            raise RequestFailed(f"the server answered {b' '.join(status).decode(errors='replace').strip()!r}")
    finally:
        writer.close()


def print_breakdown(found: list[Breakdown]) -> None:
    """One table for each process: microseconds per step, and the share of the process's work."""
    from rich.console import Console
    from rich.table import Table

    console = Console(highlight=False, soft_wrap=True)
    for process in found[0].us:
        table = Table(title=f"{process}: us per step", title_justify="left")
        table.add_column("work")
        for one in found:
            table.add_column(f"batch {one.batch}", justify="right")
            table.add_column("part", justify="right")
        sums = [sum(us for site, us in one.us[process].items() if "/" not in site) for one in found]
        names = list(dict.fromkeys(site for one in found for site in one.us[process]))
        wholes = [name for name in names if "/" not in name]
        for whole in wholes:
            _add_row(table, whole.partition(".")[2], [one.us[process].get(whole, 0.0) for one in found], sums)
            for part in (name for name in names if name.startswith(f"{whole}/")):
                _add_row(table, "  " + part.partition("/")[2], [one.us[process].get(part, 0.0) for one in found], sums)
        _add_row(table, "all of it", sums, sums, end=True)
        _add_row(table, "CPU time of the process", [one.cpu_us.get(process, 0.0) for one in found], [])
        console.print(table)
    steps = ", ".join(f"{one.steps} at {one.batch}" for one in found)
    console.print(f"steps measured: {steps}")


def _add_row(table: Any, name: str, values: list[float], sums: list[float], *, end: bool = False) -> None:
    cells = []
    for index, value in enumerate(values):
        cells += [f"{value:,.1f}", f"{value / sums[index]:.1%}" if sums and sums[index] else ""]
    table.add_row(name, *cells, end_section=end)
