"""The policy `fair` under any arrivals: nobody starves, shares are kept, a tenant's own order is kept."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from sixfold.messages import GenerateRequest, Sampling
from sixfold.scheduler.fair_queue import FIRST_ANSWER, FairQueue, FairShares
from sixfold.scheduler.sequence import Request, Sequence
from sixfold.scheduler.waiting import OVERTAKES_MAX

MAX_PROMPT, MAX_ANSWER = 50, 20
COST_MAX = MAX_PROMPT + max(MAX_ANSWER, FIRST_ANSWER)

arrivals = st.lists(
    st.tuples(st.sampled_from("abcd"), st.integers(1, MAX_PROMPT), st.integers(0, MAX_ANSWER)), min_size=1, max_size=60
)


class Simulation:
    def __init__(self, weights: dict[str, int]) -> None:
        self.shares = FairShares()
        self.queue = FairQueue(self.shares)
        self.weights = weights
        self.serial = 0
        self.running: list[tuple[Request, int]] = []
        self.tokens: Counter[str] = Counter()
        """Served, by weight."""

    def arrive(self, tenant: str, n_prompt: int, n_answer: int) -> None:
        message = GenerateRequest(
            uid=self.serial,
            prompt_token_ids=[0] * n_prompt,
            max_tokens=MAX_ANSWER,
            sampling=Sampling(seed=0),
            tenant=tenant,
            tenant_weight=self.weights[tenant],
            priority=n_answer,
        )
        request = Request(message, self.shares.enter(message), urgency=0)
        sequence = Sequence(request, 0, self.serial, [0] * n_prompt, MAX_ANSWER)
        request.sequences.append(sequence)
        self.serial += 1
        self.queue.push(sequence)

    def admit(self) -> Sequence:
        sequence = next(iter(self.queue))
        self.queue.admit(sequence)
        request = sequence.request
        self.shares.admitted(request)
        request.has_started = True
        self.running.append((request, sequence.request.message.priority))
        return sequence

    def end(self) -> None:
        request, n_answer = self.running.pop(0)
        request.sequences[0].token_ids += [0] * n_answer
        n_tokens = len(request.message.prompt_token_ids) + n_answer
        self.tokens[request.message.tenant] += n_tokens / self.weights[request.message.tenant]  # type: ignore[assignment]
        self.shares.leave(request)


@given(arrivals, st.integers(1, 5))
def test_order_within_a_tenant_is_kept_and_everybody_is_served(work: list[tuple[str, int, int]], slots: int) -> None:
    run = Simulation(dict.fromkeys("abcd", 1))
    for tenant, n_prompt, n_answer in work:
        run.arrive(tenant, n_prompt, n_answer)
    served: dict[str, list[int]] = {}
    for sequence in (run.admit() for _ in range(len(run.queue))):
        served.setdefault(sequence.request.message.tenant, []).append(sequence.request.uid)
        if len(run.running) >= slots:
            run.end()
    assert sum(map(len, served.values())) == len(work) and not len(run.queue)
    assert all(uids == sorted(uids) for uids in served.values())
    while run.running:
        run.end()
    assert not run.shares._served and not run.shares._n_open and not run.queue._lines


@given(
    st.fixed_dictionaries({tenant: st.integers(1, 4) for tenant in "abc"}),
    st.lists(st.tuples(st.integers(1, MAX_PROMPT), st.integers(0, MAX_ANSWER)), min_size=3, max_size=30),
    st.integers(1, 4),
)
def test_tenants_with_waiting_work_are_served_alike(
    weights: dict[str, int], sizes: list[tuple[int, int]], slots: int
) -> None:
    """Tokens by weight differ by what a few requests cost, not by how many wait: `c` sends ten times as much."""
    run = Simulation(weights)
    for i in range(40):
        for tenant, n in (("a", 1), ("b", 1), ("c", 10)):
            for k in range(n):
                run.arrive(tenant, *sizes[(i + k) % len(sizes)])
    waiting = Counter(sequence.request.message.tenant for sequence in run.queue)
    for _ in range(60):
        tenant = run.admit().request.message.tenant
        waiting[tenant] -= 1
        if len(run.running) >= slots:
            run.end()
        if min(waiting.values()) <= 0:
            break
    served = [run.shares.served(tenant) for tenant in weights]
    # The starvation guard gives the oldest one admission in so many, which is in nobody's account.
    slack = (slots + 1) * COST_MAX + COST_MAX * 60 / (OVERTAKES_MAX + 1)
    assert max(served) - min(served) <= slack


@given(st.integers(1, 200), st.integers(1, MAX_PROMPT))
def test_a_latecomer_is_not_behind_a_flood(n_flood: int, n_prompt: int) -> None:
    run = Simulation({"a": 1, "b": 1})
    for _ in range(n_flood):
        run.arrive("a", MAX_PROMPT, 0)
    for _ in range(n_flood // 2):
        run.admit()
    run.arrive("b", n_prompt, 0)
    for turn in range(4):
        if run.admit().request.message.tenant == "b":
            return
        assert turn < 3, "it waits for a flood that came before it"
