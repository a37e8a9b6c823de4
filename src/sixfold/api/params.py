"""A validated wire request -> sampling parameters and execution requests. Both endpoints go through here.

The order of checks: ranges, model, (the endpoint tokenizes), token ids and lengths.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sixfold.api.context import ApiContext
from sixfold.api.generation import TextOptions
from sixfold.api.schemas import MAX_CACHE_SALT_CHARS, GenerationRequest, refuse_unsupported
from sixfold.engine.request import execution_request
from sixfold.errors import InvalidRequest
from sixfold.messages import GenerateRequest
from sixfold.sampling_params import SamplingParams
from sixfold.text.script import script_ids

__all__ = ["Limits", "execution_requests", "sampling_params", "text_options", "wants_usage"]

PRIORITY_LIMIT = 2**31
MAX_SCRIPT = 65536
FORBIDDING_BIAS = -100
"""A `logit_bias` of this is no bias: the token is never drawn."""

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


def sampling_params(request: GenerationRequest, limits: Limits, defaults: Mapping[str, Any]) -> SamplingParams:
    """Check everything that needs neither the model nor the prompt.

    Args:
        defaults: fields of `SamplingParams` for what the request leaves out.

    Raises:
        InvalidRequest: `param` is the field as the caller wrote it.
    """
    refuse_unsupported(request)
    if request.stream_options is not None and not request.stream:
        raise InvalidRequest("stream_options needs stream: true", param="stream_options")
    if request.priority is not None and not -PRIORITY_LIMIT <= request.priority < PRIORITY_LIMIT:
        raise InvalidRequest("priority must fit into 32 bits", param="priority")
    if request.cache_salt is not None and len(request.cache_salt) > MAX_CACHE_SALT_CHARS:
        raise InvalidRequest(f"cache_salt is longer than {MAX_CACHE_SALT_CHARS} characters", param="cache_salt")
    given = {name: value for name in _SAME_NAME if (value := getattr(request, name)) is not None}
    if request.stop is not None:
        given["stop"] = (request.stop,) if isinstance(request.stop, str) else tuple(request.stop)
    if request.stop_token_ids is not None:
        given["stop_token_ids"] = tuple(request.stop_token_ids)
    try:
        return SamplingParams(
            max_tokens=limits.max_tokens,
            logprobs=limits.logprobs,
            prompt_logprobs=limits.prompt_logprobs,
            **{**defaults, **given},
        )
    except InvalidRequest as error:
        raise _renamed(error, {"max_tokens": limits.max_tokens_field, "logprobs": limits.logprobs_field}) from None


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


def execution_requests(
    context: ApiContext, request: GenerationRequest, params: SamplingParams, limits: Limits, prompts: list[list[int]]
) -> list[GenerateRequest]:
    """One execution request per prompt.

    Raises:
        InvalidRequest: a token id does not exist, or no token may be drawn.
        ContextLengthExceeded: a prompt, or a prompt with its `max_tokens`, does not fit.
    """
    script = _script(context, request)
    requests = [
        execution_request(
            prompt,
            params,
            context.client,
            prompt_field=limits.prompt_field,
            max_tokens_field=limits.max_tokens_field,
            cache_salt=request.cache_salt or "",
            priority=request.priority or 0,
            script=script,
        )
        for prompt in prompts
    ]
    tokenizer = context.client.tokenizer
    _check_choice_is_left(requests[0], tokenizer.n_vocab - len(tokenizer.absent_ids))
    return requests


def _check_choice_is_left(request: GenerateRequest, n_tokens: int) -> None:
    """With a small vocabulary a caller can forbid every token. The sampler could only fail then."""
    sampling = request.sampling
    forbidden = {token_id for token_id, bias in sampling.logit_bias.items() if bias <= FORBIDDING_BIAS}
    if sampling.min_tokens:
        forbidden.update(sampling.stop_token_ids)
    if len(forbidden) >= n_tokens and request.max_tokens:
        raise InvalidRequest(
            f"logit_bias, stop ids and min_tokens together forbid all {n_tokens} tokens", param="logit_bias"
        )


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
