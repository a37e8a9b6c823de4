"""The engine's step, told once.

plan   = scheduler.plan()         who runs, how many tokens, which blocks: a decision that changes nothing
kv_cache.reserve(plan)            the blocks are held; the next plan sees them taken
executor.submit(launch(plan))     at most `depth` steps are outstanding
...
result = executor.collect()       the oldest outstanding step
deltas = scheduler.commit(result) apply valid rows, release what nothing holds any more
"""

from __future__ import annotations

import time
from collections.abc import Callable

from sixfold.executor.executor import Executor
from sixfold.kv_cache import KVCacheManager
from sixfold.messages import EngineStats, EngineView, GenerateRequest, StepResult, TokenDelta
from sixfold.observability.meter import Meter, now
from sixfold.observability.sites import ENGINE_COMMIT, ENGINE_HANDOVER, ENGINE_SCHEDULE
from sixfold.scheduler import Scheduler

__all__ = ["EngineCore"]


class EngineCore:
    """One engine: scheduler, KV cache manager, executor, and nothing that knows of text or sockets.

    Args:
        clock: seconds, monotonic; the parts have no clock of their own.
        meter: of this process; None: nobody asks.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        kv_cache: KVCacheManager,
        executor: Executor,
        *,
        depth: int,
        clock: Callable[[], float] = time.monotonic,
        meter: Meter | None = None,
    ) -> None:
        self.scheduler = scheduler
        self.kv_cache = kv_cache
        self.executor = executor
        self._depth = depth
        self._clock = clock
        self.meter = meter or Meter.private()

    @property
    def has_work(self) -> bool:
        return self.scheduler.has_work

    @property
    def n_outstanding(self) -> int:
        return self.scheduler.n_outstanding

    def add(self, request: GenerateRequest) -> None:
        """Queue a request.

        Raises:
            Overloaded, ContextLengthExceeded, InvalidRequest: it is refused and leaves nothing behind.
        """
        self.scheduler.add(request, self._clock())

    def abort(self, uid: int) -> list[TokenDelta]:
        return self.scheduler.abort(uid)

    def finish_at(self, uid: int, choice: int, n_tokens: int) -> None:
        self.scheduler.finish_at(uid, choice, n_tokens)

    def expire(self) -> list[TokenDelta]:
        """End the requests whose deadline has passed."""
        return self.scheduler.expire(self._clock())

    def fill(self) -> None:
        """Plan and submit steps until the pipeline is full or nothing can run."""
        while self.scheduler.n_outstanding < self._depth:
            started_ns = now()
            plan = self.scheduler.plan()
            if plan is None:
                return
            self.kv_cache.reserve(plan)
            planned_ns = now()
            self.executor.submit(self.scheduler.launch(plan, self._clock()))
            self.meter.add(ENGINE_SCHEDULE, started_ns, planned_ns, plan.step_id)
            self.meter.add(ENGINE_HANDOVER, planned_ns, now(), plan.step_id)

    def commit(self, result: StepResult) -> list[TokenDelta]:
        started_ns = now()
        deltas = self.scheduler.commit(result, self._clock())
        self.meter.add(ENGINE_COMMIT, started_ns, now(), result.step_id)
        return deltas

    def step(self) -> list[TokenDelta]:
        """One turn of the loop for callers that wait: fill the pipeline, then take its oldest step.

        Returns:
            What became known; empty also when there is nothing to do.

        Raises:
            EngineDead: the executor is gone.
        """
        deltas = self.expire()
        self.fill()
        if self.scheduler.n_outstanding:
            deltas += self.commit(self.executor.collect())
        return deltas

    def stats(self) -> EngineStats:
        return self.scheduler.stats()

    def view(self, now_ns: int) -> EngineView:
        return self.scheduler.view(now_ns)

    def check(self) -> None:
        """Raises: AssertionError: an invariant of scheduler or KV cache manager does not hold."""
        self.scheduler.check()
        self.kv_cache.check()
