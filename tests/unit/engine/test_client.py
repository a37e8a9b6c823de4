"""The API process's end of the engine: verdicts, deltas, endings, a lost engine; over a real socket."""

from __future__ import annotations

import asyncio
import errno
import socket
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.garbage import garbage_of

import sixfold.engine.client as client_module
from sixfold.config import Config
from sixfold.engine.client import EngineClient, RequestHandle
from sixfold.engine.launch import load_text
from sixfold.engine.progress import Count
from sixfold.engine.replay import Poisoned
from sixfold.engine.resolve import resolve
from sixfold.errors import DeadlineExceeded, EngineDead, NotReady, Overloaded, RequestFailed
from sixfold.messages import (
    Abort,
    Admitted,
    EngineStats,
    Finish,
    FinishAt,
    GenerateRequest,
    OutputBatch,
    Rejected,
    Sampling,
    TokenDelta,
    Welcome,
    WorkerFacts,
)
from sixfold.transport import FrameSocket, accept, codecs, listen

FACTS = WorkerFacts(1, 32, 4, 64, "scripted", 0, 0)


class Engine:
    """What the test plays: both channels of the one client, read and written without waiting."""

    def __init__(self, listener: socket.socket) -> None:
        self._listener = listener
        self.control: FrameSocket
        self.outputs: FrameSocket

    async def welcome(self, epoch: int = 1, faults: int = 0) -> None:
        for _ in range(2):
            while (channel := await asyncio.to_thread(accept, self._listener)) is None:
                pass
            greeting = codecs.decode_hello((await asyncio.to_thread(channel.receive_one)).body, config_digest="d")
            setattr(self, greeting.role.removeprefix("api-"), channel)
        self.tell(Welcome(epoch, FACTS, faults))

    def tell(self, message: Welcome | Admitted | Rejected | EngineStats) -> None:
        self.control.send(codecs.CONTROL, codecs.encode(message))

    def emit(self, *deltas: TokenDelta, epoch: int = 1) -> None:
        self.outputs.send(codecs.OUTPUT, codecs.encode(OutputBatch(epoch, 0, list(deltas))))

    async def hear(self) -> GenerateRequest | Abort | FinishAt:
        return codecs.decode_to_engine((await asyncio.to_thread(self.control.receive_one)).body)

    def close_listener(self) -> None:
        self._listener.close()

    def hang_up(self) -> None:
        self.control.close()
        self.outputs.close()


Test = Callable[[EngineClient, Engine], Awaitable[None]]


def run(tmp_path: Path, test: Test) -> None:
    async def main() -> None:
        path = str(tmp_path / "engine.sock")
        config = resolve(Config.from_flat({"model": "scripted"}))
        with listen(path) as listener:
            client, engine = EngineClient(path, config, load_text(config), config_digest="d"), Engine(listener)
            with pytest.raises(NotReady):
                await client.submit(request())
            await asyncio.gather(client.connect(), engine.welcome())
            assert client.ready and client.engine_epoch == 1 and client.build == "scripted/scripted"
            try:
                await asyncio.wait_for(test(client, engine), 60)
            finally:
                client.close()
                engine.hang_up()

    asyncio.run(main())


def request(uid: int = 7, n: int = 1) -> GenerateRequest:
    return GenerateRequest(uid=uid, prompt_token_ids=[1], max_tokens=4, sampling=Sampling(seed=1), n=n)


def delta(first: int, *ids: int, uid: int = 7, choice: int = 0, finish: Finish | None = None) -> TokenDelta:
    return TokenDelta(uid=uid, choice=choice, first_index=first, token_ids=list(ids), finish=finish)


async def admitted(client: EngineClient, engine: Engine, wanted: GenerateRequest):  # type: ignore[no-untyped-def]
    submitting = asyncio.ensure_future(client.submit(wanted))
    assert await engine.hear() == wanted
    assert not submitting.done()
    engine.tell(Admitted(wanted.uid))
    return await submitting


class Listener:
    """Follows a request from now on; `ended` is what comes last."""

    def __init__(self, handle: RequestHandle, n: int = 1) -> None:
        self.got: list[TokenDelta] = []
        self.n_running = n
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        handle.listen(self._take, self.ended.set_exception)

    def _take(self, deltas: list[TokenDelta]) -> None:
        assert deltas
        self.got += deltas
        self.n_running -= sum(delta.finish is not None for delta in deltas)
        if not self.n_running:
            self.ended.set_result(None)


