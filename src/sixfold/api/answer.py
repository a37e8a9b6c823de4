"""What both endpoints' answers have in common; and answers that are not streams: one document at the end."""

from __future__ import annotations

import secrets
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import msgspec

from sixfold.api.call import Call
from sixfold.api.context import ApiContext
from sixfold.api.generation import Generation
from sixfold.api.http.errors import ClientGone
from sixfold.api.openai.logprobs import PromptLogprobs, PromptScores, Shown
from sixfold.api.openai.schemas import GenerationRequest
from sixfold.detokenizer import ChoiceDelta
from sixfold.sampling_params import SamplingParams

__all__ = ["AnswerFacts", "collect"]

INLINE_SCORED = 4096
"""More entries of prompts' log-probabilities are rendered beside the event loop."""


@dataclass(frozen=True, kw_only=True)
class AnswerFacts:
    """What all events of an answer, or its only document, have in common."""

    id: str
    created: int
    model: str
    fingerprint: str
    n: int
    shown: Shown | None
    """None without `logprobs`."""
    end_ids: frozenset[int]
    token_ids: bool
    scored: PromptScores | None
    """None without `prompt_logprobs`."""

    @classmethod
    def of(
        cls,
        prefix: str,
        context: ApiContext,
        request: GenerationRequest,
        params: SamplingParams,
        shown_ids: frozenset[int] = frozenset(),
    ) -> AnswerFacts:
        """Facts of a new answer, whose id begins with `prefix`. `shown_ids`: see `TextOptions`."""
        tokenizer = context.client.tokenizer
        shown = None
        if params.logprobs is not None:
            shown = Shown(
                tokenizer,
                skip_special=params.skip_special_tokens,
                n_top=params.logprobs,
                as_ids=bool(request.return_tokens_as_token_ids),
                shown_ids=shown_ids,
            )
        return AnswerFacts(
            id=prefix + secrets.token_hex(16),
            created=int(time.time()),
            model=context.client.model_name,
            fingerprint=context.fingerprint,
            n=params.n,
            shown=shown,
            end_ids=tokenizer.end_ids,
            token_ids=bool(request.return_token_ids),
            scored=None if request.prompt_logprobs is None else PromptScores(tokenizer, request.prompt_logprobs),
        )

    def prompt_logprobs(
        self, generation: Generation, index: int, prompt: list[int]
    ) -> PromptLogprobs | msgspec.UnsetType:
        """`prompt_logprobs` of the call's prompt `index`, as far as asked for."""
        if self.scored is None:
            return msgspec.UNSET
        return self.scored.render(prompt, generation.prompt_scores[index])

    def stop_reason(self, delta: ChoiceDelta) -> int | str | None:
        """None where the model ended by itself."""
        return None if delta.stop_reason in self.end_ids else delta.stop_reason


async def collect(
    call: Call,
    generation: Generation,
    add: Callable[[list[ChoiceDelta]], None],
    document: Callable[[Generation], bytes],
    headers: list[tuple[bytes, bytes]],
    settle: Callable[[Generation], Awaitable[None]] | None = None,
) -> None:
    """Answer with `document` once every choice has ended; a client that leaves ends it at once.

    Args:
        settle: what there is to do between the last choice's end and `document`.

    Raises:
        SixfoldError: the generation failed; nothing was sent.
    """
    call.counted = generation
    try:
        await generation.run(add)
        if settle is not None:
            await settle(generation)
        if generation.n_scored > INLINE_SCORED:
            body = await call.context.threads.aside(document, generation)
        else:
            body = document(generation)
    except ClientGone:
        call.fault = "client_gone"
        return
    finally:
        generation.close()
    await call.respond(200, body, headers=headers)
