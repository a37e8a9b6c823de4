"""Fields beyond OpenAI's: prompts cut and scored, words and ids that are forbidden, labels, deadlines, usage."""

from __future__ import annotations

import json
import math
import socket
import threading
from typing import Any

import pytest

from sixfold.api.admission import admission
from sixfold.sampling_params import MAX_ALLOWED_TOKEN_IDS, MAX_BAD_WORDS

from .conftest import Target, eventually
from .fake_engine import CONTEXT, FakeEngine
from .test_parameters import refused


def strict(body: bytes) -> Any:
    """JSON without what Python's parser takes besides."""

    def refuse(word: str) -> None:
        raise AssertionError(word)

    return json.loads(body, parse_constant=refuse)


# --- words and ids ----------------------------------------------------------------------------------------------------


def test_allowed_ids_are_all_that_is_drawn(target: Target) -> None:
    if target.submitted is not None:
        pytest.skip("the fake engine draws nothing")
    fields = {"allowed_token_ids": [120, 121], "max_tokens": 30, "seed": 1, "return_token_ids": True}
    for call in (target.chat, target.complete):
        ids = call(**fields).json["choices"][0]["token_ids"]
        assert len(ids) == 30 and set(ids) == {120, 121}
        assert set(
            call(allowed_token_ids=[65], max_tokens=3, seed=1, return_token_ids=True).json["choices"][0]["token_ids"]
        ) == {65}


@pytest.mark.parametrize("stream", [False, True])
def test_bad_words_are_never_completed(target: Target, stream: bool) -> None:
    """The scripted executor wants to write them; the sampler gives the lowest other id instead."""
    if target.submitted is not None:
        pytest.skip("the fake engine draws nothing")
    script = list("the cat sat. cat")

    def text(**fields: Any) -> str:
        answer = target.chat(script=script, temperature=0, max_tokens=16, stream=stream, **fields)
        if not stream:
            return str(answer.json["choices"][0]["message"]["content"])
        return "".join(event["choices"][0]["delta"].get("content", "") for event in answer.events)

    assert text() == "the cat sat. cat"
    assert text(bad_words=["cat"]) == "the ca\0 sat. ca\0"
    assert text(bad_words=["cats", "dog"]) == "the cat sat. cat"
    assert text(bad_words=["t"]) == "\0he ca\0 sa\0. ca\0"
    assert text(bad_words=[" cat", " sat"]) == text(bad_words=["cat", "sat"])
    assert text(bad_words=[". "]) == "the cat sat.\0cat"


def test_forbidden_words_and_ids_reach_the_engine(serve: Any) -> None:
    target, live = serve()
    refused(target.chat(bad_words=["ab"], allowed_token_ids=[98], max_tokens=1), "bad_words")
    assert target.chat(bad_words=["ab"], allowed_token_ids=[99, 97, 97], max_tokens=1).status == 200
    sampling = live.fake.requests[-1].sampling
    assert sampling.allowed_token_ids == (97, 99)
    assert sampling.bad_words == ((97, 98), (32, 97, 98))


@pytest.mark.parametrize("stream", [False, True])
def test_forbidden_words_and_ids_that_are_refused(target: Target, stream: bool) -> None:
    n_vocab = target.tokenizer.n_vocab
    for fields, param in (
        ({"bad_words": "x"}, "bad_words"),
        ({"bad_words": [""]}, "bad_words"),
        ({"bad_words": ["x"] * (MAX_BAD_WORDS + 1)}, "bad_words"),
        ({"bad_words": ["x" * 65]}, "bad_words"),
        ({"bad_words": [5]}, "bad_words"),
        ({"allowed_token_ids": []}, "allowed_token_ids"),
        ({"allowed_token_ids": [-1]}, "allowed_token_ids"),
        ({"allowed_token_ids": [n_vocab]}, "allowed_token_ids"),
        ({"allowed_token_ids": [True]}, "allowed_token_ids"),
        ({"allowed_token_ids": [1] * (MAX_ALLOWED_TOKEN_IDS + 1)}, "allowed_token_ids"),
        ({"allowed_token_ids": [97], "bad_words": ["a"]}, "bad_words"),
        ({"allowed_token_ids": [97], "logit_bias": {"97": -100}}, "logit_bias"),
    ):
        for call in (target.chat, target.complete):
            refused(call(stream=stream, **fields), param)


