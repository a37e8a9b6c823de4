"""Stop strings, characters over several tokens, end tokens, log-probabilities: what reaches the client's eyes."""

from __future__ import annotations

from typing import Any

import pytest

from .conftest import Target


def both(target: Target, **fields: Any) -> tuple[str, str | None, dict[str, Any]]:
    """(text, finish reason, usage) of a plain answer, after a check that a stream gives the same."""
    plain = target.chat(**fields).json
    *events, last = target.chat(stream=True, stream_options={"include_usage": True}, **fields).events
    text = "".join(event["choices"][0]["delta"].get("content", "") for event in events)
    reasons = [event["choices"][0]["finish_reason"] for event in events]
    choice = plain["choices"][0]
    assert text == choice["message"]["content"]
    assert reasons[-1] == choice["finish_reason"]
    assert reasons[:-1] == [None] * (len(reasons) - 1)
    counts = [
        {k: n for k, n in usage.items() if k != "prompt_tokens_details"} for usage in (last["usage"], plain["usage"])
    ]
    assert counts[0] == counts[1]  # of the prompt, more may be cached the second time
    return text, choice["finish_reason"], plain["usage"]


def test_O04_no_part_of_a_stop_string_leaks(target: Target) -> None:
    script = ["abc", " D", "EF", " G", "HI", " xyz"]
    text, reason, usage = both(target, script=script, stop=["DEF GHI"])
    assert (text, reason) == ("abc ", "stop")
    assert usage["completion_tokens"] == 5
    text, reason, _ = both(target, script=script, stop=["DEF GHZ"])
    assert (text, reason) == ("abc DEF GHI xyz", "stop")


def test_O04_text_that_cannot_be_a_stop_goes_out_at_once(target: Target) -> None:
    events = target.chat(script=["abc", " D", "EF", " xyz"], stop=["DEF GHI"], stream=True).events
    assert [event["choices"][0]["delta"].get("content") for event in events][:3] == ["abc", " ", "DEF xyz"]


def test_O05_the_held_back_tail_is_sent_at_the_end(target: Target) -> None:
    assert both(target, script=["Is it ok", "?"], stop=["?\n"])[:2] == ("Is it ok?", "stop")
    assert both(target, script=["Is it ok", "?"], stop=["?\n"], max_tokens=2)[:2] == ("Is it ok?", "length")


def test_O06_empty_and_oversized_stops(target: Target) -> None:
    for stop in ["", [""], ["x", ""], ["x"] * 17, ["x", 3], "x" * 100_000, 3, [None], ["x" * 257]]:
        answer = target.chat(stop=stop)
        assert (answer.status, answer.error["param"]) == (400, "stop"), stop
    for stop in [[], None, "zz", ["x"] * 16]:
        assert target.chat(script=["abc"], stop=stop).status == 200


def test_O07_characters_over_several_tokens(target: Target) -> None:
    text = "\U0001fae0\u00e9\u6f22ok"
    script = list(text.encode())
    assert both(target, script=script)[0] == text
    for event in target.chat(script=script, stream=True).events:
        assert "\ufffd" not in event["choices"][0]["delta"].get("content", "")
    assert both(target, script=script, stop=["ok"])[:2] == ("\U0001fae0\u00e9\u6f22", "stop")
    assert both(target, script=[*"\U0001fae0".encode(), "o", "k"], stop=["ok"])[0] == "\U0001fae0"


def test_O07_a_character_cut_short_is_replaced_once(target: Target) -> None:
    assert both(target, script=list("\U0001fae0".encode()), max_tokens=2)[:2] == ("\ufffd", "length")


@pytest.mark.parametrize("end", ["<|endoftext|>", "<|im_end|>"])
def test_O09_every_end_token_ends_the_answer(target: Target, end: str) -> None:
    text, reason, usage = both(target, script=["abc", end, " xyz"])
    assert (text, reason, usage["completion_tokens"]) == ("abc", "stop", 2)
    text, reason, _ = both(target, script=["abc", end, " xyz"], ignore_eos=True, max_tokens=3)
    assert (text, reason) == ("abc xyz", "length")


def test_stop_token_ids_and_stop_reason(target: Target) -> None:
    stop = target.token(" D")
    choice = target.chat(script=["abc", " D", " xyz"], stop_token_ids=[stop]).json["choices"][0]
    assert choice["message"]["content"] == "abc"
    assert choice["stop_reason"] == stop
    assert target.chat(script=["abc", "Z"], stop="Z").json["choices"][0]["stop_reason"] == "Z"
    assert target.chat(script=["abc"]).json["choices"][0]["stop_reason"] is None
    kept = target.chat(script=["abc", "Z"], stop="Z", include_stop_str_in_output=True).json["choices"][0]
    assert kept["message"]["content"] == "abcZ"


