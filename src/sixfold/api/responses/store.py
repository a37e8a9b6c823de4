"""The store of answers as the event loop sees it: one thread, bounded waiting, and faults that break no answer.

What cannot be kept (a full disk, a file locked by somebody else, an answer larger than its share) is answered all the
same, and its document says `"store": false`. What cannot be read is a 503.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import sqlite3
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from sixfold.api.responses.store_file import ChainBroken, ChainTooLong, Stored, StoreFile
from sixfold.config import ApiConfig
from sixfold.errors import InvalidRequest, NotReady, ResponseNotFound

__all__ = ["MAX_CHAIN", "ResponseStore", "Stored", "open_store"]

MAX_CHAIN = 256
"""Answers that one may continue, one after the other."""

MAX_WAITING = 64
"""Calls of the store in flight: beyond it, it counts as not there."""

WAIT_S = 5.0
"""For one call. A file system that hangs must not hang an answer."""

WARN_EVERY_S = 60.0

logger = logging.getLogger(__name__)

T = TypeVar("T")


def open_store(config: ApiConfig) -> ResponseStore | None:
    """The store that the settings ask for; None where answers are not kept. Touches no file yet."""
    if config.response_store in ("", "off"):
        return None
    file = StoreFile(
        Path(config.response_store), max_bytes=config.response_store_bytes, ttl_s=config.response_store_ttl_s
    )
    return ResponseStore(file, max_chain_bytes=config.max_body_bytes)


class ResponseStore:
    """See the module's docstring. Belongs to one event loop.

    Args:
        max_chain_bytes: of the documents that one answer continues, together.
    """

    def __init__(self, file: StoreFile, *, max_chain_bytes: int) -> None:
        self._file = file
        self._max_chain_bytes = max_chain_bytes
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="responses")
        self._in_flight = 0
        self._warned_s = -WARN_EVERY_S

    async def put(self, tenant: str, stored: Stored) -> bool:
        """Keep an answer; whether that worked. Raises nothing."""
        try:
            return await self._call(self._file.put, tenant, stored)
        except NotReady:
            return False

    async def get(self, tenant: str, id: str) -> Stored:
        """Raises:
        ResponseNotFound: there is none of this id, of this tenant.
        NotReady: the file cannot be read now.
        """
        stored = await self._call(self._file.get, tenant, id)
        if stored is None:
            raise not_found(id)
        return stored

    async def chain(self, tenant: str, id: str) -> list[Stored]:
        """What an answer with this `previous_response_id` continues, the oldest first.

        Raises:
            InvalidRequest: a link of it is not there, or it is too long.
            NotReady: the file cannot be read now.
        """
        field = "previous_response_id"
        work = functools.partial(self._file.chain, max_links=MAX_CHAIN, max_bytes=self._max_chain_bytes)
        try:
            return await self._call(work, tenant, id)
        except ChainBroken as broken:
            gone = broken.args[0]
            what = f"there is no stored response {shown(id)}"
            if gone != id:
                what = f"{shown(id)} continues {shown(gone)}, which is not stored any more"
            raise InvalidRequest(f"{field}: {what}", param=field, code="previous_response_not_found") from None
        except ChainTooLong:
            raise InvalidRequest(
                f"{field}: a conversation may have {MAX_CHAIN} responses and {self._max_chain_bytes} bytes; "
                "this one has more",
                param=field,
                code="conversation_too_long",
            ) from None

    async def delete(self, tenant: str, id: str) -> None:
        """Raises:
        ResponseNotFound: there is none of this id, of this tenant.
        NotReady: the file cannot be written now.
        """
        if not await self._call(self._file.delete, tenant, id):
            raise not_found(id)

    def close(self) -> None:
        """Call once, at the end."""
        self._pool.submit(self._file.close)
        self._pool.shutdown(wait=False)

    async def _call(self, work: Callable[..., T], *args: object) -> T:
        """Raises: NotReady: the file does not do as it should; and what `work` raises."""
        if self._in_flight >= MAX_WAITING:
            raise unavailable()
        self._in_flight += 1
        future = asyncio.get_running_loop().run_in_executor(self._pool, work, *args)
        future.add_done_callback(self._ended)
        try:
            # `wait` leaves the call alone: it counts until it has really ended, and may still succeed.
            done, _ = await asyncio.wait([future], timeout=WAIT_S)
            if not done:
                raise TimeoutError(f"no answer within {WAIT_S:g} s")
            return future.result()
        except (sqlite3.Error, OSError) as error:  # TimeoutError is an OSError
            self._warn(error)
            self._pool.submit(self._file.close)  # whoever repairs the file finds it let go of
            raise unavailable() from None

    def _ended(self, future: asyncio.Future[T]) -> None:
        self._in_flight -= 1
        if not future.cancelled():
            future.exception()  # has been seen, also where nobody waited any longer

    def _warn(self, error: Exception) -> None:
        if time.monotonic() - self._warned_s >= WARN_EVERY_S:
            self._warned_s = time.monotonic()
            logger.warning("the response store cannot be used: %s", error)


def unavailable() -> NotReady:
    return NotReady("stored responses cannot be reached now", code="response_store_unavailable", retry_after_s=1.0)


def not_found(id: str) -> ResponseNotFound:
    return ResponseNotFound(f"there is no stored response {shown(id)}", param="response_id")


def shown(id: str) -> str:
    """An id that a caller wrote, for a message."""
    return repr(id if len(id) <= 80 else id[:79] + "\N{HORIZONTAL ELLIPSIS}")
