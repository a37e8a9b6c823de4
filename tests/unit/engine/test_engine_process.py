"""The engine process's loop over sockets, in a thread: large frames both ways, an API process that dies or stalls."""

from __future__ import annotations

import itertools
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest

import sixfold.engine.worker_process as worker_process
import sixfold.transport.sockets as sockets
from sixfold.config import Config
from sixfold.engine.engine_process import ApiPeer, EngineServer
from sixfold.engine.launch import build_core, build_worker
from sixfold.engine.resolve import resolve
from sixfold.engine.run_files import RunFiles, write_run_files
from sixfold.engine.worker_process import MAX_SILENT, serve_engine
from sixfold.errors import EngineDead
from sixfold.executor.remote import RemoteExecutor
from sixfold.messages import (
    Abort,
    Admitted,
    EngineStats,
    EngineView,
    Finish,
    GenerateRequest,
    Hello,
    Rejected,
    Sampling,
    StepPlan,
    TokenDelta,
    Watch,
    Welcome,
)
from sixfold.observability.site import Kind
from sixfold.observability.sites import SITES, WORKER_IDLE, WORKER_STEP
from sixfold.transport import FrameSocket, codecs, connect, listen
from sixfold.transport.frames import PROTOCOL, frame

_instances = itertools.count(1)


class Api:
    """What an API process does, one frame after the other."""

    def __init__(self, run: RunFiles, roles: tuple[str, ...] = ("api-control", "api-outputs")) -> None:
        self._run = run
        self._instance = next(_instances)
        self.channels: dict[str, FrameSocket] = {}
        for role in roles:
            self.attach(role)
        assert isinstance(self.hear(), Welcome)

    def attach(self, role: str) -> None:
        channel = connect(self._run.engine_path)
        greeting = Hello(PROTOCOL, role, self._instance, self._run.digest)
        channel.send(codecs.HELLO, codecs.encode(greeting), block=True)
        self.channels[role] = channel

    @property
    def control(self) -> FrameSocket:
        return self.channels["api-control"]

    def send(self, message: GenerateRequest | Abort | Watch) -> None:
        self.control.send(codecs.CONTROL, codecs.encode(message), block=True)

    def hear(self) -> object:
        """The next control message that is not a snapshot."""
        while isinstance(message := codecs.decode_control(self.control.receive_one().body), EngineStats | EngineView):
            pass
        return message

    def view(self) -> EngineView:
        """The next view."""
        while not isinstance(message := codecs.decode_control(self.control.receive_one().body), EngineView):
            pass
        return message

    def outputs(self) -> list[TokenDelta]:
        return codecs.decode_output(self.channels["api-outputs"].receive_one().body).deltas

    def wait_stats(self, wanted: Callable[[EngineStats], bool]) -> EngineStats:
        deadline = time.monotonic() + 10
        while time.monotonic() < deadline:
            message = codecs.decode_control(self.control.receive_one().body)
            if isinstance(message, EngineStats) and wanted(message):
                return message
        raise AssertionError("the engine never said so")

    def hang_up(self) -> None:
        for channel in self.channels.values():
            channel.close()


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[RunFiles]:
    """Worker and engine loops in threads, over sockets whose buffers are as small as a system may make them."""
    monkeypatch.setattr(sockets, "_SOCKET_BUFFER_BYTES", 4096)
    run = write_run_files(str(tmp_path), resolve(Config.from_flat({"model": "scripted"})), epoch=1)
    worker_listener, engine_listener = listen(run.worker_path), listen(run.engine_path)
    worker = build_worker(run.config)
    threads = [threading.Thread(target=serve_engine, args=(worker, worker_listener, run))]
    threads[0].start()
    executor = RemoteExecutor(run.worker_path, epoch=1, config_digest=run.digest)
    server = EngineServer(build_core(run.config, executor, epoch=1, hash_key=b"k"), executor, engine_listener, run)

    def engine() -> None:
        with pytest.raises(EngineDead):
            server.run()

    threads.append(threading.Thread(target=engine))
    threads[1].start()
    yield run
    executor.control.sock.shutdown(2)
    executor.steps.sock.shutdown(2)
    for thread in threads:
        thread.join(10)
        assert not thread.is_alive()
    executor.close()
    server.close()
    worker_listener.close()
    engine_listener.close()


