"""Grammars of slots: when they are built, and that building one again leads to the same end."""

from __future__ import annotations

import random
from collections.abc import Iterator

import numpy as np
import pytest
from llguidance import LLParserLimits

from sixfold.messages import Sampling
from sixfold.sampler.grammar_slots import GrammarSlots
from sixfold.structured import MatcherFactory, Vocabulary, matcher, regex_grammar

END = 256


class Factory(MatcherFactory):
    """Of single bytes; counts what it makes."""

    def __init__(self) -> None:
        super().__init__(lambda: Vocabulary([*(bytes([i]) for i in range(256)), b"<end>"], {END}, [END]))
        self.n_made = 0

    def __call__(self, grammar: str) -> matcher.Matcher:
        self.n_made += 1
        return super().__call__(grammar)


@pytest.fixture
def factory() -> Factory:
    return Factory()


@pytest.fixture
def slots(factory: Factory) -> Iterator[GrammarSlots]:
    slots = GrammarSlots(4, 257, factory)
    yield slots
    slots.close()


def following(pattern: str) -> Sampling:
    return Sampling(seed=0, grammar=regex_grammar(pattern, param="x"), stop_token_ids=[END])


def allowed(slots: GrammarSlots, slot: int) -> list[int]:
    slots.begin([slot])
    words, row_of = slots.masks([slot])
    bits = np.unpackbits(words[row_of[slot]].view(np.uint8), bitorder="little")
    return [int(i) for i in np.flatnonzero(bits)]


def test_a_grammar_is_built_in_the_step_that_admits_it(slots: GrammarSlots, factory: Factory) -> None:
    """Not in the step that draws the first token: many prompts may end in one step."""
    slots.admit(0, following("ab"), [])
    slots.admit(1, following("cd"), [])
    slots.begin([])
    slots.finish()
    assert factory.n_made == 2
    assert allowed(slots, 0) == [ord("a")] and allowed(slots, 1) == [ord("c")]
    assert factory.n_made == 2


def test_a_slot_freed_before_its_grammar_is_built_costs_nothing(slots: GrammarSlots, factory: Factory) -> None:
    slots.admit(0, following("ab"), [])
    slots.free(0)
    slots.admit(1, following("cd"), [])
    slots.free(1)
    slots.admit(1, following("ef"), [])
    assert allowed(slots, 1) == [ord("e")]
    assert factory.n_made == 1


def test_the_tables_are_made_in_parts(factory: Factory) -> None:
    assert factory.prepare()
    assert not factory.prepare()
    assert not factory.prepare()


def n_until_failure(slots: GrammarSlots, output: list[int], drawn: list[int]) -> int:
    """How many tokens there are when the grammar fails, for a slot that begins behind `output`."""
    slots.admit(0, following(r"(.|\n)*a(.|\n){20}"), output)
    for n in range(len(output), len(drawn)):
        allowed(slots, 0)
        if slots.failed(0):
            return n
        slots.observe(0, drawn[n])
    raise AssertionError("no limit was reached")


def test_a_limit_is_reached_at_the_same_token_after_a_resume(
    slots: GrammarSlots, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Masks build states that tokens alone do not need, and both count."""
    limits = LLParserLimits(max_lexer_states=300, verbose_errors=False)
    monkeypatch.setattr(matcher, "limits", lambda: limits)
    rng = random.Random(1)
    drawn = [rng.choice(b"abcd") for _ in range(2000)]
    n = n_until_failure(slots, [], drawn)
    assert n > 10
    for n_before in (1, n // 2, n - 1):
        assert n_until_failure(slots, drawn[:n_before], drawn) == n
