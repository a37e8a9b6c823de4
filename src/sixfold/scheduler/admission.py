"""What is refused before it costs anything: requests that can never fit, and requests beyond the bounded queue."""

from __future__ import annotations

from sixfold.config import SchedulerConfig
from sixfold.errors import ContextLengthExceeded, InvalidRequest, Overloaded
from sixfold.messages import GenerateRequest

__all__ = ["AdmissionLimits", "FinishPace"]

QUEUED_REQUESTS_PER_RUNNING = 4
QUEUED_CONTEXTS = 64
TOKEN_ID_MAX = 2**31 - 1
RETRY_AFTER_S_MIN, RETRY_AFTER_S_MAX = 1.0, 30.0


class FinishPace:
    """Seconds between two finishing choices while others wait: how fast places in the queue become free."""

    _WEIGHT = 0.1
    """Of the newest interval: about the last ten count."""
    _MEASURED_MIN = 20
    """Intervals until the value before the first one has faded."""

    def __init__(self) -> None:
        self._interval_s = 1.0
        self._n_measured = 0
        self._last_s: float | None = None

    def record(self, now_s: float, n_finished: int, *, is_busy: bool) -> None:
        """`n_finished` choices finished at `now_s`; `is_busy`: others wait for their places."""
        if n_finished and self._last_s is not None:
            interval_s = max(now_s - self._last_s, 0.0) / n_finished
            self._interval_s += self._WEIGHT * (interval_s - self._interval_s)
            self._n_measured += 1
        if n_finished or not is_busy:
            self._last_s = now_s if is_busy else None

    def place_s(self) -> float:
        """Between two places that become free; 0 until enough was measured."""
        return self._interval_s if self._n_measured >= self._MEASURED_MIN else 0.0

    def retry_after_s(self, n_places: int) -> float:
        """Until `n_places` more choices will have finished, within what clients honour."""
        return min(max(n_places * self._interval_s, RETRY_AFTER_S_MIN), RETRY_AFTER_S_MAX)


class AdmissionLimits:
    """The limits of one engine.

    Args:
        max_running: choices that can run at the same time.
        max_model_len: longest prompt plus output, in tokens.
        capacity_tokens: what the whole block pool can hold.
        block_size: tokens per block, for messages.
    """

    def __init__(
        self, config: SchedulerConfig, *, max_running: int, max_model_len: int, capacity_tokens: int, block_size: int
    ) -> None:
        self.max_model_len = max_model_len
        self.capacity_tokens = capacity_tokens
        self.block_size = block_size
        self.max_open = max_running + (config.max_queued_requests or QUEUED_REQUESTS_PER_RUNNING * config.max_num_seqs)
        """Choices that run or wait: a burst on an idle server fills places and queue alike."""
        self.max_queued_tokens = config.max_queued_tokens or QUEUED_CONTEXTS * max_model_len

    def output_limit(self, message: GenerateRequest) -> int:
        """Tokens after which each choice ends with `length`: `max_tokens`, or fewer where the pool will be full.

        Raises:
            InvalidRequest: the prompt is empty or holds an impossible id, or there are more choices than places.
            ContextLengthExceeded: the request can never fit.
        """
        prompt = message.prompt_token_ids
        n_prompt = len(prompt)
        if not prompt:
            raise InvalidRequest("the prompt is empty", param="prompt")
        if min(prompt) < 0 or max(prompt) > TOKEN_ID_MAX:
            raise InvalidRequest("the prompt holds a number that is no token id", param="prompt")
        if not 1 <= message.n <= self.max_open:
            raise InvalidRequest(f"n must be between 1 and {self.max_open}, not {message.n}", param="n")
        if message.max_tokens < 0:
            raise InvalidRequest(f"max_tokens must be at least 0, not {message.max_tokens}", param="max_tokens")
        if message.pooling and (message.n != 1 or message.max_tokens):
            raise InvalidRequest("an embedding has no choices and generates nothing", param="n")
        if len(message.delivered) not in (0, message.n):
            raise InvalidRequest("delivered tokens must be given for every choice or for none", param="delivered")
        if not set(message.ended) < set(range(message.n)):
            raise InvalidRequest("a replay has a choice that has not ended, and no other than its own", param="ended")
        if n_prompt + message.max_tokens > self.max_model_len:
            raise ContextLengthExceeded(
                f"the prompt has {n_prompt} tokens and max_tokens is {message.max_tokens}; "
                f"together they exceed the context of {self.max_model_len} tokens",
                code="context_length_exceeded",
            )
        if n_prompt > self.capacity_tokens:
            raise ContextLengthExceeded(
                f"the prompt has {n_prompt} tokens; the server's KV cache holds {self.capacity_tokens} "
                f"({self.capacity_tokens // self.block_size} blocks of {self.block_size})",
                code="context_length_exceeded",
            )
        # The last output token needs no room: it is drawn, but nothing is computed from it.
        return min(message.max_tokens, self.capacity_tokens - n_prompt + 1)

    def check_room(self, message: GenerateRequest, *, n_open: int, n_queued_tokens: int, pace: FinishPace) -> None:
        """Refuse what the bounded queue cannot take. A replay was admitted before and is not refused again.

        Args:
            n_open: choices that have not ended.
            n_queued_tokens: prompt tokens of the requests of which no choice has started.

        Raises:
            Overloaded: carries `retry_after_s`.
        """
        if message.attempt:
            return
        n_excess = n_open + message.n - self.max_open
        if n_excess > 0:
            raise Overloaded(
                f"the queue is full: at most {self.max_open} choices run or wait",
                code="queue_full",
                retry_after_s=pace.retry_after_s(n_excess),
            )
        # One prompt alone is always taken, however small the limit.
        if n_queued_tokens and n_queued_tokens + len(message.prompt_token_ids) > self.max_queued_tokens:
            raise Overloaded(
                f"the queue is full: at most {self.max_queued_tokens} prompt tokens wait",
                code="queue_full",
                retry_after_s=pace.retry_after_s(1),
            )