# --- log-probabilities ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("n_top", [0, 3])
def test_prompt_logprobs_have_vllms_shape(target: Target, n_top: int) -> None:
    answer = target.complete("bcd", prompt_logprobs=n_top, max_tokens=1, n=2, seed=1)
    for choice in strict(answer.body)["choices"]:
        first, *entries = choice["prompt_logprobs"]
        assert first is None
        assert [next(iter(entry)) for entry in entries] == ["99", "100"]
        for entry, letter in zip(entries, "cd", strict=True):
            token, *others = entry.values()
            assert token == {"logprob": token["logprob"], "rank": 1, "decoded_token": letter}
            assert len(others) == max(0, n_top - 1)
            assert all(set(other) == {"logprob", "rank", "decoded_token"} for other in others)
            assert [other["rank"] for other in others] == list(range(2, n_top + 1))
    chat = target.chat("abc", prompt_logprobs=n_top, max_tokens=1).json
    assert len(chat["prompt_logprobs"]) == chat["usage"]["prompt_tokens"]
    assert chat["prompt_logprobs"][0] is None
    assert "prompt_logprobs" not in target.chat("abc", max_tokens=1).json
    assert "prompt_logprobs" not in target.complete("abc", max_tokens=1).json["choices"][0]


def test_prompt_logprobs_beside_echo_and_of_several_prompts(target: Target) -> None:
    fields = {"echo": True, "logprobs": 1, "prompt_logprobs": 4, "max_tokens": 0}
    for choice, letters in zip(target.complete(["ab", "cde"], **fields).json["choices"], ("ab", "cde"), strict=True):
        assert choice["logprobs"]["tokens"] == list(letters)
        assert all(len(tops) == 1 for tops in choice["logprobs"]["top_logprobs"][1:])
        assert [next(iter(entry)) for entry in choice["prompt_logprobs"][1:]] == [str(ord(c)) for c in letters[1:]]
        assert all(len(entry) == 4 for entry in choice["prompt_logprobs"][1:])
    assert target.complete([97], prompt_logprobs=1, max_tokens=0).json["choices"][0]["prompt_logprobs"] == [None]


def test_prompt_logprobs_that_are_refused(target: Target) -> None:
    for call in (target.chat, target.complete):
        for value in (-1, 21, True, "1", 1.5):
            refused(call(prompt_logprobs=value), "prompt_logprobs")
        refused(call(prompt_logprobs=0, stream=True), "prompt_logprobs")
    refused(target.complete([[97] * 500] * 128, prompt_logprobs=20, max_tokens=1), "prompt_logprobs")
    refused(target.complete([[97] * 500] * 128, echo=True, logprobs=20, max_tokens=1), "logprobs")


def test_prompts_that_are_scored_share_a_budget(serve: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admission, "SCORED_BUDGET", 30)
    fake = FakeEngine()
    fake.step_s = 0.005
    target, _ = serve(fake)
    first = threading.Thread(
        target=target.complete, args=([97] * 10,), kwargs={"prompt_logprobs": 1, "max_tokens": 500}
    )
    first.start()
    eventually(lambda: len(fake.live) == 1)
    answer = target.complete([97] * 10, prompt_logprobs=1, max_tokens=1)
    assert (answer.status, answer.headers["retry-after"]) == (429, "1")
    assert target.complete([97] * 10, max_tokens=1).status == 200
    first.join()
    assert target.complete([97] * 10, prompt_logprobs=1, max_tokens=1).status == 200


@pytest.mark.parametrize("stream", [False, True])
def test_tokens_as_token_ids(target: Target, stream: bool) -> None:
    fields = {"script": ["a", "b"], "return_tokens_as_token_ids": True, "stream": stream}
    chat = target.chat(logprobs=True, top_logprobs=1, **fields)
    choices = [event["choices"][0] for event in chat.events] if stream else chat.json["choices"]
    entries = [entry for choice in choices for entry in choice["logprobs"]["content"]]
    assert [(entry["token"], entry["bytes"]) for entry in entries] == [("token_id:97", [97]), ("token_id:98", [98])]
    assert entries[0]["top_logprobs"][0]["token"] == "token_id:97"
    plain = target.complete(logprobs=1, **fields)
    choices = [event["choices"][0] for event in plain.events] if stream else plain.json["choices"]
    assert [token for choice in choices for token in choice["logprobs"]["tokens"]] == ["token_id:97", "token_id:98"]
    assert list(choices[0]["logprobs"]["top_logprobs"][0]) == ["token_id:97"]


