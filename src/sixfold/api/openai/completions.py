"""`POST /v1/completions`: text or token ids in, text out, with OpenAI's legacy log-probabilities and `echo`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import cast

import msgspec

from sixfold.api.answer import AnswerFacts, collect
from sixfold.api.call import Call
from sixfold.api.context import ApiContext
from sixfold.api.fields.params import (
    Limits,
    deadline_s,
    execution_requests,
    sampling_params,
    text_options,
    wants_running_usage,
    wants_usage,
)
from sixfold.api.fields.structured_fields import request_grammar
from sixfold.api.fields.truncation import Truncation
from sixfold.api.generation import Generation, TotalUsage
from sixfold.api.http.decoding import read_request
from sixfold.api.openai.logprobs import CompletionLogprobs, Entry, LegacyLogprobs, PromptLogprobs, ShownEntries
from sixfold.api.openai.schemas import MAX_PROMPTS, CompletionRequest
from sixfold.api.stream import Renderer, stream
from sixfold.api.threads import LONG_TEXT_CHARS, SHORT_TEXT_CHARS
from sixfold.detokenizer import ChoiceDelta
from sixfold.engine.request import check_ids
from sixfold.errors import InvalidRequest
from sixfold.messages import TokenLogprobs
from sixfold.observability.calls import stage
from sixfold.observability.meter import now
from sixfold.observability.sites import API_TOKENIZE
from sixfold.observability.timeline import State
from sixfold.sampling_params import SamplingParams

__all__ = ["create_completion"]

json = msgspec.json.encode


async def create_completion(call: Call) -> None:
    """Handle one call."""
    context = call.context
    with call.admitted():
        request, ignored = await read_request(call, CompletionRequest)
        limits = _limits(request)
        params = sampling_params(request, limits, context.client.sampling_defaults)
        call.label(request.request_id)
        deadline = deadline_s(call, request)
        truncation = Truncation.of(request, max_model_len=context.client.max_model_len, max_tokens=request.max_tokens)
        texts, ids = split_prompts(request.prompt)
        n_choices = max(len(texts), len(ids)) * params.n
        if n_choices > MAX_PROMPTS:
            raise InvalidRequest(f"prompts times n is {n_choices}; at most {MAX_PROMPTS} are allowed", param="prompt")
        context.check_model(request.model)
        call.reserve(n_choices, deadline)
        grammar = await request_grammar(context, request)
        add_bos = request.add_special_tokens is not False
        prompts = ids or await _tokenize(context, texts, add_bos=add_bos, any_length=truncation is not None)
        _check_prompts(context, prompts)
        if truncation is not None:
            whole, prompts = prompts, [truncation.apply(prompt, context.client.tokenizer) for prompt in prompts]
            texts = texts if prompts == whole else []
        requests = execution_requests(context, request, params, limits, prompts, deadline_s=deadline, grammar=grammar)
        generation = Generation(context, requests, text_options(params))
        answer = _answer(context, request, params, texts, prompts)
        await generation.start(call, answer.id)
    headers = call.ignored_header(ignored)
    if request.stream:
        running_usage = generation.usage if wants_running_usage(request) else None
        await stream(call, generation, _Stream(answer, wants_usage(request), running_usage), headers)
    else:
        choices = _Choices(answer)
        await collect(call, generation, choices.add, choices.document, headers)


def split_prompts(
    prompt: str | list[str | int | list[int]], field: str = "prompt"
) -> tuple[list[str], list[list[int]]]:
    """The four forms of `prompt` -> (texts, token ids), one of them empty.

    Args:
        field: what the caller calls it.

    Raises:
        InvalidRequest: the list is empty, or mixes forms.
    """
    if isinstance(prompt, str):
        return [prompt], []
    if not prompt:
        raise InvalidRequest(f"{field} is an empty list", param=field)
    kind = type(prompt[0])
    if any(type(item) is not kind for item in prompt):
        raise InvalidRequest(f"{field} mixes text and token ids", param=field)
    if kind is str:
        return cast(list[str], prompt), []
    if kind is int:
        return [], [cast(list[int], prompt)]
    return [], cast(list[list[int]], prompt)


def _limits(request: CompletionRequest) -> Limits:
    best_of = request.best_of
    if best_of is not None and best_of not in (1, request.n):
        raise InvalidRequest(
            "best_of other than n is not supported by this server", param="best_of", code="unsupported_field"
        )
    request.best_of = None
    echoed = request.logprobs if request.echo else None
    asked = [n for n in (echoed, request.prompt_logprobs) if n is not None]
    return Limits(
        max_tokens=request.max_tokens,
        max_tokens_field="max_tokens",
        prompt_field="prompt",
        logprobs=request.logprobs,
        logprobs_field="logprobs",
        prompt_logprobs=max(asked, default=None),
        prompt_logprobs_field="logprobs" if request.prompt_logprobs is None else "prompt_logprobs",
    )


async def _tokenize(context: ApiContext, texts: list[str], *, add_bos: bool, any_length: bool) -> list[list[int]]:
    """Raises: ContextLengthExceeded: a text is too long, whatever its tokens are, and shall not be."""

    def encode() -> list[list[int]]:
        stage(State.TOKENIZE)
        for text in texts if not any_length else ():
            context.prompt_length.check([text], "prompt")
        started_ns = now()
        ids = context.client.tokenizer.encode_batch(texts, parse_control=True, add_bos=add_bos)
        context.threads.note(API_TOKENIZE, started_ns, now())
        return ids

    is_short = len(texts) == 1 and len(texts[0]) <= SHORT_TEXT_CHARS
    if is_short and (any_length or context.prompt_length.surely_fits(texts[0])):
        return context.threads.at_once(encode)
    if any_length and sum(map(len, texts)) > LONG_TEXT_CHARS:
        return await context.threads.aside(encode)
    return await context.threads.run(encode)


def _check_prompts(context: ApiContext, prompts: list[list[int]]) -> None:
    for prompt in prompts:
        if not prompt:
            raise InvalidRequest("a prompt is empty: it has no tokens", param="prompt")
        check_ids(prompt, context.client.tokenizer, "prompt")


@dataclass(frozen=True, kw_only=True)
class _Answer(AnswerFacts):
    prompts: list[list[int]]
    echo: list[str] | None
    """Per prompt, the text that goes before the answer; None without `echo`."""


def _answer(
    context: ApiContext,
    request: CompletionRequest,
    params: SamplingParams,
    texts: list[str],
    prompts: list[list[int]],
) -> _Answer:
    tokenizer = context.client.tokenizer
    echo = None
    if request.echo:
        echo = texts or [tokenizer.decode(ids, skip_special=params.skip_special_tokens) for ids in prompts]
    return _Answer(**vars(AnswerFacts.of("cmpl-", context, request, params)), prompts=prompts, echo=echo)


class _Logprobs:
    """Log-probabilities of all choices; with `echo` each choice's begin with its prompt's."""

    def __init__(self, answer: _Answer) -> None:
        self._answer = answer
        self._choices: dict[int, tuple[ShownEntries, CompletionLogprobs]] = {}
        self._prompt: dict[int, list[TokenLogprobs]] = {}

    def lacks_prompt(self, delta: ChoiceDelta) -> bool:
        """The prompt's log-probabilities, which come with choice 0, are needed and have not come yet."""
        answer = self._answer
        if answer.shown is None or answer.echo is None or delta.index in self._choices:
            return False
        prompt = delta.index // answer.n
        if delta.prompt_logprobs is not None:
            self._prompt[prompt] = delta.prompt_logprobs
        return prompt not in self._prompt and len(answer.prompts[prompt]) > 1

    def render(self, delta: ChoiceDelta) -> LegacyLogprobs | None:
        answer = self._answer
        shown = answer.shown
        if shown is None:
            return None
        echoed: list[Entry] = []
        if delta.index not in self._choices:
            self._choices[delta.index] = ShownEntries(shown), CompletionLogprobs(shown)
            if answer.echo is not None:
                prompt = delta.index // answer.n
                logprobs = [None, *self._prompt.get(prompt, [])]
                echoed = list(zip(answer.prompts[prompt], logprobs, strict=True))
        entries, choice = self._choices[delta.index]
        return choice.render(echoed + entries.take(delta))


