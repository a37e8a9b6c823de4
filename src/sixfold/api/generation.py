"""All engine requests of one HTTP call, from submission to the last token: the one owner of their handles.

Whatever ends the call (its last token, an error, a client that leaves) goes through `close`, which takes back what is
still in flight. Choices are numbered through the whole call: choice c of prompt p is p * n + c.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass

import msgspec

from sixfold.api.context import ApiContext
from sixfold.api.engine_face import RequestHandle
from sixfold.api.errors import ClientGone
from sixfold.detokenizer import ChoiceDelta, OutputProcessor
from sixfold.errors import DeadlineExceeded, ProtocolError, RequestFailed, SixfoldError
from sixfold.messages import GenerateRequest

__all__ = ["Generation", "TextOptions", "TotalUsage"]


@dataclass(frozen=True, kw_only=True)
class TextOptions:
    """How tokens become text: stays in the API process."""

    stop: tuple[str, ...] = ()
    include_stop: bool = False
    skip_special: bool = True


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
        self._requests = requests
        self._handles: list[RequestHandle] = []
        self._error: BaseException | None = None
        self._closed = False
        self._n_choices = len(requests) * requests[0].n
        tokenizer = context.client.tokenizer
        self._processors = [
            OutputProcessor(
                request.uid,
                request.n,
                tokenizer.token_bytes,
                tokenizer.control_ids,
                skip_special=options.skip_special,
                stop=options.stop,
                include_stop=options.include_stop,
                prompt_tokens=len(request.prompt_token_ids),
            )
            for request in requests
        ]
        self._timing = context.metrics.begin(requests[0].arrival_s)

    async def start(self) -> None:
        """Hand everything to the engine; all or nothing.

        Raises:
            Overloaded, ContextLengthExceeded, InvalidRequest, NotReady, EngineDead: nothing of it remains.
        """
        self._context.check_ready()  # it was, before the prompt was tokenized
        self._context.check_room(self._n_choices)
        self._context.in_flight += self._n_choices
        self._context.generations.add(self)
        try:
            for request in self._requests:
                handle = await self._context.client.submit(request)
                self._handles.append(handle)
                if self._error is not None:  # closed meanwhile
                    handle.abort()
                    raise self._error
        except BaseException:
            self.close()
            raise
        self._timing.accepted(sum(len(request.prompt_token_ids) for request in self._requests))

    async def steps(self) -> AsyncIterator[list[ChoiceDelta]]:
        """What came with each step, choices numbered through the call.

        Raises:
            RequestFailed, DeadlineExceeded, EngineDead, NotReady: after everything that came before the fault.
            ClientGone: it was closed from outside.
        """
        if len(self._handles) == 1:
            async for deltas in self._one(0):
                yield deltas
        else:
            async for deltas in self._merged():
                yield deltas

    def close(self, error: BaseException | None = None) -> None:
        """Take back what is in flight. Idempotent.

        Args:
            error: what a reader of `steps` that still waits is told; default: the client is gone.
        """
        if self._closed:
            return
        self._closed = True
        self._error = error or ClientGone()
        for handle in self._handles:
            handle.abort()
        self._context.in_flight -= self._n_choices
        self._context.generations.discard(self)
        self._timing.end(self._reasons())

    def usage(self) -> TotalUsage:
        parts = [processor.usage for processor in self._processors]
        prompt = sum(part.prompt_tokens for part in parts)
        completion = sum(part.completion_tokens for part in parts)
        cached = sum(part.cached_tokens for part in parts)
        return TotalUsage(prompt, completion, prompt + completion, PromptDetails(cached))

    def _reasons(self) -> list[str]:
        n = self._requests[0].n
        return [processor.finish_reason(choice) or "abort" for processor in self._processors for choice in range(n)]

    async def _one(self, prompt: int) -> AsyncIterator[list[ChoiceDelta]]:
        handle, processor = self._handles[prompt], self._processors[prompt]
        shift = prompt * self._requests[0].n
        timing = self._timing
        async for deltas in handle:
            out, finish_at = processor.push(deltas)
            for stop in finish_at:
                handle.finish_at(stop.choice, stop.n_tokens)
            if not out:
                continue
            n_tokens = 0
            ended = False
            for delta in out:
                n_tokens += len(delta.token_ids)
                ended = ended or delta.finish_reason is not None
            timing.step(time.monotonic(), n_tokens)
            if ended and (fault := _fault(out)) is not None:
                good = [delta for delta in out if delta.finish_reason not in _FAULTS]
                if good:
                    yield _shifted(good, shift)
                raise self._error if self._error is not None else fault
            yield _shifted(out, shift) if shift else out
            if processor.done:
                return
        if self._error is not None:
            raise self._error
        if not processor.done:
            raise ProtocolError("the engine's output ended before its choices did")

    async def _merged(self) -> AsyncIterator[list[ChoiceDelta]]:
        """Several prompts: whatever has arrived since the last turn, as one item."""
        arrived: asyncio.Queue[list[ChoiceDelta] | BaseException | None] = asyncio.Queue()

        async def pump(prompt: int) -> None:
            try:
                async for deltas in self._one(prompt):
                    arrived.put_nowait(deltas)
                arrived.put_nowait(None)
            except Exception as error:  # noqa: BLE001 - handed to the reader, which raises it
                arrived.put_nowait(error)

        pumps = [asyncio.ensure_future(pump(prompt)) for prompt in range(len(self._handles))]
        running = len(pumps)
        try:
            while running:
                items = [await arrived.get()]
                while not arrived.empty():
                    items.append(arrived.get_nowait())
                batch: list[ChoiceDelta] = []
                fault: BaseException | None = None
                for item in items:
                    if item is None:
                        running -= 1
                    elif isinstance(item, BaseException):
                        fault = fault or item
                    else:
                        batch += item
                if batch:
                    yield batch
                if fault is not None:
                    raise fault
        finally:
            for task in pumps:
                task.cancel()


_FAULTS = frozenset({"error", "timeout", "abort"})


def _fault(out: list[ChoiceDelta]) -> SixfoldError | None:
    for delta in out:
        if delta.finish_reason in _FAULTS:
            if delta.finish_reason == "timeout":
                return DeadlineExceeded("the request's deadline passed before it was done")
            return RequestFailed(delta.error or "the request was ended by the server")
    return None


def _shifted(deltas: list[ChoiceDelta], shift: int) -> list[ChoiceDelta]:
    if not shift:
        return deltas
    return [msgspec.structs.replace(delta, index=delta.index + shift) for delta in deltas]
