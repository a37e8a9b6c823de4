"""What an API process calls: an execution request goes in, deltas of tokens come out.

Two connections to the engine: control (requests, aborts, verdicts, statistics) and outputs. A `RequestHandle` owns
its request in the engine: leaving it in any way before its end aborts the request, exactly once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import sixfold.errors
from sixfold.config import Config
from sixfold.engine.launch import ModelText
from sixfold.errors import EngineDead, NotReady, ProtocolError, SixfoldError
from sixfold.messages import (
    Abort,
    Admitted,
    EngineStats,
    FinishAt,
    GenerateRequest,
    OutputBatch,
    Rejected,
    TokenDelta,
    Welcome,
)
from sixfold.transport import Frame, FrameReader, codecs, frame
from sixfold.transport.sockets import INSTANCE

__all__ = ["EngineClient", "RequestHandle"]


class RequestHandle:
    """One request in the engine, seen from the API process. Made by `EngineClient.submit`.

    What comes before somebody listens is kept for him. Nothing is called after an abort.
    """

    def __init__(self, client: EngineClient, request: GenerateRequest) -> None:
        self._client = client
        self.uid = request.uid
        self._open = set(range(request.n))
        self._deltas: list[TokenDelta] = []
        self._error: SixfoldError | None = None
        self._on_deltas: Callable[[list[TokenDelta]], None] | None = None
        self._on_fault: Callable[[SixfoldError], None] | None = None
        self._verdict: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def listen(self, on_deltas: Callable[[list[TokenDelta]], None], on_fault: Callable[[SixfoldError], None]) -> None:
        """Call `on_deltas` from now on with what arrived together: whoever reads is not woken, but called. After a
        fault of the engine, which is told to `on_fault`, nothing more comes.
        """
        self._on_deltas, self._on_fault = on_deltas, on_fault
        self._deliver()

    def finish_at(self, choice: int, n_tokens: int) -> None:
        """A stop string was found: the choice ends with its first `n_tokens` tokens."""
        if choice in self._open:
            self._client._send(FinishAt(self.uid, choice, n_tokens))
            self._close_choice(choice)

    def abort(self) -> None:
        """Stop every choice that has not ended. Idempotent; afterwards nothing more is yielded."""
        if self._open:
            self._open.clear()
            self._deltas.clear()
            self._client._forget(self.uid)
            self._client._send(Abort(self.uid))

    # -- called by the client -------------------------------------------------------------------------------------

    def _take(self, delta: TokenDelta) -> None:
        """Keep a delta until `_deliver`."""
        if not self._verdict.done():
            # The two channels are not ordered with each other: a token is a verdict too.
            self._verdict.set_result(None)
        if delta.choice not in self._open:
            return  # ended here already (stop string, abort); what was under way is dropped
        self._deltas.append(delta)
        if delta.finish is not None:
            self._close_choice(delta.choice)

    def _deliver(self) -> None:
        if self._on_deltas is None or self._on_fault is None:
            return
        if self._deltas:
            deltas, self._deltas = self._deltas, []
            self._on_deltas(deltas)
        if self._error is not None:
            self._on_fault(self._error)

    def _fail(self, error: SixfoldError) -> None:
        self._error = error
        self._open.clear()
        if not self._verdict.done():
            self._verdict.set_exception(error)
        self._deliver()

    def _close_choice(self, choice: int) -> None:
        self._open.discard(choice)
        if not self._open:
            self._client._forget(self.uid)


class EngineClient:
    """The two sockets to the engine process, the requests that are open on them, and the model's text side.

    Args:
        path: the engine's socket.
        config_digest: both ends must have been started with the same configuration.
    """

    def __init__(self, path: str, config: Config, text: ModelText, *, config_digest: str) -> None:
        self._path = path
        self._digest = config_digest
        self.tokenizer = text.tokenizer
        self.chat_template = text.chat_template
        self.model_name = text.name
        self.max_model_len = text.max_model_len
        self.default_seed = text.default_seed
        self.sampling_defaults = text.sampling_defaults
        self.max_outstanding = config.scheduler.max_queued_requests + config.scheduler.max_num_seqs
        """Choices that the engine holds at most, running and waiting together."""
        self.max_queued_tokens = config.scheduler.max_queued_tokens
        self.max_queue_wait_s = config.scheduler.max_queue_wait_s
        self._is_alone = config.api.api_server_count == 1
        self.n_open_elsewhere = 0
        """Choices of other API processes in the engine, at its last word."""
        self.scripted = config.executor.executor == "scripted"
        self.build = config.executor.executor
        """Backend and instruction set: with model and version it tells when equal requests give equal tokens."""
        self._handles: dict[int, RequestHandle] = {}
        self._control: _Channel | None = None
        self._welcome: asyncio.Future[Welcome] | None = None
        self.embedding_size = 0
        """Numbers of an embedding; known once connected."""
        self.stats = EngineStats()
        self.engine_epoch = 0
        self.ready = False
        self.dead: str | None = None

    async def connect(self) -> Welcome:
        """Greet the engine and wait until it has its worker.

        Raises:
            EngineDead: it ended before that.
        """
        loop = asyncio.get_running_loop()
        self._welcome = loop.create_future()
        try:
            _, self._control = await loop.create_unix_connection(
                lambda: _Channel(self._on_control, self._on_lost), self._path
            )
            _, outputs = await loop.create_unix_connection(
                lambda: _Channel(self._on_outputs, self._on_lost), self._path
            )
        except OSError as e:
            raise EngineDead("the engine cannot be reached") from e
        self._control.send(codecs.HELLO, codecs.hello("api-control", self._digest))
        outputs.send(codecs.HELLO, codecs.hello("api-outputs", self._digest))
        welcome = await self._welcome
        self.engine_epoch = welcome.engine_epoch
        self.build = f"{self.build}/{welcome.worker.isa}"
        self.embedding_size = welcome.worker.hidden
        self.ready = True
        return welcome

    async def submit(self, request: GenerateRequest) -> RequestHandle:
        """Hand a request over and wait for the engine's verdict.

        Raises:
            Overloaded, ContextLengthExceeded, InvalidRequest: refused, nothing was started.
            NotReady: the engine is starting.
            EngineDead: it is gone.
        """
        if self.dead is not None:
            raise EngineDead(self.dead)
        if not self.ready:
            raise NotReady("the server is starting", retry_after_s=1.0)
        handle = RequestHandle(self, request)
        self._handles[request.uid] = handle
        self._send(request)
        try:
            await handle._verdict
        except asyncio.CancelledError:
            handle.abort()
            raise
        return handle

    def _send(self, message: GenerateRequest | Abort | FinishAt) -> None:
        if self._control is not None and self.dead is None:
            self._control.send(codecs.CONTROL, codecs.encode(message))

    def _forget(self, uid: int) -> None:
        self._handles.pop(uid, None)

    def _on_control(self, received: Frame) -> None:
        message = codecs.decode_control(received.body)
        if isinstance(message, EngineStats):
            self.stats = message
            if not self._is_alone:
                n_own = sum(len(handle._open) for handle in self._handles.values())
                self.n_open_elsewhere = max(0, message.running + message.waiting - n_own)
        elif isinstance(message, Admitted):
            handle = self._handles.get(message.uid)
            if handle is not None and not handle._verdict.done():
                handle._verdict.set_result(None)
        elif isinstance(message, Rejected):
            handle = self._handles.pop(message.uid, None)
            if handle is not None:
                handle._fail(_error_from(message))
        elif self._welcome is not None and not self._welcome.done():
            self._welcome.set_result(message)

    def _on_outputs(self, received: Frame) -> None:
        batch: OutputBatch = codecs.decode_output(received.body)
        if batch.engine_epoch != self.engine_epoch:
            return  # of an engine that is gone
        handles: dict[RequestHandle, None] = {}
        for delta in batch.deltas:
            handle = self._handles.get(delta.uid)
            if handle is not None:
                handle._take(delta)
                handles[handle] = None
        for handle in handles:
            handle._deliver()

    def _on_lost(self, reason: str) -> None:
        if self.dead is not None:
            return
        self.dead = reason
        self.ready = False
        error = EngineDead(reason)
        if self._welcome is not None and not self._welcome.done():
            self._welcome.set_exception(error)
        for handle in list(self._handles.values()):
            handle._fail(error)
        self._handles.clear()


class _Channel(asyncio.Protocol):
    """Frames over an asyncio transport."""

    def __init__(self, on_frame: Callable[[Frame], None], on_lost: Callable[[str], None]) -> None:
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
            assert self._transport is not None
            self._transport.abort()
            self._on_lost(str(e))

    def connection_lost(self, exc: Exception | None) -> None:
        self._on_lost("the engine is gone")

    def send(self, kind: int, body: bytes) -> None:
        assert self._transport is not None
        self._transport.write(frame(kind, body, seq=self._seq, sender=INSTANCE, epoch=0))
        self._seq += 1


def _error_from(message: Rejected) -> SixfoldError:
    """The engine's refusal as the exception that it was there."""
    kind = getattr(sixfold.errors, message.error, SixfoldError)
    error: SixfoldError = kind(
        message.message, param=message.param, code=message.code, retry_after_s=message.retry_after_s
    )
    return error
