"""A validated wire request -> sampling parameters and execution requests. Both endpoints go through here.

The order of checks: ranges, model, (the endpoint tokenizes), token ids and lengths.
"""

from __future__ import annotations

import secrets
import time
from dataclasses import dataclass

import msgspec

from sixfold.api.context import ApiContext
from sixfold.api.generation import TextOptions
from sixfold.api.schemas import MAX_CACHE_SALT_CHARS, GenerationRequest, refuse_unsupported
from sixfold.errors import ContextLengthExceeded, InvalidRequest
from sixfold.messages import GenerateRequest, Sampling
from sixfold.sampling_params import SamplingParams
from sixfold.text.tokenizer import Tokenizer

__all__ = ["Limits", "check_ids", "execution_requests", "sampling_params", "text_options", "wants_usage"]

PRIORITY_LIMIT = 2**31
MAX_SCRIPT = 65536

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


def sampling_params(request: GenerationRequest, limits: Limits) -> SamplingParams:
    """Check everything that needs neither the model nor the prompt.

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
            **given,
        )
    except InvalidRequest as error:
        raise _renamed(error, {"max_tokens": limits.max_tokens_field, "logprobs": limits.logprobs_field}) from None


def text_options(params: SamplingParams) -> TextOptions:
    return TextOptions(
        stop=params.stop,
        include_stop=params.include_stop_str_in_output,
        skip_special=params.skip_special_tokens,
    )


def wants_usage(request: GenerationRequest) -> bool:
    """Whether a stream gets the extra event with `usage`."""
    return request.stream_options is not None and bool(request.stream_options.include_usage)


def check_ids(ids: list[int], tokenizer: Tokenizer, field: str) -> None:
    """Raises: InvalidRequest: an id is outside the vocabulary."""
    if ids and not (min(ids) >= 0 and max(ids) < tokenizer.n_vocab):
        wrong = next(i for i in ids if not 0 <= i < tokenizer.n_vocab)
        raise InvalidRequest(f"{field}: token id {wrong} is not in [0, {tokenizer.n_vocab})", param=field)


def execution_requests(
    context: ApiContext, request: GenerationRequest, params: SamplingParams, limits: Limits, prompts: list[list[int]]
) -> list[GenerateRequest]:
    """One execution request per prompt.

    Raises:
        InvalidRequest: a token id does not exist.
        ContextLengthExceeded: a prompt, or a prompt with its `max_tokens`, does not fit.
    """
    client = context.client
    sampling = params.resolve(
        vocab_size=client.tokenizer.n_vocab, end_ids=client.tokenizer.end_ids, default_seed=client.default_seed
    )
    script = _script(context, request)
    room = [_room(len(prompt), client.max_model_len, limits) for prompt in prompts]
    return [
        GenerateRequest(
            uid=secrets.randbits(63),
            prompt_token_ids=prompt,
            n=params.n,
            max_tokens=max_tokens,
            sampling=sampling if max_tokens >= sampling.min_tokens else _at_most(sampling, max_tokens),
            prompt_logprobs=params.prompt_logprobs,
            priority=request.priority or 0,
            arrival_s=time.monotonic(),
            cache_salt=request.cache_salt or "",
            script=script,
        )
        for prompt, max_tokens in zip(prompts, room, strict=True)
    ]


def _at_most(sampling: Sampling, max_tokens: int) -> Sampling:
    return msgspec.structs.replace(sampling, min_tokens=max_tokens)


def _room(n_prompt: int, max_model_len: int, limits: Limits) -> int:
    """Tokens to generate."""
    if n_prompt >= max_model_len:
        raise ContextLengthExceeded(
            f"the prompt has {n_prompt} tokens; the model's context is {max_model_len} tokens, and the answer needs at "
            "least one of them",
            param=limits.prompt_field,
        )
    left = max_model_len - n_prompt
    if limits.max_tokens is None:
        return left
    if limits.max_tokens > left:
        raise ContextLengthExceeded(
            f"{n_prompt} prompt tokens and {limits.max_tokens_field} {limits.max_tokens} are "
            f"{n_prompt + limits.max_tokens} tokens; the model's context is {max_model_len} tokens",
            param=limits.max_tokens_field,
        )
    return limits.max_tokens


def _script(context: ApiContext, request: GenerationRequest) -> tuple[int, ...]:
    """The scripted executor's tokens; -1 makes it fail there."""
    if request.script is None:
        return ()
    if not context.client.scripted:
        raise InvalidRequest("script needs a server with --executor scripted", param="script", code="unknown_field")
    if len(request.script) > MAX_SCRIPT:
        raise InvalidRequest(f"script has more than {MAX_SCRIPT} entries", param="script")
    tokenizer = context.client.tokenizer
    ids: list[int] = []
    for entry in request.script:
        if isinstance(entry, int):
            ids.append(entry)
        else:
            ids += tokenizer.encode(entry, parse_control=True, add_bos=False)
    check_ids([i for i in ids if i != -1], tokenizer, "script")
    return tuple(ids)


def _renamed(error: InvalidRequest, names: dict[str, str]) -> InvalidRequest:
    """The same error in terms of the caller's fields."""
    name = names.get(error.param or "", error.param)
    if name == error.param or name is None or error.param is None:
        return error
    return InvalidRequest(error.message.replace(error.param, name, 1), param=name, code=error.code)
