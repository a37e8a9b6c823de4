"""`POST /v1/embeddings`: texts or token ids in, one vector for each out.

A vector is made of the model's hidden states behind its final norm: their mean over the text's tokens, or the last
token's alone. A text is read as it stands, with the model's BOS in front where it has one; literals of control tokens
in it are ordinary text, as in messages.

A call may have more texts than the engine takes at a time. They are handed over in waves, so that a large call leaves
room for others, and what is known of it here stays small.
"""

from __future__ import annotations

from base64 import b64encode
from typing import Literal, cast

import msgspec

from sixfold.api.call import Call
from sixfold.api.context import ApiContext
from sixfold.api.fields.params import check_service, deadline_s
from sixfold.api.fields.truncation import Truncation
from sixfold.api.generation import Generation, PromptDetails, TextOptions, TotalUsage
from sixfold.api.http.decoding import read_request
from sixfold.api.http.errors import ClientGone
from sixfold.api.openai.completions import split_prompts
from sixfold.api.openai.schemas import MAX_INPUTS, EmbeddingRequest
from sixfold.detokenizer import ChoiceDelta
from sixfold.engine.embedding import embedding_request, vector_of
from sixfold.errors import InvalidRequest
from sixfold.messages import GenerateRequest, Pooling
from sixfold.observability.calls import stage
from sixfold.observability.timeline import State

__all__ = ["MAX_INPUT_TOKENS", "MAX_NUMBERS", "WAVE", "create_embedding"]

MAX_INPUT_TOKENS = 300_000
"""Of all texts of a call together."""
MAX_NUMBERS = 1 << 21
"""In one answer: texts times the numbers of a vector."""
WAVE = 64
"""Texts of one call that are in the engine at the same time."""


async def create_embedding(call: Call) -> None:
    """Handle one call."""
    context = call.context
    with call.admitted():
        request, ignored = await read_request(call, EmbeddingRequest)
        check_service(request.priority, request.cache_salt)
        deadline = deadline_s(call, request)
        encoding = _one_of("encoding_format", request.encoding_format, "float", "base64")
        pooling = cast(Pooling, _one_of("pooling", request.pooling, "mean", "last"))
        truncation = Truncation.of(
            request, max_model_len=context.client.max_model_len, max_tokens=None, is_answered=False
        )
        texts, ids = split_prompts(request.input, "input")
        context.check_model(request.model)
        size = context.client.embedding_size
        _check_size(max(len(texts), len(ids)), request.dimensions, size)
        call.reserve(1, deadline)
        prompts = ids or await _tokenize(context, texts, any_length=truncation is not None)
        if truncation is not None:
            prompts = [truncation.apply(prompt, context.client.tokenizer) for prompt in prompts]
        requests = _requests(context, request, pooling, prompts, deadline)
        waves = _Waves(call, requests, base64=encoding == "base64", normalize=request.normalize is not False)
        await waves.start()
    await _answer(call, waves, call.ignored_header(ignored))


def _one_of(field: str, value: str | None, default: str, other: str) -> str:
    if value in (None, default, other):
        return value or default
    raise InvalidRequest(f"{field} must be {default} or {other}", param=field)