@pytest.mark.parametrize(
    "fields",
    [
        {"top_k": 1},
        {"allowed_token_ids": [97]},
        {"logit_bias": {"98": -100}},
        {"structured_outputs": {"choice": ["ab"]}},
        {"response_format": {"type": "json_object"}, "script": ["{", "}"]},
    ],
    ids=lambda fields: next(iter(fields)),
)
def test_O29_no_infinity_in_the_json(target: Target, fields: dict[str, Any]) -> None:
    for stream in (False, True):
        answer = target.chat(logprobs=True, top_logprobs=5, max_tokens=2, seed=1, stream=stream, **fields)
        events = [strict(line[6:]) for line in answer.body.split(b"\n") if line.startswith(b"data: {")]
        choices = [event["choices"][0] for event in events] if stream else strict(answer.body)["choices"]
        entries = [entry for choice in choices for entry in choice["logprobs"]["content"]]
        assert entries
        for entry in entries:
            values = [top["logprob"] for top in entry["top_logprobs"]]
            assert values == sorted(values, reverse=True) and len(values) == 5
            assert all(-9999.0 <= value <= 0 for value in [*values, entry["logprob"]])
            if target.submitted is None:
                assert sum(map(math.exp, values)) <= 1.001
        strict(target.complete(logprobs=5, max_tokens=2, seed=1, **fields).body)


def test_O30_prompt_logprobs_with_a_warm_cache(target: Target) -> None:
    prompt = [97 + i % 26 for i in range(3 * 16 + 2)]
    usage = target.complete(prompt, max_tokens=1, seed=1).json["usage"]
    answers = [
        target.complete(prompt, echo=True, logprobs=1, prompt_logprobs=2, max_tokens=1, seed=1).json for _ in range(3)
    ]
    target.complete(prompt, max_tokens=1, seed=1)
    answers.append(target.complete(prompt, echo=True, logprobs=1, prompt_logprobs=2, max_tokens=1, seed=1).json)
    for answer in answers:
        [choice] = answer["choices"]
        assert choice["logprobs"]["token_logprobs"][0] is None and choice["prompt_logprobs"][0] is None
        assert choice["logprobs"] == answers[0]["choices"][0]["logprobs"]
        assert choice["prompt_logprobs"] == answers[0]["choices"][0]["prompt_logprobs"]
        assert len(choice["prompt_logprobs"]) == len(prompt) == len(choice["logprobs"]["tokens"]) - 1
        assert answer["usage"]["total_tokens"] == usage["total_tokens"]


@pytest.mark.parametrize("n_tokens", [31, 32, 33])
def test_O36_a_whole_prompt_in_the_cache(target: Target, n_tokens: int) -> None:
    prompt = [100 + (i * n_tokens) % 20 for i in range(n_tokens)]
    for max_tokens in (1, 5):
        answers = [
            target.complete(prompt, max_tokens=max_tokens, temperature=0, logprobs=1, ignore_eos=True).json
            for _ in range(3)
        ]
        for answer in answers:
            assert answer["choices"] == answers[0]["choices"]
            assert answer["usage"]["prompt_tokens_details"]["cached_tokens"] <= n_tokens - 1
    if target.submitted is None:
        assert answers[-1]["usage"]["prompt_tokens_details"]["cached_tokens"] >= 16


# --- prompts ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stream", [False, True])
def test_truncation_keeps_the_last_tokens_and_says_so(target: Target, stream: bool) -> None:
    def used(**fields: Any) -> tuple[list[int], int]:
        options = {"stream_options": {"include_usage": True}} if stream else {}
        answer = target.complete("ghijkl", max_tokens=1, return_token_ids=True, stream=stream, **options, **fields)
        if stream:
            first, *_, last = answer.events
            return first["choices"][0]["prompt_token_ids"], last["usage"]["prompt_tokens"]
        return answer.json["choices"][0]["prompt_token_ids"], answer.json["usage"]["prompt_tokens"]

    assert used(truncate_prompt_tokens=2) == ([107, 108], 2)
    assert used(truncate_prompt_tokens=2, truncation_side="left") == ([107, 108], 2)
    assert used(truncate_prompt_tokens=2, truncation_side="right") == ([103, 104], 2)
    assert used(truncate_prompt_tokens=9)[1] == used(truncate_prompt_tokens=6)[1] == used()[1] == 6