def test_special_tokens_are_hidden_unless_asked_for(target: Target) -> None:
    script = ["abc", "<|im_start|>", "x"]
    assert both(target, script=script)[0] == "abcx"
    assert both(target, script=script, skip_special_tokens=False)[0] == "abc<|im_start|>x"


def test_O31_logprobs_carry_real_bytes(target: Target) -> None:
    raw = "\U0001fae0".encode()
    for fields in ({}, {"stream": True}):
        answer = target.chat(script=list(raw), logprobs=True, top_logprobs=3, **fields)
        if fields:
            parts = [event["choices"][0]["logprobs"] for event in answer.events]
            content = [entry for part in parts if part for entry in part["content"]]
        else:
            content = answer.json["choices"][0]["logprobs"]["content"]
            assert len(content) == answer.json["usage"]["completion_tokens"] - 1, "all but the end token"
        assert [entry["bytes"] for entry in content] == [[byte] for byte in raw]
        assert bytes(b for entry in content for b in entry["bytes"]).decode() == "\U0001fae0"
        for entry in content:
            assert len(entry["top_logprobs"]) == 3
            assert entry["token"] == f"bytes:\\x{entry['bytes'][0]:02x}"
            assert entry["top_logprobs"][0]["bytes"] == entry["bytes"]


def test_O31_entries_are_the_tokens_shown(target: Target) -> None:
    choice = target.chat(script=["abc", " D", "<|im_start|>"], logprobs=True).json["choices"][0]
    assert [entry["token"] for entry in choice["logprobs"]["content"]] == ["abc", " D"]
    assert all(entry["top_logprobs"] == [] for entry in choice["logprobs"]["content"])
    assert "".join(entry["token"] for entry in choice["logprobs"]["content"]) == choice["message"]["content"]
    assert target.chat(script=["abc"]).json["choices"][0]["logprobs"] is None


def logprob_tokens(target: Target, *, chat: bool, stream: bool, **fields: Any) -> tuple[str, list[str]]:
    """(text, tokens of the log-probabilities' entries); with `stream`, no entry may be ahead of its text."""
    if chat:
        fields = {"logprobs": True, **fields}
        answer = target.chat(stream=stream, **fields)
    else:
        answer = target.complete(stream=stream, logprobs=0, **fields)
    choices = [event["choices"][0] for event in answer.events] if stream else answer.json["choices"]
    text, tokens = "", []
    for choice in choices:
        message = choice.get("delta") or choice.get("message") or choice
        text += message.get("content") or message.get("text") or ""
        logprobs = choice["logprobs"]
        tokens += [entry["token"] for entry in logprobs["content"]] if chat else logprobs["tokens"]
        before_last = "".join(token for token in tokens[:-1] if not token.startswith("bytes:"))
        assert len(before_last) < len(text) or not tokens
    return text, tokens


@pytest.mark.parametrize("chat", [True, False])
@pytest.mark.parametrize("stream", [True, False])
def test_entries_end_with_the_text(target: Target, chat: bool, stream: bool) -> None:
    def tokens(script: list[Any], **fields: Any) -> tuple[str, list[str]]:
        return logprob_tokens(target, chat=chat, stream=stream, script=script, **fields)

    script: list[Any] = ["abc", " D", "EF", " G", "HI", " xyz"]
    assert tokens(script, stop=["DEF GHI"]) == ("abc ", ["abc", " D"])
    assert tokens(script, stop=["DEF GHI"], include_stop_str_in_output=True) == ("abc DEF GHI", script[:5])
    assert tokens(script, stop=[" DEF"]) == ("abc", ["abc"])
    assert tokens(script, stop=["abc"]) == ("", [])
    assert tokens(script, stop=["DEF GHZ"]) == ("abc DEF GHI xyz", script)
    assert tokens(script, stop=["xyz!"], max_tokens=6) == ("abc DEF GHI xyz", script)
    assert tokens(["abc", "<|im_start|>", " D"], stop=["D"]) == ("abc ", ["abc", " D"])
    pieces = list("\U0001fae0".encode())
    named = [f"bytes:\\x{byte:02x}" for byte in pieces]
    assert tokens(["abc", *pieces], stop=["\U0001fae0"]) == ("abc", ["abc"])
    assert tokens([*pieces, "abc"], stop=["abc"]) == ("\U0001fae0", named)
    assert tokens([*pieces[:3], "abc"], stop=["abc"]) == ("\ufffd", named[:3])
    assert tokens([*pieces[:3], 0x80 | 64, "abc"], stop=["\ufffdabc"]) == ("\ufffd", named[:3])
    assert tokens(pieces[:2], max_tokens=2) == ("\ufffd", named[:2])