def test_who_greets_the_worker_with_silence_is_in_no_engines_way(tmp_path: Path) -> None:
    run = write_run_files(str(tmp_path), resolve(Config.from_flat({"model": "scripted"})), epoch=1)
    greeting = frame(codecs.HELLO, codecs.hello("worker-steps", run.digest), seq=0, sender=1, epoch=9)
    executors: list[RemoteExecutor] = []
    with listen(run.worker_path) as listener:
        worker = build_worker(run.config)
        others = [connect(run.worker_path) for _ in range(MAX_SILENT + 4)]
        others[0].sock.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n" * 4)
        others[-1].sock.sendall(greeting[:-1])
        others[-2].send(codecs.HELLO, codecs.hello("worker-steps", "another"), block=True)
        others[-3].close()

        def attach() -> None:
            executors.append(RemoteExecutor(run.worker_path, epoch=1, config_digest=run.digest))

        threads = [threading.Thread(target=serve_engine, args=(worker, listener, run)), threading.Thread(target=attach)]
        for thread in threads:
            thread.start()
        threads[1].join(10)
        came = list(executors)
        for other in others:
            other.close()
        threads[1].join(10)
        for executor in executors:
            executor.close()
        threads[0].join(10)
    assert came and came[0].facts == worker.facts


def test_a_worker_without_work_prepares_until_nothing_is_left_and_again_after_a_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker_process, "IDLE_S", 0.01)
    monkeypatch.setattr(worker_process, "PAUSE_S", 0.01)
    run = write_run_files(str(tmp_path), resolve(Config.from_flat({"model": "scripted"})), epoch=1)
    prepared: queue.Queue[bool] = queue.Queue()
    left = iter([True, True, False, True, False])

    def prepare() -> bool:
        more = next(left)
        prepared.put(more)
        return more

    with listen(run.worker_path) as listener:
        worker = build_worker(run.config)
        monkeypatch.setattr(worker, "prepare", prepare)
        thread = threading.Thread(target=serve_engine, args=(worker, listener, run))
        thread.start()
        executor = RemoteExecutor(run.worker_path, epoch=1, config_digest=run.digest)
        assert [prepared.get(timeout=10) for _ in range(3)] == [True, True, False]
        executor.submit(StepPlan(engine_epoch=1, step_id=0))
        executor.collect()
        assert [prepared.get(timeout=10) for _ in range(2)] == [True, False]
        executor.close()
        thread.join(10)
    assert not thread.is_alive() and prepared.empty()


def test_a_worker_without_work_waits_at_a_site_of_kind_idle(tmp_path: Path) -> None:
    run = write_run_files(str(tmp_path), resolve(Config.from_flat({"model": "scripted"})), epoch=1)
    with listen(run.worker_path) as listener:
        worker = build_worker(run.config)
        thread = threading.Thread(target=serve_engine, args=(worker, listener, run))
        thread.start()
        executor = RemoteExecutor(run.worker_path, epoch=1, config_digest=run.digest)
        deadline = time.monotonic() + 10
        while not worker.meter.totals()[WORKER_IDLE].n_waiting and time.monotonic() < deadline:
            time.sleep(0.005)
        waiting = [worker.meter.totals()[site].n_waiting for site in (WORKER_IDLE, WORKER_STEP)]
        executor.close()
        thread.join(10)
    assert waiting == [1, 0]
    idle, busy = (worker.meter.totals()[site] for site in (WORKER_IDLE, WORKER_STEP))
    assert (idle.count, idle.n_waiting, busy.count, busy.total_ns) == (1, 0, 0, 0)
    assert SITES[WORKER_IDLE].kind is Kind.IDLE