class CompletionChoice(msgspec.Struct, omit_defaults=False):
    """One of `choices`."""

    index: int
    text: str
    logprobs: LegacyLogprobs | None
    finish_reason: str | None
    stop_reason: int | str | None = None
    token_ids: list[int] | msgspec.UnsetType = msgspec.UNSET
    prompt_token_ids: list[int] | msgspec.UnsetType = msgspec.UNSET
    prompt_logprobs: PromptLogprobs | msgspec.UnsetType = msgspec.UNSET


class Completion(msgspec.Struct):
    """The whole answer."""

    id: str
    object: str
    created: int
    model: str
    system_fingerprint: str
    choices: list[CompletionChoice]
    usage: TotalUsage


class _Choices:
    """Gathers the whole answer."""

    def __init__(self, answer: _Answer) -> None:
        self._answer = answer
        n_choices = answer.n * len(answer.prompts)
        self._deltas: list[list[ChoiceDelta]] = [[] for _ in range(n_choices)]

    def add(self, deltas: list[ChoiceDelta]) -> None:
        for delta in deltas:
            self._deltas[delta.index].append(delta)

    def document(self, generation: Generation) -> bytes:
        answer = self._answer
        logprobs = _Logprobs(answer)
        choices = [self._choice(deltas, logprobs) for deltas in self._deltas]
        for choice in choices if answer.scored is not None else ():
            prompt = choice.index // answer.n
            choice.prompt_logprobs = answer.prompt_logprobs(generation, prompt, answer.prompts[prompt])
        return json(
            Completion(
                answer.id,
                "text_completion",
                answer.created,
                answer.model,
                answer.fingerprint,
                choices,
                generation.usage(),
            )
        )

    def _choice(self, deltas: list[ChoiceDelta], logprobs: _Logprobs) -> CompletionChoice:
        answer = self._answer
        last = deltas[-1]
        prompt = last.index // answer.n
        parts = [logprobs.render(delta) for delta in deltas if not logprobs.lacks_prompt(delta)]
        text = "".join([delta.text for delta in deltas])
        choice = CompletionChoice(
            last.index,
            answer.echo[prompt] + text if answer.echo is not None else text,
            _joined([part for part in parts if part is not None]) if answer.shown is not None else None,
            last.finish_reason,
            answer.stop_reason(last),
        )
        if answer.token_ids:
            choice.token_ids = [token_id for delta in deltas for token_id in delta.token_ids]
            choice.prompt_token_ids = answer.prompts[prompt]
        return choice


