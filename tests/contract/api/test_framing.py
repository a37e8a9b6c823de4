"""Server-sent events: framing, roles, usage, faults after the first byte."""

from __future__ import annotations

import time
from typing import Any

import pytest

from sixfold.errors import ProtocolError

from .conftest import Target, eventually, post_bytes
from .fake_engine import FAULT, FakeEngine

SCRIPT = list("hello")


@pytest.mark.parametrize("options", [None, {"include_usage": False}, {"include_usage": True}])
def test_O01_no_chunk_without_choices_unless_usage_was_asked_for(
    target: Target, options: dict[str, bool] | None
) -> None:
    fields = {} if options is None else {"stream_options": options}
    events = target.chat(script=SCRIPT, stream=True, **fields).events
    if options is not None and options["include_usage"]:
        *events, last = events
        assert last["choices"] == []
        plain = target.chat(script=SCRIPT).json["usage"]
        assert last["usage"] == plain
        assert plain["total_tokens"] == plain["prompt_tokens"] + plain["completion_tokens"]
        assert all(event["usage"] is None for event in events)
    assert all(len(event["choices"]) >= 1 for event in events)
    assert all(event.get("usage") is None for event in events)


@pytest.mark.parametrize("n", [1, 2])
def test_O02_the_role_comes_once_with_the_first_delta(target: Target, n: int) -> None:
    events = target.chat(script=SCRIPT, stream=True, n=n, temperature=1, seed=1).events
    for index in range(n):
        deltas = [c["delta"] for event in events for c in event["choices"] if c["index"] == index]
        assert deltas[0]["role"] == "assistant"
        assert all("role" not in delta for delta in deltas[1:])


def test_O03_a_fault_after_the_first_byte_is_one_error_event_then_done(target: Target) -> None:
    answer = target.chat(script=["a", "b", FAULT], stream=True)
    *chunks, last = answer.events
    assert set(last) == {"error"}
    assert set(last["error"]) == {"message", "type", "param", "code"}
    assert last["error"]["type"] == "server_error"
    assert "".join(c["choices"][0]["delta"].get("content", "") for c in chunks) == "ab"
    assert all(c["choices"][0]["finish_reason"] is None for c in chunks)
    target.check_alive()


def test_O03_a_fault_of_one_choice_ends_the_call_that_is_not_streamed(target: Target) -> None:
    answer = target.chat(script=["a", FAULT])
    assert answer.status == 500
    assert answer.error["code"] == "request_failed"


def test_O03_engine_death_ends_open_streams_and_calls(serve: Any) -> None:
    fake = FakeEngine()
    fake.step_s = 0.01
    target, live = serve(fake)
    sock = target.connect()
    sock.sendall(post_bytes("/v1/completions", {"prompt": "x", "stream": True, "max_tokens": 400}))
    seen = sock.recv(65536)
    eventually(lambda: len(fake.live) == 1)
    live.call(fake.kill)
    while not seen.endswith(b"0\r\n\r\n"):
        seen += sock.recv(65536) or pytest.fail("closed before the end")
    assert seen.count(b'data: {"error"') == 1
    assert b'"engine_dead"' in seen
    assert seen.rstrip().endswith(b"0") and b"data: [DONE]" in seen
    sock.close()
    assert target.get("/health").status == 503
    assert target.get("/livez").status == 200
    assert target.complete().error["code"] == "engine_dead"


def test_a_broken_engine_is_a_500_without_internals(serve: Any) -> None:
    fake = FakeEngine()
    fake.refuse = ProtocolError("secret detail")
    target, _ = serve(fake)
    for stream_ in (False, True):
        answer = target.chat(stream=stream_, **{})
        assert answer.status == 500
        assert "secret" not in answer.error["message"]
        assert answer.headers["x-request-id"] in answer.error["message"]


