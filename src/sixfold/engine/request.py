"""From what a caller asked for to what the engine executes: lengths checked, numbers resolved, a key minted.

HTTP endpoints and `LLM` go through here, so that both accept and refuse alike.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Collection, Sequence
from typing import Protocol

import msgspec

from sixfold.errors import ContextLengthExceeded, InvalidRequest
from sixfold.messages import GenerateRequest, Sampling
from sixfold.sampling_params import SamplingParams
from sixfold.structured import check_grammar
from sixfold.text import Tokenizer
from sixfold.text.bad_words import bad_word_ids

__all__ = ["ServedModel", "check_ids", "execution_request"]


FORBIDDING_BIAS = -100
"""A `logit_bias` of this is no bias: the token is never drawn."""


class ServedModel(Protocol):
    """What must be known of a model to accept a request for it."""

    @property
    def tokenizer(self) -> Tokenizer: ...

    @property
    def max_model_len(self) -> int:
        """Prompt plus output, in tokens."""
        ...

    @property
    def default_seed(self) -> int | None:
        """For requests without a seed; None draws one for each."""
        ...


def execution_request(
    prompt_token_ids: Sequence[int],
    params: SamplingParams,
    model: ServedModel,
    *,
    prompt_field: str = "prompt",
    max_tokens_field: str = "max_tokens",
    cache_salt: str = "",
    priority: int = 0,
    deadline_s: float | None = None,
    script: tuple[int, ...] = (),
    bad_words: tuple[tuple[int, ...], ...] | None = None,
    grammar: str = "",
) -> GenerateRequest:
    """Build the execution request for one prompt.

    Args:
        prompt_field, max_tokens_field: what the caller calls them, for error messages.
        bad_words: the tokens of `params.bad_words`, for who has them already; None finds them.
        grammar: what the output must follow, checked; "": what `params.structured_outputs` asks for.

    Raises:
        InvalidRequest: an empty prompt, or a token id that the model does not have.
        ContextLengthExceeded: prompt, or prompt plus `max_tokens`, is longer than the model's context.
    """
    tokenizer = model.tokenizer
    if not prompt_token_ids:
        raise InvalidRequest(f"{prompt_field} is empty", param=prompt_field)
    check_ids(prompt_token_ids, tokenizer, prompt_field)
    max_tokens = _room(len(prompt_token_ids), model.max_model_len, params.max_tokens, prompt_field, max_tokens_field)
    for field, ids in (
        ("logit_bias", params.logit_bias),
        ("stop_token_ids", params.stop_token_ids),
        ("allowed_token_ids", params.allowed_token_ids or ()),
    ):
        check_ids(ids, tokenizer, field)
    if bad_words is None:
        bad_words = bad_word_ids(params.bad_words, tokenizer)
    sampling = params.resolve(end_ids=tokenizer.end_ids, bad_words=bad_words, default_seed=model.default_seed)
    if not grammar and params.structured_outputs is not None:
        grammar = params.structured_outputs.grammar_text()
        check_grammar(grammar, param="structured_outputs")
    if grammar:
        sampling = msgspec.structs.replace(sampling, grammar=grammar)
        _check_it_can_end(sampling, params, tokenizer)
    if sampling.min_tokens > max_tokens:
        sampling = msgspec.structs.replace(sampling, min_tokens=max_tokens)
    if max_tokens:
        _check_a_token_is_left(sampling, tokenizer)
    return GenerateRequest(
        uid=secrets.randbits(63),
        prompt_token_ids=list(prompt_token_ids),
        n=params.n,
        max_tokens=max_tokens,
        sampling=sampling,
        prompt_logprobs=params.prompt_logprobs,
        priority=priority,
        arrival_s=time.monotonic(),
        deadline_s=deadline_s,
        cache_salt=cache_salt,
        script=script,
    )


def check_ids(ids: Collection[int], tokenizer: Tokenizer, field: str) -> None:
    """Raises: InvalidRequest: an id is outside the vocabulary, or stands for no token."""
    wrong = tokenizer.first_unknown(ids)
    if wrong is not None:
        reason = "stands for no token" if wrong in tokenizer.absent_ids else f"is not in [0, {tokenizer.n_vocab})"
        raise InvalidRequest(f"{field}: token id {wrong} {reason}", param=field)


def _check_it_can_end(sampling: Sampling, params: SamplingParams, tokenizer: Tokenizer) -> None:
    """An answer that follows a grammar ends with one of the model's end tokens: nothing else may follow it."""
    if params.ignore_eos:
        raise InvalidRequest(
            "ignore_eos and structured output exclude each other: the answer ends where its structure ends",
            param="ignore_eos",
        )
    if not tokenizer.end_ids:
        raise InvalidRequest("this model has no end token, which structured output needs", param="structured_outputs")
    if sampling.allowed_token_ids and not set(sampling.allowed_token_ids) & set(sampling.stop_token_ids):
        raise InvalidRequest(
            "allowed_token_ids holds no end token, which structured output needs", param="allowed_token_ids"
        )
    if all(sampling.logit_bias.get(i, 0) <= FORBIDDING_BIAS for i in sampling.stop_token_ids):
        raise InvalidRequest("logit_bias forbids every end token, and structured output needs one", param="logit_bias")


def _check_a_token_is_left(sampling: Sampling, tokenizer: Tokenizer) -> None:
    """A caller can forbid every token, and the sampler could only fail then. The last token of each bad word counts as
    forbidden: it may be, depending on what was drawn."""
    fields = [name for name in ("allowed_token_ids", "bad_words", "logit_bias") if getattr(sampling, name)]
    if not fields:
        return
    forbidden = {token_id for token_id, bias in sampling.logit_bias.items() if bias <= FORBIDDING_BIAS}
    forbidden.update(word[-1] for word in sampling.bad_words)
    if sampling.min_tokens:
        forbidden.update(sampling.stop_token_ids)
    if sampling.allowed_token_ids:
        n_left = len(set(sampling.allowed_token_ids) - forbidden)
    else:
        n_left = tokenizer.n_vocab - len(tokenizer.absent_ids) - len(forbidden - tokenizer.absent_ids)
    if n_left <= 0:
        raise InvalidRequest(
            f"{', '.join(fields)}, stop ids and min_tokens together forbid all tokens", param=fields[-1]
        )


def _room(n_prompt: int, limit: int, max_tokens: int | None, prompt_field: str, max_tokens_field: str) -> int:
    """Tokens to generate: what was asked for, by default the rest of the context."""
    if n_prompt >= limit:
        raise ContextLengthExceeded(
            f"the prompt has {n_prompt} tokens; the context is {limit} tokens, and the answer needs one",
            param=prompt_field,
            code="context_length_exceeded",
        )
    left = limit - n_prompt
    if max_tokens is None:
        return left
    if max_tokens > left:
        raise ContextLengthExceeded(
            f"{n_prompt} prompt tokens and {max_tokens_field} {max_tokens} are {n_prompt + max_tokens} tokens; "
            f"the model's context is {limit} tokens",
            param=max_tokens_field,
            code="context_length_exceeded",
        )
    return max_tokens