def request(uid: int, n_prompt: int, n: int = 1, max_tokens: int = 3) -> GenerateRequest:
    sampling = Sampling(seed=1, temperature=0.0)
    return GenerateRequest(uid=uid, prompt_token_ids=[100] * n_prompt, n=n, max_tokens=max_tokens, sampling=sampling)


def finished(api: Api, n: int) -> int:
    """Read until n choices have ended; their tokens."""
    tokens = 0
    while n:
        for delta in api.outputs():
            tokens += len(delta.token_ids)
            n -= delta.finish is not None
    return tokens


def test_steps_larger_than_the_sockets_buffers_are_delivered(run: RunFiles) -> None:
    api = Api(run)
    api.send(request(1, n_prompt=2000, n=64))
    assert api.hear() == Admitted(1)
    assert finished(api, 64) == 64 * 3
    api.hang_up()


def test_an_api_process_that_dies_takes_nobody_with_it(run: RunFiles) -> None:
    other = Api(run)
    for round_ in range(5):
        dying = Api(run)
        for uid in range(4):
            dying.send(request(100 + 10 * round_ + uid, n_prompt=20, max_tokens=1000))
            dying.hear()
        other.send(request(round_, n_prompt=20))
        assert other.hear() == Admitted(round_)
        dying.hang_up()
        assert finished(other, 1) == 3
    stats = other.wait_stats(lambda s: s.running == s.waiting == 0 and s.finished.get("abort", 0) == 20)
    assert stats.blocks_free + stats.blocks_cached == stats.blocks_total
    other.hang_up()


def test_an_api_process_that_does_not_read_stops_only_itself(run: RunFiles) -> None:
    stalled, other = Api(run), Api(run)
    stalled.send(request(1, n_prompt=4, n=64, max_tokens=800))
    stalled.hear()
    for uid in range(2, 6):
        other.send(request(uid, n_prompt=4, max_tokens=8))
        other.hear()
        assert finished(other, 1) == 8
    assert finished(stalled, 64) == 64 * 800  # late, and complete
    stalled.hang_up()
    other.hang_up()


def test_who_watches_gets_views_and_nobody_else_does(run: RunFiles) -> None:
    watcher, other = Api(run), Api(run)
    watcher.send(Watch(16))
    assert watcher.view().stats.blocks_total == watcher.view().stats.blocks_free
    other.send(request(1, n_prompt=40, n=2, max_tokens=500))
    assert other.hear() == Admitted(1)
    while not (view := watcher.view()).choices:
        pass
    assert {choice.uid for choice in view.choices} == {1} and view.engine_epoch == 1
    assert finished(other, 2) == 1000
    while watcher.view().stats.finished.get("length", 0) < 2:
        pass
    last = watcher.view()  # the end is seen, though nothing happens any more
    assert not last.choices and last.stats.blocks_free + last.stats.blocks_cached == last.stats.blocks_total
    watcher.send(Watch(0))
    other.send(request(2, n_prompt=4))
    assert other.hear() == Admitted(2)
    watcher.hang_up()
    other.hang_up()


def test_views_are_left_out_for_who_does_not_read(run: RunFiles) -> None:
    stalled, other = Api(run), Api(run)
    stalled.send(Watch(16))
    other.send(request(1, n_prompt=4, max_tokens=1500))
    assert other.hear() == Admitted(1) and finished(other, 1) == 1500
    seen = [stalled.view()]
    while seen[-1].stats.generated_tokens < 1500:
        seen.append(stalled.view())
    assert len(seen) < 100, "they were not kept"
    for api in (stalled, other):
        api.hang_up()


