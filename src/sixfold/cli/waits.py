"""`sixfold waits`: where a running server's time goes, by its total, and why each wait is there."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click
import msgspec

from sixfold.cli.remote import get, server_options

if TYPE_CHECKING:
    from sixfold.api.debug.waits import WaitSite

__all__ = ["waits"]

FIGURES = ["place", "kind", "count", "total", "mean", "p50", "p99", "max", "now"]
REASONS = ["place", "kind", "why"]


@click.command(short_help="Show where a server's time goes.")
@server_options
@click.option("--json", "as_json", is_flag=True, help="Print the document.")
@click.option("--register", "registered", is_flag=True, help="Print why each wait is there; needs no server.")
def waits(url: str, api_key: str, as_json: bool, registered: bool) -> int:
    """Show the places where a server's time goes, the dearest first: how often, how long, and for how long somebody
    has been waiting there now.

    Kinds of a wait: `invariant` protects something, beside `overlappable` something else runs, a lever makes
    `shrinkable` shorter, `idle` hurts nobody; --register says what and why. A server without requests waits in
    engine.inbox and worker.idle. Parts, like worker.qkv, have totals only.
    """
    from sixfold.api.debug.waits import WaitList, register

    body = msgspec.json.encode(register()) if registered else get(url.rstrip("/"), "/debug/waits", api_key)
    if as_json:
        click.echo(body)
        return 0
    sites = msgspec.json.decode(body, type=WaitList).data
    if registered:
        lines = _table([REASONS, *(_reasons(site) for site in sites if site.kind != "work")], n_left=3)
    else:
        lines = _table([FIGURES, *(_figures(site) for site in sites if site.count or site.waiting)], n_left=2)
    click.echo("\n".join(lines))
    return 0


def _figures(site: WaitSite) -> list[str]:
    spread = [""] * 3 if site.max_us == 0 < site.total_us else [*map(_time, (site.p50_us, site.p99_us, site.max_us))]
    now = _time(site.waiting_since_us) if site.waiting_since_us else ""
    return [site.name, site.kind, str(site.count), _time(site.total_us), _time(site.mean_us), *spread, now]


def _reasons(site: WaitSite) -> list[str]:
    why = {
        "invariant": f"protects: {site.protects}",
        "overlappable": f"meanwhile: {site.meanwhile}",
        "shrinkable": f"lever: {site.lever}",
    }
    return [site.name, site.kind, why.get(site.kind, site.what)]


def _time(us: float) -> str:
    """Three figures, with a unit that suits them."""
    for size, unit in ((1e6, "s"), (1e3, "ms")):
        if us >= size:
            return f"{us / size:.3g} {unit}" if us < 1000 * size else f"{us / size:.0f} {unit}"
    return f"{us:.3g} us"


def _table(rows: list[list[str]], n_left: int) -> list[str]:
    """Columns as wide as they have to be; the first `n_left` begin at the left."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return [
        "  ".join(
            cell.ljust(width) if column < n_left else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]