def test_deltas_come_out_in_order_and_end_with_the_last_choice(tmp_path: Path) -> None:
    async def test(client: EngineClient, engine: Engine) -> None:
        handle = await admitted(client, engine, request(n=2))
        engine.emit(delta(0, 5), delta(0, 6, choice=1), delta(0, 9, uid=8))
        engine.emit(delta(1, 7, finish=Finish("stop")))
        engine.emit(delta(9, 9), epoch=0)
        engine.emit(delta(1, 8, choice=1, finish=Finish("length")))
        listener = Listener(handle, n=2)
        await listener.ended
        assert [(d.choice, d.token_ids) for d in listener.got] == [(0, [5]), (1, [6]), (0, [7]), (1, [8])]
        handle.abort()  # after the end there is nothing to say
        engine.tell(EngineStats(steps=3))
        while client.stats.steps != 3:
            await asyncio.sleep(0.01)
        assert engine.control.receive() == []

    run(tmp_path, test)


def test_a_refusal_is_the_exception_that_it_was_in_the_engine(tmp_path: Path) -> None:
    async def test(client: EngineClient, engine: Engine) -> None:
        submitting = asyncio.ensure_future(client.submit(request()))
        await engine.hear()
        engine.tell(Rejected(7, "Overloaded", "the queue is full", code="queue_full", retry_after_s=2.5))
        with pytest.raises(Overloaded) as refused:
            await submitting
        assert (refused.value.message, refused.value.retry_after_s) == ("the queue is full", 2.5)

    run(tmp_path, test)


def test_a_refused_request_is_not_left_to_the_garbage_collector(tmp_path: Path) -> None:
    async def test(client: EngineClient, engine: Engine) -> None:
        with garbage_of(RequestHandle) as left:
            submitting = asyncio.ensure_future(client.submit(request()))
            await engine.hear()
            assert left()
            engine.tell(Rejected(7, "Overloaded", "the queue is full"))
            with pytest.raises(Overloaded):
                await submitting
            assert not left()

    run(tmp_path, test)


def test_what_came_before_somebody_listens_is_kept(tmp_path: Path) -> None:
    async def test(client: EngineClient, engine: Engine) -> None:
        handle = await admitted(client, engine, request())
        engine.emit(delta(0, 5))
        engine.emit(delta(1, 6))
        await asyncio.sleep(0.05)
        listener = Listener(handle)
        assert [d.token_ids for d in listener.got] == [[5], [6]]

    run(tmp_path, test)


def test_abort_is_sent_once_and_nothing_follows(tmp_path: Path) -> None:
    async def test(client: EngineClient, engine: Engine) -> None:
        handle = await admitted(client, engine, request())
        listener = Listener(handle)
        handle.abort()
        handle.abort()
        assert await engine.hear() == Abort(7)
        engine.emit(delta(0, 5))  # was under way
        await asyncio.sleep(0.05)
        assert not listener.got
        assert engine.control.receive() == [] and client.dead is None

    run(tmp_path, test)


def test_a_cancelled_submission_is_aborted(tmp_path: Path) -> None:
    async def test(client: EngineClient, engine: Engine) -> None:
        submitting = asyncio.ensure_future(client.submit(request()))
        await engine.hear()
        submitting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await submitting
        assert await engine.hear() == Abort(7)

    run(tmp_path, test)


def test_finish_at_ends_the_choice_here_at_once(tmp_path: Path) -> None:
    async def test(client: EngineClient, engine: Engine) -> None:
        handle = await admitted(client, engine, request())
        engine.emit(delta(0, 5, 6))
        listener = Listener(handle)
        while not listener.got:
            await asyncio.sleep(0.01)
        handle.finish_at(0, 1)
        handle.finish_at(0, 1)
        assert await engine.hear() == FinishAt(7, 0, 1)
        engine.emit(delta(2, 7, finish=Finish("stop")))
        await asyncio.sleep(0.05)
        assert [d.token_ids for d in listener.got] == [[5, 6]]
        assert engine.control.receive() == [] and client.dead is None

    run(tmp_path, test)


def test_a_token_before_the_verdict_is_a_verdict(tmp_path: Path) -> None:
    async def test(client: EngineClient, engine: Engine) -> None:
        submitting = asyncio.ensure_future(client.submit(request()))
        await engine.hear()
        engine.emit(delta(0, 5, finish=Finish("length")))
        handle = await submitting
        engine.tell(Admitted(7))
        assert [d.token_ids for d in Listener(handle).got] == [[5]]

    run(tmp_path, test)


async def succeed(engine: Engine, epoch: int, faults: int = 0) -> None:
    """The engine dies, and the next one greets the client."""
    engine.hang_up()
    await engine.welcome(epoch, faults)


