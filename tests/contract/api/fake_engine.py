"""An engine in memory that plays scripts: all that the API needs of one, and knobs for what shall go wrong."""

from __future__ import annotations

import asyncio
import time
import zlib
from collections.abc import Callable
from typing import Any

import numpy as np

from sixfold.errors import EngineDead, SixfoldError
from sixfold.messages import (
    EngineStats,
    EngineView,
    Finish,
    GenerateRequest,
    TokenDelta,
    TokenLogprobs,
    WorkerFacts,
)
from sixfold.text import CHATML, ChatTemplate, Tokenizer, byte_tokenizer

OnDeltas = Callable[[list[TokenDelta]], None]
OnFault = Callable[[SixfoldError], None]

FAULT = -1
EMBEDDING_SIZE = 8
CONTEXT = 512


def embedding(request: GenerateRequest) -> bytes:
    """The mean, or the last, of vectors that depend on the token ids alone."""
    states = np.sin(np.outer(request.prompt_token_ids, np.arange(1, EMBEDDING_SIZE + 1)))
    pooled = states.mean(axis=0) if request.pooling == "mean" else states[-1]
    return bytes(pooled.astype("<f4").tobytes())


class FakeHandle:
    """One request: a task produces deltas, the listener gets all that have arrived."""

    def __init__(self, engine: FakeEngine, request: GenerateRequest) -> None:
        self.engine = engine
        self.request = request
        self.aborted = False
        self.finished_at: list[tuple[int, int]] = []
        self._arrived: list[TokenDelta] = []
        self._listener: tuple[OnDeltas, OnFault] | None = None
        self._error: SixfoldError | None = None
        self._over: set[int] = set()
        self._task: asyncio.Task[None] | None = asyncio.get_running_loop().create_task(self._play())

    def listen(self, on_deltas: OnDeltas, on_fault: OnFault) -> None:
        self._listener = on_deltas, on_fault
        self._deliver()

    def _deliver(self) -> None:
        if self._listener is None or self.aborted:
            return
        on_deltas, on_fault = self._listener
        if self._arrived:
            deltas, self._arrived = self._arrived, []
            on_deltas(deltas)
        if self._error is not None:
            on_fault(self._error)

    def finish_at(self, choice: int, n_tokens: int) -> None:
        self.finished_at.append((choice, n_tokens))
        self._end(choice, "stop")

    def abort(self) -> None:
        if not self.aborted and len(self._over) < self.request.n:
            self.aborted = True
            self.engine.aborts += 1
            self._close()

    def fail(self, error: SixfoldError) -> None:
        self._error = error
        self._close()
        self._deliver()

    def _close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            self._task = None  # it keeps the exception that ends it, which refers to this handle
        self.engine.live.discard(self)

    def _end(self, choice: int, reason: str) -> None:
        self._over.add(choice)
        self.engine.ended[reason] = self.engine.ended.get(reason, 0) + 1
        if len(self._over) == self.request.n:
            self.engine.live.discard(self)

    async def _play(self) -> None:
        request = self.request
        await asyncio.sleep(self.engine.prefill_s)
        for k in range(max(1, request.max_tokens)):
            for choice in range(request.n):
                if choice not in self._over:
                    self._arrived.append(self._delta(choice, k))
            self._deliver()
            if len(self._over) == request.n:
                return
            await asyncio.sleep(self.engine.step_s)
            if request.deadline_s is not None and time.monotonic() > request.deadline_s:
                for choice in set(range(request.n)) - self._over:
                    self._end(choice, "timeout")
                    self._arrived.append(
                        TokenDelta(uid=request.uid, choice=choice, first_index=k + 1, finish=Finish("timeout"))
                    )
                self._deliver()
                return

    def _delta(self, choice: int, k: int) -> TokenDelta:
        request, sampling = self.request, self.request.sampling
        first = {}
        if k == 0:
            first |= {"n_cached": self.engine.n_cached, "started_s": request.arrival_s}
            if choice == 0 and request.prompt_logprobs is not None:
                ids = request.prompt_token_ids
                first["prompt_logprobs"] = [self._logprobs(i, request.prompt_logprobs) for i in ids[1:]]
        if request.pooling:
            first["embedding"] = embedding(request)
        if request.max_tokens == 0:
            self._end(choice, "length")
            return TokenDelta(uid=request.uid, choice=choice, first_index=0, finish=Finish("length"), **first)
        token = self._token(choice, k)
        finish = None
        ids = [token]
        if token == FAULT:
            ids, finish = [], Finish("error", message="the model produced no usable logits for this request")
        elif token in sampling.stop_token_ids and k >= sampling.min_tokens:
            finish = Finish("stop", stop_token_id=token)
        elif k + 1 == request.max_tokens:
            finish = Finish("length")
        if finish is not None:
            self._end(choice, finish.reason)
        logprobs = None if sampling.logprobs is None else [self._logprobs(i, sampling.logprobs) for i in ids]
        return TokenDelta(
            uid=request.uid, choice=choice, first_index=k, token_ids=ids, logprobs=logprobs, finish=finish, **first
        )

    def _token(self, choice: int, k: int) -> int:
        request = self.request
        if request.script:
            return request.script[k] if k < len(request.script) else self.engine.end_id
        bias = request.sampling.logit_bias
        if bias:
            return max(bias, key=lambda token: bias[token])
        start = (request.sampling.seed + choice) & 0xFFFFFFFF if request.sampling.temperature else 0
        return 97 + zlib.crc32(repr((request.prompt_token_ids, k)).encode(), start) % 26

    def _logprobs(self, token: int, n_top: int) -> TokenLogprobs:
        others = [i for i in range(n_top + 1) if i != token]
        ids = [token, *others][:n_top]
        return TokenLogprobs(-0.25, 0, ids, [-0.25 - i for i in range(len(ids))])


