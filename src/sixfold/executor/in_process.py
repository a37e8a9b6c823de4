"""A worker in the caller's own process: for `LLM`, notebooks and most tests."""

from __future__ import annotations

from collections import deque

from sixfold.executor.step_arrays import StepArrays
from sixfold.executor.wire import Packer
from sixfold.executor.worker import Worker
from sixfold.messages import StepPlan, StepResult, WorkerFacts

__all__ = ["InProcessExecutor"]


class InProcessExecutor:
    """`submit` computes at once, `collect` hands out the stored result.

    The pipeline's semantics are those of the separate worker (a step may be planned before the previous one was
    collected); there is no overlap in time.
    """

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self._pack = Packer().pack
        self._results: deque[StepResult] = deque()

    @property
    def facts(self) -> WorkerFacts:
        return self._worker.facts

    def submit(self, plan: StepPlan) -> None:
        self._results.append(self._worker.execute(StepArrays.unpack(self._pack(plan))))

    def collect(self) -> StepResult:
        return self._results.popleft()

    def prepare(self) -> bool:
        """As `Worker.prepare`."""
        return self._worker.prepare()

    def close(self) -> None:
        self._worker.close()
