"""May this call come in? Asked three times, each time as soon as more is known and before more is spent:

    by its head     Permit.preparing    the server takes work; one place is free, and the queue's wait is bearable; not
                                        too many are being prepared; the key has calls left
    by its body     Permit.reserve      places for its choices; its deadline can be met; the key has tokens left
    by its tokens   Permit.take         the server still takes work; places; room for log-probabilities of prompts

What the engine would refuse is refused here before it costs anything: a few times a second the engine says what it
holds, and in between this process counts its own. The engine has the last word (`scheduler/admission.py`).
Each refusal is an error that says after how long to come again; `http/errors.py` makes the answer of it.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from sixfold.api.admission.allowance import Allowance
from sixfold.api.admission.returning import Returning
from sixfold.api.engine_face import EngineFace
from sixfold.errors import EngineDead, InvalidRequest, NotReady, Overloaded

__all__ = ["MAX_PREPARING", "MAX_SCORED", "SCORED_BUDGET", "Admission", "Permit", "Places"]

MAX_PREPARING = 256
"""Calls between their first byte and the engine's verdict: beyond it, 429."""

MAX_SCORED = 1 << 20
"""Entries of prompts' log-probabilities in one answer."""

SCORED_BUDGET = 3 * MAX_SCORED
"""The same in all that is in flight: beyond it, 429. An entry takes about a hundred bytes here and up to 17 on its way
from the engine, where all of them could meet in one frame (`transport.frames.MAX_FRAME_BYTES`)."""

BYTES_PER_TOKEN = 4
"""Of a body, roughly: for what must be known before a prompt is rendered and tokenized."""


class Admission:
    """What this process has let in, and whether there is room for more. Belongs to one event loop.

    Attributes:
        in_flight: choices that have a place: handed to the engine and not ended, or being prepared for it.
        scored: entries of prompts' log-probabilities that their calls will hold.
        n_preparing: calls between their permit and the engine's verdict.
        draining: no new work; set once, by the server.

    Args:
        n_processes: API processes of the server.
    """

    def __init__(self, client: EngineFace, n_processes: int = 1) -> None:
        self._client = client
        self._returning = Returning(n_processes)
        self.in_flight = 0
        self.scored = 0
        self.n_preparing = 0
        self.draining = False

    @property
    def n_free(self) -> int:
        """Choices for which there is a place, as far as this process's own are concerned."""
        return self._client.max_outstanding - self.in_flight

    def check_ready(self) -> None:
        """Raises: EngineDead, NotReady: the server cannot take work now."""
        if self._client.dead is not None:
            raise EngineDead(self._client.dead)
        if self.draining:
            raise NotReady("the server is shutting down", code="draining", retry_after_s=5.0)
        if not self._client.ready:
            what = "being restarted" if self._client.restarting else "starting"
            raise NotReady(f"the engine is {what}", retry_after_s=1.0)

    def check_takes_work(self) -> None:
        """Raises: EngineDead, NotReady: new work would be in vain. For an engine that restarts, `EngineFace.submit`
        waits."""
        if self.draining or not self._client.restarting:
            self.check_ready()

    def check_room(self, n_choices: int, n_tokens: int = 0) -> None:
        """Is there a place for so many?

        Args:
            n_tokens: of the prompts, as far as is known.

        Raises:
            InvalidRequest: more choices than the engine ever holds.
            Overloaded: with what is in flight already, they are too many for now.
        """
        limit = self._client.max_outstanding
        if n_choices > limit:
            raise InvalidRequest(
                f"{n_choices} choices (prompts x n) are more than the {limit} that this server runs and queues",
                param="n",
            )
        n_open = self.in_flight + self._client.n_open_elsewhere
        if n_open + n_choices > limit:
            raise self._full(f"{n_open} of at most {limit} choices are in flight", "queue_full")
        n_queued = self._client.stats.queued_tokens
        most = self._client.max_queued_tokens
        if n_queued and n_queued + n_tokens > most:
            raise self._full(f"the queue is full: at most {most} prompt tokens wait", "queue_full")

    def check_wait(self, deadline_s: float | None) -> None:
        """Is the queue short enough?

        Args:
            deadline_s: the request's, CLOCK_MONOTONIC; None for none.

        Raises:
            Overloaded: the request would miss its deadline, if it then takes as long as others do; or it would wait
                longer than this server lets any wait. Trying again, here or elsewhere, may succeed: hence no 504.
        """
        stats = self._client.stats
        wait_s = stats.queue_wait_s
        if not wait_s:
            return
        if deadline_s is not None and time.monotonic() + wait_s + stats.run_s > deadline_s:
            raise self._full(
                f"the queue is about {wait_s:.1f} s long and an answer takes {stats.run_s:.1f} s, which is more than "
                "the request's deadline leaves",
                "deadline_unreachable",
            )
        longest = self._client.max_queue_wait_s
        if longest and wait_s > longest:
            raise self._full(
                f"the queue is about {wait_s:.1f} s long; at most {longest:g} s are allowed", "queue_too_slow"
            )

    def check_scored(self, n_entries: int) -> None:
        """Raises: Overloaded: with those in flight, so many log-probabilities of prompts take too much memory."""
        if n_entries and self.scored + n_entries > SCORED_BUDGET:
            raise Overloaded("too many log-probabilities of prompts are being gathered", retry_after_s=1.0)

    def _full(self, message: str, code: str) -> Overloaded:
        """There is no place: the caller may come again when one is likely to be his (`returning.py`)."""
        return Overloaded(message, code=code, retry_after_s=self._returning.wait_s(self._client.stats.place_s))


