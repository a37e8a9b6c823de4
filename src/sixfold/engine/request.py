"""From what a caller asked for to what the engine executes: lengths checked, numbers resolved, a key minted.

HTTP endpoints and `LLM` go through here, so that both accept and refuse alike.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Sequence

from sixfold.engine.launch import ModelText
from sixfold.errors import ContextLengthExceeded, InvalidRequest
from sixfold.messages import GenerateRequest
from sixfold.sampling_params import SamplingParams

__all__ = ["execution_request"]


def execution_request(
    prompt_token_ids: Sequence[int],
    params: SamplingParams,
    text: ModelText,
    *,
    prompt_param: str = "prompt",
    cache_salt: str = "",
    priority: int = 0,
    deadline_s: float | None = None,
    tenant: str = "",
    script: tuple[int, ...] = (),
) -> GenerateRequest:
    """Build the execution request for one prompt.

    Args:
        prompt_param: what the caller calls the prompt, for error messages: `prompt`, `messages`.

    Raises:
        InvalidRequest: an empty prompt, or a token id outside the vocabulary.
        ContextLengthExceeded: prompt, or prompt plus `max_tokens`, is longer than the model's context.
    """
    n_prompt, limit = len(prompt_token_ids), text.max_model_len
    if not n_prompt:
        raise InvalidRequest(f"{prompt_param} is empty", param=prompt_param)
    n_vocab = text.tokenizer.n_vocab
    if min(prompt_token_ids) < 0 or max(prompt_token_ids) >= n_vocab:
        raise InvalidRequest(f"{prompt_param} has a token id outside [0, {n_vocab})", param=prompt_param)
    wanted = params.max_tokens
    if n_prompt + (1 if wanted is None else wanted) > limit:
        asked = "" if wanted is None else f" and max_tokens is {wanted}"
        raise ContextLengthExceeded(
            f"the prompt has {n_prompt} tokens{asked}; the model's context is {limit} tokens",
            param=prompt_param if n_prompt >= limit else "max_tokens",
            code="context_length_exceeded",
        )
    return GenerateRequest(
        uid=secrets.randbits(63),
        prompt_token_ids=list(prompt_token_ids),
        n=params.n,
        max_tokens=limit - n_prompt if wanted is None else wanted,
        sampling=params.resolve(vocab_size=n_vocab, end_ids=text.tokenizer.end_ids, default_seed=text.default_seed),
        prompt_logprobs=params.prompt_logprobs,
        priority=priority,
        arrival_s=time.monotonic(),
        deadline_s=deadline_s,
        cache_salt=cache_salt,
        tenant=tenant,
        script=script,
    )
