"""One device and its slots: a step goes in, its result comes out.

The worker knows nothing of requests, text or scheduling. What computes is a `Backend`: the native model runner
(`model_runner.py`) or the scripted one (`scripted.py`).
"""

from __future__ import annotations

from typing import Protocol

import msgspec
import numpy as np

from sixfold.errors import ProtocolError
from sixfold.executor.slots import Slots
from sixfold.executor.step_arrays import Int32, StepArrays
from sixfold.messages import SlotAdmit, StepResult, TokenLogprobs, WorkerFacts
from sixfold.observability.meter import Meter, now
from sixfold.observability.sites import WORKER_FORWARD, WORKER_PREPARE, WORKER_SAMPLE

__all__ = ["Backend", "Drawn", "Worker"]


class Drawn(msgspec.Struct):
    """What a backend made of a step's rows."""

    token_ids: Int32
    """[rows] -1 for rows without SAMPLE."""
    status: Int32
    """[rows] RowStatus."""
    logprobs: dict[int, TokenLogprobs] = {}
    """Row -> of its drawn token, where asked for."""
    prompt_logprobs: dict[int, list[TokenLogprobs]] = {}
    """Row -> scores of the prompt tokens at positions [start + 1, ...]."""
    embeddings: dict[int, bytes] = {}
    """Row -> the finished embedding of its prompt, as in `StepResult`."""
    forward_ns: tuple[int, int] = (0, 0)
    """When the model began and ended, by the meters' clock; (0, 0) where there is none."""

    @classmethod
    def nothing(cls) -> Drawn:
        """Of a step without rows, which only frees slots."""
        return cls(np.zeros(0, np.int32), np.zeros(0, np.int32))


class Backend(Protocol):
    """What computes. Calls come from one thread, in the order of `Worker.execute`."""

    facts: WorkerFacts

    def count_times(self, meter: Meter) -> None: ...
    def free(self, slot: int) -> None: ...
    def admit(self, admit: SlotAdmit) -> None: ...
    def copy_blocks(self, copies: Int32) -> None: ...
    def run(self, step: StepArrays, slots: Slots) -> Drawn: ...
    def prepare(self) -> bool: ...
    def close(self) -> None: ...


class Worker:
    """Executes steps in order.

    Args:
        meter: of this process; None: nobody asks.

    Attributes:
        drawn_ns: when the last step had its tokens.
    """

    def __init__(self, backend: Backend, meter: Meter | None = None) -> None:
        self._backend = backend
        self.meter = meter or Meter.private()
        backend.count_times(self.meter)
        self.drawn_ns = 0
        self._slots = Slots(backend.facts.max_slots, backend.facts.max_model_len, backend.facts.num_blocks)
        self._epoch = -1
        self._last_step = -1

    @property
    def facts(self) -> WorkerFacts:
        return self._backend.facts

    @property
    def next_step(self) -> int:
        """The step that is due."""
        return self._last_step + 1

    def attach(self, epoch: int) -> None:
        """Another engine is served from now on: no slot holds anything of the one before, and its steps are refused.

        Raises:
            ProtocolError: it is an older one.
        """
        if epoch <= self._epoch:
            raise ProtocolError(f"an engine of epoch {epoch}; the worker follows {self._epoch}")
        self._epoch, self._last_step = epoch, -1
        for slot in range(self.facts.max_slots):
            self._slots.free(slot)
            self._backend.free(slot)

    def execute(self, step: StepArrays, received_ns: int = 0) -> StepResult:
        """Apply the step's changes to the slots, run the model over its rows, draw tokens.

        Args:
            received_ns: when it came; 0: now.

        Raises:
            ProtocolError: the step is of an older epoch, out of order, or does not match the slots.
        """
        received_ns = received_ns or now()
        self._check_order(step)
        for slot, _generation in step.frees.tolist():
            self._slots.free(slot)
            self._backend.free(slot)
        for admit in step.admits:
            self._slots.admit(admit)
            self._backend.admit(admit)
        self._slots.check_rows(step)
        self._slots.apply_table(step)
        if len(step.copies):
            self._backend.copy_blocks(step.copies)

        applied_ns = now()
        drawn = self._backend.run(step, self._slots) if step.n_rows else Drawn.nothing()
        self._slots.append_drawn(step, drawn.token_ids)
        self._account(step.step_id, received_ns, applied_ns, drawn.forward_ns)
        slots, generations, incarnations = step.columns[:3].tolist()
        return StepResult(
            engine_epoch=step.engine_epoch,
            step_id=step.step_id,
            slots=slots,
            generations=generations,
            incarnations=incarnations,
            token_ids=drawn.token_ids.tolist(),
            status=drawn.status.tolist(),
            logprobs=drawn.logprobs,
            prompt_logprobs=drawn.prompt_logprobs,
            embeddings=drawn.embeddings,
        )

    def _account(self, step: int, received_ns: int, applied_ns: int, forward_ns: tuple[int, int]) -> None:
        began_ns, ended_ns = forward_ns if forward_ns[1] else (applied_ns, applied_ns)
        self.drawn_ns = now()
        add = self.meter.add
        add(WORKER_PREPARE, received_ns, began_ns, step)
        add(WORKER_FORWARD, began_ns, ended_ns, step)
        add(WORKER_SAMPLE, ended_ns, self.drawn_ns, step)

    def prepare(self) -> bool:
        """Do a part of what some later step needs and no step so far did, while there is nothing else to do: up to a
        second's worth. Returns whether more is left; later steps may make it more again."""
        return self._backend.prepare()

    def close(self) -> None:
        self._backend.close()

    def _check_order(self, step: StepArrays) -> None:
        if step.engine_epoch < self._epoch:
            raise ProtocolError(f"step of engine epoch {step.engine_epoch}; the worker follows {self._epoch}")
        if step.engine_epoch == self._epoch and step.step_id != self._last_step + 1:
            raise ProtocolError(f"step {step.step_id} where {self._last_step + 1} was due")
        self._epoch, self._last_step = step.engine_epoch, step.step_id
