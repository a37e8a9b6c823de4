"""What an API process has counted, kept in the run directory: its successor goes on from there.

Written before it is shown to anybody, and once a second besides: so no counter that was seen ever falls, and a process
that is killed takes a second's counts with it at most. Others read it while the process is away.
"""

from __future__ import annotations

import contextlib
import os

import msgspec

from sixfold.messages import ApiCounts, EngineStats

__all__ = ["Kept", "KeptCounts"]


class Kept(msgspec.Struct, frozen=True):
    """The content of a file, in msgpack."""

    counts: ApiCounts
    base: dict[str, int]
    """Counter of the engine -> its sum over the engines before the last one of which the process has heard."""
    last: EngineStats
    """Of that one."""


_decoder = msgspec.msgpack.Decoder(Kept)
_encoder = msgspec.msgpack.Encoder()


class KeptCounts:
    """The file of one API process, `counts-N`.

    Args:
        run_dir: of the server.
        api_server: the process's number.
    """

    def __init__(self, run_dir: str, api_server: int) -> None:
        self._run_dir = run_dir
        self._api_server = api_server
        self._written = b""

    def write(self, kept: Kept) -> None:
        """Replace what is there, whole or not at all. A disk that is full or gone costs the counts, not the process."""
        body = _encoder.encode(kept)
        if body == self._written:
            return
        path = self._path(self._api_server)
        with contextlib.suppress(OSError):
            fd = os.open(path + ".new", os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
            try:
                if os.write(fd, body) < len(body):  # the last page that was left
                    return
            finally:
                os.close(fd)
            os.replace(path + ".new", path)
            self._written = body

    def read(self, api_server: int | None = None) -> Kept | None:
        """What this process's predecessor has left, or what another process wrote last; None: nothing of use."""
        try:
            with open(self._path(self._api_server if api_server is None else api_server), "rb") as file:
                return _decoder.decode(file.read())
        except (OSError, msgspec.MsgspecError):
            return None

    def _path(self, api_server: int) -> str:
        return os.path.join(self._run_dir, f"counts-{api_server}")