class Places:
    """Choices that count as in flight until they leave."""

    __slots__ = ("_admission", "_n_choices", "_n_scored")

    def __init__(self, admission: Admission, n_choices: int, n_scored: int = 0) -> None:
        admission.in_flight += n_choices
        admission.scored += n_scored
        self._admission = admission
        self._n_choices = n_choices
        self._n_scored = n_scored

    def leave(self) -> None:
        """Idempotent."""
        self._admission.in_flight -= self._n_choices
        self._admission.scored -= self._n_scored
        self._n_choices = self._n_scored = 0


class Permit:
    """One call's way in, and what it has taken on it: its places, and its part of the key's allowance."""

    __slots__ = ("_admission", "_allowance", "_n_reserved", "_places")

    def __init__(self, admission: Admission) -> None:
        self._admission = admission
        self._allowance: Allowance | None = None
        """The key's, once the call counts as one that runs."""
        self._places: Places | None = None
        """Of its choices, until the engine is asked."""
        self._n_reserved = 0
        """Tokens taken from the allowance for which nothing has been computed yet."""

    @contextmanager
    def preparing(self, allowance: Allowance | None, *, generates: bool) -> Iterator[None]:
        """By the head: hold one of the places for what is being prepared, from before the body is read until the
        engine's verdict; and from then on count as one of the key's running calls.

        Args:
            allowance: of the caller's key; None: he has no limits.
            generates: the call is nothing without the engine.

        Raises:
            EngineDead, NotReady, Overloaded: new work is refused, or the key has used what it may.
        """
        admission = self._admission
        admission.check_takes_work()
        if generates:
            admission.check_room(1)
            admission.check_wait(None)
        if admission.n_preparing >= MAX_PREPARING:
            raise Overloaded("too many requests are being prepared at the same time", retry_after_s=1.0)
        if allowance is not None:
            allowance.begin()
            self._allowance = allowance
        admission.n_preparing += 1
        try:
            yield
        finally:
            admission.n_preparing -= 1

    def reserve(self, n_choices: int, body_bytes: int, deadline_s: float | None) -> None:
        """By the body, before the prompt is rendered and tokenized: its length is estimated from the body's.

        Args:
            deadline_s: CLOCK_MONOTONIC, None for none.

        Raises:
            InvalidRequest: more choices than the engine ever holds.
            Overloaded: the queue is full or too slow for the deadline, or the key has used its tokens.
        """
        n_tokens = body_bytes // BYTES_PER_TOKEN
        self._admission.check_room(n_choices, n_tokens)
        self._admission.check_wait(deadline_s)
        if self._allowance is not None:
            self._allowance.check_tokens(n_tokens)
            self._allowance.take_tokens(n_tokens)
            self._n_reserved = n_tokens
        self._places = Places(self._admission, n_choices)

    def take(self, n_choices: int, n_scored: int = 0) -> Places:
        """By the tokens, before the engine is asked: what was reserved becomes the places of its requests.

        Args:
            n_scored: entries of log-probabilities of the prompts.

        Returns:
            Whoever has them says when the choices have ended.

        Raises:
            EngineDead, NotReady, InvalidRequest, Overloaded: as above.
        """
        self._admission.check_takes_work()
        self._leave()
        self._admission.check_room(n_choices)
        self._admission.check_scored(n_scored)
        return Places(self._admission, n_choices, n_scored)

    def use_tokens(self, n_tokens: int) -> None:
        """So many were computed, of the prompt or of the answer: what was reserved counts first."""
        if self._allowance is not None:
            covered = min(n_tokens, self._n_reserved)
            self._n_reserved -= covered
            self._allowance.take_tokens(n_tokens - covered)

    def close(self) -> None:
        """The call is over: give back what it did not use. Call once."""
        self._leave()
        if self._allowance is not None:
            self._allowance.end()
            self._allowance.take_tokens(-self._n_reserved)

    def _leave(self) -> None:
        if self._places is not None:
            self._places.leave()
