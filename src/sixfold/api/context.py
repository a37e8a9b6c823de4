"""What the handlers share: the engine's face, the configuration, the admission, the threads, the metrics.

Everything here belongs to one event loop.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from sixfold import __version__
from sixfold.api.access.keys import KeyRing, load_keys
from sixfold.api.admission.admission import Admission
from sixfold.api.admission.tallies import Tallies
from sixfold.api.debug.feed import LiveFeed
from sixfold.api.engine_face import EngineFace
from sixfold.api.fields.prompt_length import PromptLength
from sixfold.api.open_requests import OpenRequests
from sixfold.api.peers import A, Peers, Question
from sixfold.api.responses.store import open_store
from sixfold.api.threads import TextThreads
from sixfold.config import ApiConfig
from sixfold.engine.run_files import ServerStart
from sixfold.errors import ModelNotFound
from sixfold.messages import AbortNamed, ApiCounts, Found
from sixfold.observability.calls import CallRing
from sixfold.observability.delivery import Delivery
from sixfold.observability.metrics import ApiMetrics
from sixfold.observability.observatory import Observatory
from sixfold.roles import api_role

if TYPE_CHECKING:
    from sixfold.api.tracing import CallSpans

__all__ = ["ApiContext", "ByteBudget"]

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
        admission: whether a call may come in.
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
        start: of the server.
        threads: for templates and tokenization.

    Args:
        run_dir: where the server's API processes meet; None: this one is alone.
        api_server: this process's number.
        start: of the server; None: this process is all of it.

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
        start: ServerStart | None = None,
    ) -> None:
        self.client = client
        self.start = start or ServerStart.now()
        self.observatory = observatory
        self.call_ring = observatory.calls if observatory is not None else CallRing.private()
        self.config = config
        self.metrics = metrics
        self.delivery = delivery or Delivery()
        self.meter = self.delivery.meter
        self.body_budget = ByteBudget(BODY_BUDGET_FACTOR * config.max_body_bytes)
        self.admission = Admission(client, config.api_server_count)
        self.generations: set[Any] = set()
        self.open_requests = OpenRequests()
        self.calls: set[Any] = set()
        self.live = LiveFeed(self)
        self.scraping = asyncio.Lock()
        """Held while `/metrics` is rendered, which takes as long as a hundred tokens."""
        self.n_traces = 0
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

            self.spans = CallSpans(config.otlp_traces_endpoint, observatory, instance=api_role(metrics.api_server))
            metrics.spans_dropped = self.spans.dropped
        self.threads = TextThreads(self.meter)

    @property
    def fingerprint(self) -> str:
        """Equal for builds that give equal tokens to equal requests."""
        return f"sixfold-{__version__}-{self.client.build.replace('/', '-')}"

    @property
    def ignore_unknown(self) -> bool:
        return self.config.unknown_fields == "ignore"

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
