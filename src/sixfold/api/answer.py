"""Answers that are not streams: gather everything, then send one document."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from sixfold.api.call import Call
from sixfold.api.errors import ClientGone
from sixfold.api.generation import Generation
from sixfold.detokenizer import ChoiceDelta

__all__ = ["collect"]


async def collect(
    call: Call,
    generation: Generation,
    add: Callable[[list[ChoiceDelta]], None],
    document: Callable[[Generation], bytes],
    headers: list[tuple[bytes, bytes]],
) -> None:
    """Answer with `document` once every choice has ended; a client that leaves ends it at once.

    Raises:
        SixfoldError: the generation failed; nothing was sent.
    """
    call.counted = generation
    gone = asyncio.ensure_future(call.wait_gone())
    gone.add_done_callback(lambda _: generation.close())
    try:
        async for deltas in generation.steps():
            add(deltas)
    except ClientGone:
        call.fault = "client_gone"
        return
    finally:
        generation.close()
        gone.cancel()
    await call.respond(200, document(generation), headers=headers)
