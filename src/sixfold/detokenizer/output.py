"""One request's deltas from the engine -> what its caller sees: text, finish reasons, usage.

A choice's tokens are numbered from 0. `first_index` of each delta says where it belongs, so a part already taken
(a replay) is cut off and a gap is an error. A stop string ends the choice here, before the engine knows: the engine is
told with `FinishAt`, and whatever it still sends for that choice is dropped.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import msgspec

from sixfold.detokenizer.detokenizer import Detokenizer, StopMatch
from sixfold.errors import ProtocolError
from sixfold.messages import Finish, FinishAt, FinishReason, TokenDelta, TokenLogprobs

__all__ = ["ChoiceDelta", "OutputProcessor", "Usage"]


class ChoiceDelta(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """News of one choice, fit to be sent to the caller."""

    index: int
    """Of the choice, in [0, n)."""
    text: str = ""
    """Whole characters; joined over the deltas it is the choice's text."""
    token_ids: list[int] = []
    """New tokens. Their text may come with a later delta; a stop token has none."""
    logprobs: list[TokenLogprobs] | None = None
    """[len(token_ids)]"""
    prompt_logprobs: list[TokenLogprobs] | None = None
    n_cached: int = 0
    embedding: bytes = b""
    """Of a request with `pooling`, with its finish: [hidden] float32, little-endian."""
    finish_reason: FinishReason | None = None
    stop_reason: int | str | None = None
    """With `stop`: the stop token's id, or the stop string."""
    error: str = ""
    """With `error`: one sentence for the user."""


