"""One API process's server: uvicorn under the protocol guard, on listening sockets that somebody else opened."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Callable, Iterator, Mapping
from typing import cast

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from sixfold.api.app import App, build_app
from sixfold.api.engine_face import EngineFace
from sixfold.api.http.guard import KEEP_ALIVE_S, GuardLimits, guarded_protocol
from sixfold.config import BLOCK_SIZE, ApiConfig
from sixfold.engine.run_files import ServerStart
from sixfold.errors import NotReady
from sixfold.observability.delivery import Delivery
from sixfold.observability.kept_counts import KeptCounts
from sixfold.observability.metrics import ApiMetrics
from sixfold.observability.observatory import Observatory

__all__ = ["ApiServer", "serve"]

UNASKED_S = 0.5
"""For who was accepted and has not been answered, after draining: its request may be on its way."""

ABORT_GRACE_S = 0.6
"""For the last events of streams that were ended, before their connections are reset."""

GRACEFUL_S = 2
"""Until handlers that still run are cancelled: none should."""

CLOSING_TICK_S = 0.01
"""How often it is looked whether connections and handlers have ended."""

DATE_S = 1.0
"""Age at which the `Date` header is renewed."""


async def serve(
    client: EngineFace,
    config: ApiConfig,
    sockets: list[socket.socket],
    *,
    api_server: int = 0,
    run_dir: str | None = None,
    start: ServerStart | None = None,
    restarts: Callable[[], Mapping[str, int]] | None = None,
    observatory: Observatory | None = None,
    delivery: Delivery | None = None,
    on_started: Callable[[ApiServer], None] | None = None,
    on_turn: Callable[[], None] | None = None,
) -> None:
    """Serve until `ApiServer.stop` or `ApiServer.drain` has been called and has done its work.

    Args:
        sockets: bound and listening; they are closed at the end.
        api_server: this process's number.
        run_dir: where the server's API processes meet; None: this one is alone.
        start: of the server; None: now.
        restarts: for the metrics: role of a process -> how often one was started again.
        observatory: for what is asked about the whole server, and its metrics; None: nothing is.
        delivery: where the time of this process is counted.
        on_started: called once connections are accepted, with the server that can be told to stop.
        on_turn: called once a second as long as the loop turns.
    """
    server = ApiServer(
        client,
        config,
        api_server=api_server,
        run_dir=run_dir,
        start=start,
        restarts=restarts,
        delivery=delivery,
        observatory=observatory,
    )
    await server.run(sockets, on_started, on_turn)


class ApiServer:
    """The server of one process. Signals are left to whoever runs the process."""

    def __init__(
        self,
        client: EngineFace,
        config: ApiConfig,
        *,
        api_server: int = 0,
        run_dir: str | None = None,
        start: ServerStart | None = None,
        restarts: Callable[[], Mapping[str, int]] | None = None,
        delivery: Delivery | None = None,
        observatory: Observatory | None = None,
    ) -> None:
        more = {} if restarts is None else {"restarts": restarts}
        metrics = ApiMetrics(
            client.model_name,
            lambda: client.stats,
            api_server,
            processes=observatory.processes if observatory is not None else None,
            aliases=config.metrics_aliases,
            block_size=BLOCK_SIZE,
            kept=KeptCounts(run_dir, api_server) if run_dir is not None else None,
            n_api=config.api_server_count,
            **more,
        )
        self.app: App = build_app(
            client, config, metrics, delivery, observatory, run_dir=run_dir, api_server=api_server, start=start
        )
        limits = GuardLimits(max_connections=config.max_connections, header_timeout_s=config.header_timeout_s)
        self._server = _Uvicorn(
            uvicorn.Config(
                self.app,
                http=guarded_protocol(limits),
                ws="none",
                loop="none",
                lifespan="off",
                access_log=False,
                log_config=None,
                log_level="error",  # its warnings are about bytes that clients send
                proxy_headers=False,
                server_header=False,
                timeout_keep_alive=KEEP_ALIVE_S,
                ssl_certfile=config.tls_cert or None,
                ssl_keyfile=config.tls_key or None,
            ),
            config.header_timeout_s,
        )
        self._drainer: asyncio.Task[None] | None = None

    async def run(
        self,
        sockets: list[socket.socket],
        on_started: Callable[[ApiServer], None] | None = None,
        on_turn: Callable[[], None] | None = None,
    ) -> None:
        """See `serve`."""
        self._server.after_startup = (lambda: on_started(self)) if on_started is not None else None

        def turn() -> None:
            self.app.context.metrics.counts()
            if on_turn is not None:
                on_turn()

        self._server.on_turn = turn
        try:
            await self.app.context.meet_peers()
            await self._server.serve(sockets)
        finally:
            self.app.context.metrics.counts()
            self.app.context.close()

    def drain(self, timeout_s: float) -> None:
        """Refuse new work, let what is in flight finish for at most `timeout_s`, then stop. Call from the loop."""
        self.app.context.admission.draining = True
        if self._drainer is None:
            self._drainer = asyncio.get_running_loop().create_task(self._drain(timeout_s))

    def stop(self) -> None:
        """End everything now: streams get an error event. Call from the loop."""
        self.app.context.admission.draining = True
        for generation in list(self.app.context.generations):
            generation.close(NotReady("the server is shutting down", code="draining", retry_after_s=1.0))
        self.app.context.live.close()
        self._server.end()

    async def _drain(self, timeout_s: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                while self.app.context.generations:
                    await asyncio.sleep(0.05)
        await self._server.leave()
        self.stop()


class _Uvicorn(uvicorn.Server):
    """uvicorn's server without its signal handlers, with a word when it is up, and without its clock of ten ticks a
    second: an idle process sleeps, and ends when it is told to."""

    after_startup: Callable[[], None] | None = None
    on_turn: Callable[[], None] | None = None

    def __init__(self, config: uvicorn.Config, handshake_timeout_s: float) -> None:
        super().__init__(config)
        self.handshake_timeout_s = handshake_timeout_s
        self.servers: list[asyncio.Server] = []
        self._ended = asyncio.Event()

    async def leave(self) -> None:
        """Accept nobody any more, which other processes may do still, and answer who has been accepted already."""
        for server in self.servers:
            server.close()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(UNASKED_S):
                while True:
                    await asyncio.sleep(CLOSING_TICK_S)
                    connections = cast("set[HttpToolsProtocol]", self.server_state.connections)
                    cycles = [connection.cycle for connection in connections]
                    if all(cycle is not None and cycle.response_complete for cycle in cycles):
                        return

    def end(self) -> None:
        """Close what listens and all connections. Call from the loop."""
        self.should_exit = True
        self._ended.set()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """As uvicorn's, which has no bound for a TLS handshake: a client that sends nothing would hold its descriptor
        for asyncio's minute, and is no connection yet that `--max-connections` counts."""
        config, loop = self.config, asyncio.get_running_loop()

        def connection() -> asyncio.Protocol:
            return config.http_protocol_class(config=config, server_state=self.server_state, app_state={})  # type: ignore[call-arg]

        bound_s = self.handshake_timeout_s if config.ssl is not None else None
        for sock in sockets or []:
            server = await loop.create_server(
                connection, sock=sock, ssl=config.ssl, backlog=config.backlog, ssl_handshake_timeout=bound_s
            )
            self.servers.append(server)
        self.started = True
        if self.after_startup is not None:
            self.after_startup()

    async def main_loop(self) -> None:
        while not await self.on_tick(0):  # renews the `Date` header
            if self.on_turn is not None:
                self.on_turn()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(DATE_S):
                    await self._ended.wait()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        for server in self.servers:
            server.close()
        for sock in sockets or []:
            sock.close()
        state = self.server_state
        for connection in list(state.connections):
            connection.shutdown()
        abort = asyncio.get_running_loop().call_later(ABORT_GRACE_S, self._abort_connections)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(GRACEFUL_S):
                while state.connections or state.tasks:
                    await asyncio.sleep(CLOSING_TICK_S)
        abort.cancel()
        for task in state.tasks:
            task.cancel()

    def _abort_connections(self) -> None:
        """What does not read its last bytes is not waited for; its handlers see a client that is gone."""
        for connection in list(self.server_state.connections):
            connection.transport.abort()
