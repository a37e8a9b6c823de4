"""An asyncio event loop on virtual time: where nothing can run, the clock jumps to the next timer."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Callable
from typing import Any


class Stuck(AssertionError):
    """Nothing is left that could ever happen, and somebody still waits."""


class _Jump(selectors.SelectSelector):
    """Instead of waiting for real descriptors."""

    loop: VirtualLoop

    def select(self, timeout: float | None = None) -> list[Any]:
        if timeout is None:
            raise Stuck("everybody waits for somebody else")
        self.loop.now_s += timeout
        return []


class VirtualLoop(asyncio.SelectorEventLoop):
    """Attributes:
    now_s: the time.
    faults: what callbacks raised; the first one ends the run.
    """

    def __init__(self, latest_s: float) -> None:
        selector = _Jump()
        super().__init__(selector)
        selector.loop = self
        self.now_s = 0.0
        self._latest_s = latest_s
        self.faults: list[BaseException] = []
        self.transports: list[Any] = []
        """Of all connections so far."""
        self.connect: Callable[[str], Any]
        """(path) -> a `VirtualSocket` whose other end the listener of this path has."""
        self.set_exception_handler(self._on_fault)

    def time(self) -> float:
        if self.now_s > self._latest_s:
            raise Stuck(f"after {self._latest_s:g} seconds there is still work")
        return self.now_s

    async def create_unix_connection(self, factory: Any, path: str | None = None, **_: Any) -> Any:  # type: ignore[override]
        from tests.virtual.sockets import VirtualTransport

        assert path is not None
        protocol = factory()
        transport = VirtualTransport(self, self.connect(path), protocol)
        self.transports.append(transport)
        protocol.connection_made(transport)
        return transport, protocol

    def run_in_executor(self, executor: Any, func: Callable[..., Any], *args: Any) -> asyncio.Future[Any]:  # type: ignore[override]
        """There is one thread: done at once."""
        done = self.create_future()
        try:
            done.set_result(func(*args))
        except Exception as error:  # noqa: BLE001 - it is whoever awaits it who is told
            done.set_exception(error)
        return done

    def run_out(self) -> None:
        """Until nothing is left that could happen; then the loop is closed.

        Raises:
            Whatever a callback raised first.
        """
        try:
            self.run_forever()
        except Stuck:
            pass
        finally:
            self._cancel_all()
            self.close()
        if self.faults:
            raise self.faults[0]

    def run(self, main: Any) -> None:
        """Until `main` returns.

        Raises:
            Whatever it, or any callback, raised first.
        """
        task = self.create_task(main)
        task.add_done_callback(lambda _: self.stop())
        try:
            self.run_forever()
            if self.faults:
                raise self.faults[0]
            task.result()
        finally:
            self._cancel_all()
            self.close()

    def _on_fault(self, _: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        self.faults.append(context.get("exception") or AssertionError(context["message"]))
        self.stop()

    def _cancel_all(self) -> None:
        self._latest_s = float("inf")
        self.set_exception_handler(lambda *_: None)
        for task in asyncio.all_tasks(self):
            task.cancel()
        for _ in range(3):
            self.call_soon(self.stop)
            self.run_forever()
