"""`LLM`: the whole server in the caller's process, without HTTP.

Runs in: the caller's process. Owns: an engine core and everything under it. Start reading at: `LLM.stream`.
"""

from __future__ import annotations

import dataclasses
import operator
import os
import re
import signal
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import FrameType, TracebackType
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from sixfold.config import Config
from sixfold.detokenizer import ChoiceDelta, OutputProcessor
from sixfold.engine.core import EngineCore
from sixfold.engine.embedding import embedding_request, vector_of
from sixfold.engine.launch import in_process
from sixfold.engine.request import execution_request
from sixfold.errors import ConfigError, EngineDead, InvalidRequest, Overloaded, RequestFailed, SixfoldError
from sixfold.messages import FinishReason, GenerateRequest, TokenDelta, TokenLogprobs
from sixfold.sampling_params import SamplingParams
from sixfold.text import ROLES, Tokenizer
from sixfold.text.tool_prompt import messages_and_tools

__all__ = ["LLM", "ChoiceOutput", "RequestOutput"]

Message = dict[str, Any]
Prompt = str | Sequence[int]


@dataclasses.dataclass
class ChoiceOutput:
    """One finished choice."""

    index: int
    text: str = ""
    token_ids: list[int] = dataclasses.field(default_factory=list)
    finish_reason: FinishReason | None = None
    stop_reason: int | str | None = None
    """The stop string or token of the caller's that ended it; None where the model ended by itself."""
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
    """A request on its way, and what has come of it that its reader has not taken yet."""

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
        self.deltas: list[ChoiceDelta] = []


def _config(values: dict[str, Any]) -> Config:
    """Raises: ConfigError: as that of `Config.from_flat`, with keyword arguments' names where it has flags."""

    def keyword(flag: re.Match[str]) -> str:
        return flag[1].replace("-", "_")

    try:
        return Config.from_flat(values)
    except ConfigError as error:
        flag = r"(?<!\S)--([a-z]+(?:-[a-z]+)*)"
        message, param = (re.sub(flag, keyword, text) for text in (error.message, error.param or ""))
        raise ConfigError(message, param=param or None, code=error.code) from None


