"""The two channels from an API process to one engine process: control and outputs, frames over asyncio's transports."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from sixfold.errors import ProtocolError
from sixfold.transport import Frame, FrameReader, codecs, frame
from sixfold.transport.sockets import INSTANCE

__all__ = ["Link"]

logger = logging.getLogger(__name__)


class Link:
    """See the module's docstring.

    Args:
        on_control, on_outputs: called with each frame of a channel.
        on_lost: called when a channel has ended, or breaks the protocol; of an end that both have, twice.
    """

    def __init__(
        self, on_control: Callable[[Frame], None], on_outputs: Callable[[Frame], None], on_lost: Callable[[Link], None]
    ) -> None:
        self.control = _Channel(on_control, lambda: on_lost(self))
        self._outputs = _Channel(on_outputs, lambda: on_lost(self))

    async def open(self, path: str, digest: str) -> None:
        """Connect both channels and greet.

        Raises:
            OSError: nobody listens.
        """
        loop = asyncio.get_running_loop()
        for channel, role in ((self.control, "api-control"), (self._outputs, "api-outputs")):
            await loop.create_unix_connection(lambda channel=channel: channel, path)  # type: ignore[misc]
            channel.send(codecs.HELLO, codecs.hello(role, digest))

    def close(self) -> None:
        self.control.close()
        self._outputs.close()


class _Channel(asyncio.Protocol):
    """Frames over an asyncio transport."""

    def __init__(self, on_frame: Callable[[Frame], None], on_lost: Callable[[], None]) -> None:
        self._on_frame = on_frame
        self._on_lost = on_lost
        self._reader = FrameReader()
        self._seq = 0
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport) or hasattr(transport, "write")
        self._transport = transport  # type: ignore[assignment]

    def data_received(self, data: bytes) -> None:
        try:
            for received in self._reader.feed(data):
                self._on_frame(received)
        except ProtocolError as e:
            logger.error("the connection to the engine is given up: %s", e)
            self._on_lost()

    def connection_lost(self, exc: Exception | None) -> None:
        self._on_lost()

    def send(self, kind: int, body: bytes) -> None:
        assert self._transport is not None
        self._transport.write(frame(kind, body, seq=self._seq, sender=INSTANCE, epoch=0))
        self._seq += 1

    def close(self) -> None:
        if self._transport is not None:
            self._transport.abort()