def test_the_next_engine_gets_the_request_with_what_has_come(tmp_path: Path) -> None:
    async def test(client: EngineClient, engine: Engine) -> None:
        wanted = request(n=3)
        handle = await admitted(client, engine, wanted)
        listener = Listener(handle, n=2)  # the third is ended here
        engine.emit(delta(0, 5), delta(0, 6, choice=1), delta(0, 7, choice=2, finish=Finish("stop")))
        while len(listener.got) < 3:
            await asyncio.sleep(0.01)
        handle.finish_at(1, 1)
        await succeed(engine, 2)
        again = await engine.hear()
        assert again == msgspec.structs.replace(wanted, attempt=1, delivered=((5,), (6,), (7,)), ended=(1, 2))
        assert client.ready and client.engine_epoch == 2
        engine.emit(delta(1, 9), epoch=1)  # of the engine that is gone
        engine.emit(delta(1, 8, finish=Finish("length")), epoch=2)
        await listener.ended
        assert [d.token_ids for d in listener.got if d.choice == 0] == [[5], [8]]

    run(tmp_path, test)


def test_a_request_without_a_verdict_is_sent_again_as_it_was(tmp_path: Path) -> None:
    async def test(client: EngineClient, engine: Engine) -> None:
        submitting = asyncio.ensure_future(client.submit(request()))
        await engine.hear()
        await succeed(engine, 2)
        assert await engine.hear() == request()
        engine.tell(Rejected(7, "Overloaded", "the queue is full"))
        with pytest.raises(Overloaded):
            await submitting

    run(tmp_path, test)


def test_a_deadline_that_passes_while_there_is_no_engine_is_told_then(tmp_path: Path) -> None:
    async def test(client: EngineClient, engine: Engine) -> None:
        deadline_s = time.monotonic() + 0.2
        hurried = msgspec.structs.replace(request(n=2), deadline_s=deadline_s)
        listener = Listener(await admitted(client, engine, hurried), n=2)
        patient = Listener(await admitted(client, engine, request(uid=8)))
        unheard = asyncio.ensure_future(client.submit(msgspec.structs.replace(hurried, uid=9)))
        await engine.hear()
        engine.emit(delta(0, 65, 66), delta(0, 67, choice=1, finish=Finish("length")))
        while len(listener.got) < 2:
            await asyncio.sleep(0.001)
        engine.hang_up()
        await listener.ended
        assert time.monotonic() >= deadline_s and not client.ready
        assert listener.got[2:] == [delta(2, finish=Finish("timeout"))]
        ended = Listener(await unheard, n=2)
        assert [each.finish for each in ended.got] == [Finish("timeout")] * 2
        await engine.welcome(2)
        assert (await engine.hear()).uid == 8  # and nothing else
        engine.emit(delta(0, 65, uid=8, finish=Finish("length")), epoch=2)
        await patient.ended

    run(tmp_path, test)


def test_nothing_is_replayed_for_whoever_has_left(tmp_path: Path) -> None:
    async def test(client: EngineClient, engine: Engine) -> None:
        handle = await admitted(client, engine, request())
        engine.hang_up()
        while client.ready:
            await asyncio.sleep(0.01)
        handle.abort()
        submitting = asyncio.ensure_future(client.submit(request(uid=8)))  # waits for the next engine
        await engine.welcome(2)
        assert await engine.hear() == request(uid=8)
        engine.tell(Admitted(8))
        await submitting

    run(tmp_path, test)


def test_a_new_request_waits_for_an_engine_only_so_long(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_module, "RESTART_WAIT_S", 0.05)

    async def test(client: EngineClient, engine: Engine) -> None:
        engine.hang_up()
        while client.ready:
            await asyncio.sleep(0.01)
        assert client.restarting
        with pytest.raises(NotReady) as refused:
            await client.submit(request())
        assert refused.value.retry_after_s
        hurried = msgspec.structs.replace(request(), deadline_s=time.monotonic())
        with pytest.raises(DeadlineExceeded):
            await client.submit(hurried)

    run(tmp_path, test)


def test_a_request_that_crashes_two_engines_is_failed_and_refused(tmp_path: Path) -> None:
    async def test(client: EngineClient, engine: Engine) -> None:
        poison = await admitted(client, engine, request(uid=1))
        other = await admitted(client, engine, msgspec.structs.replace(request(uid=2), prompt_token_ids=[9]))
        ended, going_on = Listener(poison).ended, Listener(other)
        await succeed(engine, 2, faults=1)
        first, second = await engine.hear(), await engine.hear()
        assert isinstance(first, GenerateRequest) and first.suspect
        assert isinstance(second, GenerateRequest) and second.suspect
        engine.tell(Admitted(1))  # its trial begins; the other one's does not
        await succeed(engine, 3, faults=2)
        with pytest.raises(RequestFailed, match="twice") as failed:
            await ended
        assert failed.value.code == "poisoned"
        again = await engine.hear()
        assert isinstance(again, GenerateRequest) and again.uid == 2
        engine.emit(delta(0, 5, uid=2, finish=Finish("length")), epoch=3)
        await going_on.ended
        with pytest.raises(RequestFailed):
            await client.submit(request(uid=3))

    run(tmp_path, test)