def _joined(parts: list[LegacyLogprobs]) -> LegacyLogprobs:
    out = LegacyLogprobs([], [], [], [])
    for part in parts:
        out.tokens.extend(part.tokens)
        out.token_logprobs.extend(part.token_logprobs)
        out.top_logprobs.extend(part.top_logprobs)
        out.text_offset.extend(part.text_offset)
    return out


class _Stream(Renderer):
    """Events of a stream. The parts of an ordinary event that never change are made once."""

    def __init__(self, answer: _Answer, usage: bool, running_usage: Callable[[], TotalUsage] | None = None) -> None:
        self._answer = answer
        self._usage = usage
        self._running_usage = running_usage
        self._head = (
            b'data: {"id":"%s","object":"text_completion","created":%d,"model":%s,"system_fingerprint":%s,"choices":['
            % (answer.id.encode(), answer.created, json(answer.model), json(answer.fingerprint))
        )
        self._end = b'],"usage":null}\n\n' if usage else b"]}\n\n"
        self._plain_end = b',"logprobs":null,"finish_reason":null,"stop_reason":null}' + self._end
        self._begun: set[int] = set()
        self._logprobs = _Logprobs(answer)
        self._waiting: list[ChoiceDelta] = []
        self._plain = answer.shown is None and not answer.token_ids and running_usage is None
        self._heads = [self._head + b'{"index":%d,"text":' % index for index in range(answer.n * len(answer.prompts))]

    def frames(self, deltas: list[ChoiceDelta]) -> bytes:
        if self._answer.shown is not None and self._answer.echo is not None:
            deltas = self._with_prompt(deltas)
        return b"".join([self._frame(delta) for delta in deltas])

    def tail(self, generation: Generation) -> bytes:
        if not self._usage:
            return b""
        return self._head + b'],"usage":' + json(generation.usage()) + b"}\n\n"

    def _frame(self, delta: ChoiceDelta) -> bytes:
        index = delta.index
        if self._plain and delta.finish_reason is None and (index in self._begun or self._answer.echo is None):
            return self._heads[index] + json(delta.text) + self._plain_end if delta.text else b""
        return self._full_frame(delta)

    def _full_frame(self, delta: ChoiceDelta) -> bytes:
        answer = self._answer
        choice = CompletionChoice(
            delta.index, delta.text, self._logprobs.render(delta), delta.finish_reason, answer.stop_reason(delta)
        )
        if answer.token_ids:
            choice.token_ids = delta.token_ids
        if delta.index not in self._begun:
            self._begun.add(delta.index)
            prompt = delta.index // answer.n
            if answer.echo is not None:
                choice.text = answer.echo[prompt] + delta.text
            if answer.token_ids:
                choice.prompt_token_ids = answer.prompts[prompt]
        return self._head + json(choice) + self._ending()

    def _ending(self) -> bytes:
        if self._running_usage is None:
            return self._end
        return b'],"usage":' + json(self._running_usage()) + b"}\n\n"

    def _with_prompt(self, deltas: list[ChoiceDelta]) -> list[ChoiceDelta]:
        """Keep back what came before its prompt's log-probabilities."""
        ready: list[ChoiceDelta] = []
        waiting: list[ChoiceDelta] = []
        for delta in sorted([*self._waiting, *deltas], key=lambda delta: delta.prompt_logprobs is None):
            (waiting if self._logprobs.lacks_prompt(delta) else ready).append(delta)
        self._waiting = waiting
        return ready