class LLM:
    """A model, ready to generate.

        llm = LLM("smollm2")
        [answer] = llm.chat([{"role": "user", "content": "Hello"}])

    Several streams may be read in turn, and several threads may call: whoever waits for a token drives the engine for
    all. Ctrl-C is noticed between steps, and the object stays usable.

    Args:
        model: a known name, `org/name` that was pulled, or the path of a .gguf file or of a Hugging Face folder.
        settings: fields of `sixfold.config`, by name (`max_num_seqs=8`).

    Raises:
        ModelNotFound, ModelFileError, ConfigError: the model or a setting cannot be used.
        EngineDead (by every method): after `close`, in a forked child, or when the engine has failed.
    """

    def __init__(self, model: str = "smollm2", **settings: Any) -> None:
        core, self.text, self.config = in_process(_config({"model": model, **settings}))
        self._core: EngineCore | None = core
        self._running: dict[int, _Running] = {}
        self._lock = threading.RLock()
        self._pid = os.getpid()
        self._dead = ""

    @property
    def core(self) -> EngineCore:
        """The engine, for measurements and tests."""
        if os.getpid() != self._pid:
            raise EngineDead("an LLM cannot be used in a forked process; make it there")
        if self._core is None or self._dead:
            raise EngineDead(self._dead or "this LLM is closed")
        return self._core

    @property
    def tokenizer(self) -> Tokenizer:
        return self.text.tokenizer

    @property
    def default_params(self) -> SamplingParams:
        """Of calls that give none: what the model's files recommend (`generation_config="none"`: nothing)."""
        return SamplingParams(**self.text.sampling_defaults)

    def __enter__(self) -> LLM:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Drop every request, free weights, KV memory and threads. Idempotent."""
        with self._lock:
            core, self._core = self._core, None
            self._running.clear()
            if core is not None and os.getpid() == self._pid:
                core.executor.close()

    def generate(
        self,
        prompts: Prompt | Sequence[str] | Sequence[Sequence[int]],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
    ) -> list[RequestOutput]:
        """Continue each prompt (a text, token ids, or a list of either); one output per prompt, in order.

        Args:
            params: for all prompts, or one for each; None: `default_params`.

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
        *,
        tools: Sequence[Mapping[str, Any]] = (),
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        chat_template_kwargs: Mapping[str, Any] | None = None,
    ) -> list[RequestOutput]:
        """Answer one conversation, or each of a list of them. The answers are text as the model writes it: calls of
        tools are not taken out of it.

        Args:
            tools: that the model may call, as OpenAI writes them.
            add_generation_prompt: the prompt ends with the opening of an assistant's turn.
            continue_final_message: the answer goes on with the last message.
            chat_template_kwargs: more variables for the chat template.

        Raises:
            InvalidRequest: the model has no chat template, or refuses these messages.
        """
        batch: list[Any] = [messages] if messages and isinstance(messages[0], dict) else list(messages)
        options: dict[str, Any] = {
            "add_generation_prompt": add_generation_prompt and not continue_final_message,
            "continue_final": continue_final_message,
            "template_variables": chat_template_kwargs,
        }
        return self._run([None] * len(batch), [self._chat_ids(m, tools, **options) for m in batch], params, "messages")

    def embed(
        self,
        texts: Prompt | Sequence[str] | Sequence[Sequence[int]],
        *,
        pooling: Literal["mean", "last"] = "mean",
        normalize: bool = True,
    ) -> npt.NDArray[np.float32]:
        """Vectors [texts, hidden] of a text, of token ids, or of a list of either, in order.

        Args:
            pooling: of the hidden states of a text's tokens, behind the final norm: their mean, or the last one.
            normalize: to length 1.

        Raises:
            InvalidRequest: a text cannot be used; nothing was started.
            RequestFailed: the model produced no usable hidden states for one of them.
        """
        if pooling not in ("mean", "last"):
            raise InvalidRequest("pooling must be mean or last", param="pooling")
        batch: list[Any] = [texts] if isinstance(texts, str) or _is_ids(texts) else list(texts)
        prompts = [self._prompt_ids(text, parse_control=False) for text in batch]
        requests = [embedding_request(ids, self.text, pooling) for ids in prompts]
        place = {request.uid: i for i, request in enumerate(requests)}
        vectors = np.zeros((len(requests), self.core.executor.facts.hidden), np.float32)

        def take(uid: int, delta: ChoiceDelta) -> None:
            if delta.embedding:
                vectors[place[uid]] = vector_of(delta.embedding, normalize=normalize)

        self._drive([(request, SamplingParams()) for request in requests], take)
        return vectors

    def stream(self, prompt: Prompt | Sequence[Message], params: SamplingParams | None = None) -> Iterator[ChoiceDelta]:
        """Continue one prompt, or answer one conversation, delta by delta. Closing the iterator aborts.

        Raises:
            InvalidRequest, RequestFailed: as in `generate`.
        """
        params = params or self.default_params
        chat = not isinstance(prompt, str) and bool(prompt) and isinstance(prompt[0], dict)
        ids = self._chat_ids(prompt) if chat else self._prompt_ids(prompt)
        request = execution_request(ids, params, self.text, prompt_field="messages" if chat else "prompt")
        return self._stream(request, params)

    def _stream(self, request: GenerateRequest, params: SamplingParams) -> Iterator[ChoiceDelta]:
        running = _Running(request, params, self.tokenizer)
        try:
            with self._lock:
                self.core.add(request)
                self._running[request.uid] = running
            has_ended = False
            while not has_ended:
                self._advance(running)
                deltas, has_ended = self._take(running)
                for delta in deltas:
                    if delta.error:
                        raise RequestFailed(delta.error)
                    yield delta
        finally:
            self._leave([request.uid])

    def _run(
        self,
        texts: list[str | None],
        prompts: list[list[int]],
        params: SamplingParams | Sequence[SamplingParams] | None,
        prompt_field: str,
    ) -> list[RequestOutput]:
        each = _per_prompt(params or self.default_params, len(prompts))
        requests = [
            execution_request(i, p, self.text, prompt_field=prompt_field) for i, p in zip(prompts, each, strict=True)
        ]
        outputs = {
            r.uid: RequestOutput(t, r.prompt_token_ids, [ChoiceOutput(c) for c in range(r.n)])
            for r, t in zip(requests, texts, strict=True)
        }

        def take(uid: int, delta: ChoiceDelta) -> None:
            _collect(outputs[uid], delta, self.tokenizer.end_ids)

        self._drive(list(zip(requests, each, strict=True)), take)
        return [outputs[r.uid] for r in requests]

    def _drive(
        self, requests: list[tuple[GenerateRequest, SamplingParams]], take: Callable[[int, ChoiceDelta], None]
    ) -> None:
        """Run requests to their ends; `take` gets what comes of each, by uid.

        Raises:
            RequestFailed: one of them failed; the others have ended.
        """
        pending = deque(requests)
        open_: dict[int, _Running] = {}
        failure = ""
        try:
            while pending or open_:
                self._admit(pending, open_)
                self._advance(next(iter(open_.values()), None))
                for uid, running in list(open_.items()):
                    deltas, has_ended = self._take(running)
                    for delta in deltas:
                        take(uid, delta)
                        failure = failure or delta.error
                    if has_ended:
                        del open_[uid]
        finally:
            self._leave(list(open_))
        if failure:
            raise RequestFailed(failure)

    def _admit(self, pending: deque[tuple[GenerateRequest, SamplingParams]], open_: dict[int, _Running]) -> None:
        """Hand over as many requests as the engine's bounded queue takes now."""
        with self._lock:
            while pending:
                request, params = pending[0]
                try:
                    self.core.add(request)
                except Overloaded:
                    if not self.core.has_work:
                        raise
                    return
                running = _Running(request, params, self.tokenizer)
                self._running[request.uid] = open_[request.uid] = running
                pending.popleft()

    def _take(self, running: _Running) -> tuple[list[ChoiceDelta], bool]:
        """What has come of a request, and whether that was the last of it."""
        with self._lock:
            deltas, running.deltas = running.deltas, []
            return deltas, running.processor.done

    def _advance(self, running: _Running | None) -> None:
        """Turn the engine once, unless somebody else's turn has brought `running` something meanwhile."""
        with self._lock:
            if running is None or not (running.deltas or running.processor.done):
                self._step()

    def _step(self) -> None:
        """One turn of the engine; everything that it brings is put down for whoever reads it."""
        core = self.core
        try:
            with _uninterrupted():
                news = core.step()
        except SixfoldError as e:
            self._dead = f"the engine has failed: {e.message}"
            raise
        except Exception:
            self._dead = "the engine has failed"
            raise
        deltas_of: dict[int, list[TokenDelta]] = {}
        for delta in news:
            deltas_of.setdefault(delta.uid, []).append(delta)
        for uid, deltas in deltas_of.items():
            running = self._running.get(uid)
            if running is None:
                continue
            out, finished = running.processor.push(deltas)
            running.deltas += out
            for finish in finished:
                core.finish_at(finish.uid, finish.choice, finish.n_tokens)
            if running.processor.done:
                del self._running[uid]

    def _leave(self, uids: list[int]) -> None:
        """Abort what is still open; after the last request, take back what outstanding steps hold."""
        with self._lock:
            if self._core is None or self._dead or os.getpid() != self._pid:
                return
            for uid in uids:
                if self._running.pop(uid, None) is not None:
                    self.core.abort(uid)
            while not self._running and self.core.has_work:
                self._step()

    def _prompt_ids(self, prompt: Any, *, parse_control: bool = True) -> list[int]:
        if isinstance(prompt, str):
            return self.tokenizer.encode(prompt, parse_control=parse_control)
        try:
            if any(isinstance(i, bool) for i in prompt):
                raise TypeError
            return [operator.index(i) for i in prompt]
        except TypeError:
            raise InvalidRequest("a prompt is a text or a list of token ids", param="prompt") from None

    def _chat_ids(self, messages: Any, tools: Sequence[Mapping[str, Any]] = (), **options: Any) -> list[int]:
        template = self.text.chat_template
        if template is None:
            raise InvalidRequest("this model has no chat template; use generate", param="messages")
        if isinstance(messages, str) or not isinstance(messages, Sequence) or not messages:
            raise InvalidRequest("a conversation is a list of messages", param="messages")
        for i, message in enumerate(messages):
            is_text = isinstance(message, dict) and all(isinstance(message.get(k), str) for k in ("role", "content"))
            if not is_text:
                raise InvalidRequest("a message needs a role and a content, both texts", param=f"messages[{i}]")
            if message["role"] not in ROLES:
                raise InvalidRequest(f"a role is one of {', '.join(sorted(ROLES))}", param=f"messages[{i}].role")
        for i, tool in enumerate(tools):
            function = tool.get("function") if isinstance(tool, Mapping) else None
            if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
                raise InvalidRequest('a tool is {"type": "function", "function": {"name": ...}}', param=f"tools[{i}]")
        shown, tools = messages_and_tools(template.traits, list(messages), tools)
        [ids] = self.tokenizer.encode_parts([template.render_parts(shown, tools=tools or None, **options)])
        self.tokenizer.lead_with_bos(ids)
        return ids