def test_keep_alive_comments_while_nothing_comes(serve: Any) -> None:
    fake = FakeEngine()
    fake.prefill_s = 0.3
    target, _ = serve(fake, stream_keep_alive_s=0.05)
    answer = target.chat(script=["a"], stream=True)
    assert answer.body.startswith(b": keep-alive\n\n")
    assert answer.body.count(b": keep-alive\n\n") >= 3
    assert answer.events


@pytest.mark.parametrize("logprobs", [False, True])
@pytest.mark.parametrize("stop", [None, "b"])
def test_every_event_of_a_choice_has_the_same_keys(target: Target, stop: str | None, logprobs: bool) -> None:
    fields = {"script": ["x", "y", "z", "abc"], "stream": True, "stop": stop}
    for answer, more in (
        (target.chat(logprobs=logprobs, **fields), {"delta"}),
        (target.complete(logprobs=1 if logprobs else None, **fields), {"text"}),
    ):
        choices = [choice for event in answer.events for choice in event["choices"]]
        assert len(choices) >= 4
        for choice in choices:
            assert set(choice) == {"index", "logprobs", "finish_reason", "stop_reason"} | more
            assert choice["finish_reason"] is not None or choice["stop_reason"] is None
        assert choices[-1]["stop_reason"] == stop


def test_stream_equals_plain_answer(target: Target) -> None:
    for n in (1, 3):
        for endpoint in (target.chat, target.complete):
            plain = endpoint("abc", n=n, seed=5, max_tokens=20, return_token_ids=True).json
            events = endpoint("abc", n=n, seed=5, max_tokens=20, return_token_ids=True, stream=True).events
            for choice in plain["choices"]:
                mine = [c for event in events for c in event["choices"] if c["index"] == choice["index"]]
                text = "".join(c["text"] if "text" in c else c["delta"].get("content", "") for c in mine)
                assert text == (choice["text"] if "text" in choice else choice["message"]["content"])
                assert [i for c in mine for i in c["token_ids"]] == choice["token_ids"]
                assert [c["finish_reason"] for c in mine if c["finish_reason"]] == [choice["finish_reason"]]


def test_several_prompts_stream_as_one(target: Target) -> None:
    events = target.complete(
        ["a", "b", "c"], n=2, seed=1, max_tokens=5, stream=True, stream_options={"include_usage": True}
    )
    *chunks, last = events.events
    plain = target.complete(["a", "b", "c"], n=2, seed=1, max_tokens=5).json
    for choice in plain["choices"]:
        text = "".join(c["text"] for event in chunks for c in event["choices"] if c["index"] == choice["index"])
        assert text == choice["text"]
    assert [choice["index"] for choice in plain["choices"]] == list(range(6))
    assert (
        last["usage"]
        == plain["usage"]
        == {
            "prompt_tokens": 3,
            "completion_tokens": 30,
            "total_tokens": 33,
            "prompt_tokens_details": {"cached_tokens": 0},
        }
    )


def test_prompt_ids_come_once_with_return_token_ids(target: Target) -> None:
    events = target.chat("hi", script=SCRIPT, stream=True, return_token_ids=True).events
    assert "prompt_token_ids" in events[0]
    assert all("prompt_token_ids" not in event for event in events[1:])
    plain = target.chat("hi", script=SCRIPT, return_token_ids=True).json
    assert plain["prompt_token_ids"] == events[0]["prompt_token_ids"]
    assert len(plain["prompt_token_ids"]) == plain["usage"]["prompt_tokens"]


def test_the_first_byte_comes_before_the_last_token(serve: Any) -> None:
    fake = FakeEngine()
    fake.step_s = 0.05
    target, _ = serve(fake)
    started = time.monotonic()
    sock = target.connect()
    sock.sendall(post_bytes("/v1/completions", {"prompt": "x", "stream": True, "max_tokens": 20}))
    seen = b""
    while b"data: " not in seen:
        seen += sock.recv(4096)
    assert time.monotonic() - started < 0.7
    sock.close()
    eventually(lambda: not fake.live)
