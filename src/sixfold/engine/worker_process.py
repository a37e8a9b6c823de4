"""The worker process: loads the model, then executes the steps of whichever engine is attached.

It listens and the engine connects, so that a new engine can attach to an old worker: weights and KV memory
outlive the engine. One thread; while it computes, the next step waits in the socket's buffer.
"""

from __future__ import annotations

import socket
import sys

from sixfold.engine.launch import RunFiles, build_worker, read_run_files
from sixfold.engine.life import become_child
from sixfold.errors import ProtocolError, SixfoldError
from sixfold.executor.step_arrays import StepArrays
from sixfold.executor.wire import decode_step, encode
from sixfold.executor.worker import Worker
from sixfold.transport import FrameSocket, accept, codecs, expect

__all__ = ["main"]

IDLE_S = 1.0
"""After as long without a step the worker does what later steps need. The first request of a server that just started
comes before that."""


def main(argv: list[str]) -> int:
    """`python -m sixfold.engine.worker_process RUN_DIR LIFE_FD LISTEN_FD`."""
    run_dir, life_fd, listen_fd = argv[0], int(argv[1]), int(argv[2])
    become_child("worker 0", life_fd, run_dir)
    run = read_run_files(run_dir)
    listener = socket.socket(fileno=listen_fd)
    try:
        worker = build_worker(run.config)
    except SixfoldError as e:
        print(f"sixfold: worker 0: {e}", file=sys.stderr)
        return 1
    while True:
        serve_engine(worker, listener, run)


def serve_engine(worker: Worker, listener: socket.socket, run: RunFiles) -> None:
    """Attach to one engine and execute its steps until it goes away."""
    channels: dict[str, FrameSocket] = {}
    try:
        while set(channels) != {"worker-control", "worker-steps"}:
            channel = accept(listener)
            if channel is None:
                continue
            greeting = codecs.decode_hello(expect(channel.receive_one(), codecs.HELLO), config_digest=run.digest)
            channels[greeting.role] = channel
        channels["worker-control"].send(codecs.CONTROL, codecs.encode(worker.facts), block=True)
        steps = channels["worker-steps"]
        is_prepared = False
        while True:
            while not is_prepared and not steps.wait(IDLE_S):
                is_prepared = not prepare(worker)
            step = StepArrays.unpack(decode_step(expect(steps.receive_one(), codecs.STEP)))
            steps.send(codecs.RESULT, encode(worker.execute(step)), block=True)
    except (EOFError, OSError):
        return
    except ProtocolError as e:
        # The engine sent something that no engine of this build sends. Its connection ends, ours to the
        # next engine does not.
        print(f"sixfold: worker 0: {e}", file=sys.stderr)
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


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