def test_truncation_to_what_the_context_leaves(target: Target) -> None:
    long = "x" * (2 * CONTEXT)
    assert refused(target.complete(long, max_tokens=5), "prompt")["code"] == "context_length_exceeded"
    for call in (target.complete, target.chat):
        assert call(long, max_tokens=5, truncate_prompt_tokens=-1).json["usage"]["prompt_tokens"] == CONTEXT - 5
        usage = call(long, truncate_prompt_tokens=-1, ignore_eos=True).json["usage"]
        assert (usage["prompt_tokens"], usage["completion_tokens"]) == (CONTEXT - 1, 1)
        refused(call("x", max_tokens=CONTEXT, truncate_prompt_tokens=-1), "truncate_prompt_tokens")
        too_long = call(long, truncate_prompt_tokens=CONTEXT + 1)
        assert too_long.error["code"] == "context_length_exceeded"
    echoed = target.complete("ghijkl", echo=True, logprobs=0, max_tokens=0, truncate_prompt_tokens=3)
    assert echoed.json["choices"][0]["text"] == "jkl"
    assert echoed.json["choices"][0]["logprobs"]["tokens"] == ["j", "k", "l"]
    by_id = target.complete([[97, 98, 99], [100]], max_tokens=1, truncate_prompt_tokens=1, return_token_ids=True)
    assert [choice["prompt_token_ids"] for choice in by_id.json["choices"]] == [[99], [100]]
    megabytes = target.complete("x" * 2_000_000, max_tokens=1, truncate_prompt_tokens=2)
    assert megabytes.json["usage"]["prompt_tokens"] == 2


def test_truncation_that_is_refused(target: Target) -> None:
    for call in (target.chat, target.complete):
        for value in (0, -2, 2**31, 1.5, True, "5"):
            refused(call(truncate_prompt_tokens=value), "truncate_prompt_tokens")
        refused(call(truncation_side="left"), "truncation_side")
        refused(call(truncate_prompt_tokens=5, truncation_side="middle"), "truncation_side")
    refused(target.complete([97, 10**6], truncate_prompt_tokens=1), "prompt")


def test_the_answer_goes_on_with_the_last_message(target: Target) -> None:
    messages = [{"role": "user", "content": "x"}, {"role": "assistant", "content": "It is"}]

    def prompt(**fields: Any) -> str:
        answer = target.chat(messages, max_tokens=1, return_token_ids=True, **fields)
        assert answer.status == 200, answer.body
        return target.tokenizer.decode(answer.json["prompt_token_ids"], skip_special=False)

    assert prompt().endswith("<|im_start|>assistant\n")
    assert prompt(add_generation_prompt=False).endswith("It is<|im_end|>\n")
    for fields in ({}, {"add_generation_prompt": False}):
        assert prompt(continue_final_message=True, **fields).endswith("<|im_start|>assistant\nIt is")
    refused(target.chat(messages, continue_final_message=True, add_generation_prompt=True), "continue_final_message")
    refused(target.chat("x", continue_final_message=True), "continue_final_message")
    for name in ("continue_final_message", "add_generation_prompt", "add_special_tokens"):
        refused(target.chat("x", **{name: "yes"}), name)


def test_O45_nothing_that_a_client_names_is_fetched(target: Target) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.setblocking(False)
        port = listener.getsockname()[1]
        for url in (f"http://127.0.0.1:{port}/x", "http://169.254.169.254/", "file:///etc/passwd", "data:image/png,x"):
            part = {"type": "image_url", "image_url": {"url": url}}
            for stream in (False, True):
                content = [{"type": "text", "text": "what is this?"}, part]
                refused(target.chat(content, stream=stream), "messages[0].content")
                image = [{"type": "input_image", "image_url": url}]
                items = {"input": [{"role": "user", "content": image}], "stream": stream}
                refused(target.post("/v1/responses", items), "input[0].content[0].type")
                source = [{"type": "image", "source": {"type": "url", "url": url}}]
                messages = {"messages": [{"role": "user", "content": source}], "max_tokens": 5, "stream": stream}
                assert target.post("/v1/messages", messages).status == 400
            schema = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"$ref": url}}}
            refused(target.chat(response_format=schema), "response_format")
        with pytest.raises(BlockingIOError):
            listener.accept()


def test_O48_a_template_is_refused_by_name(target: Target) -> None:
    source = "{% for i in range(50000) %}{% for j in range(50000) %}x{% endfor %}{% endfor %}"
    for stream in (False, True):
        error = refused(target.chat(chat_template=source, stream=stream), "chat_template")
        assert error["code"] == "unsupported_field"


# --- the call ---------------------------------------------------------------------------------------------------------


