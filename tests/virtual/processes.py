"""The processes of a server on virtual sockets: the engine's own loop, a worker without a model, API processes.

Engine: the real `EngineServer`, `RemoteExecutor`, `EngineCore`, scheduler and KV cache manager, turned by events.
API: the real `EngineClient` and, above it, the real `Generation`; no HTTP. Worker: `tests.fake_worker`.
"""

from __future__ import annotations

import asyncio
import contextlib
import selectors
from collections import Counter, deque
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from random import Random
from types import SimpleNamespace
from typing import Any
from unittest import mock

import msgspec
import numpy as np
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

from sixfold.api.admission.admission import Admission
from sixfold.api.context import ApiContext
from sixfold.api.debug.feed import LiveFeed
from sixfold.api.open_requests import OpenRequests
from sixfold.config import ApiConfig, SchedulerConfig
from sixfold.engine.client import EngineClient
from sixfold.engine.core import EngineCore
from sixfold.engine.engine_process import ApiPeer, EngineServer
from sixfold.errors import ProtocolError
from sixfold.executor.remote import RemoteExecutor
from sixfold.executor.slots import Slots
from sixfold.executor.step_arrays import Int32, StepArrays
from sixfold.executor.wire import decode_step, encode
from sixfold.executor.worker import Drawn, Worker
from sixfold.kv_cache import Journal, KVCacheManager
from sixfold.kv_cache.journal import Sealed
from sixfold.messages import (
    SAMPLE,
    BlockId,
    EngineStats,
    GenerateRequest,
    Hello,
    OutputBatch,
    SlotAdmit,
    StepPlan,
    StepResult,
    TokenDelta,
    WorkerFacts,
)
from sixfold.observability.calls import CallRing
from sixfold.observability.delivery import Delivery
from sixfold.observability.meter import Meter
from sixfold.observability.metrics import ApiMetrics
from sixfold.scheduler import Scheduler
from sixfold.transport import FrameSocket, codecs
from sixfold.transport.frames import PROTOCOL

DIGEST = "virtual"
ENGINE, WORKER = "engine", "worker"
IDLE_S = 0.25
FORGED, REPEATED = 0.004, 0.05
"""How often a result is preceded by one that answers something else, and outputs are told twice."""
FOREIGN = {-1: b""}
"""Mark of such a result."""
LATE_S = 0.4
"""More than a word of an API process is ever under way."""


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
        self.ended: dict[tuple[int, int], float] = {}
        """(uid, choice) whose caller has all, or is gone -> since when."""
        self.said: dict[int, OutputBatch] = {}
        """By API process: what it was told last."""
        self.came: Counter[str] = Counter()
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


class _Backend:
    """`FakeWorker` below the real `Worker` and its slots, which must be as the fake one's."""

    def __init__(self, fake: FakeWorker, facts: WorkerFacts) -> None:
        # A real block has 16 tokens. Here it may have fewer, so that tables are longer.
        self.facts = msgspec.structs.replace(facts, max_model_len=16 * facts.max_model_len)
        self._fake = fake

    def free(self, slot: int) -> None:
        """With the step, as all that follows."""

    def admit(self, admit: SlotAdmit) -> None: ...
    def copy_blocks(self, copies: Int32) -> None: ...
    def count_times(self, meter: Meter) -> None: ...
    def close(self) -> None: ...

    def prepare(self) -> bool:
        return False

    def run(self, step: StepArrays, slots: Slots) -> Drawn:
        fake = self._fake
        fake.submit(_plan(step))
        for index, flags in zip(step.slots.tolist(), step.flags.tolist(), strict=True):
            slot = fake.slots[index]
            n_known = len(slot.token_ids) - bool(flags & SAMPLE)
            assert slots.tokens[index, : slots.lengths[index]].tolist() == slot.token_ids[:n_known]
            assert slots.block_table[index, : len(slot.table)].tolist() == slot.table
        result = fake.results.pop()
        return Drawn(
            np.asarray(result.token_ids, np.int32),
            np.asarray(result.status, np.int32),
            result.logprobs,
            result.prompt_logprobs,
            result.embeddings,
        )


