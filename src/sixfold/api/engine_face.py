"""What the API needs of the engine: the two protocols that `engine/client.py` (and the tests' fake) fulfil."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol

from sixfold.errors import SixfoldError
from sixfold.messages import EngineStats, EngineView, GenerateRequest, TokenDelta, WorkerFacts
from sixfold.text.chat_template import ChatTemplate
from sixfold.text.tokenizer import Tokenizer

__all__ = ["EngineFace", "RequestHandle"]


class RequestHandle(Protocol):
    """One accepted request. Exactly one terminal event per choice will come, or `EngineDead`."""

    def listen(self, on_deltas: Callable[[list[TokenDelta]], None], on_fault: Callable[[SixfoldError], None]) -> None:
        """Have `on_deltas` called with what arrives together, first of all with what has arrived already, until every
        choice has had its finish or `abort` is called. `on_fault` is told that the engine is gone and the request
        cannot go on. Neither may raise.
        """
        ...

    def finish_at(self, choice: int, n_tokens: int) -> None:
        """The choice ended by a stop string with its `n_tokens`-th token. Idempotent, never blocks."""
        ...

    def abort(self) -> None:
        """Nobody wants the rest. Idempotent, never blocks; nothing to do once every choice has ended."""
        ...


class EngineFace(Protocol):
    """The engine as an API process sees it."""

    @property
    def tokenizer(self) -> Tokenizer: ...

    @property
    def chat_template(self) -> ChatTemplate | None:
        """None: the model has none, and chat is refused."""
        ...

    @property
    def model_name(self) -> str:
        """As clients write it."""
        ...

    @property
    def max_model_len(self) -> int:
        """Prompt plus output, in tokens."""
        ...

    @property
    def default_seed(self) -> int | None:
        """For requests without `seed`; None draws a random one each."""
        ...

    @property
    def sampling_defaults(self) -> Mapping[str, Any]:
        """Fields of `SamplingParams` for requests that do not give them."""
        ...

    @property
    def max_outstanding(self) -> int:
        """Choices that the engine holds at most, running and waiting together: with as many of this process's own in
        flight, one more is refused before its prompt is tokenized."""
        ...

    @property
    def n_open_elsewhere(self) -> int:
        """Choices that other API processes have in the engine; 0 without others."""
        ...

    @property
    def max_queued_tokens(self) -> int:
        """Prompt tokens that wait at most."""
        ...

    @property
    def max_queue_wait_s(self) -> float:
        """A queue that is predicted to take longer takes nothing; 0: there is no such bound."""
        ...

    @property
    def scripted(self) -> bool:
        """Requests may say which tokens come out (field `script`)."""
        ...

    @property
    def build(self) -> str:
        """Backend and instruction set, e.g. `native/avx512`: with the model and the version it tells when equal
        requests give equal tokens."""
        ...

    @property
    def embedding_size(self) -> int:
        """Numbers of an embedding; 0 while the engine starts."""
        ...

    @property
    def stats(self) -> EngineStats:
        """The engine's latest snapshot."""
        ...

    @property
    def recent_stats(self) -> Iterable[tuple[int, EngineStats]]:
        """Earlier ones of the last minute, with the time at which each came (CLOCK_MONOTONIC ns)."""
        ...

    @property
    def worker(self) -> WorkerFacts | None:
        """What the worker holds; None while the engine starts."""
        ...

    @property
    def engine_epoch(self) -> int:
        """Of the engine that was greeted last; 0 before the first."""
        ...

    @property
    def batch(self) -> tuple[int, int]:
        """The batch of deltas that is being delivered, or was last: its step, and when it was read (CLOCK_MONOTONIC
        ns)."""
        ...

    @property
    def ready(self) -> bool: ...

    @property
    def restarting(self) -> bool:
        """Not ready, and will be soon: `submit` waits a while for it."""
        ...

    @property
    def dead(self) -> str | None:
        """Why nothing will work any more, one sentence for the user; None while alive."""
        ...

    async def submit(self, request: GenerateRequest) -> RequestHandle:
        """Hand over a request and wait for the engine's verdict.

        Raises:
            Overloaded, ContextLengthExceeded, InvalidRequest: refused, nothing of it remains in the engine.
            RequestFailed: it made the engine crash before.
            NotReady, EngineDead, DeadlineExceeded: there is no engine to ask, or was not in time.
        """
        ...

    def watch(self, period_ms: int, on_view: Callable[[EngineView], None]) -> None:
        """Have `on_view` called with views of the engine, at most one in `period_ms`; 0: no longer. Never blocks."""
        ...
