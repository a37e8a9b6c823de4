"""All engine requests of one HTTP call, from submission to the last token: the one owner of their handles.

Whatever ends the call (its last token, an error, a client that leaves) goes through `close`, which takes back what is
still in flight. Choices are numbered through the whole call: choice c of prompt p is p * n + c.
"""

from __future__ import annotations

import asyncio
import functools
import time
from collections.abc import Callable
from dataclasses import dataclass

import msgspec

from sixfold.api.access.keys import Caller
from sixfold.api.admission.admission import Places
from sixfold.api.call import Call
from sixfold.api.call_log import log_request
from sixfold.api.context import ApiContext
from sixfold.api.engine_face import RequestHandle
from sixfold.api.http.errors import ClientGone
from sixfold.detokenizer import ChoiceDelta, OutputProcessor
from sixfold.errors import DeadlineExceeded, NotReady, RequestFailed, SixfoldError
from sixfold.messages import GenerateRequest, TokenDelta, TokenLogprobs
from sixfold.observability.calls import IN_ENGINE, MAX_UIDS
from sixfold.observability.meter import now
from sixfold.observability.timeline import State

__all__ = ["Generation", "TextOptions", "TotalUsage"]


@dataclass(frozen=True, kw_only=True)
class TextOptions:
    """How tokens become text: stays in the API process."""

    stop: tuple[str, ...] = ()
    include_stop: bool = False
    skip_special: bool = True
    shown_ids: frozenset[int] = frozenset()
    """Control tokens that have their text all the same: a parser looks for it."""


class PromptDetails(msgspec.Struct, frozen=True):
    cached_tokens: int


