"""What an API process calls: an execution request goes in, deltas of tokens come out.

Two connections to the engine: control (requests, aborts, verdicts, statistics) and outputs. A `RequestHandle` owns
its request in the engine: leaving it in any way before its end aborts the request, exactly once. When the engine is
lost, the next one is greeted at the same socket and gets every open request again (`engine/replay.py`): whoever
listens notices nothing but time.
"""

from __future__ import annotations

import asyncio
import errno
import time
from collections import deque
from collections.abc import Callable

import sixfold.errors
from sixfold.config import Config
from sixfold.engine.launch import ModelText
from sixfold.engine.link import Link
from sixfold.engine.progress import Count, Progress
from sixfold.engine.replay import Poisoned, Replay, poison_error
from sixfold.errors import DeadlineExceeded, EngineDead, NotReady, SixfoldError
from sixfold.messages import (
    Abort,
    Admitted,
    EngineStats,
    EngineView,
    Finish,
    FinishAt,
    GenerateRequest,
    OutputBatch,
    Rejected,
    TokenDelta,
    Watch,
    Welcome,
    WorkerFacts,
)
from sixfold.observability.delivery import Delivery
from sixfold.observability.meter import now
from sixfold.observability.sites import API_ENGINE, API_RECEIVE, API_RESTART, API_VERDICT
from sixfold.transport import Frame, codecs

__all__ = ["EngineClient", "RequestHandle"]

RESTART_WAIT_S = 2.0
"""That a new request waits for an engine that is being started again."""
RECENT_STATS = 256
"""A minute's: the engine sends four a second."""
GREET_PAUSE_S = 0.05
"""Between a connection that was lost before the engine's welcome, and the next."""


