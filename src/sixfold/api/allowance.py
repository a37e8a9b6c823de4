"""What one API key may use: requests and tokens per minute, tokens per day, calls at the same time.

A rate is a bucket of a minute's worth that fills steadily; a day's quota is counted from its first token on. Tokens are
taken by estimate before a prompt is rendered, corrected to its real length, and those of the answer are taken at its
end. So the calls that run at the same time may use more than was left: the bucket goes into debt, and the key waits
until it is paid. One request that is larger than the bucket is let through when the bucket is full.

Counted in memory, from the process's start; of several API processes each has its part of every limit.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol

from sixfold.errors import Overloaded

__all__ = ["Allowance", "Bucket", "KeyLimits", "Quota"]

MINUTE_S = 60.0
DAY_S = 86400.0
CONCURRENCY_RETRY_S = 1.0


class KeyLimits(Protocol):
    """Of a key; None: no limit."""

    @property
    def requests_per_minute(self) -> int | None: ...
    @property
    def tokens_per_minute(self) -> int | None: ...
    @property
    def tokens_per_day(self) -> int | None: ...
    @property
    def max_concurrent(self) -> int | None: ...


class Bucket:
    """`amount` in `period_s`, filling steadily. Full at first."""

    def __init__(self, amount: int, period_s: float) -> None:
        self.amount = amount
        self._per_s = amount / period_s
        self._used = 0.0
        self._at_s = 0.0

    def wait_s(self, cost: float, now_s: float) -> float:
        """Until `cost` may be taken; 0 is now."""
        excess = self._used_at(now_s) + min(cost, self.amount) - self.amount
        return excess / self._per_s if excess > 1e-9 else 0.0

    def take(self, cost: float, now_s: float) -> None:
        """Take it, or give it back where it is negative; the bucket may go into debt, never above full."""
        self._used = max(0.0, self._used_at(now_s) + cost)
        self._at_s = max(self._at_s, now_s)

    def _used_at(self, now_s: float) -> float:
        return max(0.0, self._used - max(0.0, now_s - self._at_s) * self._per_s)


class Quota:
    """`amount` in a window of `period_s` that begins with the first use."""

    def __init__(self, amount: int, period_s: float) -> None:
        self.amount = amount
        self._period_s = period_s
        self._used = 0.0
        self._end_s = 0.0

    def wait_s(self, cost: float, now_s: float) -> float:
        """Until `cost` may be taken; 0 is now."""
        if now_s >= self._end_s or self._used + min(cost, self.amount) <= self.amount:
            return 0.0
        return self._end_s - now_s

    def take(self, cost: float, now_s: float) -> None:
        """Take it, or give it back where it is negative."""
        if now_s >= self._end_s:
            self._used, self._end_s = 0.0, now_s + self._period_s
        self._used = max(0.0, self._used + cost)


class Allowance:
    """See the module's docstring. Belongs to one event loop.

    Args:
        clock: seconds, monotonic.
    """

    def __init__(self, limits: KeyLimits, n_processes: int, clock: Callable[[], float]) -> None:
        self._clock = clock

        def part(limit: int) -> int:
            return -(-limit // n_processes)

        self._requests = Bucket(part(limits.requests_per_minute), MINUTE_S) if limits.requests_per_minute else None
        self._tokens: list[tuple[str, Bucket | Quota]] = []
        if limits.tokens_per_minute:
            self._tokens.append(("tokens_per_minute", Bucket(part(limits.tokens_per_minute), MINUTE_S)))
        if limits.tokens_per_day:
            self._tokens.append(("tokens_per_day", Quota(part(limits.tokens_per_day), DAY_S)))
        self._max_concurrent = part(limits.max_concurrent) if limits.max_concurrent else None
        self.n_running = 0
        """Calls between their permit and the end of their answer."""

    @classmethod
    def of(
        cls, limits: KeyLimits, n_processes: int = 1, clock: Callable[[], float] = time.monotonic
    ) -> Allowance | None:
        """None where there is no limit at all."""
        given = (
            limits.requests_per_minute,
            limits.tokens_per_minute,
            limits.tokens_per_day,
            limits.max_concurrent,
        )
        return cls(limits, n_processes, clock) if any(given) else None

    def begin(self) -> None:
        """Count a call in; `end` counts it out.

        Raises:
            Overloaded: the code names the limit.
        """
        now_s = self._clock()
        if self._max_concurrent is not None and self.n_running >= self._max_concurrent:
            raise _refused("max_concurrent", f"{self._max_concurrent} calls at the same time", CONCURRENCY_RETRY_S)
        if self._requests is not None:
            wait_s = self._requests.wait_s(1, now_s)
            if wait_s:
                raise _refused("requests_per_minute", f"{self._requests.amount} requests per minute", wait_s)
        self.check_tokens(1)
        if self._requests is not None:
            self._requests.take(1, now_s)
        self.n_running += 1

    def end(self) -> None:
        """The call has its answer, or none will come."""
        self.n_running -= 1

    def check_tokens(self, n_tokens: int) -> None:
        """Raises: Overloaded: so many more are not left."""
        now_s = self._clock()
        for name, limit in self._tokens:
            wait_s = limit.wait_s(n_tokens, now_s)
            if wait_s:
                period = name.replace("tokens_per_", "")
                raise _refused(name, f"{limit.amount} tokens per {period}", wait_s)

    def take_tokens(self, n_tokens: int) -> None:
        """They are used; or, where negative, were not after all."""
        now_s = self._clock()
        for _, limit in self._tokens:
            limit.take(n_tokens, now_s)


def _refused(limit: str, words: str, wait_s: float) -> Overloaded:
    return Overloaded(f"this API key's limit is reached: {words}", code=f"{limit}_exceeded", retry_after_s=wait_s)