class FakeEngine:
    """See the module's docstring. `refuse` is raised by the next submissions; `kill` is the engine's death."""

    def __init__(
        self,
        *,
        extra_tokens: tuple[str | bytes, ...] = (),
        tokenizer: Tokenizer | None = None,
        max_model_len: int = CONTEXT,
    ) -> None:
        self.tokenizer = tokenizer or byte_tokenizer(extra_tokens)
        self.chat_template: ChatTemplate | None = ChatTemplate(CHATML, self.tokenizer)
        self.model_name = "fake"
        self.max_model_len = max_model_len
        self.default_seed: int | None = None
        self.embedding_size = EMBEDDING_SIZE
        self.sampling_defaults: dict[str, Any] = {}
        self.max_outstanding = 256
        self.n_open_elsewhere = 0
        self.batch = (0, 0)
        self.recent_stats: list[tuple[int, EngineStats]] = []
        self.max_queued_tokens = 1 << 20
        self.max_queue_wait_s = 0.0
        self.told: dict[str, Any] = {}
        """Fields of `stats`."""
        self.scripted = True
        self.build = "scripted"
        self.worker: WorkerFacts | None = None
        self.engine_epoch = 1
        self.watched: list[int] = []
        """The periods that were asked for, in ms; 0: no longer."""
        self.on_view: Callable[[EngineView], None] | None = None
        self.ready = True
        self.restarting = False
        self.dead: str | None = None
        self.end_id = min(self.tokenizer.end_ids)
        self.verdict_s = 0.0
        self.prefill_s = 0.0
        self.step_s = 0.0
        self.n_cached = 0
        self.refuse: SixfoldError | None = None
        self.aborts = 0
        self.ended: dict[str, int] = {}
        self.live: set[FakeHandle] = set()
        self.requests: list[GenerateRequest] = []
        self.handles: list[FakeHandle] = []
        self.loop: asyncio.AbstractEventLoop | None = None

    @property
    def stats(self) -> EngineStats:
        running = sum(handle.request.n for handle in self.live)
        return EngineStats(**{"running": running, "blocks_total": 80, "blocks_free": 80, **self.told})

    async def submit(self, request: GenerateRequest) -> FakeHandle:
        if self.dead is not None:
            raise EngineDead(self.dead)
        try:
            await asyncio.sleep(self.verdict_s)
        except asyncio.CancelledError:
            self.aborts += 1
            raise
        if self.refuse is not None:
            raise self.refuse
        self.requests.append(request)
        handle = FakeHandle(self, request)
        self.live.add(handle)
        self.handles.append(handle)
        return handle

    def watch(self, period_ms: int, on_view: Callable[[EngineView], None]) -> None:
        self.watched.append(period_ms)
        self.on_view = on_view if period_ms else None

    def kill(self) -> None:
        """From the loop's thread."""
        self.dead = "the engine died"
        for handle in list(self.live):
            handle.fail(EngineDead(self.dead))