class WorkerProcess:
    """The real worker around `FakeWorker`. Outlives engines; its memory stays when another one comes."""

    def __init__(self, network: Network, fake: FakeWorker, facts: WorkerFacts, *, step_s: float) -> None:
        self._network = network
        self._facts = facts
        self._step_s = step_s
        self._free_s = 0.0
        self._steps: FrameSocket | None = None
        self.fake = fake
        self._worker = Worker(_Backend(fake, facts))
        self._late_step: StepArrays | None = None
        self._results: deque[tuple[FrameSocket, StepResult]] = deque()
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
                self._worker.attach(received.epoch)
                self.fake.attach()
                self._hear_late()

    def _step(self, channel: FrameSocket, body: bytes) -> None:
        if channel is not self._steps:
            return  # of an engine that is gone
        step = self._late_step = StepArrays.unpack(decode_step(body))
        result = self._worker.execute(step)
        if not step.n_rows:
            self.fake.submit(_plan(step))
        loop, random = self._network.loop, self._network.random
        self._free_s = max(self._free_s, loop.time()) + random.random() * self._step_s
        self._results.append((channel, result))
        loop.call_at(self._free_s, self._finish)

    def _finish(self) -> None:
        """The oldest: two may be due at the same time, and the loop calls those in any order."""
        channel, result = self._results.popleft()
        if channel is self._steps and channel.fileno() >= 0:
            if self._network.random.random() < FORGED:
                channel.send(codecs.RESULT, encode(self._forged(result)))
            channel.send(codecs.RESULT, encode(result))

    def _hear_late(self) -> None:
        """A step of the engine that is gone comes only now."""
        if self._late_step is None:
            return
        self._network.came["late steps"] += 1
        try:
            self._worker.execute(self._late_step)
        except ProtocolError:
            return
        raise AssertionError("a step of an engine that is gone is executed")

    def _forged(self, result: StepResult) -> StepResult:
        """A result as another step, another life of a slot, or another engine would have it."""
        self._network.came["foreign results"] += 1
        changes: list[dict[str, Any]] = [{"engine_epoch": result.engine_epoch - 1}, {"step_id": result.step_id - 1}]
        if result.slots:
            for name in ("slots", "generations", "incarnations"):
                first, *rest = getattr(result, name)
                changes.append({name: [first + 1, *rest]})
        return msgspec.structs.replace(result, embeddings=FOREIGN, **self._network.random.choice(changes))


def _plan(step: StepArrays) -> StepPlan:
    names = ("slots", "generations", "incarnations", "starts", "counts", "flags")
    tables = ("table_rows", "table_starts", "table_counts")
    return StepPlan(
        engine_epoch=step.engine_epoch,
        step_id=step.step_id,
        frees=[(slot, generation) for slot, generation in step.frees.tolist()],
        admits=step.admits,
        copies=[(source, destination) for source, destination in step.copies.tolist()],
        table_blocks=step.table_blocks.tolist(),
        **dict(zip(names, step.columns.tolist(), strict=True)),
        **dict(zip(tables, step.tables.tolist(), strict=True)),
    )


class _Executor(RemoteExecutor):
    on_result: Callable[[], None]

    def poll(self) -> Iterator[StepResult]:
        for result in super().poll():
            self.on_result()
            yield result


class KilledError(Exception):
    """The engine's process ends here."""


class MortalJournal(Journal):
    """One in whose use the engine may be killed, in the midst of whatever it is doing."""

    dies_in = -1
    """Records until then."""

    def write(self, block: BlockId, sealed: Sealed) -> None:
        self._live()
        super().write(block, sealed)

    def clear(self, block: BlockId) -> None:
        self._live()
        super().clear(block)

    def _live(self) -> None:
        if self.dies_in == 0:
            raise KilledError
        self.dies_in -= 1


class CheckedCore(EngineCore):
    """Compares all that is said with the ledger, and that planning changes nothing."""

    ledger: Ledger
    lives: set[tuple[int, int, int, int]]
    """(uid, attempt, choice, incarnation) that had a slot."""

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
        before = _counts(self.scheduler), self.scheduler.plan()
        assert before == (_counts(self.scheduler), self.scheduler.plan()), "planning changes nothing"
        next_step_id = self.scheduler._next_step_id
        super().fill()
        for step in self.scheduler._outstanding:
            for row in step.rows if step.message.step_id >= next_step_id else []:
                if row.prefix is not None:
                    request = row.sequence.request
                    life = request.uid, request.message.attempt, row.sequence.choice, row.sequence.incarnation
                    assert life not in self.lives, "two lives of a choice have one number"
                    self.lives.add(life)

    def commit(self, result: StepResult) -> list[TokenDelta]:
        deltas = super().commit(result)
        assert result.embeddings != FOREIGN, "a result is applied that answers another step, or another life"
        return self._taken(deltas)

    def _taken(self, deltas: list[TokenDelta]) -> list[TokenDelta]:
        self.ledger.take(deltas)
        return deltas

    def check_left(self) -> None:
        """P4: nobody is here any more, and nothing of anybody."""
        assert not self.has_work, "the engine works for nobody"
        self.ledger.check_finished()
        assert self.kv_cache.n_free + self.kv_cache.n_cached == self.kv_cache.num_blocks
        self.check()