def test_what_one_process_learns_is_refused_by_all(tmp_path: Path) -> None:
    """Of one server: also by a process that is started later; for ten minutes, and by what is asked for alone."""
    first, second = Poisoned.open(str(tmp_path)), Poisoned.open(str(tmp_path))
    first.check(request())
    second.add(request(uid=1))
    first.add(msgspec.structs.replace(request(), prompt_token_ids=[2]))
    for one in (first, second, Poisoned.open(str(tmp_path))):
        for prompt in ([1], [2]):
            again = msgspec.structs.replace(request(uid=9), prompt_token_ids=prompt, arrival_s=3.0)
            with pytest.raises(RequestFailed):
                one.check(again)
        one.check(msgspec.structs.replace(request(), prompt_token_ids=[3]))
    Poisoned().check(request())
    (tmp_path / "other").mkdir()
    Poisoned.open(str(tmp_path / "other")).check(request())


def test_what_other_processes_hold_is_known_at_once(tmp_path: Path) -> None:
    """From shared memory: the engine's word comes a few times a second."""

    async def test(client: EngineClient, engine: Engine) -> None:
        counts = client._progress.counts
        counts[Count.API_OPEN + 1] = 5
        assert client.n_open_elsewhere == 0  # it is alone: there is nobody to ask
        client._is_alone = False
        handle = await admitted(client, engine, request(n=3))
        assert counts[Count.API_OPEN] == 3 and client.n_open_elsewhere == 5
        counts[Count.API_OPEN + 1] = 0
        assert client.n_open_elsewhere == 0
        handle.abort()
        handle.abort()
        assert counts[Count.API_OPEN] == 0

    run(tmp_path, test)


def test_a_signal_from_outside_is_nobodys_fault(tmp_path: Path) -> None:
    async def test(client: EngineClient, engine: Engine) -> None:
        handle = await admitted(client, engine, request())
        for epoch in (2, 3, 4):
            await succeed(engine, epoch)
            again = await engine.hear()
            assert isinstance(again, GenerateRequest) and not again.suspect
            engine.tell(Admitted(7))
        engine.emit(delta(0, 5, finish=Finish("length")), epoch=4)
        await Listener(handle).ended

    run(tmp_path, test)


def test_a_server_that_is_gone_fails_what_is_open_after_what_had_come(tmp_path: Path) -> None:
    async def test(client: EngineClient, engine: Engine) -> None:
        handle = await admitted(client, engine, request())
        engine.emit(delta(0, 5))
        await asyncio.sleep(0.05)
        engine.close_listener()
        engine.hang_up()
        listener = Listener(handle)
        with pytest.raises(EngineDead):
            await listener.ended
        assert [d.token_ids for d in listener.got] == [[5]]
        with pytest.raises(EngineDead):
            await client.submit(request(uid=9))
        with pytest.raises(EngineDead):
            await client.gone()  # so that its process ends, instead of refusing for ever

    run(tmp_path, test)


def test_without_a_descriptor_the_next_engine_is_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Callers may hold all of them; an engine that dies meanwhile must not cost every open request."""

    async def test(client: EngineClient, engine: Engine) -> None:
        handle = await admitted(client, engine, request())
        connect, n_tries = asyncio.get_running_loop().create_unix_connection, 0

        async def refuse_twice(*arguments: Any) -> Any:
            nonlocal n_tries
            n_tries += 1
            if n_tries < 3:
                raise OSError(errno.EMFILE, "too many open files")
            return await connect(*arguments)

        monkeypatch.setattr(asyncio.get_running_loop(), "create_unix_connection", refuse_twice)
        engine.hang_up()
        await engine.welcome(2)
        assert isinstance(await engine.hear(), GenerateRequest) and n_tries == 4
        engine.emit(delta(0, 5, finish=Finish("length")), epoch=2)
        await Listener(handle).ended

    run(tmp_path, test)


def test_bytes_that_are_no_frame_end_the_connection(tmp_path: Path) -> None:
    async def test(client: EngineClient, engine: Engine) -> None:
        handle = await admitted(client, engine, request())
        engine.outputs.sock.sendall(b"\xff" * 64)
        while client.ready:
            await asyncio.sleep(0.01)
        await succeed(engine, 2)
        assert isinstance(await engine.hear(), GenerateRequest)
        engine.emit(delta(0, 5, finish=Finish("length")), epoch=2)
        await Listener(handle).ended

    run(tmp_path, test)
