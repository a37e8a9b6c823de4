"""The engine process's end of a worker process: steps go out on one socket, results come back on it.

Control (greeting, facts, the notice of a death) has a socket of its own, so that it is never behind a step.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from sixfold.errors import EngineDead
from sixfold.executor.wire import Packer, decode_result, encode
from sixfold.messages import StepPlan, StepResult, WorkerFacts
from sixfold.transport import codecs, connect, expect

__all__ = ["RemoteExecutor"]


class RemoteExecutor:
    """Connects to a listening worker and waits until its model is loaded.

    Args:
        path: the worker's socket.
        epoch: of this engine; in the header of every frame.
        config_digest: both ends must have been started with the same configuration.

    Raises:
        EngineDead: the worker went away while loading.
    """

    def __init__(self, path: str, *, epoch: int, config_digest: str) -> None:
        self.control = connect(path)
        self.steps = connect(path)
        self._pack = Packer().pack
        self._results: deque[StepResult] = deque()
        try:
            for channel, role in ((self.control, "worker-control"), (self.steps, "worker-steps")):
                channel.epoch = epoch
                channel.send(codecs.HELLO, codecs.hello(role, config_digest), block=True)
            received = self.control.receive_one()
            self._facts = codecs.decode_worker_facts(expect(received, codecs.CONTROL))
            self.instance = received.sender
            """Of the worker's process: another one has another memory."""
        except (EOFError, OSError) as e:
            raise EngineDead("the worker process ended while it was loading") from e

    @property
    def facts(self) -> WorkerFacts:
        return self._facts

    def submit(self, plan: StepPlan) -> None:
        try:
            self.steps.send(codecs.STEP, encode(self._pack(plan)))
        except OSError as e:
            raise EngineDead("the worker process is gone") from e

    def poll(self) -> Iterable[StepResult]:
        """The results that are here already, in order. Never waits.

        Raises:
            EngineDead: the worker closed its end.
        """
        frames = self.steps.receive()
        if frames is None:
            raise EngineDead("the worker process is gone")
        self._results.extend(decode_result(f.body) for f in frames)
        results = list(self._results)
        self._results.clear()
        return results

    def collect(self) -> StepResult:
        while not self._results:
            try:
                self._results.append(decode_result(expect(self.steps.receive_one(), codecs.RESULT)))
            except EOFError as e:
                raise EngineDead("the worker process is gone") from e
        return self._results.popleft()

    def close(self) -> None:
        self.control.close()
        self.steps.close()
