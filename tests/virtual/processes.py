"""The processes of a server on virtual sockets: the engine's own loop, a worker without a model, API processes.

Engine: the real `EngineServer`, `RemoteExecutor`, `EngineCore`, scheduler and KV cache manager, turned by events.
API: the real `EngineClient` and, above it, the real `Generation`; no HTTP. Worker: `tests.fake_worker`.
"""

from __future__ import annotations

import asyncio
import contextlib
import selectors
from collections.abc import Callable
from contextvars import ContextVar
from random import Random
from types import SimpleNamespace
from typing import Any
from unittest import mock

from tests.fake_worker import FakeWorker
from tests.simulation import STOP_STRING, Ledger
from tests.virtual.loop import VirtualLoop
from tests.virtual.sockets import (
    TurnOver,
    VirtualListener,
    VirtualSelector,
    VirtualSocket,
    socket_pair,
)

from sixfold.api.context import ApiContext
from sixfold.api.debug.feed import LiveFeed
from sixfold.api.open_requests import OpenRequests
from sixfold.config import SchedulerConfig
from sixfold.engine.client import EngineClient
from sixfold.engine.core import EngineCore
from sixfold.engine.engine_process import EngineServer
from sixfold.executor.remote import RemoteExecutor
from sixfold.executor.step_arrays import StepArrays
from sixfold.executor.wire import decode_step, encode
from sixfold.kv_cache import KVCacheManager
from sixfold.messages import GenerateRequest, Hello, StepPlan, StepResult, TokenDelta, WorkerFacts
from sixfold.observability.metrics import ApiMetrics
from sixfold.scheduler import Scheduler
from sixfold.transport import FrameSocket, codecs
from sixfold.transport.frames import PROTOCOL

DIGEST = "virtual"
ENGINE, WORKER = "engine", "worker"
IDLE_S = 0.25


class Network:
    """Who listens where, and how slow the ways are.

    Args:
        slowest_s: of a piece between API processes and the engine.
        capacity: bytes on the way to an API process before the engine has to keep the rest.
    """

    def __init__(self, loop: VirtualLoop, random: Random, *, slowest_s: float, capacity: int) -> None:
        self.loop = loop
        self.random = random
        self.slowest_s = slowest_s
        self.capacity = capacity
        self.listeners: dict[str, VirtualListener] = {}
        loop.connect = self.connect

    def engine_listener(self, wake: Callable[[], object]) -> VirtualListener:
        """The one that outlives engines, in the hands of the latest."""
        listener = self.listeners.setdefault(ENGINE, VirtualListener(wake))
        listener.on_connect = wake
        return listener

    def connect(self, path: str) -> VirtualSocket:
        listener = self.listeners.get(path)
        if listener is None:
            raise ConnectionRefusedError
        one, other = socket_pair(self.loop, self.random)
        if path == ENGINE:
            one.slowest_s = self.slowest_s * self.random.choice((0.0, 1.0, 1.0, 10.0))
            other.slowest_s = self.slowest_s * self.random.choice((0.0, 1.0, 10.0))
            one.capacity = self.capacity
        else:
            one.slowest_s = other.slowest_s = 0.002 * self.random.random()
        listener.connected(other)
        return one


class WorkerProcess:
    """Outlives engines. Its memory stays when another one comes."""

    def __init__(self, network: Network, fake: FakeWorker, facts: WorkerFacts, *, step_s: float) -> None:
        self._network = network
        self._facts = facts
        self._step_s = step_s
        self._free_s = 0.0
        self._steps: FrameSocket | None = None
        self.fake = fake
        self._listener = network.listeners[WORKER] = VirtualListener(self._accept)

    def _accept(self) -> None:
        sock, _ = self._listener.accept()
        channel = FrameSocket(sock)  # type: ignore[arg-type]
        sock.instant = True
        sock.on_readable = lambda: self._read(channel)

    def _read(self, channel: FrameSocket) -> None:
        frames = channel.receive()
        if frames is None:
            channel.close()
        for received in frames or []:
            if received.kind == codecs.STEP:
                self._step(channel, received.body)
                continue
            role = codecs.decode_hello(received.body, config_digest=DIGEST).role
            if role == "worker-control":
                channel.send(codecs.CONTROL, codecs.encode(self._facts))
            else:
                self._steps = channel
                self.fake.attach()

    def _step(self, channel: FrameSocket, body: bytes) -> None:
        if channel is not self._steps:
            return  # of an engine that is gone
        self.fake.submit(_plan(StepArrays.unpack(decode_step(body))))
        loop = self._network.loop
        self._free_s = max(self._free_s, loop.time()) + self._network.random.random() * self._step_s
        loop.call_at(self._free_s, self._finish, channel)

    def _finish(self, channel: FrameSocket) -> None:
        if channel is self._steps and channel.fileno() >= 0:
            channel.send(codecs.RESULT, encode(self.fake.results.popleft()))