def test_legacy_logprobs(target: Target) -> None:
    script = ["abc", *"\u00e9".encode(), " D"]
    logprobs = target.complete("hi", script=script, logprobs=2).json["choices"][0]["logprobs"]
    assert logprobs["tokens"] == ["abc", "bytes:\\xc3", "bytes:\\xa9", " D"]
    assert logprobs["text_offset"] == [0, 3, 3, 4]
    assert all(-1 < value <= 0 for value in logprobs["token_logprobs"])
    assert [len(top) for top in logprobs["top_logprobs"]] == [2] * 4
    none = target.complete("hi", script=script, logprobs=0).json["choices"][0]["logprobs"]
    assert none["top_logprobs"] == [None] * 4


@pytest.mark.parametrize("stream", [False, True])
def test_echo_scores_a_prompt(target: Target, stream: bool) -> None:
    fields: dict[str, Any] = {"max_tokens": 0, "echo": True, "logprobs": 1}
    if stream:
        events = target.complete("hey", stream=True, **fields).events
        assert len(events) == 1
        choice = events[0]["choices"][0]
    else:
        document = target.complete("hey", **fields).json
        assert document["usage"]["completion_tokens"] == 0
        choice = document["choices"][0]
    assert choice["text"] == "hey"
    assert choice["finish_reason"] == "length"
    assert choice["logprobs"]["tokens"] == ["h", "e", "y"]
    first, *others = choice["logprobs"]["token_logprobs"]
    assert first is None
    assert all(-1 < value <= 0 for value in others)
    assert choice["logprobs"]["text_offset"] == [0, 1, 2]


@pytest.mark.parametrize("n", [1, 2])
def test_echo_of_text_and_of_ids(target: Target, n: int) -> None:
    for prompt in ("hey", [104, 101, 121], ["hey"], [[104, 101, 121]]):
        for logprobs in (None, 1):
            fields = {"echo": True, "n": n, "script": ["abc"], "logprobs": logprobs}
            choices = target.complete(prompt, **fields).json["choices"]
            assert [choice["text"] for choice in choices] == ["heyabc"] * n
            events = target.complete(prompt, stream=True, **fields).events
            for index in range(n):
                mine = [c for event in events for c in event["choices"] if c["index"] == index]
                assert "".join(c["text"] for c in mine) == "heyabc"
                if logprobs:
                    tokens = [token for c in mine for token in c["logprobs"]["tokens"]]
                    assert tokens == choices[index]["logprobs"]["tokens"] == ["h", "e", "y", "abc"]
                    offsets = [offset for c in mine for offset in c["logprobs"]["text_offset"]]
                    assert offsets == choices[index]["logprobs"]["text_offset"] == [0, 1, 2, 3]


@pytest.mark.parametrize("stream", [False, True])
def test_every_token_of_an_echoed_prompt_has_an_entry(target: Target, stream: bool) -> None:
    """Also a control token that is not shown: clients count tokens to find where the text begins that they score."""
    start = target.tokenizer.control["<|im_start|>"]
    for skip, text, offsets in ((True, "hey", [0, 0, 1, 2]), (False, "<|im_start|>hey", [0, 12, 13, 14])):
        answer = target.complete(
            [start, 104, 101, 121], echo=True, logprobs=1, max_tokens=0, skip_special_tokens=skip, stream=stream
        )
        [choice] = answer.events[0]["choices"] if stream else answer.json["choices"]
        assert choice["text"] == text
        assert choice["logprobs"]["tokens"] == ["<|im_start|>", "h", "e", "y"]
        assert choice["logprobs"]["text_offset"] == offsets
        assert [value is None for value in choice["logprobs"]["token_logprobs"]] == [True, False, False, False]


def test_max_tokens_zero_without_echo_is_an_empty_text(target: Target) -> None:
    choice = target.complete("hey", max_tokens=0).json["choices"][0]
    assert (choice["text"], choice["finish_reason"]) == ("", "length")
