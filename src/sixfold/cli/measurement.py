"""What `sixfold bench` measures, on the same scheduler, KV cache, worker and sampler that serve requests.

    prefill_N   one prompt of N tokens that nothing has cached: N / (time from submission to its first token)
    decode_B    B sequences that decode together and nothing else: tokens / time, in the window that opens when the
                last of them has its first token and closes when the first of them ends

          seq 0  |pp|t t t t t t t t t t t t t t|            pp: what is left of the prompt, t: a token
          seq 1     |pp|t t t t t t t t t t t t t t|
          seq 2        |pp|t t t t t t t t t t t t t t|
                        [---- window ------------)

The prompts are run once before, so that their KV blocks are in the prefix cache and the window opens after a few
steps; sequences then have contexts of prompt + (0 .. output) tokens, which is what other batched benchmarks do.
"""

from __future__ import annotations

import hashlib
import random
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

from sixfold.errors import ConfigError, RequestFailed
from sixfold.executor.in_process import InProcessExecutor
from sixfold.messages import GenerateRequest, Sampling

if TYPE_CHECKING:
    from sixfold.engine.core import EngineCore

__all__ = ["DecodeRun", "Prompts", "measure_decode", "measure_prefill", "tokens_sha256"]


@dataclass(frozen=True)
class Prompts:
    """Random prompts without control tokens; prompt i is the same on every machine and in every run."""

    ordinary: Sequence[int]
    """Token ids to draw from."""

    def make(self, name: str, index: int, n_tokens: int) -> list[int]:
        """Prompt `index` of the family `name`, [n_tokens]. A shorter one is the beginning of a longer one."""
        return random.Random(f"{name} {index}").choices(self.ordinary, k=n_tokens)


@dataclass(frozen=True)
class DecodeRun:
    """One measurement of decoding together."""

    tokens_per_s: float
    outputs: list[list[int]]
    """[batch][output tokens]"""


def measure_prefill(core: EngineCore, prompts: Prompts, n_tokens: int, repeat: int) -> float:
    """Tokens per second of the median of `repeat` prompts, each different so that none is in the prefix cache."""
    times = []
    _prepare(core)
    for index in range(repeat):
        request = _request(prompts.make(f"prefill {n_tokens}", index, n_tokens), max_tokens=1)
        started = time.perf_counter()
        _run(core, [request])
        times.append(time.perf_counter() - started)
    return n_tokens / statistics.median(times)


def measure_decode(
    core: EngineCore, prompts: Prompts, batch: int, *, prompt_tokens: int, output_tokens: int
) -> DecodeRun:
    """Decode `batch` sequences together.

    Raises:
        ConfigError: the pool or the slots cannot hold so many at once.
    """
    _prepare(core)
    texts = [prompts.make("decode", index, prompt_tokens) for index in range(batch)]
    _run(core, [_request(text, max_tokens=1) for text in texts])
    run = _run(core, [_request(text, max_tokens=output_tokens) for text in texts])
    if run.window_s <= 0 or not run.window_tokens:
        raise ConfigError(
            f"{batch} sequences of {prompt_tokens} + {output_tokens} tokens never ran all at once: "
            "raise --max-num-seqs or --kv-cache-memory, or ask for more --output-tokens",
            param="--decode",
        )
    return DecodeRun(run.window_tokens / run.window_s, run.outputs)


def tokens_sha256(token_ids: Sequence[int]) -> str:
    """SHA-256 of the ids as JSON without spaces (`[1,2,3]`)."""
    return hashlib.sha256(msgspec.json.encode(list(token_ids))).hexdigest()


def _prepare(core: EngineCore) -> None:
    """What a server's worker does when it has nothing else to do. The core is one in this process."""
    executor = core.executor
    assert isinstance(executor, InProcessExecutor)
    while executor.prepare():
        pass


@dataclass(frozen=True)
class _Run:
    outputs: list[list[int]]
    window_s: float
    """From the last first token to the first end; 0 when some sequence ended before another began."""
    window_tokens: int


_next_uid = 1


def _request(prompt: list[int], max_tokens: int) -> GenerateRequest:
    """Greedy, and no token ends it."""
    global _next_uid
    _next_uid += 1
    return GenerateRequest(
        uid=_next_uid, prompt_token_ids=prompt, max_tokens=max_tokens, sampling=Sampling(seed=0, temperature=0.0)
    )


def _run(core: EngineCore, requests: list[GenerateRequest]) -> _Run:
    outputs: dict[int, list[int]] = {request.uid: [] for request in requests}
    for request in requests:
        core.add(request)
    n_begun = n_ended = window_tokens = 0
    opened = closed = 0.0
    while n_ended < len(requests):
        deltas = core.step()
        now = time.perf_counter()
        is_open = n_begun == len(requests) and n_ended == 0
        for delta in deltas:
            tokens = outputs[delta.uid]
            n_begun += bool(delta.token_ids) and not tokens
            tokens.extend(delta.token_ids)
            if is_open:
                window_tokens += len(delta.token_ids)
            if delta.finish is not None:
                n_ended += 1
                if delta.finish.reason != "length":
                    raise RequestFailed(delta.finish.message or f"a sequence ended with {delta.finish.reason!r}")
        if is_open:
            closed = now
        elif n_begun == len(requests) and not opened:
            opened = now
    return _Run(list(outputs.values()), max(0.0, closed - opened) if opened else 0.0, window_tokens)