def _plan(step: StepArrays) -> StepPlan:
    names = ("slots", "generations", "incarnations", "starts", "counts", "flags")
    tables = ("table_starts", "table_counts", "table_blocks")
    return StepPlan(
        engine_epoch=step.engine_epoch,
        step_id=step.step_id,
        frees=[(slot, generation) for slot, generation in step.frees.tolist()],
        admits=step.admits,
        copies=[(source, destination) for source, destination in step.copies.tolist()],
        **{name: getattr(step, name).tolist() for name in (*names, *tables)},
    )


class _Executor(RemoteExecutor):
    on_result: Callable[[], None]

    def poll(self) -> StepResult | None:
        result = super().poll()
        if result is not None:
            self.on_result()
        return result


class CheckedCore(EngineCore):
    """Compares all that is said with the ledger, and that planning changes nothing."""

    ledger: Ledger

    def add(self, request: GenerateRequest) -> None:
        super().add(request)
        self.ledger.enter(request)

    def abort(self, uid: int) -> list[TokenDelta]:
        return self._taken(super().abort(uid))

    def finish_at(self, uid: int, choice: int, n_tokens: int) -> None:
        n_open = self.scheduler.n_open
        super().finish_at(uid, choice, n_tokens)
        if self.scheduler.n_open < n_open:
            assert (uid, choice) not in self.ledger.finishes
            self.ledger.finishes[uid, choice] = STOP_STRING

    def expire(self) -> list[TokenDelta]:
        return self._taken(super().expire())

    def fill(self) -> None:
        before = self.scheduler.stats(), self.scheduler.plan()
        assert before == (self.scheduler.stats(), self.scheduler.plan()), "planning changes nothing"
        super().fill()

    def commit(self, result: StepResult) -> list[TokenDelta]:
        return self._taken(super().commit(result))

    def _taken(self, deltas: list[TokenDelta]) -> list[TokenDelta]:
        self.ledger.take(deltas)
        return deltas

    def check_left(self) -> None:
        """P4: nobody is here any more, and nothing of anybody."""
        assert not self.has_work, "the engine works for nobody"
        self.ledger.check_finished()
        assert self.kv_cache.n_free + self.kv_cache.n_cached == self.kv_cache.num_blocks
        self.check()


