"""One request's deltas: numbering, endings, usage, and the message that a stop string sends to the engine."""

from __future__ import annotations

from typing import Any

import pytest

from sixfold.detokenizer import ChoiceDelta, OutputProcessor, Usage
from sixfold.errors import ProtocolError
from sixfold.messages import Finish, FinishAt, TokenDelta, TokenLogprobs

UID = 77
END = 256
TABLE = [*(bytes([i]) for i in range(256)), b"<|end|>", b"Is it ok", b"?"]


def processor(n: int = 1, **settings: Any) -> OutputProcessor:
    return OutputProcessor(UID, n, TABLE, frozenset({END}), prompt_tokens=5, **settings)


def delta(first_index: int, ids: str | list[int], choice: int = 0, **fields: Any) -> TokenDelta:
    token_ids = list(ids.encode()) if isinstance(ids, str) else ids
    return TokenDelta(uid=UID, choice=choice, first_index=first_index, token_ids=token_ids, **fields)


def score(value: float) -> TokenLogprobs:
    return TokenLogprobs(value, 0, [], [])


def texts(deltas: list[ChoiceDelta]) -> str:
    return "".join(d.text for d in deltas)


def test_tokens_text_and_stop_token() -> None:
    p = processor()
    out, finish_at = p.push([delta(0, "hi", n_cached=4), delta(2, [END], finish=Finish("stop", END))])
    assert finish_at == []
    assert out == [
        ChoiceDelta(index=0, text="hi", token_ids=[104, 105], n_cached=4),
        ChoiceDelta(index=0, token_ids=[END], finish_reason="stop", stop_reason=END),
    ]
    assert p.done
    assert p.usage == Usage(prompt_tokens=5, completion_tokens=3, cached_tokens=4)


def test_stop_token_has_no_text_even_if_it_could() -> None:
    p = processor(skip_special=False)
    out, _ = p.push([delta(0, [104, END, 33], finish=Finish("stop", 33))])
    assert texts(out) == "h<|end|>"
    assert p.usage.completion_tokens == 3


@pytest.mark.parametrize(
    ("last", "reason"), [([END], "stop"), ([], "length"), ([], "abort"), ([], "timeout"), ([], "error")]
)
def test_O05_every_ending_sends_the_held_back_tail(last: list[int], reason: Any) -> None:
    p = processor(stop=("?\n",))
    out, _ = p.push([delta(0, [257]), delta(1, [258])])
    assert texts(out) == "Is it ok"
    end, _ = p.push([delta(2, last, finish=Finish(reason, END if last else None, "why" if reason == "error" else ""))])
    assert (texts(end), end[0].finish_reason) == ("?", reason)
    assert end[0].error == ("why" if reason == "error" else "")
    assert p.done


def test_stop_string_ends_the_choice_and_tells_the_engine() -> None:
    p = processor(stop=("STOP",))
    out, finish_at = p.push([delta(0, "one ST"), delta(6, "OP two", logprobs=[score(-i) for i in range(6)])])
    assert texts(out) == "one "
    assert finish_at == [FinishAt(uid=UID, choice=0, n_tokens=8)]
    assert out[-1].token_ids == list(b"OP")
    assert out[-1].logprobs == [score(0), score(-1)]
    assert (out[-1].finish_reason, out[-1].stop_reason) == ("stop", "STOP")
    assert p.usage.completion_tokens == 8
    assert p.done
    # What the engine still sends changes nothing.
    assert p.push([delta(12, "more"), delta(16, "", finish=Finish("length"))]) == ([], [])
    assert p.usage.completion_tokens == 8


def test_stop_string_beats_the_end_in_the_same_delta() -> None:
    p = processor(stop=("b",))
    out, finish_at = p.push([delta(0, "abc", finish=Finish("length"))])
    assert (texts(out), out[0].finish_reason, out[0].token_ids) == ("a", "stop", [97, 98])
    assert finish_at == []  # the engine has ended it


def test_stop_string_in_the_text_when_asked_for() -> None:
    out, _ = processor(stop=("b",), include_stop=True).push([delta(0, "abc")])
    assert texts(out) == "ab"


def test_choices_are_apart() -> None:
    p = processor(n=2, stop=("x",))
    emoji = "\U0001fae0".encode()
    out, finish_at = p.push(
        [
            delta(0, list(emoji[:2]), choice=0),
            delta(0, "qx", choice=1),
            delta(2, list(emoji[2:]), choice=0, finish=Finish("length")),
        ]
    )
    assert [(d.index, d.text) for d in out] == [(0, ""), (1, "q"), (0, "\U0001fae0")]
    assert finish_at == [FinishAt(uid=UID, choice=1, n_tokens=2)]
    assert (p.finish_reason(0), p.finish_reason(1)) == ("length", "stop")
    assert p.usage.completion_tokens == 6


def test_character_cut_short_by_the_end() -> None:
    out, _ = processor().push([delta(0, [0xF0, 0x9F], finish=Finish("length"))])
    assert texts(out) == "\ufffd"


def test_replayed_tokens_are_cut_off() -> None:
    p = processor()
    p.push([delta(0, "abc")])
    p.attempt = 1
    out, _ = p.push([delta(1, "bcde", attempt=1, logprobs=[score(-i) for i in range(4)])])
    assert texts(out) == "de"
    assert out[0].token_ids == list(b"de")
    assert out[0].logprobs == [score(-2), score(-3)]
    assert p.push([delta(0, "abc", attempt=1)]) == ([], [])
    assert p.delivered() == (tuple(b"abcde"),)


def test_older_attempts_are_dropped() -> None:
    p = processor()
    p.push([delta(0, "ab")])
    p.attempt = 1
    assert p.push([delta(2, "", finish=Finish("error", message="engine died"))]) == ([], [])
    assert not p.done


def test_ending_of_a_replay_that_had_ended_before() -> None:
    p = processor(n=2)
    p.push([delta(0, "ab", finish=Finish("length"))])
    p.attempt = 1
    assert p.push([delta(2, "", attempt=1, finish=Finish("length"))]) == ([], [])
    assert not p.done


@pytest.mark.parametrize(
    "bad",
    [
        delta(1, "b"),
        TokenDelta(uid=UID + 1, choice=0, first_index=0),
        delta(0, "a", choice=1),
        delta(0, "ab", logprobs=[score(0)]),
        delta(0, [-1]),
    ],
    ids=["gap", "uid", "choice", "logprobs", "negative"],
)
def test_broken_deltas(bad: TokenDelta) -> None:
    with pytest.raises(ProtocolError):
        processor().push([bad])


def test_delta_after_the_end() -> None:
    p = processor()
    p.push([delta(0, "a", finish=Finish("length"))])
    with pytest.raises(ProtocolError, match="after the end"):
        p.push([delta(1, "b")])


def test_prompt_logprobs_pass_even_without_tokens() -> None:
    scores = [score(-1), score(-2)]
    out, _ = processor().push([delta(0, "", prompt_logprobs=scores)])
    assert out == [ChoiceDelta(index=0, prompt_logprobs=scores)]


def test_fail_ends_what_still_runs() -> None:
    p = processor(n=2, stop=("xy",))
    p.push([delta(0, "ax"), delta(0, "b", choice=1, finish=Finish("length"))])
    assert p.fail("the engine is gone") == [
        ChoiceDelta(index=0, text="x", finish_reason="error", error="the engine is gone")
    ]
    assert p.done
    assert p.fail("again") == []
