"""The protocol between the engine and whatever computes.

`submit` never waits for the device's answer; `collect` gives the oldest outstanding step. At most `depth` steps
(1 or 2) are outstanding. Results come back in the order of submission and carry the keys of the plan.

    InProcessExecutor (in_process.py)  the worker in the caller's own process
    RemoteExecutor    (remote.py)      the engine process's end of a socket to a worker process
"""

from __future__ import annotations

from typing import Protocol

from sixfold.messages import StepPlan, StepResult, WorkerFacts

__all__ = ["Executor"]


class Executor(Protocol):
    """What the engine core needs."""

    @property
    def facts(self) -> WorkerFacts:
        """What the device can hold."""
        ...

    def submit(self, plan: StepPlan) -> None:
        """Hand a step over.

        Raises:
            EngineDead: the worker is gone.
        """
        ...

    def collect(self) -> StepResult:
        """Wait for the oldest outstanding step.

        Raises:
            EngineDead: the worker is gone.
        """
        ...

    def close(self) -> None:
        """Release the device. Idempotent."""
        ...