def test_watching_ends_with_the_process(run: RunFiles) -> None:
    for _ in range(20):
        watcher = Api(run)
        watcher.send(Watch(16))
        watcher.hang_up()
    other = Api(run)
    other.send(request(1, n_prompt=4))
    assert other.hear() == Admitted(1) and finished(other, 1) == 3
    other.hang_up()


def test_foreign_bytes_and_another_configuration_are_turned_away(run: RunFiles) -> None:
    api = Api(run)
    for data in (b"GET / HTTP/1.1\r\n\r\n" * 4, b""):
        foreign = connect(run.engine_path)
        foreign.sock.sendall(data)
        if not data:
            foreign.send(codecs.HELLO, codecs.hello("api-control", "another"), block=True)
        with pytest.raises(EOFError):
            foreign.receive_one()
        foreign.close()
    api.send(request(1, n_prompt=4))
    assert api.hear() == Admitted(1) and finished(api, 1) == 3
    api.hang_up()


def test_the_engine_process_loads_no_text_no_arrays_and_no_model() -> None:
    code = (
        "import sys, sixfold.engine.engine_process, sixfold.scheduler, sixfold.kv_cache, sixfold.engine.core;"
        "print(*{'numpy', 'tokenizers', 'jinja2', 'starlette', 'sixfold._native'} & set(sys.modules))"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == ""


def test_outputs_wait_for_their_channel(run: RunFiles) -> None:
    """An API process's channels are not ordered with each other: tokens may be there before the one for them is."""
    api = Api(run, roles=("api-control",))
    api.send(request(1, n_prompt=20))
    assert api.hear() == Admitted(1)
    api.wait_stats(lambda s: s.running == 0 and s.finished.get("length", 0) == 1)
    api.attach("api-outputs")
    assert finished(api, 1) == 3
    api.hang_up()


@pytest.mark.parametrize("role", ["api-control", "api-outputs"])
@pytest.mark.parametrize("last_words", [b"", b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"])
def test_who_dies_while_greeting_or_talks_nonsense_harms_nobody(run: RunFiles, role: str, last_words: bytes) -> None:
    for _ in range(30):
        channel = connect(run.engine_path)
        channel.send(codecs.HELLO, codecs.encode(Hello(PROTOCOL, role, next(_instances), run.digest)), block=True)
        channel.sock.sendall(last_words)
        channel.close()
    api = Api(run)
    api.send(request(1, n_prompt=20))
    assert api.hear() == Admitted(1)
    assert finished(api, 1) == 3
    api.hang_up()


def test_an_end_before_the_first_step_was_committed_is_told(run: RunFiles) -> None:
    api = Api(run)
    for message in (request(1, n_prompt=2000), Abort(1)):  # in one piece of bytes
        body = codecs.encode(message)
        api.control._unsent += frame(codecs.CONTROL, body, seq=api.control._seq, sender=sockets.INSTANCE, epoch=0)
        api.control._seq += 1
    api.control.flush()
    assert api.hear() == Admitted(1)
    assert api.outputs()[0].finish == Finish("abort")
    api.send(request(2, n_prompt=4))
    assert api.hear() == Admitted(2) and finished(api, 1) == 3
    api.hang_up()


def test_a_suspect_whose_caller_is_gone_when_its_trial_begins_harms_nobody(
    run: RunFiles, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Its process has died, and the engine does not know yet."""
    tell = EngineServer._tell

    def broken(self: EngineServer, peer: ApiPeer, verdict: Admitted | Rejected) -> None:
        if verdict.uid == 1:
            raise BrokenPipeError
        tell(self, peer, verdict)

    monkeypatch.setattr(EngineServer, "_tell", broken)
    gone, other = Api(run), Api(run)
    gone.send(msgspec.structs.replace(request(1, 4), suspect=True))
    other.send(msgspec.structs.replace(request(2, 4), suspect=True))
    assert other.hear() == Admitted(2) and finished(other, 1) == 3
    assert "an API process is dropped" in caplog.text
    for api in (gone, other):
        api.hang_up()
