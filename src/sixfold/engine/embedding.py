"""Embeddings at both ends of the engine: the request for one, and the vector that comes of what was pooled.

HTTP and `LLM` go through here, so that both accept alike and give equal numbers.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Sequence

from sixfold.engine.request import ServedModel, check_ids
from sixfold.errors import ContextLengthExceeded, InvalidRequest
from sixfold.lazy_numpy import np, npt
from sixfold.messages import GenerateRequest, Pooling, Sampling

__all__ = ["embedding_request", "vector_of"]


def embedding_request(
    prompt_token_ids: Sequence[int],
    model: ServedModel,
    pooling: Pooling,
    *,
    input_field: str = "input",
    cache_salt: str = "",
    priority: int = 0,
    deadline_s: float | None = None,
) -> GenerateRequest:
    """Build the request for the embedding of one text: its prompt is read, and nothing is generated.

    Args:
        input_field: what the caller calls the text, for error messages.

    Raises:
        InvalidRequest: no token, or one that the model does not have.
        ContextLengthExceeded: more tokens than the model's context.
    """
    n = len(prompt_token_ids)
    if not n:
        raise InvalidRequest(f"{input_field} is empty: it has no tokens", param=input_field)
    check_ids(prompt_token_ids, model.tokenizer, input_field)
    if n > model.max_model_len:
        raise ContextLengthExceeded(
            f"{input_field} has {n} tokens; this model's maximum context length is {model.max_model_len} tokens",
            param=input_field,
            code="context_length_exceeded",
        )
    return GenerateRequest(
        uid=secrets.randbits(63),
        prompt_token_ids=list(prompt_token_ids),
        max_tokens=0,
        sampling=Sampling(seed=0),
        pooling=pooling,
        priority=priority,
        arrival_s=time.monotonic(),
        deadline_s=deadline_s,
        cache_salt=cache_salt,
    )


def vector_of(pooled: bytes, *, normalize: bool) -> npt.NDArray[np.float32]:
    """The vector of what the engine pooled ([hidden] float32, little-endian); to length 1 with `normalize`, except
    zeros."""
    vector = np.frombuffer(pooled, "<f4")
    if not normalize:
        return vector
    wide = vector.astype(np.float64)
    length = float(np.sqrt(np.add.reduce(wide * wide)))
    return (wide / length).astype("<f4") if length else vector
