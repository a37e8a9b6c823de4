"""`LLM`: the whole server in the caller's process, without HTTP.

Runs in: the caller's process. Owns: an engine core and everything under it. Start reading at: `LLM.stream`.
"""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Iterator, Sequence
from types import TracebackType
from typing import Any, TypeVar

from sixfold.config import Config
from sixfold.detokenizer import ChoiceDelta, OutputProcessor
from sixfold.engine.core import EngineCore
from sixfold.engine.launch import ModelText, in_process
from sixfold.engine.request import execution_request
from sixfold.errors import InvalidRequest, Overloaded, RequestFailed
from sixfold.messages import FinishReason, GenerateRequest, TokenDelta, TokenLogprobs
from sixfold.sampling_params import SamplingParams
from sixfold.text import Tokenizer

__all__ = ["LLM", "ChoiceOutput", "RequestOutput"]

Message = dict[str, Any]
Prompt = str | Sequence[int]
_T = TypeVar("_T")


@dataclasses.dataclass
class ChoiceOutput:
    """One finished choice."""

    index: int
    text: str = ""
    token_ids: list[int] = dataclasses.field(default_factory=list)
    finish_reason: FinishReason | None = None
    stop_reason: int | str | None = None
    logprobs: list[TokenLogprobs] | None = None


@dataclasses.dataclass
class RequestOutput:
    """One finished prompt, its choices in order."""

    prompt: str | None
    """As given; None when token ids or messages were."""
    prompt_token_ids: list[int]
    outputs: list[ChoiceOutput]
    cached_tokens: int = 0
    prompt_logprobs: list[TokenLogprobs] | None = None


class _Running:
    """A request on its way."""

    def __init__(self, request: GenerateRequest, params: SamplingParams, tokenizer: Tokenizer) -> None:
        self.request = request
        self.processor = OutputProcessor(
            request.uid,
            request.n,
            tokenizer.token_bytes,
            tokenizer.control_ids,
            skip_special=params.skip_special_tokens,
            stop=params.stop,
            include_stop=params.include_stop_str_in_output,
            prompt_tokens=len(request.prompt_token_ids),
        )


