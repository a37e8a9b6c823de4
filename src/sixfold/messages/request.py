"""API -> engine: what is to be executed. The caller's own words (text, templates, stop strings) end before this line.

Cache identity follows these fields, never the API request: two equal texts may be different token ids.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from sixfold.messages.ids import RequestId

__all__ = ["Abort", "FinishAt", "GenerateRequest", "Pooling", "Sampling"]

Pooling = Literal["", "mean", "last"]
"""How the hidden states of a prompt's tokens, behind the final norm, become one vector: their mean (which turns prefix
reuse off for reading), or the last one."""


class Sampling(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How to pick the tokens of one choice: validated, resolved, no None where a number is meant.

    The order in which these apply is the sampler's (see `sixfold.sampler`).
    """

    seed: int
    """64-bit. A request without a seed got a random one at admission, so that a replay draws the same tokens."""
    temperature: float = 1.0
    """0 is greedy: the highest logit, ties to the lowest id."""
    top_k: int = 0
    """0 is off."""
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: dict[int, float] = {}
    """Token id -> added to its logit; -100 and below forbid, +100 all but forces."""
    allowed_token_ids: tuple[int, ...] = ()
    """Empty means all."""
    bad_words: tuple[tuple[int, ...], ...] = ()
    """Token sequences that the output never completes: the last token cannot be drawn behind the others."""
    logprobs: int | None = None
    """Number of alternatives to report beside the chosen token; None reports nothing."""
    min_tokens: int = 0
    """While fewer tokens than this were generated, the ids in `stop_token_ids` cannot be drawn."""
    stop_token_ids: tuple[int, ...] = ()
    """End-of-turn ids of the model (unless `ignore_eos`) and the caller's own: drawing one ends the choice."""
    grammar: str = ""
    """What the output must follow: a grammar text of `sixfold.structured`. Empty: nothing."""


class GenerateRequest(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag="add"):
    """One execution request. `(uid, attempt)` is its identity."""

    uid: RequestId
    attempt: int = 0
    """Bumped when the request is replayed after a crash."""
    prompt_token_ids: list[int]
    """[n_prompt_original], at least one."""
    delivered: tuple[tuple[int, ...], ...] = ()
    """For a replay: per choice, the tokens that the client already has. Empty on the first attempt."""
    ended: tuple[int, ...] = ()
    """For a replay: the choices that have had their end."""
    suspect: bool = False
    """It was there when an engine or worker crashed: to be tried alone (`engine/quarantine.py`)."""
    n: int = 1
    """Choices. They share the prompt's blocks; choice i draws with (seed, i, position)."""
    max_tokens: int
    """Tokens to generate per choice, at least 0; already cut to the model's context by the API process."""
    sampling: Sampling
    prompt_logprobs: int | None = None
    """Report the prompt's own log-probabilities with this many alternatives (turns prefix reuse off for reading)."""
    pooling: Pooling = ""
    """Not empty: an embedding of the prompt is wanted and no token, so n is 1 and `max_tokens` 0."""
    priority: int = 0
    """Lower runs earlier, where the scheduling policy is `priority`."""
    arrival_s: float = 0.0
    """CLOCK_MONOTONIC, the API process's reading when the request was parsed."""
    deadline_s: float | None = None
    """CLOCK_MONOTONIC; after it the request is refused in the queue or ended while running."""
    cache_salt: str = ""
    """Requests share cached blocks only when their salts are equal."""
    tenant: str = ""
    """Whose request it is, for the policy `fair`."""
    tenant_weight: int = 1
    """The tenant's share of the engine, relative to others'."""
    script: tuple[int, ...] = ()
    """Scripted executor only: the tokens that it shall produce."""


class Abort(msgspec.Struct, frozen=True, tag="abort"):
    """Stop all choices of a request. Idempotent; an unknown uid is remembered for a while and refused later."""

    uid: RequestId


class FinishAt(msgspec.Struct, frozen=True, tag="finish_at"):
    """A stop string was found: the choice ends with `n_tokens` output tokens; later ones are dropped."""

    uid: RequestId
    choice: int
    n_tokens: int
