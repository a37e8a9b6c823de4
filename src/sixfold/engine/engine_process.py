"""The engine process: sockets to API processes and to the worker around one `EngineCore`.

No text, no tensors, no model. The loop waits for whichever comes first, a message or a result; it never waits for
an API process: what a slow one cannot take yet is kept for it, and what a dead one had asked for is aborted.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import selectors
import signal
import socket
import sys
import time
from dataclasses import dataclass, field

import msgspec

from sixfold.engine.core import EngineCore
from sixfold.engine.launch import build_core, open_journal
from sixfold.engine.life import EXIT_RESTART, EXIT_WORKER_GONE, become_child, run_child
from sixfold.engine.progress import Count, Progress
from sixfold.engine.quarantine import Quarantine
from sixfold.engine.run_files import RunFiles, read_run_files
from sixfold.engine.watchers import Watchers
from sixfold.errors import EngineDead, ProtocolError, SixfoldError
from sixfold.executor.remote import RemoteExecutor
from sixfold.logs import set_up_logging
from sixfold.messages import (
    Abort,
    Admitted,
    GenerateRequest,
    OutputBatch,
    Rejected,
    TokenDelta,
    Watch,
    Welcome,
)
from sixfold.observability.history import Event, History
from sixfold.observability.meter import Meter, now
from sixfold.observability.sites import ENGINE_DELIVER, ENGINE_FRAME, ENGINE_INBOX, ENGINE_RECEIVE, ENGINE_RESULT
from sixfold.roles import ENGINE
from sixfold.transport import FrameSocket, accept, codecs

__all__ = ["EngineServer", "main"]

logger = logging.getLogger("sixfold.engine.engine_process")  # the module runs under another name

STATS_PERIOD_S = 0.25
IDLE_WAIT_S = 0.25
_COMMITTED = Count.ENGINE_COMMITTED.value


@dataclass(eq=False)
class ApiPeer:
    """One API process: its two channels and the requests that it has in the engine."""

    instance: int
    control: FrameSocket | None = None
    outputs: FrameSocket | None = None
    uids: set[int] = field(default_factory=set)
    outbox: list[TokenDelta] = field(default_factory=list)
    """Deltas of this turn of the loop."""

    def attach(self, role: str, channel: FrameSocket) -> None:
        """Raises: ProtocolError: an unknown role, or one that this process plays already."""
        if role not in ("api-control", "api-outputs"):
            raise ProtocolError(f"no connection to the engine has the role {role!r}")
        name = role.removeprefix("api-")
        if getattr(self, name) is not None:
            raise ProtocolError(f"a second {role} connection of one process")
        setattr(self, name, channel)


class EngineServer:
    """The engine process's loop. Owns the connections and the map from request to API process."""

    def __init__(
        self,
        core: EngineCore,
        executor: RemoteExecutor,
        listener: socket.socket,
        run: RunFiles,
        progress: Progress | None = None,
        history: History | None = None,
    ) -> None:
        self._counts = (progress or Progress.private()).counts
        self._core = core
        self._history = history or History.private()
        self._history.note(Event.EPOCH, value=run.epoch)
        self._meter = core.meter
        self._executor = executor
        self._run = run
        self._welcome = Welcome(run.epoch, executor.facts, run.faults)
        self._peers: dict[int, ApiPeer] = {}
        self._owners: dict[int, ApiPeer] = {}
        self._open_choices: dict[int, set[int]] = {}
        self._quarantine: Quarantine[ApiPeer] = Quarantine()
        self._watchers = Watchers(core.view)
        self._step_id = 0
        self._stats_due_s = 0.0
        self._stats_final = False
        self._is_leaving = False
        self._watched: set[FrameSocket] = set()
        """Channels with bytes that their peers have not taken yet."""
        self._selector = selectors.DefaultSelector()
        self._selector.register(listener, selectors.EVENT_READ, self._on_connect)
        self._selector.register(executor.steps, selectors.EVENT_READ, self._on_result)
        self._selector.register(executor.control, selectors.EVENT_READ, self._on_worker_control)

    def run(self) -> None:
        """Serve until `leave` was called and no step is outstanding.

        Raises:
            EngineDead: the worker went away.
        """
        counts = self._counts
        turns, busy, outstanding = Count.ENGINE_TURNS.value, Count.ENGINE_BUSY.value, Count.ENGINE_OUTSTANDING.value
        while not self._is_leaving or self._core.n_outstanding:
            counts[turns] += 1
            counts[busy] = self._core.has_work
            counts[outstanding] = self._core.n_outstanding
            for key, events in self._wait():
                if key.fd != key.fileobj.fileno():  # type: ignore[union-attr] # no plain descriptor is registered
                    continue  # closed by an earlier event of this turn
                if events & selectors.EVENT_WRITE:
                    self._write_on(key.fileobj)
                if events & selectors.EVENT_READ:
                    key.data(key.fileobj)
            self._deliver(self._core.expire())
            while (suspect := self._quarantine.next()) is not None:
                self._try(*suspect)
            if not self._is_leaving:
                self._core.fill()
            self._flush()
            self._publish_stats()
            if self._watchers:
                self._publish_view()
            self._watch_unsent()

    def leave(self) -> None:
        """Launch nothing more, so that `run` ends with the steps that are outstanding. Requests stay as they are: API
        processes send them to the next engine. May be called by a signal handler."""
        self._is_leaving = True

    def _wait(self) -> list[tuple[selectors.SelectorKey, int]]:
        """What is ready, at the latest after IDLE_WAIT_S."""
        site = ENGINE_RESULT if self._core.n_outstanding else ENGINE_INBOX
        started_ns = now()
        self._meter.enter(site, started_ns)
        ready = self._selector.select(self._wait_s() if self._watchers else IDLE_WAIT_S)
        self._meter.leave(site, started_ns, now())
        return ready

    def close(self) -> None:
        """Close every connection to API processes."""
        for peer in list(self._peers.values()):
            self._drop(peer)
        self._selector.close()

    def _watch_unsent(self) -> None:
        """Ask to be woken when a peer takes more of what is still unsent for it."""
        channels = [channel for peer in self._peers.values() for channel in (peer.control, peer.outputs)]
        for channel in (self._executor.steps, *channels):
            if channel is not None and bool(channel.bytes_unsent) != (channel in self._watched):
                self._watched ^= {channel}
                events = selectors.EVENT_READ | (selectors.EVENT_WRITE if channel in self._watched else 0)
                self._selector.modify(channel, events, self._selector.get_key(channel).data)

    def _write_on(self, channel: object) -> None:
        assert isinstance(channel, FrameSocket)
        # A peer that is gone shows as readable too: whoever reads it draws the consequences.
        with contextlib.suppress(OSError):
            channel.flush()

    # -- worker ---------------------------------------------------------------------------------------------------

    def _on_result(self, _: object) -> None:
        started_ns = now()
        for result in self._executor.poll():
            step = self._step_id = result.step_id
            self._meter.add(ENGINE_RECEIVE, started_ns, now(), step)
            deltas = self._core.commit(result)
            committed_ns = now()
            self._deliver(deltas)
            self._counts[_COMMITTED] += 1
            started_ns = now()
            self._meter.add(ENGINE_DELIVER, committed_ns, started_ns, step)

    def _on_worker_control(self, channel: FrameSocket) -> None:
        if channel.receive() is None:
            raise EngineDead("the worker process is gone")

    # -- API processes --------------------------------------------------------------------------------------------

    def _on_connect(self, listener: socket.socket) -> None:
        channel = accept(listener)
        if channel is not None:
            channel.epoch = self._run.epoch
            self._selector.register(channel, selectors.EVENT_READ, self._on_hello)

    def _on_hello(self, channel: FrameSocket) -> None:
        try:
            frames = channel.receive()
            if frames == []:
                return
            if frames is None or frames[0].kind != codecs.HELLO:
                raise ProtocolError("no greeting")
            greeting = codecs.decode_hello(frames[0].body, config_digest=self._run.digest)
            peer = self._peers.get(greeting.instance) or ApiPeer(greeting.instance)
            peer.attach(greeting.role, channel)
        except ProtocolError:
            self._close(channel)
            return
        self._peers[greeting.instance] = peer
        on_readable = self._on_control if channel is peer.control else self._on_output_channel
        self._selector.modify(channel, selectors.EVENT_READ, functools.partial(on_readable, peer))
        if channel is peer.control:
            self._stats_final = False
            try:
                channel.send(codecs.CONTROL, codecs.encode(self._welcome))
                for frame in frames[1:]:
                    self._handle(peer, frame.body)
            except (ProtocolError, OSError) as e:
                self._drop_faulty(peer, e)

    def _on_control(self, peer: ApiPeer, channel: FrameSocket) -> None:
        started_ns = now()
        try:
            frames = channel.receive()
            if frames is None:
                self._drop(peer)
                return
            for frame in frames:
                self._handle(peer, frame.body)
        except (ProtocolError, OSError) as e:
            self._drop_faulty(peer, e)
        self._meter.add(ENGINE_RECEIVE, started_ns, now())

    def _on_output_channel(self, peer: ApiPeer, channel: FrameSocket) -> None:
        """Nothing is sent to us here; readable means closed."""
        try:
            if channel.receive() is None:
                self._drop(peer)
        except ProtocolError as e:
            self._drop_faulty(peer, e)

    def _drop_faulty(self, peer: ApiPeer, fault: Exception) -> None:
        logger.error("an API process is dropped: %s", fault)
        self._drop(peer)

    def _handle(self, peer: ApiPeer, body: bytes) -> None:
        message = codecs.decode_to_engine(body)
        if isinstance(message, GenerateRequest):
            self._history.note(Event.RECEIVED, message.uid)
            if message.suspect:
                self._quarantine.enter(peer, message)
            else:
                self._add(peer, message)
        elif isinstance(message, Abort):
            self._quarantine.passed(message.uid)
            self._deliver(self._core.abort(message.uid))
        elif isinstance(message, Watch):
            self._watchers.set(peer.instance, message)
        else:
            self._core.finish_at(message.uid, message.choice, message.n_tokens)
            self._close_choice(message.uid, message.choice)

    def _add(self, peer: ApiPeer, request: GenerateRequest) -> None:
        verdict: Admitted | Rejected
        try:
            self._core.add(request)
        except SixfoldError as e:
            verdict = Rejected(request.uid, type(e).__name__, e.message, e.param, e.code, e.retry_after_s)
        else:
            verdict = Admitted(request.uid)
            self._owners[request.uid] = peer
            self._open_choices[request.uid] = set(range(request.n)) - set(request.ended)
            peer.uids.add(request.uid)
        if isinstance(verdict, Rejected) or not request.suspect:
            self._tell(peer, verdict)
        if isinstance(verdict, Rejected):
            self._quarantine.passed(request.uid)

    def _try(self, peer: ApiPeer, suspect: GenerateRequest) -> None:
        """The API process hears of it first: should it crash us now, that was its doing."""
        try:
            self._tell(peer, Admitted(suspect.uid))
            self._add(peer, suspect)
        except OSError as e:
            self._quarantine.passed(suspect.uid)
            self._drop_faulty(peer, e)

    def _tell(self, peer: ApiPeer, verdict: Admitted | Rejected) -> None:
        if peer.control is not None:
            peer.control.send(codecs.CONTROL, codecs.encode(verdict))

    def _drop(self, peer: ApiPeer) -> None:
        """An API process is gone: nobody else may notice, and nothing of its requests may stay."""
        self._peers.pop(peer.instance, None)
        for channel in (peer.control, peer.outputs):
            if channel is not None:
                self._close(channel)
        peer.control = peer.outputs = None
        self._watchers.drop(peer.instance)
        self._quarantine.drop(peer)
        for uid in list(peer.uids):
            self._core.abort(uid)
            self._forget(uid)

    def _close(self, channel: FrameSocket) -> None:
        self._watched.discard(channel)
        if channel.fileno() >= 0:
            self._selector.unregister(channel)
        channel.close()

    # -- outputs --------------------------------------------------------------------------------------------------

    def _deliver(self, deltas: list[TokenDelta]) -> None:
        owners, on_trial = self._owners, self._quarantine.on_trial
        for delta in deltas:
            peer = owners.get(delta.uid)
            if peer is None:
                continue
            if on_trial is not None and delta.uid == on_trial:
                self._quarantine.passed(on_trial)
            peer.outbox.append(delta)
            if delta.finish is not None:
                self._close_choice(delta.uid, delta.choice)

    def _close_choice(self, uid: int, choice: int) -> None:
        """One choice has had its end; with the last one the request is forgotten."""
        choices = self._open_choices.get(uid, set())
        choices.discard(choice)
        if not choices:
            self._forget(uid)

    def _forget(self, uid: int) -> None:
        self._open_choices.pop(uid, None)
        self._quarantine.passed(uid)
        peer = self._owners.pop(uid, None)
        if peer is not None:
            peer.uids.discard(uid)

    def _flush(self) -> None:
        """One frame per API process and turn. Its channels come in any order: until the one for outputs is here, they
        are kept."""
        for peer in list(self._peers.values()):
            if peer.outbox and peer.outputs is not None:
                deltas, peer.outbox = peer.outbox, []
                self._send_outputs(peer, deltas)

    def _send_outputs(self, peer: ApiPeer, deltas: list[TokenDelta]) -> None:
        assert peer.outputs is not None
        started_ns = now()
        try:
            peer.outputs.send(codecs.OUTPUT, codecs.encode(OutputBatch(self._run.epoch, self._step_id, deltas)))
        except OSError:
            self._drop(peer)
        self._meter.add(ENGINE_FRAME, started_ns, now(), self._step_id)

    def _publish_stats(self) -> None:
        """At most every STATS_PERIOD_S while there is work, and once more when it has ended."""
        now_s = time.monotonic()
        busy = self._core.has_work
        if busy:
            self._stats_final = False
        if (busy and now_s < self._stats_due_s) or (not busy and self._stats_final):
            return
        self._stats_due_s = now_s + STATS_PERIOD_S
        self._stats_final = not busy
        stats = self._core.stats()
        if self._quarantine:
            stats = msgspec.structs.replace(stats, waiting_for={**stats.waiting_for, "trial": len(self._quarantine)})
        body = codecs.encode(stats)
        for peer in list(self._peers.values()):
            if peer.control is not None:
                try:
                    peer.control.send(codecs.CONTROL, body)
                except OSError:
                    self._drop(peer)

    # -- views ----------------------------------------------------------------------------------------------------

    def _state(self) -> tuple[int, ...]:
        """Differs after everything that a view shows."""
        counts = self._core.scheduler
        return (self._step_id, counts.n_open, counts.n_outstanding, self._counts[_COMMITTED])

    def _wait_s(self) -> float:
        return self._watchers.wait_s(IDLE_WAIT_S, self._state())

    def _publish_view(self) -> None:
        """To each process that watches and has taken what was sent before: views are left out, never queued."""
        peers = [p for p in self._peers.values() if p.instance in self._watchers]
        ready = [p.control for p in peers if p.control is not None and not p.control.bytes_unsent]
        if ready and (view := self._watchers.take(self._state())) is not None:
            body = codecs.encode(view)
            for channel in ready:
                with contextlib.suppress(OSError):  # its end is seen when it is read
                    channel.send(codecs.CONTROL, body)


