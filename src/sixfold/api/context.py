"""What the handlers share: the engine's face, the configuration, the permits, the threads, the metrics.

Everything here belongs to one event loop.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from sixfold import __version__
from sixfold.api.access.keys import KeyRing, load_keys
from sixfold.api.access.returning import Returning
from sixfold.api.access.tallies import Tallies
from sixfold.api.debug.feed import LiveFeed
from sixfold.api.engine_face import EngineFace
from sixfold.api.fields.prompt_length import PromptLength
from sixfold.api.open_requests import OpenRequests
from sixfold.api.peers import A, Peers, Question
from sixfold.api.responses.store import open_store
from sixfold.api.threads import TextThreads
from sixfold.config import ApiConfig
from sixfold.errors import EngineDead, InvalidRequest, ModelNotFound, NotReady, Overloaded
from sixfold.messages import AbortNamed, ApiCounts, Found
from sixfold.observability.calls import CallRing
from sixfold.observability.delivery import Delivery
from sixfold.observability.metrics import ApiMetrics
from sixfold.observability.observatory import Observatory

if TYPE_CHECKING:
    from sixfold.api.tracing import CallSpans

__all__ = ["LONG_TEXT_CHARS", "MAX_PREPARING", "MAX_SCORED", "ApiContext", "ByteBudget"]

MAX_PREPARING = 256
"""Generation requests between their first byte and the engine's verdict: beyond it, 429."""

MAX_SCORED = 1 << 20
"""Entries of prompts' log-probabilities in one answer."""

LONG_TEXT_CHARS = 64 << 10
"""Texts that will be truncated may be of any length: from here on they wait for each other (`TextThreads.aside`)."""

SCORED_BUDGET = 3 * MAX_SCORED
"""The same in all that is in flight: beyond it, 429. An entry takes about a hundred bytes here and up to 17 on its way
from the engine, where all of them could meet in one frame (`transport.frames.MAX_FRAME_BYTES`)."""

BODY_BUDGET_FACTOR = 64
"""Bodies of the largest size that may be buffered in part at the same time."""