class _Server(EngineServer):
    """Tells some things twice, and hands on what an engine had said that is gone."""

    network: Network

    def _send_outputs(self, peer: ApiPeer, deltas: list[TokenDelta]) -> None:
        super()._send_outputs(peer, deltas)
        network, batch = self.network, OutputBatch(self._run.epoch, self._step_id, deltas)
        before = network.said.get(peer.instance, batch)
        network.said[peer.instance] = batch
        is_late = before.engine_epoch != batch.engine_epoch
        if peer.outputs is not None and (is_late or network.random.random() < REPEATED):
            network.came["late outputs" if is_late else "repeated outputs"] += 1
            with contextlib.suppress(OSError):
                peer.outputs.send(codecs.OUTPUT, codecs.encode(before if is_late else batch))


class EngineProcess:
    """One life of the engine.

    Args:
        faults: crashes by its own fault before.
        on_fault: called when it dies of what it was told.
    """

    def __init__(
        self,
        network: Network,
        worker: WorkerProcess,
        config: SchedulerConfig,
        *,
        epoch: int,
        faults: int,
        on_fault: Callable[[], object],
        make_kv: Callable[[MortalJournal], KVCacheManager],
        journal: memoryview,
        block_size: int,
        depth: int,
    ) -> None:
        self._network = network
        self._loop = network.loop
        self._is_due = False
        self._on_fault = on_fault
        self.is_alive = True
        with mock.patch("sixfold.executor.remote.connect", lambda path: _instant(network.connect(path))):
            executor = _Executor(WORKER, epoch=epoch, config_digest=DIGEST)
        executor.on_result = worker.fake.retire
        facts = executor.facts
        # As `launch.open_journal` does it: when the worker has answered, and not before.
        self.journal = MortalJournal(journal, facts.num_blocks, block_size)
        kv = make_kv(self.journal)
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
        self.core.lives = set()
        self._listener = network.engine_listener(self.wake)
        self._selector = VirtualSelector(network.random)
        run: Any = SimpleNamespace(epoch=epoch, digest=DIGEST, faults=faults)
        with mock.patch.object(selectors, "DefaultSelector", lambda: self._selector):
            self.server = _Server(self.core, executor, self._listener, run)  # type: ignore[arg-type]
        self.server.network = network
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
        assert self.server._quarantine.next() is None and self.server._quarantine.on_trial is None

    def _turn(self) -> None:
        self._is_due = False
        if not self.is_alive:
            return
        self._selector.may_select = True
        try:
            self.server.run()
            self.crash()  # it has left, as it was asked to
        except TurnOver:
            pass
        except KilledError:
            self.crash()
        except ProtocolError:
            self.crash()
            self._on_fault()
        if not self.is_alive:
            return
        self.core.check()
        self._check_open()
        for sock in self._selector.sockets():
            if sock is not self._listener:
                sock.on_readable = sock.on_writable = self.wake
        if self._selector.ready():
            self.wake()

    def _check_open(self) -> None:
        """Whoever is open here has a caller who wants it, and time left; suspects are tried one at a time."""
        now_s, ended = self._loop.time(), self._network.ended
        owned = {uid for uid, peer in self.server._owners.items() if peer.instance in self.server._peers}
        on_trial = set()
        for one in self.core.scheduler._register.sequences():
            if not one.is_open:
                continue
            message = one.request.message
            assert message.uid in owned, "the engine works for nobody"
            assert message.deadline_s is None or message.deadline_s > now_s, "a deadline is missed"
            assert now_s - ended.get((message.uid, one.choice), now_s) < LATE_S, "the engine works on what has ended"
            if message.suspect and not any((message.uid, c) in self.core.ledger.first_deltas for c in range(message.n)):
                on_trial.add(message.uid)
        assert len(on_trial) <= 1, "two suspects are tried at once"

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
        assert not context.admission.in_flight and not context.admission.scored and not context.generations
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


def _counts(scheduler: Scheduler) -> EngineStats:
    """All that it counts: why choices wait is what its latest plan says."""
    return msgspec.structs.replace(scheduler.stats(), waiting_for={})


class _Context(ApiContext):
    """Of `ApiContext` what `Generation` needs."""

    def __init__(self, client: Any) -> None:
        self.client = client
        self.metrics = ApiMetrics("virtual", lambda: client.stats)
        self.config = ApiConfig()
        self.delivery = Delivery()
        self.call_ring = CallRing.private()
        self.admission = Admission(client)
        self.generations = set()
        self.open_requests = OpenRequests()
        self.live = LiveFeed(self)
