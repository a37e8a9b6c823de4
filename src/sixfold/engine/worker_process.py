"""The worker process: loads the model, then executes the steps of whichever engine is attached.

It listens and the engine connects, so that a new engine can attach to an old worker: weights and KV memory
outlive the engine. One thread; while it computes, the next step waits in the socket's buffer.
"""

from __future__ import annotations

import logging
import select
import socket
import sys

from sixfold.engine.launch import build_worker
from sixfold.engine.life import become_child, run_child
from sixfold.engine.progress import Count, Progress
from sixfold.engine.run_files import RunFiles, read_run_files
from sixfold.errors import ProtocolError, SixfoldError
from sixfold.executor.step_arrays import StepArrays
from sixfold.executor.wire import decode_step, encode
from sixfold.executor.worker import Worker
from sixfold.logs import set_up_logging
from sixfold.observability.meter import Meter, now
from sixfold.observability.sites import WORKER_IDLE, WORKER_REPLY, WORKER_STEP
from sixfold.roles import WORKER
from sixfold.transport import FrameSocket, accept, codecs, expect

__all__ = ["main"]

logger = logging.getLogger("sixfold.engine.worker_process")  # the module runs under another name

PAUSE_S = 0.05
"""A longer wait for a step is none of a server at work: it counts as idle."""

IDLE_S = 1.0
"""After as long without a step the worker does what later steps need. The first request of a server that just started
comes before that."""

MAX_SILENT = 16
"""Connections that have not greeted; of more, the oldest is closed."""


def main(argv: list[str]) -> int:
    """`python -m sixfold.engine.worker_process RUN_DIR LIFE_FD TOLD_FD LISTEN_FD`."""
    run_dir, life_fd, told_fd, listen_fd = argv[0], *map(int, argv[1:])
    become_child(WORKER, life_fd, run_dir)
    run = read_run_files(run_dir, told_fd)
    set_up_logging(WORKER, run.config.api.log_level, run.config.api.log_format)
    listener = socket.socket(fileno=listen_fd)
    try:
        worker = build_worker(run.config, Meter.create(run_dir, WORKER))
    except SixfoldError as e:
        logger.error("%s", e)
        return 1
    progress = Progress.open(run_dir)
    progress.counts[Count.WORKER_LOADED] = 1
    while True:
        serve_engine(worker, listener, run, progress)


def serve_engine(worker: Worker, listener: socket.socket, run: RunFiles, progress: Progress | None = None) -> None:
    """Attach to one engine and execute its steps until it goes away."""
    channels: dict[str, FrameSocket] = {}
    counts, turns = (progress or Progress.private()).counts, Count.WORKER_TURNS.value
    meter = worker.meter
    try:
        epoch = _greet(listener, run, channels)
        worker.attach(epoch)
        channels["worker-control"].send(codecs.CONTROL, codecs.encode(worker.facts), block=True)
        counts[Count.WORKER_SERVES] = epoch
        steps = channels["worker-steps"]
        while True:
            patience_s: float | None = IDLE_S
            waits_ns, site = now(), WORKER_STEP
            meter.enter(site, waits_ns)
            try:
                while (received := steps.receive_next()) is None:
                    if site == WORKER_STEP:
                        if not steps.wait(PAUSE_S):
                            meter.move(WORKER_STEP, WORKER_IDLE, waits_ns)
                            site = WORKER_IDLE
                    elif not steps.wait(patience_s):
                        patience_s = PAUSE_S if prepare(worker) else None
            finally:
                received_ns = now()
                meter.leave(site, waits_ns, received_ns, worker.next_step)
            step = StepArrays.unpack(decode_step(expect(received, codecs.STEP)))
            counts[turns] += 1
            result = worker.execute(step, received_ns)
            counts[turns] += 1
            steps.send(codecs.RESULT, encode(result), block=True)
            meter.add(WORKER_REPLY, worker.drawn_ns, now(), step.step_id)
    except (EOFError, OSError):
        return
    except ProtocolError as e:
        # The engine sent something that no engine of this build sends. Its connection ends, ours to the
        # next engine does not.
        logger.error("%s", e)
    finally:
        for channel in channels.values():
            channel.close()


def prepare(worker: Worker) -> bool:
    """A part of what later steps need. Returns whether more is left. It may fail, when the files of the model are gone:
    nobody has asked for it yet."""
    try:
        return worker.prepare()
    except (OSError, SixfoldError):
        return False


def _greet(listener: socket.socket, run: RunFiles, channels: dict[str, FrameSocket]) -> int:
    """Accept the two channels of one engine. The fence: of two engines that knock, the later one is let in. Whoever
    else is connected, and says nothing or something else, is in nobody's way.

    Args:
        channels: is filled.

    Returns:
        The engine's epoch.
    """
    epoch = 0
    silent: list[FrameSocket] = []
    try:
        while set(channels) != {"worker-control", "worker-steps"}:
            waiting: list[socket.socket | FrameSocket] = [listener, *silent]
            for ready in select.select(waiting, [], [])[0]:
                if not isinstance(ready, FrameSocket):
                    if (channel := accept(listener)) is not None:
                        silent.append(channel)
                    continue
                try:
                    received = ready.receive_next()
                    if received is None:
                        continue
                    greeting = codecs.decode_hello(expect(received, codecs.HELLO), config_digest=run.digest)
                except (EOFError, ProtocolError) as e:
                    logger.info("a connection is not taken: %s", e)
                    silent.remove(ready)
                    ready.close()
                    continue
                silent.remove(ready)
                if received.epoch > epoch:
                    for older in channels.values():
                        older.close()
                    channels.clear()
                    epoch = received.epoch
                if received.epoch < epoch or greeting.role in channels:
                    ready.close()
                else:
                    channels[greeting.role] = ready
            while len(silent) > MAX_SILENT:
                silent.pop(0).close()
    finally:
        for channel in silent:
            channel.close()
    return epoch


if __name__ == "__main__":
    sys.exit(run_child(WORKER, main))