class LLM:
    """A model, ready to generate.

        llm = LLM("smollm2")
        [answer] = llm.chat([{"role": "user", "content": "Hello"}])

    Args:
        model: a known name, `org/name` that was pulled, or the path of a .gguf file or of a Hugging Face folder.
        settings: fields of `sixfold.config`, by name (`max_num_seqs=8`).

    Raises:
        ModelNotFound, ModelFileError, ConfigError: the model or a setting cannot be used.
    """

    def __init__(self, model: str = "smollm2", **settings: Any) -> None:
        config = Config.from_flat({"model": model, **settings})
        self.core: EngineCore
        self.text: ModelText
        self.core, self.text, self.config = in_process(config)
        self._running: dict[int, _Running] = {}

    @property
    def tokenizer(self) -> Tokenizer:
        return self.text.tokenizer

    def __enter__(self) -> LLM:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Free weights, KV memory and threads. Idempotent."""
        for uid in list(self._running):
            self._abort(uid)
        self._settle()
        self.core.executor.close()

    def generate(
        self,
        prompts: Prompt | Sequence[str] | Sequence[Sequence[int]],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
    ) -> list[RequestOutput]:
        """Continue each prompt (a text, token ids, or a list of either); one output per prompt, in order.

        Args:
            params: for all prompts, or one for each.

        Raises:
            InvalidRequest: a prompt or a parameter cannot be used; nothing was started.
            RequestFailed: the model produced no usable logits for one of them.
        """
        batch: list[Any] = [prompts] if isinstance(prompts, str) or _is_ids(prompts) else list(prompts)
        texts = [p if isinstance(p, str) else None for p in batch]
        return self._run(texts, [self._prompt_ids(p) for p in batch], params, "prompt")

    def chat(
        self,
        messages: Sequence[Message] | Sequence[Sequence[Message]],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
    ) -> list[RequestOutput]:
        """Answer one conversation, or each of a list of them.

        Raises:
            InvalidRequest: the model has no chat template, or refuses these messages.
        """
        batch: Sequence[Any] = [messages] if messages and isinstance(messages[0], dict) else messages
        return self._run([None] * len(batch), [self._chat_ids(m) for m in batch], params, "messages")

    def stream(self, prompt: Prompt | Sequence[Message], params: SamplingParams | None = None) -> Iterator[ChoiceDelta]:
        """Continue one prompt, or answer one conversation, delta by delta. Closing the iterator aborts.

        Raises:
            InvalidRequest, RequestFailed: as in `generate`.
        """
        params = params or SamplingParams()
        chat = not isinstance(prompt, str) and bool(prompt) and isinstance(prompt[0], dict)
        ids = self._chat_ids(prompt) if chat else self._prompt_ids(prompt)  # type: ignore[arg-type]
        request = execution_request(ids, params, self.text, prompt_field="messages" if chat else "prompt")
        self.core.add(request)
        running = self._running[request.uid] = _Running(request, params, self.tokenizer)
        try:
            while not running.processor.done:
                for delta in self._step().get(request.uid, ()):
                    if delta.error:
                        raise RequestFailed(delta.error)
                    yield delta
        finally:
            self._abort(request.uid)
            self._settle()

    def _run(
        self,
        texts: list[str | None],
        prompts: list[list[int]],
        params: SamplingParams | Sequence[SamplingParams] | None,
        prompt_field: str,
    ) -> list[RequestOutput]:
        each = _per_prompt(params or SamplingParams(), len(prompts))
        requests = [
            execution_request(i, p, self.text, prompt_field=prompt_field) for i, p in zip(prompts, each, strict=True)
        ]
        outputs = {
            r.uid: RequestOutput(t, r.prompt_token_ids, [ChoiceOutput(c) for c in range(r.n)])
            for r, t in zip(requests, texts, strict=True)
        }
        pending = deque(zip(requests, each, strict=True))
        failure = ""
        try:
            while pending or any(uid in self._running for uid in outputs):
                self._admit(pending)
                for uid, deltas in self._step().items():
                    for delta in deltas if uid in outputs else ():
                        _collect(outputs[uid], delta)
                        failure = failure or delta.error
        finally:
            for uid in outputs:
                self._abort(uid)
            self._settle()
        if failure:
            raise RequestFailed(failure)
        return [outputs[r.uid] for r in requests]

    def _admit(self, pending: deque[tuple[GenerateRequest, SamplingParams]]) -> None:
        """Hand over as many requests as the engine's bounded queue takes now."""
        while pending:
            request, params = pending[0]
            try:
                self.core.add(request)
            except Overloaded:
                if not self.core.has_work:
                    raise
                return
            self._running[request.uid] = _Running(request, params, self.tokenizer)
            pending.popleft()

    def _step(self) -> dict[int, list[ChoiceDelta]]:
        """One turn of the engine; uid -> what it brought."""
        news: dict[int, list[TokenDelta]] = {}
        for delta in self.core.step():
            news.setdefault(delta.uid, []).append(delta)
        out: dict[int, list[ChoiceDelta]] = {}
        for uid, deltas in news.items():
            running = self._running.get(uid)
            if running is None:
                continue
            out[uid], finished = running.processor.push(deltas)
            for finish in finished:
                self.core.finish_at(finish.uid, finish.choice, finish.n_tokens)
            if running.processor.done:
                del self._running[uid]
        return out

    def _abort(self, uid: int) -> None:
        if self._running.pop(uid, None) is not None:
            self.core.abort(uid)

    def _settle(self) -> None:
        """After the last request: take back what outstanding steps still hold."""
        while not self._running and self.core.has_work:
            self.core.step()

    def _prompt_ids(self, prompt: Prompt) -> list[int]:
        return self.tokenizer.encode(prompt, parse_control=True) if isinstance(prompt, str) else list(prompt)

    def _chat_ids(self, messages: Sequence[Message]) -> list[int]:
        if self.text.chat_template is None:
            raise InvalidRequest("this model has no chat template; use generate", param="messages")
        for i, message in enumerate(messages):
            if not isinstance(message.get("role"), str) or not isinstance(message.get("content"), str):
                raise InvalidRequest("a message needs a role and a content, both texts", param=f"messages[{i}]")
        return self.text.chat_template.render(list(messages))


def _is_ids(prompts: Sequence[Any]) -> bool:
    return bool(prompts) and isinstance(prompts[0], int)


def _per_prompt(params: SamplingParams | Sequence[SamplingParams], n: int) -> list[SamplingParams]:
    if isinstance(params, SamplingParams):
        return [params] * n
    if len(params) != n:
        raise InvalidRequest(f"{len(params)} sampling parameters for {n} prompts", param="params")
    return list(params)


def _collect(output: RequestOutput, delta: ChoiceDelta) -> None:
    choice = output.outputs[delta.index]
    choice.text += delta.text
    choice.token_ids += delta.token_ids
    choice.finish_reason = delta.finish_reason or choice.finish_reason
    choice.stop_reason = delta.stop_reason if delta.stop_reason is not None else choice.stop_reason
    if delta.logprobs is not None:
        choice.logprobs = (choice.logprobs or []) + delta.logprobs
    if delta.prompt_logprobs is not None:
        output.prompt_logprobs = delta.prompt_logprobs
    output.cached_tokens = max(output.cached_tokens, delta.n_cached)