def _check_size(n_inputs: int, dimensions: int | None, size: int) -> None:
    """Raises: InvalidRequest: too many texts, or vectors of another size than the model's."""
    most = min(MAX_INPUTS, MAX_NUMBERS // size)
    if n_inputs > most:
        raise InvalidRequest(f"input has {n_inputs} entries; at most {most} are allowed", param="input")
    if dimensions is not None and dimensions != size:
        raise InvalidRequest(
            f"dimensions can only be {size}: this model's vectors mean nothing when they are cut",
            param="dimensions",
            code="unsupported_field",
        )


async def _tokenize(context: ApiContext, texts: list[str], *, any_length: bool) -> list[list[int]]:
    """Raises: ContextLengthExceeded: a text is too long, whatever its tokens are, and shall not be."""

    def encode() -> list[list[int]]:
        stage(State.TOKENIZE)
        for i, text in enumerate(texts if not any_length else ()):
            context.prompt_length.check([text], _field(i, len(texts)), is_answered=False)
        return context.client.tokenizer.encode_batch(texts, parse_control=False)

    return await context.threads.aside(encode)


def _requests(
    context: ApiContext,
    request: EmbeddingRequest,
    pooling: Pooling,
    prompts: list[list[int]],
    deadline: float | None,
) -> list[GenerateRequest]:
    n_tokens = sum(map(len, prompts))
    if n_tokens > MAX_INPUT_TOKENS:
        raise InvalidRequest(
            f"input has {n_tokens} tokens; at most {MAX_INPUT_TOKENS} are allowed in one call", param="input"
        )
    return [
        embedding_request(
            prompt,
            context.client,
            pooling,
            input_field=_field(i, len(prompts)),
            cache_salt=request.cache_salt or "",
            priority=request.priority or 0,
            deadline_s=deadline,
        )
        for i, prompt in enumerate(prompts)
    ]


def _field(index: int, n_inputs: int) -> str:
    """The name of one of the texts, for errors."""
    return "input" if n_inputs == 1 else f"input[{index}]"


class EmbeddingUsage(msgspec.Struct, frozen=True):
    """As OpenAI's."""

    prompt_tokens: int
    total_tokens: int


class EmbeddingObject(msgspec.Struct):
    """One of `data`."""

    index: int
    embedding: list[float] | str
    object: Literal["embedding"] = "embedding"


class _Waves:
    """The call's requests, so many at a time, and the entries of its answer, rendered."""

    def __init__(self, call: Call, requests: list[GenerateRequest], *, base64: bool, normalize: bool) -> None:
        self._call = call
        self.asked = requests[0]
        self._waiting = requests
        self._base64 = base64
        self._normalize = normalize
        self._n_tokens = sum(len(request.prompt_token_ids) for request in requests)
        self._n_cached = 0
        self._pooled: list[bytes] = []
        """Of the wave that runs."""
        self._generation: Generation | None = None
        self._closed = False

    async def start(self) -> None:
        """Hand the next wave over.

        Raises:
            Overloaded, NotReady, EngineDead: nothing of it remains.
            ClientGone: nobody waits any more.
        """
        if self._closed:
            raise ClientGone
        context = self._call.context
        n = max(1, min(WAVE, context.admission.n_free))
        wave, self._waiting = self._waiting[:n], self._waiting[n:]
        self._pooled = [b""] * len(wave)
        self._generation = Generation(context, wave, TextOptions())
        await self._generation.start(self._call)

    async def run(self) -> bytes:
        """The entries of `data`, joined by commas.

        Raises:
            RequestFailed, DeadlineExceeded, EngineDead, RequestAborted, ClientGone: as `Generation.run`; and what
                `start` raises.
        """
        entries: list[bytes] = []
        while self._generation is not None:
            try:
                await self._generation.run(self._keep)
            finally:
                self._generation.close()
            self._n_cached += self._generation.usage().prompt_tokens_details.cached_tokens
            self._generation = None
            entries += await self._call.context.threads.aside(self._render, self._pooled, len(entries))
            if self._waiting:
                await self.start()
        return b",".join(entries)

    def close(self) -> None:
        """Take back what is in flight. Idempotent."""
        self._closed = True
        if self._generation is not None:
            self._generation.close()

    first_token_s = 0.0

    def reasons(self) -> list[str]:
        return []

    def usage(self) -> TotalUsage:
        return TotalUsage(self._n_tokens, 0, self._n_tokens, PromptDetails(self._n_cached))

    def _keep(self, deltas: list[ChoiceDelta]) -> None:
        for delta in deltas:
            self._pooled[delta.index] = delta.embedding

    def _render(self, pooled: list[bytes], first: int) -> list[bytes]:
        return [msgspec.json.encode(self._entry(first + i, vector)) for i, vector in enumerate(pooled)]

    def _entry(self, index: int, pooled: bytes) -> EmbeddingObject:
        vector = vector_of(pooled, normalize=self._normalize)
        return EmbeddingObject(index, b64encode(vector.tobytes()).decode() if self._base64 else vector.tolist())


async def _answer(call: Call, waves: _Waves, headers: list[tuple[bytes, bytes]]) -> None:
    call.counted = waves
    try:
        data = await waves.run()
    except ClientGone:
        call.fault = "client_gone"
        return
    finally:
        waves.close()
    usage = waves.usage()
    body = b'{"object":"list","data":[%s],"model":%s,"usage":%s}' % (
        data,
        msgspec.json.encode(call.context.client.model_name),
        msgspec.json.encode(EmbeddingUsage(usage.prompt_tokens, usage.total_tokens)),
    )
    await call.respond(200, body, headers=headers)