class TotalUsage(msgspec.Struct, frozen=True):
    """As OpenAI's `usage`: every prompt counts once, whatever n is."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptDetails


class Generation:
    """See the module's docstring.

    Args:
        requests: one per prompt; all have the same n.
    """

    def __init__(self, context: ApiContext, requests: list[GenerateRequest], options: TextOptions) -> None:
        self._context = context
        self._delivery = context.delivery
        self._requests = requests
        self._handles: list[RequestHandle] = []
        self._take: Callable[[list[ChoiceDelta]], None] | None = None
        self._ended: asyncio.Future[None] | None = None
        """Who awaits it is in `run`."""
        self._has_run = False
        self._error: Exception | None = None
        """What `start` or `run` has to raise. Neither leaves it here: an exception refers to the frames that it came
        through, and so to this generation."""
        self._closed = False
        self._submitting: asyncio.Task[object] | None = None
        """Who waits in `start` for the engine's verdict."""
        self._gone: asyncio.Future[None] | None = None
        """Done when the client has left."""
        self._last_batch = (0, 0)
        """The step of the batch that brought the last end, and when it was read."""
        self._names: tuple[str, ...] = ()
        self._call: Call | None = None
        """Whose it is, once it was started."""
        self._places: Places | None = None
        """Of its choices, once it was started."""
        self._n_choices = len(requests) * requests[0].n
        self.n_scored = sum(
            len(request.prompt_token_ids) * (request.prompt_logprobs + 1) * request.n
            for request in requests
            if request.prompt_logprobs is not None
        )
        """Entries of the prompts' log-probabilities in the answer."""
        self.prompt_scores: list[list[TokenLogprobs]] = [[] for _ in requests] if self.n_scored else []
        """Per prompt, of each of its tokens but the first; empty until they have come."""
        tokenizer = context.client.tokenizer
        control = tokenizer.control_ids - options.shown_ids if options.shown_ids else tokenizer.control_ids
        self._processors = [
            OutputProcessor(
                request.uid,
                request.n,
                tokenizer.token_bytes,
                control,
                skip_special=options.skip_special,
                stop=options.stop,
                include_stop=options.include_stop,
                prompt_tokens=len(request.prompt_token_ids),
            )
            for request in requests
        ]
        self._timing = context.metrics.begin(requests[0].arrival_s)

    async def start(self, call: Call, *ids: str) -> None:
        """Hand everything to the engine, in the name of the call's caller; all or nothing. From now on it is closed
        when the client leaves.

        Args:
            ids: of the answer: by them, and by the call's label, another call can end it.

        Raises:
            Overloaded, ContextLengthExceeded, InvalidRequest, NotReady, EngineDead: nothing of it remains.
            ClientGone, RequestAborted: it was closed before the engine had all of it.
        """
        self._places = call.permit.take(self._n_choices, self.n_scored)
        self._context.generations.add(self)
        self._call, self._names = call, (call.request_id, *ids)
        self._context.open_requests.enter(self._names, self, call.tenant)
        self._record(call)
        self._gone = asyncio.ensure_future(call.wait_gone())
        self._gone.add_done_callback(lambda _: self.close())
        try:
            for request in self._requests:
                if self._context.config.enable_log_requests:
                    log_request(call, request)
                if self._closed:
                    raise self._fault_to_raise()
                self._handles.append(await self._submit(_owned(request, call.caller)))
        except BaseException:
            self.close()
            raise
        n_prompt = sum(len(request.prompt_token_ids) for request in self._requests)
        call.permit.use_tokens(n_prompt)
        self._timing.accepted(n_prompt)
        call.enter(IN_ENGINE)

    async def _submit(self, request: GenerateRequest) -> RequestHandle:
        """As `submit` of the engine, until it is closed.

        Raises:
            Exception: what it was closed with.
        """
        self._submitting = task = asyncio.current_task()
        try:
            return await self._context.client.submit(request)
        except asyncio.CancelledError:
            if task is None or not self._closed:
                raise
            task.uncancel()
            raise self._fault_to_raise() from None
        finally:
            self._submitting = None

    def _record(self, call: Call) -> None:
        """Now the engine's notes of these requests belong to the call's record, as far as it has room for them."""
        if call.record is not None:
            call.record.uids += [request.uid for request in self._requests][: MAX_UIDS - len(call.record.uids)]
            call.record.request_id = call.request_id
            call.enter(State.SUBMIT)
            self._context.call_ring.write(call.record)

    async def run(self, take: Callable[[list[ChoiceDelta]], None]) -> None:
        """Hand what comes with each step to `take`, choices numbered through the call; return after the last end.

        Raises:
            RequestFailed, DeadlineExceeded, EngineDead, NotReady: after everything that came before the fault.
            ClientGone, RequestAborted: it was closed from outside.
            Exception: whatever `take` raised.
        """
        if self._closed:
            raise self._fault_to_raise()
        self._take, self._ended = take, asyncio.get_running_loop().create_future()
        try:
            for prompt, handle in enumerate(self._handles):
                handle.listen(functools.partial(self._on_deltas, prompt), self._fail)
            await self._ended
        finally:
            self._take = self._ended = None
            self._has_run = True
        if self._call is not None and self._call.record is not None:
            self._call.record.ends.append(self._last_batch)
            self._call.enter(State.DELIVER, self._last_batch[1])
            self._call.enter(State.FINISH)

    def close(self, error: Exception | None = None) -> None:
        """Take back what is in flight. Idempotent.

        Args:
            error: what `run` raises where it still waits; default: the client is gone.
        """
        if self._closed:
            return
        self._closed = True
        self._count_abort(error)
        error = error or ClientGone()
        if self._gone is not None and not self._gone.done():
            self._gone.cancel()
        if self._submitting is not None:
            self._submitting.cancel()
        if self._ended is not None:
            self._fail(error)
        else:
            self._error = error
        for handle in self._handles:
            handle.abort()
        self._handles.clear()
        if self._places is not None:
            self._places.leave()
        self._context.generations.discard(self)
        if self._call is not None:
            self._context.open_requests.leave(self._names, self, self._call.tenant)
            self._call.permit.use_tokens(sum(processor.usage.completion_tokens for processor in self._processors))
        self._timing.end(self.reasons())
        if self._call is not None and self._context.live.is_watched:
            self._context.live.add_ended(self, self._call)

    @property
    def is_left(self) -> bool:
        """The client has gone, before it was closed for anything else."""
        return self._gone is not None and self._gone.done() and not self._gone.cancelled()

    @property
    def asked(self) -> GenerateRequest:
        """The first of its requests."""
        return self._requests[0]

    @property
    def first_token_s(self) -> float:
        """CLOCK_MONOTONIC; 0 before it."""
        return self._timing.first_token_s

    def _count_abort(self, error: Exception | None) -> None:
        """Who ends it, if not the engine."""
        if self._is_over or all(processor.done for processor in self._processors):
            return
        cause = "shutdown" if isinstance(error, NotReady) else "request" if error is not None else "client_gone"
        if self._call is not None and self._call.fault == "slow_reader":
            cause = "slow_reader"
        self._context.metrics.aborts[cause] += 1

    @property
    def call(self) -> Call | None:
        """Whose it is, once it was started."""
        return self._call

    @property
    def names(self) -> tuple[str, ...]:
        """The label of its call, then the ids in its answer."""
        return self._names

    @property
    def uids(self) -> list[int]:
        """Under which the engine knows its requests."""
        return [request.uid for request in self._requests]

    @property
    def is_accepted(self) -> bool:
        """Whether the engine has all of it."""
        return len(self._handles) == len(self._requests)

    def usage(self) -> TotalUsage:
        parts = [processor.usage for processor in self._processors]
        prompt = sum(part.prompt_tokens for part in parts)
        completion = sum(part.completion_tokens for part in parts)
        cached = sum(part.cached_tokens for part in parts)
        return TotalUsage(prompt, completion, prompt + completion, PromptDetails(cached))

    def _note_start(self, deltas: list[TokenDelta]) -> None:
        for delta in deltas:
            if delta.started_s:
                self._timing.started(delta.started_s)
                return

    def reasons(self) -> list[str]:
        """Why each choice ended; `abort` of one that has not."""
        n = self._requests[0].n
        return [processor.finish_reason(choice) or "abort" for processor in self._processors for choice in range(n)]

    @property
    def _is_over(self) -> bool:
        """`run` has ended, or is about to."""
        return self._has_run or (self._ended is not None and self._ended.done())

    def _fault_to_raise(self) -> Exception:
        """What it was closed with; call once."""
        error, self._error = self._error, None
        return error or ClientGone()

    def _fail(self, error: Exception) -> None:
        if self._ended is not None and not self._ended.done():
            self._ended.set_exception(error)

    def _on_deltas(self, prompt: int, deltas: list[TokenDelta]) -> None:
        # Not in variables: an error refers to this frame, and the future to the error.
        if self._take is None or self._ended is None or self._ended.done():
            return  # of another prompt than the one that failed
        try:
            if self._follow(prompt, deltas, self._take) and all(processor.done for processor in self._processors):
                self._last_batch = self._context.client.batch
                self._ended.set_result(None)
        except Exception as error:  # noqa: BLE001 - handed to whoever awaits `run`, which raises it
            self._fail(error)

    def _follow(self, prompt: int, deltas: list[TokenDelta], take: Callable[[list[ChoiceDelta]], None]) -> bool:
        """Returns whether a choice ended."""
        if self.n_scored:
            for scored in deltas:
                if scored.prompt_logprobs is not None:
                    self.prompt_scores[prompt] = scored.prompt_logprobs
        started_ns = now() if self._delivery.splits else 0
        if not self._timing.started_s:
            self._note_start(deltas)
        out, finish_at = self._processors[prompt].push(deltas)
        if started_ns:
            self._delivery.detokenize_ns += now() - started_ns
        for stop in finish_at:
            self._handles[prompt].finish_at(stop.choice, stop.n_tokens)
        n_tokens = 0
        ended = False
        for delta in out:
            n_tokens += len(delta.token_ids)
            if delta.finish_reason is not None:
                ended = True
        self._timing.step(time.monotonic(), n_tokens)
        fault = _fault(out) if ended else None
        if fault is not None:
            out = [delta for delta in out if delta.finish_reason not in _FAULTS]
        if prompt:
            shift = prompt * self._requests[0].n
            out = [msgspec.structs.replace(delta, index=delta.index + shift) for delta in out]
        if out:
            take(out)
        if fault is not None:
            try:
                raise fault
            finally:
                del fault  # it refers to this frame, which would refer to it
        return ended


def _owned(request: GenerateRequest, caller: Caller) -> GenerateRequest:
    """The request as its caller's: its share of the engine, and its cached blocks, are his tenant's."""
    if not caller.tenant:
        return request
    salt = caller.salted(request.cache_salt)
    return msgspec.structs.replace(request, tenant=caller.tenant, tenant_weight=caller.weight, cache_salt=salt)


_FAULTS = frozenset({"error", "timeout", "abort"})


def _fault(out: list[ChoiceDelta]) -> SixfoldError | None:
    for delta in out:
        if delta.finish_reason in _FAULTS:
            if delta.finish_reason == "timeout":
                return DeadlineExceeded("the request's deadline passed before it was done")
            return RequestFailed(delta.error or "the request was ended by the server")
    return None
