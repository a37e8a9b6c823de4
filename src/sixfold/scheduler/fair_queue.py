"""The policy `fair`: of the tenants with waiting work, the one that was served least goes first.

Served are tokens, of prompts and answers, divided by the tenant's weight (a virtual token counter; Sheng et al. 2024,
"Fairness in Serving Large Language Models"). A request is charged when it is admitted: its prompt, and as much of an
answer as answers had lately; at its end the charge is corrected. So a tenant with waiting work is behind any other by
a few requests at most, however many the other one sends.

A tenant that comes anew starts where the one admitted last stood: having been away gives no credit. One that leaves in
debt finds it again, until the others have caught up. Within a tenant the order is that of arrival.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left, insort
from collections.abc import Iterator
from operator import attrgetter

from sixfold.messages import GenerateRequest
from sixfold.scheduler.sequence import Request, Sequence
from sixfold.scheduler.waiting import WaitingQueue

__all__ = ["FairQueue", "FairShares"]

FIRST_ANSWER = 128.0
"""Tokens of an answer, before any has ended."""

ANSWER_WEIGHT = 0.05
"""Of the newest answer in their mean."""

_by_key = attrgetter("key")


class FairShares:
    """What each tenant was served, as a policy."""

    def __init__(self) -> None:
        self._served: dict[str, float] = {}
        self._n_open: dict[str, int] = {}
        self._now = 0.0
        """Virtual time: what the tenant admitted last had been served before."""
        self._mean_answer = FIRST_ANSWER

    def enter(self, message: GenerateRequest) -> int:
        tenant = message.tenant
        self._served[tenant] = max(self._now, self._served.get(tenant, 0.0))
        self._n_open[tenant] = self._n_open.get(tenant, 0) + 1
        return 0

    def admitted(self, request: Request) -> None:
        if request.has_started:
            return  # another choice of it, or after a preemption
        tenant = request.message.tenant
        self._now = max(self._now, self._served[tenant])
        request.charge = self.price(request)
        self._served[tenant] += request.charge
        for idle in [t for t, served in self._served.items() if t not in self._n_open and served <= self._now]:
            del self._served[idle]

    def leave(self, request: Request) -> None:
        message = request.message
        tenant = message.tenant
        if request.has_started:
            n_output = sum(sequence.n_output for sequence in request.sequences)
            self._mean_answer += ANSWER_WEIGHT * (n_output / message.n - self._mean_answer)
            cost = (len(message.prompt_token_ids) + n_output) / message.tenant_weight
            self._served[tenant] += cost - request.charge
        self._n_open[tenant] -= 1
        if not self._n_open[tenant]:
            del self._n_open[tenant]
        if not self._n_open:
            self._served.clear()
            self._now = 0.0

    def served(self, tenant: str) -> float:
        """Tokens by weight."""
        return self._served[tenant]

    def price(self, request: Request) -> float:
        """What the request will probably cost its tenant; nothing where it was charged already."""
        if request.has_started:
            return 0.0
        message = request.message
        n_output = message.n * min(float(message.max_tokens), self._mean_answer)
        return (len(message.prompt_token_ids) + n_output) / message.tenant_weight


class FairQueue(WaitingQueue):
    """A line per tenant; whose head is next, its shares say."""

    def __init__(self, shares: FairShares) -> None:
        super().__init__()
        self._shares = shares
        self._lines: dict[str, list[Sequence]] = {}

    def _ordered(self) -> Iterator[Sequence]:
        """Lazily: who asks for the first few pays for these. What is given out counts as served meanwhile."""
        heap = [(self._shares.served(t), line[0].key, t, 0) for t, line in self._lines.items()]
        heapq.heapify(heap)
        while heap:
            served, _, tenant, index = heap[0]
            line = self._lines[tenant]
            yield line[index]
            if index + 1 < len(line):
                served += self._shares.price(line[index].request)
                heapq.heapreplace(heap, (served, line[index + 1].key, tenant, index + 1))
            else:
                heapq.heappop(heap)

    def _insert(self, sequence: Sequence) -> None:
        insort(self._lines.setdefault(sequence.request.message.tenant, []), sequence, key=_by_key)

    def _delete(self, sequence: Sequence) -> None:
        tenant = sequence.request.message.tenant
        line = self._lines[tenant]
        index = bisect_left(line, sequence.key, key=_by_key)
        assert line[index] is sequence
        del line[index]
        if not line:
            del self._lines[tenant]
