"""Suspects are tried one at a time, in the order in which they came."""

from __future__ import annotations

from typing import Any

import pytest

from sixfold.engine.quarantine import Quarantine
from sixfold.messages import GenerateRequest, Sampling


class Peer:
    """Of an API process the identity."""


def suspect(uid: int) -> GenerateRequest:
    return GenerateRequest(uid=uid, prompt_token_ids=[1], max_tokens=1, sampling=Sampling(seed=0))


@pytest.fixture
def quarantine() -> Quarantine[Peer]:
    return Quarantine()


def uid_of(found: Any) -> int | None:
    return None if found is None else found[1].uid


def test_one_at_a_time_in_the_order_of_arrival(quarantine: Quarantine[Peer]) -> None:
    peer = Peer()
    for uid in (5, 3, 4):
        quarantine.enter(peer, suspect(uid))
    tried = []
    while (found := quarantine.next()) is not None:
        assert found[0] is peer and quarantine.on_trial == found[1].uid
        assert quarantine.next() is None, "another trial lasts"
        tried.append(found[1].uid)
        quarantine.passed(found[1].uid)
    assert tried == [5, 3, 4] and quarantine.on_trial is None


def test_who_leaves_while_waiting_is_not_tried(quarantine: Quarantine[Peer]) -> None:
    peer = Peer()
    for uid in (1, 2, 3):
        quarantine.enter(peer, suspect(uid))
    assert uid_of(quarantine.next()) == 1
    quarantine.passed(2)
    assert quarantine.on_trial == 1, "another's leaving ends no trial"
    quarantine.passed(1)
    assert uid_of(quarantine.next()) == 3


def test_passing_is_idempotent_and_strangers_change_nothing(quarantine: Quarantine[Peer]) -> None:
    quarantine.passed(9)
    quarantine.enter(Peer(), suspect(1))
    quarantine.passed(9)
    assert uid_of(quarantine.next()) == 1
    quarantine.passed(1)
    quarantine.passed(1)
    assert quarantine.next() is None


def test_a_process_that_is_gone_takes_its_waiting_suspects_with_it(quarantine: Quarantine[Peer]) -> None:
    gone, other = Peer(), Peer()
    for uid, peer in ((1, gone), (2, gone), (3, other), (4, gone)):
        quarantine.enter(peer, suspect(uid))
    assert uid_of(quarantine.next()) == 1
    quarantine.drop(gone)
    assert quarantine.on_trial == 1, "it ends by `passed`, when the engine has forgotten it"
    quarantine.passed(1)
    assert uid_of(quarantine.next()) == 3
    quarantine.passed(3)
    assert quarantine.next() is None


def test_a_request_that_comes_twice_is_tried_once_as_it_came_last(quarantine: Quarantine[Peer]) -> None:
    peer = Peer()
    quarantine.enter(peer, suspect(1))
    again = suspect(1)
    quarantine.enter(peer, again)
    found = quarantine.next()
    assert found is not None and found[1] is again
    quarantine.passed(1)
    assert quarantine.next() is None