def test_a_request_id_is_the_calls_label(target: Target) -> None:
    for call in (target.chat, target.complete):
        for stream in (False, True):
            answer = call(script=["a"], request_id="mine-1", stream=stream)
            assert answer.headers["x-request-id"] == "mine-1"
        assert "mine-1" not in call(script=["a"], request_id="mine-1").json["id"]
        for value in ("", "a b", "x" * 129, "\u00e9", "a\n"):
            refused(call(request_id=value), "request_id")
    both = target.post("/v1/completions", {"prompt": "x", "max_tokens": 1, "request_id": "b"}, **{"X-Request-Id": "h"})
    assert both.headers["x-request-id"] == "b"


def test_O33_equal_request_ids_in_the_body_are_different_requests(target: Target) -> None:
    answers = [target.complete(script=[letter], request_id="same").json for letter in "ab"]
    assert answers[0]["id"] != answers[1]["id"]
    assert [answer["choices"][0]["text"] for answer in answers] == ["a", "b"]


@pytest.mark.parametrize("header", [False, True])
def test_time_that_is_over_is_504(serve: Any, header: bool) -> None:
    fake = FakeEngine()
    fake.step_s = 0.01
    target, _ = serve(fake)
    fields, headers = ({}, {"X-Request-Timeout-Ms": "100"}) if header else ({"timeout": 0.1}, {})
    document = {"prompt": "x", "max_tokens": 400, **fields}
    answer = target.post("/v1/completions", document, **headers)
    assert (answer.status, answer.error["type"], answer.error["code"]) == (504, "timeout_error", "deadline_exceeded")
    *chunks, last = target.post("/v1/completions", {**document, "stream": True}, **headers).events
    assert chunks and last["error"]["code"] == "deadline_exceeded"
    assert all(choice["finish_reason"] is None for event in chunks for choice in event["choices"])
    target.check_alive()


def test_time_that_is_over_at_a_real_engine(target: Target) -> None:
    for call in (target.chat, target.complete):
        answer = call(max_tokens=400, ignore_eos=True, timeout=1e-9)
        assert (answer.status, answer.error["code"]) == (504, "deadline_exceeded")
        assert call(max_tokens=2, timeout=60).status == 200
    target.check_alive()


def test_times_that_are_refused(target: Target) -> None:
    for call in (target.chat, target.complete):
        for value in (0, -1, 86401, "5", True):
            refused(call(timeout=value), "timeout")
    for text in ("0", "-5", "1.5", "x", "", "9" * 13):
        answer = target.post("/v1/completions", {"prompt": "x"}, **{"X-Request-Timeout-Ms": text})
        refused(answer, "X-Request-Timeout-Ms")


@pytest.mark.parametrize("chat", [False, True])
def test_usage_in_every_event(target: Target, chat: bool) -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    call = target.chat if chat else target.complete
    *events, last = call(script=list("abc"), n=2, seed=1, stream=True, stream_options=options).events
    counts = [event["usage"]["completion_tokens"] for event in events]
    assert counts == sorted(counts) and counts[0] >= 1
    assert len({event["usage"]["prompt_tokens"] for event in [*events, last]}) == 1
    assert events[-1]["usage"]["total_tokens"] == last["usage"]["total_tokens"]
    assert last["choices"] == []
    for wrong in ({"continuous_usage_stats": True}, {"continuous_usage_stats": True, "include_usage": False}):
        refused(call(stream=True, stream_options=wrong), "stream_options.continuous_usage_stats")
    refused(call(stream_options=options), "stream_options")


@pytest.mark.parametrize("n", [1, 3])
@pytest.mark.parametrize("script", [[], ["a", "b"]])
def test_O58_usage_counts_what_was_used(target: Target, n: int, script: list[str]) -> None:
    end = "<|im_end|>"
    fields = {"script": [*script, end], "n": n, "seed": 1}
    n_prompt = target.post("/tokenize", {"messages": [{"role": "user", "content": "hi"}]}).json["count"]
    for call, prompts, expected in (
        (target.chat, "hi", n_prompt),
        (target.complete, "hi", 2),
        (target.complete, ["a", "bc", "def"], 6),
    ):
        plain = call(prompts, **fields).json
        usage = plain["usage"]
        assert usage["prompt_tokens"] == expected
        assert usage["completion_tokens"] == len(plain["choices"]) * (len(script) + 1)
        assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]
        assert usage["prompt_tokens_details"]["cached_tokens"] <= usage["prompt_tokens"]
        last = call(prompts, stream=True, stream_options={"include_usage": True}, **fields).events[-1]
        for key in ("prompt_tokens", "completion_tokens", "total_tokens"):
            assert last["usage"][key] == usage[key]
