"""Any mix of arrivals, aborts, stop strings, deadlines, replays, restarts, steps and results, in any order.

The promises are checked by `tests.simulation` while deltas arrive, and memory by `tests.fake_worker` in every row. When
Hypothesis stops, everything still open is run to its end.
"""

from __future__ import annotations

import msgspec
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from tests.fake_worker import VOCAB
from tests.simulation import NO_FAULT, Simulation

from sixfold.errors import ContextLengthExceeded, InvalidRequest, Overloaded

# Prompts begin alike, so that they meet in the prefix cache.
STEMS = [[(7 * i + stem) % VOCAB for i in range(40)] for stem in range(2)]


class SchedulerMachine(RuleBasedStateMachine):
    sim: Simulation

    @initialize(
        num_blocks=st.integers(2, 14),
        block_size=st.sampled_from([1, 2, 4]),
        max_slots=st.integers(1, 5),
        max_num_seqs=st.integers(1, 5),
        max_num_batched_tokens=st.sampled_from([1, 2, 3, 5, 16]),
        pipeline_depth=st.integers(1, 2),
        scheduling_policy=st.sampled_from(["fcfs", "priority", "shortest", "fair"]),
        max_queued_requests=st.sampled_from([3, 30]),
        enable_prefix_caching=st.sampled_from([True, True, False]),
        collides=st.sampled_from([False, False, True]),
    )
    def start(self, **parameters: int | str) -> None:
        self.sim = Simulation(**parameters)  # type: ignore[arg-type]

    @rule(
        stem=st.integers(0, len(STEMS) - 1),
        n_stem=st.integers(0, 24),
        tail=st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=4),
        max_tokens=st.integers(0, 12),
        n=st.sampled_from([1, 1, 1, 2, 3]),
        seed=st.integers(0, 1),
        salt=st.sampled_from([0, 0, 0, 1]),
        stops=st.booleans(),
        min_tokens=st.sampled_from([0, 0, 2]),
        fault_at=st.sampled_from([NO_FAULT] * 5 + [0, 2]),
        prompt_logprobs=st.sampled_from([None, None, 2]),
        pooling=st.sampled_from([""] * 5 + ["mean", "last"]),
        priority=st.integers(0, 2),
        tenant=st.sampled_from(["", "a", "b"]),
        patience=st.sampled_from([None, None, None, 3.0, 9.0]),
    )
    def add(self, stem: int, n_stem: int, tail: list[int], patience: float | None, **fields: object) -> None:
        deadline_s = None if patience is None else self.sim.now_s + patience
        if fields["pooling"]:
            fields.update(n=1, max_tokens=0)
        try:
            self.sim.add(STEMS[stem][:n_stem] + tail, deadline_s=deadline_s, **fields)  # type: ignore[arg-type]
        except Overloaded as error:
            assert error.retry_after_s is not None and error.retry_after_s > 0
        except ContextLengthExceeded:
            assert n_stem + len(tail) > self.sim.kv.capacity_tokens
        except InvalidRequest as error:
            assert error.param == "n"

    @precondition(lambda self: self.sim.known)
    @rule(data=st.data())
    def repeat(self, data: st.DataObject) -> None:
        """The same request comes again: nothing happens, or it is refused because it was aborted."""
        uid = data.draw(st.sampled_from(sorted(self.sim.known)))
        before = self.sim.scheduler.n_open
        try:
            self.sim.scheduler.add(self.sim.requests[uid], self.sim.now_s)
        except InvalidRequest as error:
            assert error.code == "aborted" and self.sim.finishes
        assert self.sim.scheduler.n_open == before

    @precondition(lambda self: self.sim.requests)
    @rule(data=st.data())
    def abort(self, data: st.DataObject) -> None:
        self.sim.abort(data.draw(st.sampled_from(sorted(self.sim.requests))))

    @rule()
    def abort_before_add(self) -> None:
        self.sim.abort(10**6)

    @precondition(lambda self: any(self.sim.outputs.values()))
    @rule(data=st.data())
    def finish_at(self, data: st.DataObject) -> None:
        key = data.draw(st.sampled_from(sorted(key for key, output in self.sim.outputs.items() if output)))
        self.sim.finish_at(*key, n_tokens=len(self.sim.outputs[key]))

    @precondition(lambda self: any(self.sim.outputs.values()))
    @rule(data=st.data())
    def replay(self, data: st.DataObject) -> None:
        """What a restarted engine is told: the request under a new uid, with what its client already has."""
        uid = data.draw(st.sampled_from(sorted({uid for (uid, _), output in self.sim.outputs.items() if output})))
        old = self.sim.requests[uid]
        delivered = tuple(tuple(self.sim.outputs[uid, choice]) for choice in range(old.n))
        again = msgspec.structs.replace(old, uid=uid + 1000, attempt=1, delivered=delivered, deadline_s=None)
        if again.uid not in self.sim.requests:
            self.sim.submit_request(again)

    @rule()
    def restart(self) -> None:
        self.sim.restart()

    @rule(seconds=st.sampled_from([1.0, 4.0]))
    def sleep(self, seconds: float) -> None:
        self.sim.sleep(seconds)

    @rule()
    def reset_prefix_cache(self) -> None:
        self.sim.kv.reset_prefix_cache()
        assert self.sim.kv.n_cached == 0

    @rule()
    def launch(self) -> None:
        if self.sim.launch() is None:
            assert self.sim.scheduler.n_outstanding or not self.sim.scheduler.n_open, "there is work and nothing runs"

    @precondition(lambda self: self.sim.scheduler.n_outstanding)
    @rule()
    def commit(self) -> None:
        self.sim.commit()

    @rule(n=st.integers(1, 6))
    def steps(self, n: int) -> None:
        for _ in range(n):
            self.sim.step()

    @invariant()
    def agrees(self) -> None:
        if hasattr(self, "sim"):
            self.sim.scheduler.check()
            self.sim.check_outputs()

    def teardown(self) -> None:
        if hasattr(self, "sim"):
            self.sim.run()


SchedulerMachine.TestCase.settings = settings(
    max_examples=300,
    stateful_step_count=40,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
TestScheduler = SchedulerMachine.TestCase
