"""A validated wire request -> sampling parameters and execution requests. Both endpoints go through here.

The order of checks: ranges, model, (the endpoint tokenizes), token ids and lengths.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sixfold.api.admission.admission import MAX_SCORED
from sixfold.api.call import Call
from sixfold.api.context import ApiContext
from sixfold.api.generation import TextOptions
from sixfold.api.http.refusals import refuse_unsupported
from sixfold.api.openai.schemas import MAX_CACHE_SALT_CHARS, UNSUPPORTED, EmbeddingRequest, GenerationRequest
from sixfold.engine.request import execution_request
from sixfold.errors import InvalidRequest
from sixfold.messages import GenerateRequest
from sixfold.sampling_params import MAX_LOGPROBS, MAX_TOKENS, SamplingParams
from sixfold.text.bad_words import bad_word_ids
from sixfold.text.script import script_ids

__all__ = [
    "Limits",
    "check_max_tokens",
    "check_service",
    "check_top_logprobs",
    "deadline_s",
    "execution_requests",
    "sampling_params",
    "text_options",
    "wants_running_usage",
    "wants_usage",
]

PRIORITY_LIMIT = 2**31
MAX_SCRIPT = 65536
MAX_TIMEOUT_S = 86400
TIMEOUT_HEADER = "X-Request-Timeout-Ms"

_SAME_NAME = (
    "n",
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "seed",
    "min_tokens",
    "include_stop_str_in_output",
    "ignore_eos",
    "repetition_penalty",
    "presence_penalty",
    "frequency_penalty",
    "logit_bias",
    "skip_special_tokens",
)
_TUPLES = ("stop_token_ids", "allowed_token_ids", "bad_words")


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What the endpoint makes of its own fields."""

    max_tokens: int | None
    max_tokens_field: str
    """The name under which the caller gave it."""
    prompt_field: str
    logprobs: int | None
    logprobs_field: str
    prompt_logprobs: int | None = None
    """Alternatives per prompt token that the worker has to find, for whichever field."""
    prompt_logprobs_field: str = "prompt_logprobs"


def sampling_params(request: GenerationRequest, limits: Limits, defaults: Mapping[str, Any]) -> SamplingParams:
    """Check everything that needs neither the model nor the prompt.

    Args:
        defaults: fields of `SamplingParams` for what the request leaves out.

    Raises:
        InvalidRequest: `param` is the field as the caller wrote it.
    """
    refuse_unsupported(request, UNSUPPORTED)
    _check_stream(request)
    check_service(request.priority, request.cache_salt)
    given = {name: value for name in _SAME_NAME if (value := getattr(request, name)) is not None}
    if request.stop is not None:
        given["stop"] = (request.stop,) if isinstance(request.stop, str) else tuple(request.stop)
    given |= {name: tuple(value) for name in _TUPLES if (value := getattr(request, name)) is not None}
    try:
        return SamplingParams(
            max_tokens=limits.max_tokens,
            logprobs=limits.logprobs,
            prompt_logprobs=limits.prompt_logprobs,
            **{**defaults, **given},
        )
    except InvalidRequest as error:
        raise _renamed(error, {"max_tokens": limits.max_tokens_field, "logprobs": limits.logprobs_field}) from None


def check_max_tokens(max_tokens: int | None, field: str, *, least: int = 1) -> None:
    """Raises: InvalidRequest: no such length of an answer; `field` is what the caller calls it."""
    if max_tokens is not None and not least <= max_tokens <= MAX_TOKENS:
        raise InvalidRequest(f"{field} must be between {least} and {MAX_TOKENS}, not {max_tokens}", param=field)


def check_top_logprobs(top: int | None) -> None:
    """Raises: InvalidRequest: no such number of alternatives."""
    if top is not None and not 0 <= top <= MAX_LOGPROBS:
        raise InvalidRequest(f"top_logprobs must be between 0 and {MAX_LOGPROBS}", param="top_logprobs")


def check_service(priority: int | None, cache_salt: str | None) -> None:
    """Raises: InvalidRequest: what says how a request is served, whatever it is, is out of range."""
    if priority is not None and not -PRIORITY_LIMIT <= priority < PRIORITY_LIMIT:
        raise InvalidRequest("priority must fit into 32 bits", param="priority")
    if cache_salt is not None and len(cache_salt) > MAX_CACHE_SALT_CHARS:
        raise InvalidRequest(f"cache_salt is longer than {MAX_CACHE_SALT_CHARS} characters", param="cache_salt")


def text_options(params: SamplingParams, shown_ids: frozenset[int] = frozenset()) -> TextOptions:
    """
    Args:
        shown_ids: control tokens that have their text, whatever `skip_special_tokens` says.
    """
    return TextOptions(
        stop=params.stop,
        include_stop=params.include_stop_str_in_output,
        skip_special=params.skip_special_tokens,
        shown_ids=shown_ids,
    )


