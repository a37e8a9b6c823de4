"""What the API process is told of a choice: its tokens, and its end."""

from __future__ import annotations

from sixfold.messages import NO_TIME, Finish, RowStatus, TokenDelta, TokenLogprobs
from sixfold.scheduler.sequence import Sequence

__all__ = ["end_after", "fault", "last_delta", "token_delta"]

FAULTS = {
    RowStatus.NAN_LOGITS: "the model produced no usable logits for this request",
    RowStatus.SCRIPT_FAULT: "the script asked for a failure here",
    RowStatus.GRAMMAR_FAULT: "the structured output reached a limit of its grammar: the grammar is too complex",
    RowStatus.NOTHING_ALLOWED: "no token is left to draw: structured output, logit_bias, stop_token_ids and min_tokens "
    "together forbid all of them",
    RowStatus.NAN_HIDDEN: "the model produced no usable hidden states for this request",
}


_NOTHING = (None, 0, NO_TIME)


def fault(status: int) -> Finish:
    """The end of a choice whose row failed."""
    return Finish("error", message=FAULTS.get(status, "the worker reported an unknown fault"))


def end_after(sequence: Sequence, token_id: int) -> Finish | None:
    """Whether the choice ends with its newest token. A stop id wins over the length."""
    n_output = len(sequence.token_ids) - sequence.n_prompt
    if token_id in sequence.stop_ids and n_output > sequence.request.message.sampling.min_tokens:
        return Finish("stop", stop_token_id=token_id)
    if n_output >= sequence.limit:
        return Finish("length")
    return None


def token_delta(sequence: Sequence, token_id: int, logprobs: TokenLogprobs | None, finish: Finish | None) -> TokenDelta:
    """The newest token, already appended to the sequence."""
    request = sequence.request
    first_index = len(sequence.token_ids) - sequence.n_prompt - 1
    prompt_logprobs, n_cached, started_s = _NOTHING if sequence.has_spoken else _first_words(sequence)
    return TokenDelta(
        uid=request.uid,
        choice=sequence.choice,
        attempt=request.attempt,
        first_index=first_index,
        token_ids=[token_id],
        logprobs=None if logprobs is None else [logprobs],
        prompt_logprobs=prompt_logprobs,
        n_cached=n_cached,
        started_s=started_s,
        finish=finish,
    )


def last_delta(sequence: Sequence, finish: Finish, embedding: bytes = b"") -> TokenDelta:
    """The end without a new token. Of the prompt's log-probabilities it carries all or none."""
    is_whole = finish.reason == "length" and sequence.n_computed >= sequence.n_prompt
    prompt_logprobs, n_cached, started_s = _NOTHING if sequence.has_spoken else _first_words(sequence)
    return TokenDelta(
        uid=sequence.request.uid,
        choice=sequence.choice,
        attempt=sequence.request.attempt,
        first_index=sequence.n_output,
        prompt_logprobs=prompt_logprobs if is_whole else None,
        n_cached=n_cached,
        started_s=started_s,
        embedding=embedding,
        finish=finish,
    )


def _first_words(sequence: Sequence) -> tuple[list[TokenLogprobs] | None, int, float]:
    """What only the first delta of a choice carries."""
    sequence.has_spoken = True
    prompt_logprobs, sequence.prompt_logprobs = sequence.prompt_logprobs, None
    return prompt_logprobs, sequence.n_cached, sequence.request.started_s
