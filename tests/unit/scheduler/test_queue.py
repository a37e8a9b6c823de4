"""Policies, and the guard that lets none of them starve anybody."""

from __future__ import annotations

from sixfold.messages import GenerateRequest, Sampling
from sixfold.scheduler.queue import Policy, make_policy, make_queue
from sixfold.scheduler.sequence import Request, Sequence
from sixfold.scheduler.waiting import OVERTAKES_MAX


class Line:
    """A queue under one policy."""

    def __init__(self, policy: str) -> None:
        self.policy: Policy = make_policy(policy)
        self.queue = make_queue(self.policy)
        self.serial = 0

    def arrive(self, name: str, *, n_prompt: int = 1, n: int = 1, **fields: object) -> Sequence:
        message = GenerateRequest(
            uid=self.serial,
            prompt_token_ids=[0] * n_prompt,
            max_tokens=0,
            n=n,
            sampling=Sampling(seed=0),
            cache_salt=name,
            **fields,  # type: ignore[arg-type]
        )
        request = Request(message, self.policy.enter(message), urgency=0)
        sequence = Sequence(request, 0, self.serial, [0] * n_prompt, 1)
        self.serial += 1
        self.queue.push(sequence)
        return sequence

    def serve(self) -> str:
        sequence = next(iter(self.queue))
        self.queue.admit(sequence)
        self.policy.admitted(sequence.request)
        sequence.request.has_started = True
        return sequence.request.message.cache_salt

    def serve_all(self) -> str:
        return "".join(self.serve() for _ in range(len(self.queue)))


def test_first_come_first_served() -> None:
    line = Line("fcfs")
    for name in "abc":
        line.arrive(name)
    assert line.serve_all() == "abc"


def test_priority_then_arrival() -> None:
    line = Line("priority")
    for name, priority in ("a", 1), ("b", 0), ("c", 1), ("d", -3):
        line.arrive(name, priority=priority)
    assert line.serve_all() == "dbac"


def test_shortest_prompt_first() -> None:
    line = Line("shortest")
    for name, n_prompt in ("a", 9), ("b", 3), ("c", 5):
        line.arrive(name, n_prompt=n_prompt)
    assert line.serve_all() == "bca"


def test_fair_tenants_take_turns() -> None:
    line = Line("fair")
    for name in "aaaa":
        line.arrive(name, tenant=name)
    for name in "bbcc":
        line.arrive(name, tenant=name)
    assert line.serve_all() == "abcabcaa"


def test_fair_counts_tokens() -> None:
    line = Line("fair")
    line.arrive("a", tenant="a", n_prompt=4)
    line.arrive("a", tenant="a", n_prompt=4)
    for _ in range(5):
        line.arrive("b", tenant="b")
    assert line.serve_all() == "abbbbab"


def test_fair_follows_weights() -> None:
    line = Line("fair")
    for _ in range(8):
        line.arrive("a", tenant="a", tenant_weight=3, n_prompt=3)
        line.arrive("b", tenant="b", n_prompt=3)
    assert line.serve_all()[:8] == "abaabaaa"


def test_fair_corrects_the_charge_at_the_end() -> None:
    line = Line("fair")
    first = line.arrive("a", tenant="a").request
    line.arrive("a", tenant="a")
    line.arrive("b", tenant="b")
    line.arrive("b", tenant="b")
    line.arrive("b", tenant="b")
    assert line.serve() == "a"
    first.sequences.append(Sequence(first, 0, 0, [0] * 3, 2))  # it made two tokens
    line.policy.leave(first)
    assert line.serve_all() == "bbba"


def test_fair_gives_no_credit_for_having_been_away() -> None:
    line = Line("fair")
    for _ in range(6):
        line.arrive("a", tenant="a")
    assert line.serve() + line.serve() + line.serve() == "aaa"
    for _ in range(3):
        line.arrive("b", tenant="b")
    assert line.serve_all() == "bababa"


def test_fair_keeps_a_debt_while_others_are_here() -> None:
    line = Line("fair")
    for _ in range(3):
        line.arrive("b", tenant="b")
    big = line.arrive("a", tenant="a", n_prompt=9)
    assert line.serve() + line.serve() == "ba"
    big.request.sequences.append(big)
    line.policy.leave(big.request)  # it goes, and comes back at once
    line.arrive("a", tenant="a")
    assert line.serve_all() == "bba"


def test_fair_forgets_tenants_that_left() -> None:
    line = Line("fair")
    requests = [line.arrive("a", tenant=str(i)).request for i in range(5)]
    for request in requests:
        line.policy.leave(request)
    assert not line.policy._served and not line.policy._n_open  # type: ignore[attr-defined]


def test_a_preempted_choice_returns_to_the_head() -> None:
    line = Line("fcfs")
    first = line.arrive("a")
    line.arrive("b")
    line.serve()
    line.queue.push(first)
    assert line.serve_all() == "ab"


def test_nobody_is_overtaken_without_bound() -> None:
    line = Line("priority")
    line.arrive("z", priority=9)
    served = ""
    for _ in range(2 * OVERTAKES_MAX):
        line.arrive("a", priority=0)
        line.arrive("a", priority=0)
        served += line.serve()
    assert served.index("z") == OVERTAKES_MAX


def test_each_of_many_latecomers_gets_its_share() -> None:
    line = Line("shortest")
    for _ in range(3):
        line.arrive("z", n_prompt=50)
    served = ""
    for _ in range(4 * (OVERTAKES_MAX + 1)):
        line.arrive("a")
        line.arrive("a")
        served += line.serve()
    assert served.count("z") == 3


def test_leaving_the_queue_unserved() -> None:
    line = Line("fcfs")
    first, second = line.arrive("a"), line.arrive("b")
    line.queue.remove(first)
    assert list(line.queue) == [second] and len(line.queue) == 1
    line.queue.remove(second)
    assert not list(line.queue)