def wants_usage(request: GenerationRequest) -> bool:
    """Whether a stream gets the extra event with `usage`."""
    return request.stream_options is not None and bool(request.stream_options.include_usage)


def wants_running_usage(request: GenerationRequest) -> bool:
    """Whether its other events have `usage` so far."""
    return wants_usage(request) and bool(request.stream_options and request.stream_options.continuous_usage_stats)


def deadline_s(call: Call, request: GenerationRequest | EmbeddingRequest) -> float | None:
    """When the call's time is over (CLOCK_MONOTONIC): `timeout` in seconds, or the header's milliseconds; of both, what
    comes first. Counted from the call's arrival.

    Raises:
        InvalidRequest: not such a time.
    """
    times = []
    if request.timeout is not None:
        if not 0 < request.timeout <= MAX_TIMEOUT_S:  # also not a number
            raise InvalidRequest(
                f"timeout must be above 0 and at most {MAX_TIMEOUT_S} seconds, not {request.timeout:g}", param="timeout"
            )
        times.append(request.timeout)
    header = call.header(TIMEOUT_HEADER.lower().encode())
    if header is not None:
        text = header.decode("latin-1").strip()
        if not (text.isascii() and text.isdigit() and len(text) <= 12 and 0 < int(text) <= MAX_TIMEOUT_S * 1000):
            raise InvalidRequest(
                f"{TIMEOUT_HEADER} must be whole milliseconds, from 1 to {MAX_TIMEOUT_S * 1000}", param=TIMEOUT_HEADER
            )
        times.append(int(text) / 1000)
    return call.arrival_s + min(times) if times else None


def execution_requests(
    context: ApiContext,
    request: GenerationRequest,
    params: SamplingParams,
    limits: Limits,
    prompts: list[list[int]],
    *,
    deadline_s: float | None = None,
    grammar: str = "",
) -> list[GenerateRequest]:
    """One execution request per prompt.

    Args:
        grammar: what the answers must follow, checked.

    Raises:
        InvalidRequest: a token id does not exist, or no token may be drawn.
        ContextLengthExceeded: a prompt, or a prompt with its `max_tokens`, does not fit.
    """
    _check_scored(params, limits, prompts)
    script = _script(context, request)
    bad_words = bad_word_ids(params.bad_words, context.client.tokenizer)
    return [
        execution_request(
            prompt,
            params,
            context.client,
            prompt_field=limits.prompt_field,
            max_tokens_field=limits.max_tokens_field,
            cache_salt=request.cache_salt or "",
            priority=request.priority or 0,
            deadline_s=deadline_s,
            script=script,
            bad_words=bad_words,
            grammar=grammar,
        )
        for prompt in prompts
    ]


def _check_scored(params: SamplingParams, limits: Limits, prompts: list[list[int]]) -> None:
    """A long prompt's log-probabilities are large: they are gathered before anything is sent, and once per choice."""
    if params.prompt_logprobs is None:
        return
    n_entries = sum(map(len, prompts)) * (params.prompt_logprobs + 1) * params.n
    if n_entries > MAX_SCORED:
        field = limits.prompt_logprobs_field
        raise InvalidRequest(
            f"{field}: prompt tokens x ({field} + 1) x n are {n_entries}; at most {MAX_SCORED} are given out",
            param=field,
        )


def _check_stream(request: GenerationRequest) -> None:
    """What only a stream has, and what a stream has not."""
    options = request.stream_options
    if options is not None and not request.stream:
        raise InvalidRequest("stream_options needs stream: true", param="stream_options")
    if options is not None and options.continuous_usage_stats and not options.include_usage:
        raise InvalidRequest(
            "continuous_usage_stats needs include_usage: true", param="stream_options.continuous_usage_stats"
        )
    if request.stream and request.prompt_logprobs is not None:
        raise InvalidRequest("prompt_logprobs is not available in a stream", param="prompt_logprobs")


def _script(context: ApiContext, request: GenerationRequest) -> tuple[int, ...]:
    """The scripted executor's tokens; -1 makes it fail there."""
    if request.script is None:
        return ()
    if not context.client.scripted:
        raise InvalidRequest("script needs a server with --executor scripted", param="script", code="unknown_field")
    if len(request.script) > MAX_SCRIPT:
        raise InvalidRequest(f"script has more than {MAX_SCRIPT} entries", param="script")
    ids = script_ids(request.script, context.client.tokenizer)
    if len(ids) > MAX_SCRIPT:
        raise InvalidRequest(f"script has more than {MAX_SCRIPT} tokens", param="script")
    return ids


def _renamed(error: InvalidRequest, names: dict[str, str]) -> InvalidRequest:
    """The same error in terms of the caller's fields."""
    name = names.get(error.param or "", error.param)
    if name == error.param or name is None or error.param is None:
        return error
    return InvalidRequest(error.message.replace(error.param, name, 1), param=name, code=error.code)
