"""What is kept of a request beyond the life of an engine, who is blamed for its death, and for how long."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import msgspec
import pytest

from sixfold.engine import replay
from sixfold.engine.replay import Poisoned, Replay
from sixfold.errors import RequestFailed
from sixfold.messages import Finish, GenerateRequest, Sampling, TokenDelta


def request(uid: int = 7, n: int = 1, **fields: Any) -> GenerateRequest:
    fields = {"prompt_token_ids": [1, 2, 3], "max_tokens": 9, "sampling": Sampling(seed=5), **fields}
    return GenerateRequest(uid=uid, n=n, **fields)


def delta(choice: int, first_index: int, *token_ids: int, finish: Finish | None = None) -> TokenDelta:
    return TokenDelta(
        uid=7, choice=choice, attempt=0, first_index=first_index, token_ids=list(token_ids), finish=finish
    )


def test_what_came_is_told_to_the_next_engine_per_choice() -> None:
    kept = Replay(request(n=3))
    for one in (delta(0, 0, 10, 11), delta(2, 0, 30), delta(0, 2, 12, finish=Finish("length"))):
        kept.take(one)
    again = kept.again({1, 2}, admitted=True)
    assert again.delivered == ((10, 11, 12), (), (30,))
    assert again.ended == (0,)
    assert (again.attempt, again.suspect) == (1, False)
    assert (again.prompt_token_ids, again.sampling, again.uid) == ([1, 2, 3], Sampling(seed=5), 7)


def test_repeated_tokens_count_once() -> None:
    kept = Replay(request())
    for one in (delta(0, 0, 10, 11), delta(0, 0, 10, 11), delta(0, 1, 11, 12)):
        kept.take(one)
    assert kept.again({0}, admitted=True).delivered == ((10, 11, 12),)


def test_each_engine_is_another_attempt_and_the_tokens_add_up() -> None:
    kept = Replay(request())
    for n in range(4):
        kept.take(delta(0, n, 10 + n))
        again = kept.again({0}, admitted=True)
        assert again.attempt == n + 1 and again.delivered == (tuple(range(10, 11 + n)),)


def test_without_a_verdict_it_is_sent_as_it_was() -> None:
    asked = request()
    assert Replay(asked).again({0}, admitted=False) == asked


def test_a_token_clears_a_suspect_and_without_one_the_second_crash_was_its_doing() -> None:
    kept = Replay(request())
    assert not kept.crashed(), "one crash may be anybody's"
    assert kept.again({0}, admitted=True).suspect
    assert not kept.is_tried, "it waits on the list"
    assert not kept.crashed(), "while it only waited, another was the cause"
    kept.again({0}, admitted=True)
    kept.is_tried = True
    kept.take(delta(0, 0, 10))
    assert not kept.crashed(), "it had shown that it does no harm"
    assert kept.again({0}, admitted=True).suspect
    kept.is_tried = True
    assert kept.crashed()


def test_a_poisoned_request_is_known_by_what_it_asks_for(monkeypatch: pytest.MonkeyPatch) -> None:
    poisoned = Poisoned()
    poisoned.check(request())
    poisoned.add(request())
    for same in (
        request(uid=8),
        request(sampling=Sampling(seed=99)),
        request(attempt=3, delivered=((4, 5),), suspect=True),
        request(deadline_s=12.0, arrival_s=3.0),
    ):
        with pytest.raises(RequestFailed) as caught:
            poisoned.check(same)
        assert caught.value.code == "poisoned"
    for other in (
        request(prompt_token_ids=[1, 2, 4]),
        request(max_tokens=10),
        request(sampling=Sampling(seed=5, temperature=0.5)),
        request(cache_salt="x"),
    ):
        poisoned.check(other)


def test_after_a_while_it_may_be_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = [1000.0]
    monkeypatch.setattr(replay.time, "monotonic", lambda: now_s[0])
    poisoned = Poisoned()
    poisoned.add(request())
    now_s[0] += Poisoned.KEEP_S - 1
    with pytest.raises(RequestFailed):
        poisoned.check(request())
    now_s[0] += 2
    poisoned.check(request())
    assert not poisoned._until, "and is forgotten"


def test_no_more_are_remembered_than_there_is_room_for() -> None:
    poisoned = Poisoned()
    for n in range(Poisoned.MAX + 5):
        poisoned.add(request(max_tokens=n + 1))
    assert len(poisoned._until) == Poisoned.MAX
    poisoned.check(request(max_tokens=1))
    with pytest.raises(RequestFailed):
        poisoned.check(request(max_tokens=Poisoned.MAX + 5))


def test_what_is_kept_survives_the_wire() -> None:
    kept = Replay(request(n=2))
    kept.take(delta(1, 0, 4))
    again = kept.again({0, 1}, admitted=True)
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(again), type=GenerateRequest) == again


def test_on_a_full_disk_only_this_process_knows() -> None:
    fd = os.open("/dev/full", os.O_RDWR)
    try:
        poisoned = Poisoned(fd)
        poisoned.add(request())
        with pytest.raises(RequestFailed):
            poisoned.check(request())
    finally:
        os.close(fd)


def test_a_record_of_the_shared_list_lies_in_one_page(tmp_path: Path) -> None:
    """So that a full disk takes all of it or nothing: half of one would put all that follow out of step."""
    one, other = Poisoned.open(str(tmp_path)), Poisoned.open(str(tmp_path))
    one.add(request())
    assert os.sysconf("SC_PAGE_SIZE") % (tmp_path / "poisoned").stat().st_size == 0
    with pytest.raises(RequestFailed):
        other.check(request())
