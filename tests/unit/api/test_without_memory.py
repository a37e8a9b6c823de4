"""A process that gets no memory ends, instead of telling its callers that they were wrong."""

from __future__ import annotations

import asyncio
import os

import pytest
from uvicorn.config import Config
from uvicorn.server import ServerState

from sixfold.api import process
from sixfold.api.http.guard import GuardLimits, guarded_protocol
from sixfold.engine.life import EXIT_NO_MEMORY, run_child


class Transport(asyncio.Transport):
    """Takes everything."""

    written = b""

    def write(self, data: bytes) -> None:  # type: ignore[override]
        self.written += data

    def is_closing(self) -> bool:
        return False

    def get_extra_info(self, name: str, default: object = None) -> object:
        return default

    def close(self) -> None:
        """Nothing is open."""


def test_no_memory_for_a_request_is_not_its_callers_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    async def app(scope: object, receive: object, send: object) -> None:
        """Is never called."""

    async def main() -> None:
        config = Config(app, lifespan="off", log_config=None)
        config.load()
        transport = Transport()
        protocol = guarded_protocol(GuardLimits())(config, ServerState(), {})  # type: ignore[call-arg]
        protocol.connection_made(transport)
        monkeypatch.setattr(protocol, "_count", lambda n_bytes: bytearray(1 << 60))
        with pytest.raises(MemoryError):
            protocol.data_received(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")  # type: ignore[attr-defined]
        assert not transport.written
        protocol.connection_lost(None)

    asyncio.run(main())


def test_a_loop_without_memory_ends_its_process(monkeypatch: pytest.MonkeyPatch) -> None:
    ends: list[int] = []
    monkeypatch.setattr(os, "_exit", ends.append)
    loop = asyncio.new_event_loop()
    loop.set_exception_handler(process._end_without_memory)
    monkeypatch.setattr(loop, "default_exception_handler", lambda context: None)
    loop.call_soon(lambda: bytearray(1 << 60))
    loop.call_soon(lambda: int("no number"))
    loop.call_soon(loop.stop)
    loop.run_forever()
    loop.close()
    assert ends == [EXIT_NO_MEMORY]


def test_a_process_without_memory_ends_with_a_sentence(capfd: pytest.CaptureFixture[str]) -> None:
    assert run_child("engine", lambda argv: len(bytearray(1 << 60))) == EXIT_NO_MEMORY
    assert capfd.readouterr().err == "sixfold: engine: no memory is left\n"