def main(argv: list[str]) -> int:
    """`python -m sixfold.engine.engine_process RUN_DIR LIFE_FD TOLD_FD LISTEN_FD JOURNAL_FD`."""
    run_dir, life_fd, told_fd, listen_fd, journal_fd = argv[0], *map(int, argv[1:])
    become_child(ENGINE, life_fd, run_dir)
    run = read_run_files(run_dir, told_fd)
    progress = Progress.open(run_dir)
    epoch, faults = progress.counts[Count.EPOCH], progress.counts[Count.FAULTS]
    run = msgspec.structs.replace(run, epoch=epoch, faults=faults)
    set_up_logging(ENGINE, run.config.api.log_level, run.config.api.log_format)
    listener = socket.socket(fileno=listen_fd)
    try:
        progress.counts[Count.ENGINE_ATTACHING] = run.epoch
        executor = RemoteExecutor(run.worker_path, epoch=run.epoch, config_digest=run.digest)
        progress.counts[Count.ENGINE_ATTACHING] = 0
        journal = open_journal(journal_fd, run, executor.facts, executor.instance)
        history = History.create(run_dir)
        core = build_core(
            run.config,
            executor,
            epoch=run.epoch,
            hash_key=bytes.fromhex(run.hash_key),
            journal=journal,
            meter=Meter.create(run_dir, ENGINE),
            history=history,
        )
        server = EngineServer(core, executor, listener, run, progress, history)
        signal.signal(signal.SIGUSR1, lambda *_: server.leave())
        server.run()
        return EXIT_RESTART
    except EngineDead:
        return EXIT_WORKER_GONE
    except SixfoldError as e:
        logger.error("%s", e)
    return 1


if __name__ == "__main__":
    sys.exit(run_child(ENGINE, main))
