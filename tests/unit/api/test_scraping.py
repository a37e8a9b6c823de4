"""Many who ask for metrics at once, beside streams."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

from sixfold.api import admin


def test_other_work_gets_its_turn_between_two_scrapes() -> None:
    async def scrape_together() -> list[int]:
        n_turns = 0
        rendered_at: list[int] = []

        def turn() -> None:
            nonlocal n_turns
            n_turns += 1
            asyncio.get_running_loop().call_soon(turn)

        async def nothing(*_: Any, **__: Any) -> list[Any]:
            return []

        def render(_: Any) -> bytes:
            rendered_at.append(n_turns)
            return b""

        context = SimpleNamespace(ask_peers=nothing, metrics=SimpleNamespace(render=render), scraping=asyncio.Lock())
        call = cast(Any, SimpleNamespace(context=context, respond=nothing))
        turn()
        await asyncio.gather(*(admin.metrics(call) for _ in range(20)))
        return rendered_at

    rendered_at = asyncio.run(scrape_together())
    assert len(rendered_at) == len(set(rendered_at)) == 20