class ByteBudget:
    """Bytes held in partly received bodies, against a bound."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._held = 0

    def take(self, n_bytes: int) -> None:
        self._held += n_bytes

    def give(self, n_bytes: int) -> None:
        self._held -= n_bytes

    @property
    def held(self) -> int:
        return self._held

    @property
    def exceeded(self) -> bool:
        return self._held > self._limit


class ApiContext:
    """See the module's docstring.

    Attributes:
        in_flight: choices that have a place: handed to the engine and not ended, or being prepared for it.
        scored: entries of prompts' log-probabilities that these calls will hold.
        draining: no new work; set once, by the server.
        generations: what is in flight, for the end of draining.
        open_requests: the same by name.
        calls: that are being answered.
        live: whoever watches this process (`debug/live.py`).
        prompt_length: refuses what is too long without tokenizing it.
        responses: answers that are kept; None: none are.
        keys: who may call; None: everybody.
        spans: what follows calls for OpenTelemetry; None: nothing does.
        observatory: what the server's processes note; None: nobody is to ask.
        call_ring: where this process keeps what it knows of its latest calls.
        delivery: how the time of a batch is divided.
        meter: where this process's time is counted.
        threads: for templates and tokenization.

    Args:
        run_dir: where the server's API processes meet; None: this one is alone.
        api_server: this process's number.

    Raises:
        ConfigError: the key file, or the endpoint for spans, cannot be used.
    """

    def __init__(
        self,
        client: EngineFace,
        config: ApiConfig,
        metrics: ApiMetrics,
        delivery: Delivery | None = None,
        observatory: Observatory | None = None,
        *,
        run_dir: str | None = None,
        api_server: int = 0,
    ) -> None:
        self.client = client
        self.observatory = observatory
        self.call_ring = observatory.calls if observatory is not None else CallRing.private()
        self.config = config
        self.metrics = metrics
        self.delivery = delivery or Delivery()
        self.meter = self.delivery.meter
        self.body_budget = ByteBudget(BODY_BUDGET_FACTOR * config.max_body_bytes)
        self.in_flight = 0
        self.scored = 0
        self.draining = False
        self.generations: set[Any] = set()
        self.open_requests = OpenRequests()
        self.calls: set[Any] = set()
        self.live = LiveFeed(self)
        self.n_traces = 0
        self._preparing = 0
        self._returning = Returning(config.api_server_count)
        self.responses = open_store(config)
        self.prompt_length = PromptLength(client.tokenizer, client.max_model_len)
        self.keys: KeyRing | None = None
        if config.api_key_file:
            keys = load_keys(config.api_key_file)
            tallies = None
            if run_dir is not None:
                tallies = Tallies.open(run_dir, list(keys), n_processes=config.api_server_count, own=api_server)
            self.keys = KeyRing(keys, tallies)
        self._peers: Peers | None = None
        if run_dir is not None:
            self._peers = Peers(run_dir, api_server, config.api_server_count, self._on_question)
        self.spans: CallSpans | None = None
        if config.otlp_traces_endpoint:
            from sixfold.api.tracing import CallSpans  # a server without spans has no use for it

            self.spans = CallSpans(config.otlp_traces_endpoint, observatory, instance=f"api {metrics.api_server}")
            metrics.spans_dropped = self.spans.dropped
        self.threads = TextThreads(self.meter)

    @property
    def fingerprint(self) -> str:
        """Equal for builds that give equal tokens to equal requests."""
        return f"sixfold-{__version__}-{self.client.build.replace('/', '-')}"

    @property
    def n_preparing(self) -> int:
        """Calls that hold the admission permit."""
        return self._preparing

    @property
    def ignore_unknown(self) -> bool:
        return self.config.unknown_fields == "ignore"

    @contextmanager
    def admitted(self, *, generates: bool) -> Iterator[None]:
        """The admission permit: held from before the body is read until the engine's verdict.

        Args:
            generates: the engine is needed: while its queue is full, a refusal costs no more than the head.

        Raises:
            EngineDead, NotReady, Overloaded: new work is refused.
        """
        self.check_takes_work()
        if generates:
            self.check_room(1)
            self.check_wait(None)
        if self._preparing >= MAX_PREPARING:
            raise Overloaded("too many requests are being prepared at the same time", retry_after_s=1.0)
        self._preparing += 1
        try:
            yield
        finally:
            self._preparing -= 1

    def check_takes_work(self) -> None:
        """Raises: EngineDead, NotReady: new work would be in vain. For an engine that restarts, `submit` waits."""
        if self.draining or not self.client.restarting:
            self.check_ready()

    def check_ready(self) -> None:
        """Raises: EngineDead, NotReady: the server cannot take work now."""
        if self.client.dead is not None:
            raise EngineDead(self.client.dead)
        if self.draining:
            raise NotReady("the server is shutting down", code="draining", retry_after_s=5.0)
        if not self.client.ready:
            what = "being restarted" if self.client.restarting else "starting"
            raise NotReady(f"the engine is {what}", retry_after_s=1.0)

    def check_room(self, n_choices: int, n_tokens: int = 0) -> None:
        """What the engine would refuse is refused here before it costs anything. The engine says a few times a second
        what it holds; in between, this process counts its own.

        Args:
            n_tokens: of the prompts, as far as is known.

        Raises:
            InvalidRequest: more choices than the engine ever holds.
            Overloaded: with what is in flight already, they are too many for now.
        """
        limit = self.client.max_outstanding
        if n_choices > limit:
            raise InvalidRequest(
                f"{n_choices} choices (prompts x n) are more than the {limit} that this server runs and queues",
                param="n",
            )
        stats = self.client.stats
        n_open = self.in_flight + self.client.n_open_elsewhere
        if n_open + n_choices > limit:
            raise Overloaded(
                f"{n_open} of at most {limit} choices are in flight",
                code="queue_full",
                retry_after_s=self._comes_again_s(),
            )
        if stats.queued_tokens and stats.queued_tokens + n_tokens > self.client.max_queued_tokens:
            raise Overloaded(
                f"the queue is full: at most {self.client.max_queued_tokens} prompt tokens wait",
                code="queue_full",
                retry_after_s=self._comes_again_s(),
            )

    def check_wait(self, deadline_s: float | None) -> None:
        """Raises: Overloaded: the queue is so long that the request would miss its deadline (CLOCK_MONOTONIC), if it
        then takes as long as others do; or that it would wait longer than this server lets any wait. Trying again,
        here or elsewhere, may succeed: hence no 504."""
        stats = self.client.stats
        wait_s = stats.queue_wait_s
        if not wait_s:
            return
        if deadline_s is not None and time.monotonic() + wait_s + stats.run_s > deadline_s:
            raise Overloaded(
                f"the queue is about {wait_s:.1f} s long and an answer takes {stats.run_s:.1f} s, which is more than "
                "the request's deadline leaves",
                code="deadline_unreachable",
                retry_after_s=self._comes_again_s(),
            )
        longest = self.client.max_queue_wait_s
        if longest and wait_s > longest:
            raise Overloaded(
                f"the queue is about {wait_s:.1f} s long; at most {longest:g} s are allowed",
                code="queue_too_slow",
                retry_after_s=self._comes_again_s(),
            )

    def _comes_again_s(self) -> float:
        """What a caller is told whom the queue has no place for."""
        return self._returning.wait_s(self.client.stats.place_s)

    def check_scored(self, n_entries: int) -> None:
        """Raises: Overloaded: with those in flight, so many take too much memory for now."""
        if n_entries and self.scored + n_entries > SCORED_BUDGET:
            raise Overloaded("too many log-probabilities of prompts are being gathered", retry_after_s=1.0)

    def check_model(self, name: str | None) -> None:
        """Raises: ModelNotFound: another model is asked for than the one that is served."""
        served = self.client.model_name
        if name is not None and name != served:
            shown = name if len(name) <= 100 else name[:99] + "\N{HORIZONTAL ELLIPSIS}"
            raise ModelNotFound(f"the model {shown!r} is not served here; {served!r} is", param="model")

    async def meet_peers(self) -> None:
        """Answer the server's other API processes from now on."""
        if self._peers is not None:
            await self._peers.listen()

    async def ask_peers(self, question: Question, kind: type[A]) -> list[A]:
        """What the server's other API processes say."""
        return [] if self._peers is None else await self._peers.ask(question, kind)

    def _on_question(self, question: Question) -> Found | ApiCounts:
        if isinstance(question, AbortNamed):
            return Found(self.open_requests.abort(question.name, question.tenant, end=question.end))
        return self.metrics.counts()

    def close(self) -> None:
        if self._peers is not None:
            self._peers.close()
        self.threads.close()
        if self.responses is not None:
            self.responses.close()
        if self.spans is not None:
            self.spans.close()
