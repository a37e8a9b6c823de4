"""What one API key may use: requests and tokens per minute, tokens per day, calls at the same time.

A rate is a bucket of a minute's worth that fills steadily; a day's quota is counted from its first token on. Tokens are
taken by estimate before a prompt is rendered, corrected to its real length, and those of the answer are taken at its
end. So the calls that run at the same time may use more than was left: the bucket goes into debt, and the key waits
until it is paid. One request that is larger than the bucket is let through when the bucket is full.

Counted in memory, from the server's start; several API processes share every limit (`tallies.py`).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol

from sixfold.api.admission.tallies import Cells, Limit, Tally
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
    """`amount` in `period_s`, filling steadily. Full at first. Its cells: what is used, and when that was so."""

    def __init__(self, amount: int, period_s: float, cells: Cells) -> None:
        self.amount = amount
        self._per_s = amount / period_s
        self._cells = cells

    def wait_s(self, cost: float, now_s: float) -> float:
        """Until `cost` may be taken; 0 is now."""
        excess = self._used_at(now_s) + min(cost, self.amount) - self.amount
        return excess / self._per_s if excess > 1e-9 else 0.0

    def take(self, cost: float, now_s: float) -> None:
        """Take it, or give it back where it is negative; the bucket may go into debt, never above full."""
        self._cells[0] = max(0.0, self._used_at(now_s) + cost)
        self._cells[1] = max(self._cells[1], now_s)

    def _used_at(self, now_s: float) -> float:
        used, at_s = self._cells
        return max(0.0, used - max(0.0, now_s - at_s) * self._per_s)


class Quota:
    """`amount` in a window of `period_s` that begins with the first use. Its cells: what is used, the window's end."""

    def __init__(self, amount: int, period_s: float, cells: Cells) -> None:
        self.amount = amount
        self._period_s = period_s
        self._cells = cells

    def wait_s(self, cost: float, now_s: float) -> float:
        """Until `cost` may be taken; 0 is now."""
        used, end_s = self._cells
        if now_s >= end_s or used + min(cost, self.amount) <= self.amount:
            return 0.0
        return float(end_s - now_s)

    def take(self, cost: float, now_s: float) -> None:
        """Take it, or give it back where it is negative."""
        if now_s >= self._cells[1]:
            self._cells[0], self._cells[1] = 0.0, now_s + self._period_s
        self._cells[0] = max(0.0, self._cells[0] + cost)


class Allowance:
    """See the module's docstring. Belongs to one event loop.

    Args:
        clock: seconds, monotonic.
    """

    def __init__(self, limits: KeyLimits, tally: Tally, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._tally = tally
        self._requests: Bucket | None = None
        if limits.requests_per_minute:
            self._requests = Bucket(limits.requests_per_minute, MINUTE_S, tally.cells(Limit.REQUESTS))
        self._tokens: list[tuple[str, Bucket | Quota]] = []
        if limits.tokens_per_minute:
            per_minute = Bucket(limits.tokens_per_minute, MINUTE_S, tally.cells(Limit.TOKENS))
            self._tokens.append(("tokens_per_minute", per_minute))
        if limits.tokens_per_day:
            self._tokens.append(("tokens_per_day", Quota(limits.tokens_per_day, DAY_S, tally.cells(Limit.DAY))))
        self._max_concurrent = limits.max_concurrent

    @property
    def n_running(self) -> int:
        """Calls of this process between their permit and the end of their answer."""
        return self._tally.n_running

    @classmethod
    def of(
        cls, limits: KeyLimits, tally: Tally | None = None, clock: Callable[[], float] = time.monotonic
    ) -> Allowance | None:
        """None where there is no limit at all."""
        given = (
            limits.requests_per_minute,
            limits.tokens_per_minute,
            limits.tokens_per_day,
            limits.max_concurrent,
        )
        return cls(limits, tally or Tally.private(), clock) if any(given) else None

    def begin(self) -> None:
        """Count a call in; `end` counts it out.

        Raises:
            Overloaded: the code names the limit.
        """
        now_s = self._clock()
        if self._max_concurrent is not None and self._tally.n_running_everywhere >= self._max_concurrent:
            raise _refused("max_concurrent", f"{self._max_concurrent} calls at the same time", CONCURRENCY_RETRY_S)
        if self._requests is not None:
            wait_s = self._requests.wait_s(1, now_s)
            if wait_s:
                raise _refused("requests_per_minute", f"{self._requests.amount} requests per minute", wait_s)
        self.check_tokens(1)
        if self._requests is not None:
            self._requests.take(1, now_s)
        self._tally.n_running += 1

    def end(self) -> None:
        """The call has its answer, or none will come."""
        self._tally.n_running -= 1

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
