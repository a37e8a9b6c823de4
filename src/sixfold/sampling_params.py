"""`SamplingParams`: what a caller may ask of the sampler and of the stop rules, with every range checked in one place.

Runs in: API process, or the caller's own for `LLM`. Both HTTP endpoints and the Python API build this object, so
that a value is accepted or refused alike everywhere.
"""

from __future__ import annotations

import secrets
import sys
from typing import Any

import msgspec

from sixfold.errors import InvalidRequest
from sixfold.messages.request import Sampling
from sixfold.structured.outputs import StructuredOutputs

__all__ = [
    "MAX_ALLOWED_TOKEN_IDS",
    "MAX_BAD_WORDS",
    "MAX_BAD_WORD_CHARS",
    "MAX_LOGIT_BIAS",
    "MAX_LOGPROBS",
    "MAX_N",
    "MAX_STOP",
    "MAX_STOP_CHARS",
    "MAX_TOKENS",
    "SamplingParams",
]

MAX_N = 64
MAX_LOGPROBS = 20
MAX_STOP = 16
MAX_STOP_CHARS = 256
MAX_LOGIT_BIAS = 1024
MAX_STOP_TOKEN_IDS = 128
MAX_ALLOWED_TOKEN_IDS = 16384
MAX_BAD_WORDS = 128
MAX_BAD_WORD_CHARS = 64
MAX_TOKENS = 2**31 - 1
MIN_REPETITION_PENALTY = 0.01
"""Logits are divided by it: the quotient must stay a float32."""
_LARGEST = sys.float_info.max
"""Not a number, infinity and integers beyond every float are outside."""


class SamplingParams(msgspec.Struct, frozen=True, kw_only=True):
    """What one request asks for.

    Raises (at construction):
        InvalidRequest: a value is out of its range; `param` is the field's name.
    """

    n: int = 1
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int | None = None
    max_tokens: int | None = None
    min_tokens: int = 0
    stop: tuple[str, ...] = ()
    include_stop_str_in_output: bool = False
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: dict[int, float] = {}
    allowed_token_ids: tuple[int, ...] | None = None
    """Nothing else is drawn; None allows all."""
    bad_words: tuple[str, ...] = ()
    """Their tokens are never completed, with or without a blank in front (see `sixfold.text.bad_words`)."""
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    skip_special_tokens: bool = True
    structured_outputs: StructuredOutputs | None = None
    """What the output must follow (`StructuredOutputs(json=schema)`, `regex`, `choice`, `grammar`); compiled when a
    request is made of it."""

    def __post_init__(self) -> None:
        _whole("n", self.n, 1, MAX_N)
        _real("temperature", self.temperature, 0.0, 2.0)
        _real("top_p", self.top_p, 0.0, 1.0, open_low=True)
        _whole("top_k", self.top_k, -1, 2**31 - 1)
        _real("min_p", self.min_p, 0.0, 1.0)
        if self.seed is not None:
            _whole("seed", self.seed, -(2**63), 2**63 - 1)
        if self.max_tokens is not None:
            _whole("max_tokens", self.max_tokens, 0, MAX_TOKENS)
        _whole("min_tokens", self.min_tokens, 0, MAX_TOKENS)
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise InvalidRequest("min_tokens is larger than max_tokens", param="min_tokens")
        _texts("stop", self.stop, MAX_STOP, MAX_STOP_CHARS)
        _ids("stop_token_ids", self.stop_token_ids, MAX_STOP_TOKEN_IDS)
        _real("repetition_penalty", self.repetition_penalty, MIN_REPETITION_PENALTY, 2.0)
        _real("presence_penalty", self.presence_penalty, -2.0, 2.0)
        _real("frequency_penalty", self.frequency_penalty, -2.0, 2.0)
        if len(self.logit_bias) > MAX_LOGIT_BIAS:
            raise InvalidRequest(f"logit_bias has more than {MAX_LOGIT_BIAS} entries", param="logit_bias")
        for value in self.logit_bias.values():
            _real("logit_bias", value, -100.0, 100.0)
        _ids("logit_bias", tuple(self.logit_bias), MAX_LOGIT_BIAS)
        if self.allowed_token_ids is not None:
            if not self.allowed_token_ids:
                raise InvalidRequest("allowed_token_ids is empty: no token could be drawn", param="allowed_token_ids")
            _ids("allowed_token_ids", self.allowed_token_ids, MAX_ALLOWED_TOKEN_IDS)
        _texts("bad_words", self.bad_words, MAX_BAD_WORDS, MAX_BAD_WORD_CHARS)
        if self.logprobs is not None:
            _whole("logprobs", self.logprobs, 0, MAX_LOGPROBS)
        if self.prompt_logprobs is not None:
            _whole("prompt_logprobs", self.prompt_logprobs, 0, MAX_LOGPROBS)

    def resolve(
        self,
        *,
        end_ids: frozenset[int],
        bad_words: tuple[tuple[int, ...], ...] = (),
        default_seed: int | None = None,
    ) -> Sampling:
        """Turn into what the engine executes. Whether the ids are the model's is not known here.

        Args:
            end_ids: every end-of-turn id that the model declares.
            bad_words: the tokens of `self.bad_words`.
            default_seed: for a request without `seed`; None draws a random one.
        """
        seed = self.seed if self.seed is not None else default_seed
        stops = set(self.stop_token_ids) | (set() if self.ignore_eos else end_ids)
        return Sampling(
            seed=(secrets.randbits(63) if seed is None else seed) & (2**64 - 1),
            temperature=float(self.temperature),
            top_k=max(0, self.top_k),
            top_p=float(self.top_p),
            min_p=float(self.min_p),
            repetition_penalty=float(self.repetition_penalty),
            presence_penalty=float(self.presence_penalty),
            frequency_penalty=float(self.frequency_penalty),
            logit_bias=dict(self.logit_bias),
            allowed_token_ids=tuple(sorted(set(self.allowed_token_ids or ()))),
            bad_words=bad_words,
            logprobs=self.logprobs,
            min_tokens=self.min_tokens,
            stop_token_ids=tuple(sorted(stops)),
        )


def _whole(name: str, value: Any, low: int, high: int) -> None:
    if type(value) is not int:
        raise InvalidRequest(f"{name} must be an integer", param=name)
    if not low <= value <= high:
        raise InvalidRequest(f"{name} must be between {low} and {high}, not {value}", param=name)


def _real(name: str, value: Any, low: float, high: float, *, open_low: bool = False) -> None:
    if type(value) not in (int, float) or not -_LARGEST <= value <= _LARGEST:
        raise InvalidRequest(f"{name} must be a finite number", param=name)
    if not low <= value <= high or (open_low and value == low):
        raise InvalidRequest(
            f"{name} must be {'above' if open_low else 'at least'} {low:g} and at most {high:g}, not {value:g}",
            param=name,
        )


def _texts(name: str, texts: Any, limit: int, max_chars: int) -> None:
    if len(texts) > limit:
        raise InvalidRequest(f"{name} has more than {limit} strings", param=name)
    for text in texts:
        if type(text) is not str or not text:
            raise InvalidRequest(f"{name} must hold non-empty strings", param=name)
        if len(text) > max_chars:
            raise InvalidRequest(f"{name}: a string is longer than {max_chars} characters", param=name)


def _ids(name: str, ids: tuple[Any, ...], limit: int) -> None:
    if len(ids) > limit:
        raise InvalidRequest(f"{name} has more than {limit} entries", param=name)
    for token_id in ids:
        if type(token_id) is not int or token_id < 0:
            raise InvalidRequest(f"{name} must hold token ids, integers from 0", param=name)