class EngineProcess:
    """One life of the engine."""

    def __init__(
        self,
        network: Network,
        worker: WorkerProcess,
        config: SchedulerConfig,
        *,
        epoch: int,
        make_kv: Callable[[], KVCacheManager],
        depth: int,
    ) -> None:
        self._network = network
        self._loop = network.loop
        self._is_due = False
        self.is_alive = True
        with mock.patch("sixfold.executor.remote.connect", lambda path: _instant(network.connect(path))):
            executor = _Executor(WORKER, epoch=epoch, config_digest=DIGEST)
        executor.on_result = worker.fake.retire
        facts = executor.facts
        kv = make_kv()
        scheduler = Scheduler(
            config,
            kv,
            max_model_len=facts.max_model_len,
            engine_epoch=epoch,
            max_slots=facts.max_slots,
            pipeline_depth=depth,
        )
        self.core = CheckedCore(scheduler, kv, executor, depth=depth, clock=self._loop.time)
        self.core.ledger = Ledger(kv.capacity_tokens)
        self._listener = network.engine_listener(self.wake)
        self._selector = VirtualSelector(network.random)
        run: Any = SimpleNamespace(epoch=epoch, digest=DIGEST, faults=0)
        with mock.patch.object(selectors, "DefaultSelector", lambda: self._selector):
            self.server = EngineServer(self.core, executor, self._listener, run)  # type: ignore[arg-type]
        self._loop.call_later(IDLE_S, self._idle)
        self.wake()

    def wake(self) -> None:
        """Something may be ready: a turn follows soon."""
        if self.is_alive and not self._is_due:
            self._is_due = True
            self._loop.call_later(self._network.random.random() * 0.001, self._turn)

    def crash(self) -> None:
        """The process is gone: what it has sent still arrives, then its connections end. Who listens is the supervisor,
        so that new ones wait for the next engine."""
        self.is_alive = False
        for sock in self._selector.sockets():
            if sock is not self._listener:
                sock.close()

    def check_left(self) -> None:
        self.core.check_left()
        assert not self.server._owners and not self.server._open_choices, "the engine's process remembers a request"
        assert not any(peer.uids or peer.outbox for peer in self.server._peers.values())

    def _turn(self) -> None:
        self._is_due = False
        if not self.is_alive:
            return
        self._selector.may_select = True
        with contextlib.suppress(TurnOver):
            self.server.run()
        self.core.check()
        open_uids = {one.request.uid for one in self.core.scheduler._register.sequences() if one.is_open}
        late = [one.request.message.deadline_s for one in self.core.scheduler._register.sequences() if one.is_open]
        assert all(deadline is None or deadline > self._loop.time() for deadline in late), "a deadline is missed"
        owned = {uid for uid, peer in self.server._owners.items() if peer.instance in self.server._peers}
        assert open_uids <= owned, "the engine works for nobody"
        for sock in self._selector.sockets():
            if sock is not self._listener:
                sock.on_readable = sock.on_writable = self.wake
        if self._selector.ready():
            self.wake()

    def _idle(self) -> None:
        if self.is_alive:
            self.wake()
            self._loop.call_later(IDLE_S, self._idle)


def _instant(sock: VirtualSocket) -> FrameSocket:
    """Greetings with the worker take no time."""
    sock.instant = True
    return FrameSocket(sock)  # type: ignore[arg-type]


_instance: ContextVar[int] = ContextVar("instance", default=1)


def hello_of_process(role: str, config_digest: str) -> bytes:
    """`codecs.hello` where one process plays many: each greets under its own number."""
    return codecs.encode(Hello(PROTOCOL, role, _instance.get(), config_digest))


class ApiProcess:
    """One API process: where the engine dies, its client waits for the next one and replays."""

    def __init__(self, network: Network, instance: int, tokenizer: Any, *, max_outstanding: int) -> None:
        self._network = network
        self._instance = instance
        self._text: Any = SimpleNamespace(
            tokenizer=tokenizer,
            chat_template=None,
            name="virtual",
            max_model_len=1 << 20,
            default_seed=None,
            sampling_defaults={},
        )
        self._max_outstanding = max_outstanding
        self.dead: str | None = None
        self.engine = self._client()
        self.context = _Context(self.engine)

    async def connect(self) -> None:
        """Until an engine has welcomed us."""
        _instance.set(self._instance)
        await self.engine.connect()

    async def wait_ready(self) -> None:
        """Until requests are taken, or this process is gone."""
        while not self.engine.ready and self.dead is None:
            await asyncio.sleep(0.02)

    def kill(self) -> None:
        """This process is gone."""
        self.dead = "the API process is gone"
        self.engine.close()
        self._hang_up()

    def _hang_up(self) -> None:
        for transport in self._network.loop.transports:
            if transport.context.get(_instance) == self._instance:
                transport.abort()

    def check_left(self) -> None:
        """P4 on this side."""
        context = self.context
        assert not self.engine._handles, "a handle is left"
        assert not context.in_flight and not context.scored and not context.generations
        assert not len(context.open_requests)

    def _client(self) -> EngineClient:
        config: Any = SimpleNamespace(
            scheduler=SimpleNamespace(
                max_queued_requests=self._max_outstanding,
                max_num_seqs=0,
                max_queued_tokens=1 << 40,
                max_queue_wait_s=0.0,
            ),
            api=SimpleNamespace(api_server_count=2),
            executor=SimpleNamespace(executor="scripted"),
        )
        return EngineClient(ENGINE, config, self._text, config_digest=DIGEST)


class _Context(ApiContext):
    """Of `ApiContext` what `Generation` needs."""

    def __init__(self, client: Any) -> None:
        self.client = client
        self.metrics = ApiMetrics("virtual", lambda: client.stats)
        self.in_flight = self.scored = 0
        self.draining = False
        self.generations = set()
        self.open_requests = OpenRequests()
        self.live = LiveFeed(self)