class RequestHandle:
    """One request in the engine, seen from the API process. Made by `EngineClient.submit`.

    What comes before somebody listens is kept for him. Nothing is called after an abort.
    """

    def __init__(self, client: EngineClient, request: GenerateRequest) -> None:
        self._client = client
        self._replay = Replay(request)
        self.uid = request.uid
        self.n = request.n
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
        self._replay.take(delta)
        self._deltas.append(delta)
        if delta.finish is not None:
            self._close_choice(delta.choice)

    def _admit(self) -> None:
        """The engine's verdict: it has the request."""
        self._replay.is_tried = True
        if not self._verdict.done():
            self._verdict.set_result(None)

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

    def _time_out(self) -> None:
        """Its deadline has passed: what has not ended ends as the engine would end it."""
        for choice in sorted(self._open):
            first_index = self._replay.n_tokens(choice)
            self._take(TokenDelta(uid=self.uid, choice=choice, first_index=first_index, finish=Finish("timeout")))
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
        progress: where the supervisor sees what this process waits for, and other API processes what it holds.
        poisoned: what no API process of this server takes any more.
        api_server: this process's number.
        delivery: where the time of what comes is counted.
    """

    def __init__(
        self,
        path: str,
        config: Config,
        text: ModelText,
        *,
        config_digest: str,
        progress: Progress | None = None,
        poisoned: Poisoned | None = None,
        api_server: int = 0,
        delivery: Delivery | None = None,
    ) -> None:
        self._delivery = delivery or Delivery()
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
        self.scripted = config.executor.executor == "scripted"
        self._executor = self.build = config.executor.executor
        """Backend and instruction set: with model and version it tells when equal requests give equal tokens."""
        self._handles: dict[int, RequestHandle] = {}
        """In the order in which they came, which is that of their replay."""
        self._link: Link | None = None
        self._up = asyncio.Event()
        self._gone = asyncio.Event()
        self._attaching: asyncio.Task[None] | None = None
        self._poisoned = poisoned or Poisoned()
        self._faults = -1
        self._progress = progress or Progress.private()
        self._counts = self._progress.counts
        self._n_open = 0
        """Choices of the requests that are open."""
        self._count_open, self._count_sent = Count.API_OPEN + api_server, Count.API_SENT + api_server
        self.embedding_size = 0
        """Numbers of an embedding; known once connected."""
        self.worker: WorkerFacts | None = None
        """What the worker holds; known once connected."""
        self._watch: tuple[Watch, Callable[[EngineView], None]] | None = None
        """How often this process wants a view, and who takes it."""
        self.stats = EngineStats()
        self.recent_stats: deque[tuple[int, EngineStats]] = deque(maxlen=RECENT_STATS)
        self.batch = (0, 0)
        """Of the latest deltas: their step, and when they were read."""
        self._lost_ns = 0
        self._deadline_timer: asyncio.TimerHandle | None = None
        """While there is no engine: at the earliest deadline of what is open."""
        self.engine_epoch = 0
        self.dead: str | None = None

    @property
    def ready(self) -> bool:
        return self._up.is_set()

    @property
    def restarting(self) -> bool:
        """The engine was lost, and another is expected."""
        return self.engine_epoch > 0 and not self.ready and self.dead is None

    @property
    def n_open_elsewhere(self) -> int:
        """Choices of the requests that other API processes have open."""
        return 0 if self._is_alone else max(0, self._progress.n_open - self._n_open)

    async def connect(self) -> None:
        """Greet the engine and wait until it has its worker.

        Raises:
            EngineDead: there is none, and none will come.
        """
        self._attaching = asyncio.ensure_future(self._attach(0.0))
        await self._up.wait()
        if self.dead is not None:
            raise EngineDead(self.dead)

    async def gone(self) -> None:
        """Wait until there is no engine and none will come, after `connect`.

        Raises:
            EngineDead: always.
        """
        await self._gone.wait()
        raise EngineDead(str(self.dead))

    def close(self) -> None:
        """Hang up; what is still open fails. Idempotent."""
        self._give_up("the server is shutting down")

    async def submit(self, request: GenerateRequest) -> RequestHandle:
        """Hand a request over and wait for the engine's verdict; first, for a while, for an engine that restarts.

        Raises:
            Overloaded, ContextLengthExceeded, InvalidRequest, RequestFailed: refused, nothing was started.
            DeadlineExceeded: while the engine restarted.
            NotReady: the engine is starting.
            EngineDead: it is gone.
        """
        if self.restarting:
            await self._wait_up(request.deadline_s)
        if self.dead is not None:
            raise EngineDead(self.dead)
        if not self.ready:
            raise NotReady("the server is starting", retry_after_s=1.0)
        self._poisoned.check(request)
        handle = RequestHandle(self, request)
        self._handles[request.uid] = handle
        self._count(request.n)
        self._counts[self._count_sent] += 1
        self._send(request)
        meter, asked_ns = self._delivery.meter, now()
        meter.enter(API_VERDICT, asked_ns, request.uid)
        try:
            await handle._verdict
        except asyncio.CancelledError:
            handle.abort()
            raise
        except SixfoldError:
            del handle  # it keeps the error, which refers to this frame
            raise
        finally:
            meter.leave(API_VERDICT, asked_ns, now(), uid=request.uid)
        return handle

    async def _wait_up(self, deadline_s: float | None) -> None:
        left_s = RESTART_WAIT_S if deadline_s is None else min(RESTART_WAIT_S, deadline_s - time.monotonic())
        meter, started_ns = self._delivery.meter, now()
        meter.enter(API_RESTART, started_ns)
        try:
            await asyncio.wait_for(self._up.wait(), left_s)
        except TimeoutError:
            if left_s < RESTART_WAIT_S:
                raise DeadlineExceeded("the deadline passed while the engine was restarted") from None
            raise NotReady("the engine is being restarted", retry_after_s=1.0) from None
        finally:
            meter.leave(API_RESTART, started_ns, now())

    def watch(self, period_ms: int, on_view: Callable[[EngineView], None]) -> None:
        """Have `on_view` called with a view of the engine, at most every `period_ms` (at least 16), and of each
        engine that follows; a later call replaces an earlier one. 0: no longer.
        """
        watch = Watch(period_ms)
        self._watch = (watch, on_view) if period_ms else None
        self._send(watch)

    def _send(self, message: GenerateRequest | Abort | FinishAt | Watch) -> None:
        """To the engine, if there is one: the next one is told in another way (`_replay_all`)."""
        if self._link is not None and self.ready and self.dead is None:
            self._link.control.send(codecs.CONTROL, codecs.encode(message))

    def _forget(self, uid: int) -> None:
        handle = self._handles.pop(uid, None)
        if handle is not None:
            self._count(-handle.n)

    def _count(self, n_choices: int) -> None:
        self._n_open += n_choices
        self._counts[self._count_open] = self._n_open

    # -- the connection -------------------------------------------------------------------------------------------

    async def _attach(self, pause_s: float) -> None:
        """Connect, and greet: `_on_welcome` or `_on_lost` follows."""
        await asyncio.sleep(pause_s)
        link = Link(self._on_control, self._on_outputs, self._on_lost)
        try:
            await link.open(self._path, self._digest)
        except OSError as e:
            link.close()
            if e.errno in (errno.ENOENT, errno.ECONNREFUSED):  # the supervisor listens as long as it lives
                self._give_up("the engine cannot be reached")
            else:  # no descriptor is left, or no memory: a caller's leaving may give one back
                self._attaching = asyncio.ensure_future(self._attach(GREET_PAUSE_S))
        else:
            self._link = link

    def _on_welcome(self, welcome: Welcome) -> None:
        self.engine_epoch = welcome.engine_epoch
        if self._lost_ns:
            self._delivery.meter.add(API_ENGINE, self._lost_ns, now())
            self._lost_ns = 0
        self.build = f"{self._executor}/{welcome.worker.isa}"
        self.embedding_size = welcome.worker.hidden
        self.worker = welcome.worker
        self._up.set()
        self._leave_deadlines()
        if self._faults < welcome.faults and self._faults >= 0:
            self._blame()
        self._faults = welcome.faults
        if self._watch is not None:
            self._send(self._watch[0])
        self._replay_all()

    def _blame(self) -> None:
        """The engine that is gone, or its worker, crashed by its own fault: no request shall do that for ever."""
        for handle in list(self._handles.values()):
            if handle._replay.crashed():
                self._poisoned.add(handle._replay.request)
                self._forget(handle.uid)
                handle._fail(poison_error())

    def _replay_all(self) -> None:
        for handle in self._handles.values():
            self._send(handle._replay.again(handle._open, admitted=handle._verdict.done()))

    def _on_lost(self, link: Link) -> None:
        """One channel has ended: the engine is gone, or does not want us."""
        link.close()
        if link is not self._link or self.dead is not None:
            return
        was_welcome = self.ready
        self._lost_ns = self._lost_ns or now()
        self._link = None
        self._up.clear()
        self._watch_deadlines()
        self._attaching = asyncio.ensure_future(self._attach(0.0 if was_welcome else GREET_PAUSE_S))

    def _watch_deadlines(self) -> None:
        """Without an engine it is told here which requests are too late: the next one may take as long as a model takes
        to load."""
        self._leave_deadlines()
        now_s = time.monotonic()
        deadlines_s = []
        for handle in list(self._handles.values()):
            deadline_s = handle._replay.request.deadline_s
            if deadline_s is not None and deadline_s <= now_s:
                handle._time_out()
            elif deadline_s is not None:
                deadlines_s.append(deadline_s)
        if deadlines_s:
            left_s = min(deadlines_s) - now_s
            self._deadline_timer = asyncio.get_running_loop().call_later(left_s, self._watch_deadlines)

    def _leave_deadlines(self) -> None:
        if self._deadline_timer is not None:
            self._deadline_timer.cancel()
            self._deadline_timer = None

    def _give_up(self, reason: str) -> None:
        if self.dead is not None:
            return
        self.dead = reason
        self._leave_deadlines()
        if self._attaching is not None:
            self._attaching.cancel()
        if self._link is not None:
            self._link.close()
        for handle in list(self._handles.values()):
            handle._fail(EngineDead(reason))
        self._handles.clear()
        self._count(-self._n_open)
        self._up.set()  # for those who wait
        self._gone.set()

    # -- what comes -----------------------------------------------------------------------------------------------

    def _on_control(self, received: Frame) -> None:
        message = codecs.decode_control(received.body)
        if isinstance(message, EngineStats):
            self.stats = message
            self.recent_stats.append((now(), message))
        elif isinstance(message, EngineView):
            if self._watch is not None:
                self._watch[1](message)
        elif isinstance(message, Admitted):
            handle = self._handles.get(message.uid)
            if handle is not None:
                handle._admit()
        elif isinstance(message, Rejected):
            handle = self._handles.get(message.uid)
            if handle is not None:
                self._forget(handle.uid)
                handle._fail(_error_from(message))
        else:
            self._on_welcome(message)

    def _on_outputs(self, received: Frame) -> None:
        started_ns = now()
        batch: OutputBatch = codecs.decode_output(received.body)
        self.batch = (batch.step_id, started_ns)
        if batch.engine_epoch != self.engine_epoch:
            return  # of an engine that is gone
        handles: dict[RequestHandle, None] = {}
        for delta in batch.deltas:
            handle = self._handles.get(delta.uid)
            if handle is not None:
                handle._take(delta)
                handles[handle] = None
        received_ns = now()
        delivery = self._delivery
        delivery.meter.add(API_RECEIVE, started_ns, received_ns, batch.step_id)
        delivery.begin()
        for handle in handles:
            handle._deliver()
        delivery.end(received_ns, batch.step_id)


def _error_from(message: Rejected) -> SixfoldError:
    """The engine's refusal as the exception that it was there."""
    kind = getattr(sixfold.errors, message.error, SixfoldError)
    error: SixfoldError = kind(
        message.message, param=message.param, code=message.code, retry_after_s=message.retry_after_s
    )
    return error