@contextmanager
def _uninterrupted() -> Iterator[None]:
    """Hold Ctrl-C back until the end: an exception amid a step would leave the engine half done.

    Only the main thread is interrupted by it, and only that thread may change what it does.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came: list[tuple[int, FrameType | None]] = []
    before = signal.signal(signal.SIGINT, lambda number, frame: came.append((number, frame)))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
    if came and callable(before):
        before(*came[0])


def _is_ids(prompts: Sequence[Any]) -> bool:
    return bool(len(prompts)) and hasattr(prompts[0], "__index__")


def _per_prompt(params: SamplingParams | Sequence[SamplingParams], n: int) -> list[SamplingParams]:
    if isinstance(params, SamplingParams):
        return [params] * n
    if len(params) != n:
        raise InvalidRequest(f"{len(params)} sampling parameters for {n} prompts", param="params")
    if not all(isinstance(p, SamplingParams) for p in params):
        raise InvalidRequest("params must be SamplingParams, one for all prompts or one for each", param="params")
    return list(params)


def _collect(output: RequestOutput, delta: ChoiceDelta, end_ids: frozenset[int]) -> None:
    choice = output.outputs[delta.index]
    choice.text += delta.text
    choice.token_ids += delta.token_ids
    choice.finish_reason = delta.finish_reason or choice.finish_reason
    if delta.stop_reason is not None and delta.stop_reason not in end_ids:
        choice.stop_reason = delta.stop_reason
    if delta.logprobs is not None:
        choice.logprobs = (choice.logprobs or []) + delta.logprobs
    if delta.prompt_logprobs is not None:
        output.prompt_logprobs = delta.prompt_logprobs
    output.cached_tokens = max(output.cached_tokens, delta.n_cached)
