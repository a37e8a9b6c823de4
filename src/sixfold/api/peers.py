"""The other API processes of the same server: one port, several processes, and each knows only its own requests.

Each listens on `api-N.sock` in the run directory. Who asks connects, sends one frame, reads one and hangs up: this is
for what is asked a few times a minute. A peer that is being started again, or does not answer in time, has nothing to
say: what it had is gone, or will be asked for again.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from sixfold.errors import ProtocolError
from sixfold.messages import AbortNamed, ApiCounts, CountsAsked, Found
from sixfold.roles import api_role, slug
from sixfold.transport import FrameReader, codecs, frame, is_own_user
from sixfold.transport.sockets import INSTANCE

__all__ = ["ANSWER_S", "Peers", "Question"]

ANSWER_S = 1.0
"""For one question; a peer whose event loop turns takes a millisecond."""
CHUNK_BYTES = 1 << 16

Question = AbortNamed | CountsAsked
A = TypeVar("A", Found, ApiCounts)


class Peers:
    """See the module's docstring. Belongs to one event loop.

    Args:
        run_dir: private (0700).
        own, count: this process's number, and how many there are.
        answer: to a peer's question.
    """

    def __init__(self, run_dir: str, own: int, count: int, answer: Callable[[Question], Found | ApiCounts]) -> None:
        self._own = _path(run_dir, own)
        self._others = [_path(run_dir, i) for i in range(count) if i != own]
        self._answer = answer
        self._server: asyncio.Server | None = None

    async def listen(self) -> None:
        """Answer questions until `close`."""
        if not self._others:
            return
        self._own.unlink(missing_ok=True)  # of this process's predecessor
        self._server = await asyncio.start_unix_server(self._on_question, self._own)
        os.chmod(self._own, 0o600)

    def close(self) -> None:
        if self._server is not None:
            self._server.close()

    async def ask(self, question: Question, kind: type[A]) -> list[A]:
        """The answers of all peers that have one in time."""
        if not self._others:
            return []
        found = await asyncio.gather(*(self._ask(path, question, kind) for path in self._others))
        return [answer for answer in found if answer is not None]

    async def _ask(self, path: Path, question: Question, kind: type[A]) -> A | None:
        with contextlib.suppress(OSError, ProtocolError):  # TimeoutError is an OSError
            async with asyncio.timeout(ANSWER_S):
                reader, writer = await asyncio.open_unix_connection(path)
                try:
                    writer.write(_framed(codecs.encode(question)))
                    return codecs.decode_peer_answer(await _body(reader), kind)
                finally:
                    writer.close()
        return None

    async def _on_question(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            if is_own_user(writer.get_extra_info("socket")):
                async with asyncio.timeout(ANSWER_S):
                    question = codecs.decode_peer_question(await _body(reader))
                    writer.write(_framed(codecs.encode(self._answer(question))))
                    await writer.drain()
        except (OSError, ProtocolError):
            pass  # it has given up, or is nobody of ours
        finally:
            writer.close()


def _path(run_dir: str, number: int) -> Path:
    return Path(run_dir) / f"{slug(api_role(number))}.sock"


def _framed(body: bytes) -> bytes:
    return frame(codecs.PEER, body, seq=0, sender=INSTANCE, epoch=0)


async def _body(reader: asyncio.StreamReader) -> bytes:
    """Of the one frame that comes.

    Raises:
        ProtocolError: something else comes, or nothing.
    """
    frames = FrameReader()
    while data := await reader.read(CHUNK_BYTES):
        for received in frames.feed(data):
            if received.kind != codecs.PEER:
                raise ProtocolError("no frame between API processes")
            return received.body
    raise ProtocolError("hung up")