class Usage(NamedTuple):
    """Tokens of a request so far, all choices together; a stop token counts, tokens after a stop string do not."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int
    """Of the prompt tokens, those whose KV came from the prefix cache."""


class _Choice:
    """State of one choice. Only `OutputProcessor` writes it."""

    __slots__ = ("detokenizer", "finished", "finished_attempt", "tokens")

    def __init__(self, detokenizer: Detokenizer) -> None:
        self.detokenizer = detokenizer
        self.tokens: list[int] = []
        self.finished: FinishReason | None = None
        self.finished_attempt = 0


class OutputProcessor:
    """Follows one request through its deltas.

    Args:
        uid: the request's.
        n: choices.
        token_bytes, control, skip_special, stop, include_stop: see `Detokenizer`.
        prompt_tokens: for usage.
    """

    def __init__(
        self,
        uid: int,
        n: int,
        token_bytes: Sequence[bytes],
        control: frozenset[int] | Callable[[int], bool] = frozenset(),
        *,
        skip_special: bool = True,
        stop: tuple[str, ...] = (),
        include_stop: bool = False,
        prompt_tokens: int = 0,
    ) -> None:
        self.uid = uid
        self.attempt = 0
        """The attempt whose deltas are taken; older ones come from an engine that died and are dropped."""
        self._prompt_tokens = prompt_tokens
        self._cached_tokens = 0
        self._n_running = n
        self._choices = [
            _Choice(Detokenizer(token_bytes, control, skip_special=skip_special, stop=stop, include_stop=include_stop))
            for _ in range(n)
        ]

    @property
    def done(self) -> bool:
        """Every choice had its terminal event."""
        return self._n_running == 0

    @property
    def usage(self) -> Usage:
        completion = sum(len(choice.tokens) for choice in self._choices)
        return Usage(self._prompt_tokens, completion, self._cached_tokens)

    def delivered(self) -> tuple[tuple[int, ...], ...]:
        """Per choice, the tokens taken so far: what a replay of the request must start from."""
        return tuple(tuple(choice.tokens) for choice in self._choices)

    def finish_reason(self, choice: int) -> FinishReason | None:
        """How the choice ended; None while it runs."""
        return self._choices[choice].finished

    def push(self, deltas: Iterable[TokenDelta]) -> tuple[list[ChoiceDelta], list[FinishAt]]:
        """Take deltas in the order of their arrival.

        Returns:
            What to send to the caller, and what to send to the engine.

        Raises:
            ProtocolError: a delta is not of this request, leaves a gap, is inconsistent in itself, or follows the
                choice's end.
        """
        out: list[ChoiceDelta] = []
        finish_at: list[FinishAt] = []
        for delta in deltas:
            self._take(delta, out, finish_at)
        return out, finish_at

    def fail(self, message: str, reason: FinishReason = "error") -> list[ChoiceDelta]:
        """End every choice that still runs, with the text that was held back; for a dead engine or a deadline."""
        out: list[ChoiceDelta] = []
        for index, choice in enumerate(self._choices):
            if choice.finished is None:
                text = choice.detokenizer.flush()
                self._end(choice, reason, self.attempt)
                out.append(ChoiceDelta(index=index, text=text, finish_reason=reason, error=message))
        return out

    def _take(self, delta: TokenDelta, out: list[ChoiceDelta], finish_at: list[FinishAt]) -> None:
        choice = self._route(delta)
        if choice is None:
            return
        seen = self._overlap(choice, delta)
        token_ids, logprobs, finish = delta.token_ids, delta.logprobs, delta.finish
        if seen:
            token_ids = token_ids[seen:]
            logprobs = logprobs[seen:] if logprobs is not None else None
        if delta.n_cached > self._cached_tokens:
            self._cached_tokens = delta.n_cached

        text, match = self._text(choice, token_ids, finish)
        if match is not None:
            n_kept = match.n_tokens - len(choice.tokens)
            token_ids = token_ids[:n_kept]
            logprobs = logprobs[:n_kept] if logprobs is not None else None
            if finish is None:
                finish_at.append(FinishAt(uid=self.uid, choice=delta.choice, n_tokens=match.n_tokens))
            reason: FinishReason | None = "stop"
            stop_reason: int | str | None = match.text
        else:
            reason = finish.reason if finish is not None else None
            stop_reason = finish.stop_token_id if finish is not None else None
        choice.tokens += token_ids
        if reason is not None:
            self._end(choice, reason, delta.attempt)
        elif not token_ids and not text and delta.prompt_logprobs is None:
            return
        out.append(
            ChoiceDelta(
                index=delta.choice,
                text=text,
                token_ids=token_ids,
                logprobs=logprobs,
                prompt_logprobs=delta.prompt_logprobs,
                n_cached=delta.n_cached,
                embedding=delta.embedding,
                finish_reason=reason,
                stop_reason=stop_reason,
                error=finish.message if finish is not None and match is None else "",
            )
        )

    def _route(self, delta: TokenDelta) -> _Choice | None:
        """The choice that the delta belongs to, or None when the delta is void."""
        if delta.uid != self.uid or not 0 <= delta.choice < len(self._choices):
            raise ProtocolError(f"a delta of request {delta.uid}, choice {delta.choice}, came to request {self.uid}")
        if delta.attempt < self.attempt:
            return None
        choice = self._choices[delta.choice]
        if choice.finished is None:
            return choice
        if choice.detokenizer.stopped or delta.attempt > choice.finished_attempt:
            return None  # the engine did not know yet, or went through the same tokens again
        raise ProtocolError(f"request {self.uid}, choice {delta.choice}: a delta after the end")

    def _overlap(self, choice: _Choice, delta: TokenDelta) -> int:
        """Number of leading tokens of the delta that were taken before."""
        if delta.logprobs is not None and len(delta.logprobs) != len(delta.token_ids):
            raise ProtocolError(f"request {self.uid}: {len(delta.logprobs)} logprobs, {len(delta.token_ids)} tokens")
        if delta.token_ids and min(delta.token_ids) < 0:
            raise ProtocolError(f"request {self.uid}: a negative token id")
        seen = len(choice.tokens) - delta.first_index
        if seen < 0:
            raise ProtocolError(
                f"request {self.uid}, choice {delta.choice}: "
                f"token {delta.first_index} came where {len(choice.tokens)} is next"
            )
        return seen

    def _text(self, choice: _Choice, token_ids: Sequence[int], finish: Finish | None) -> tuple[str, StopMatch | None]:
        detokenizer = choice.detokenizer
        if finish is None:
            return detokenizer.push(token_ids)
        stop_token = finish.stop_token_id
        has_stop_token = stop_token is not None and len(token_ids) > 0 and token_ids[-1] == stop_token
        text, match = detokenizer.push(token_ids[:-1] if has_stop_token else token_ids)
        if match is None:
            detokenizer.skip(int(has_stop_token))
            text += detokenizer.flush()
        return text, match

    def _end(self, choice: _Choice, reason: FinishReason, attempt: int) -> None:
        choice.finished = reason
        choice.finished_attempt = attempt
        self._n_running -= 1
