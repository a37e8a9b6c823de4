"""Fields: types, ranges, what is refused by name, what is accepted and inert."""

from __future__ import annotations

import json
import threading
import time
from typing import Any

import pytest

from sixfold.api.openai.schemas import INERT, UNSUPPORTED, ChatRequest

from .conftest import Answer, Target
from .fake_engine import CONTEXT, FakeEngine


def raw(target: Target, fields: str, *, chat: bool = True) -> Answer:
    """A call with fields as JSON text, which Python's encoder might not write."""
    if chat:
        return target.post(
            "/v1/chat/completions", b'{"messages":[{"role":"user","content":"hi"}],%s}' % fields.encode()
        )
    return target.post("/v1/completions", b'{"prompt":"hi",%s}' % fields.encode())


def refused(answer: Answer, param: str | None, status: int = 400) -> dict[str, Any]:
    assert (answer.status, answer.error["param"]) == (status, param), answer.body
    assert answer.headers["content-type"] == "application/json"
    return answer.error


@pytest.mark.parametrize(
    "fields",
    [
        '"temperature":NaN',
        '"temperature":Infinity',
        '"temperature":1e400',
        '"temperature":-0.1',
        '"temperature":2.1',
        '"temperature":true',
        '"temperature":"0.7"',
        '"top_p":-0.1',
        '"top_p":0',
        '"top_p":1.01',
        '"min_p":-1',
        '"top_k":-2',
        '"top_k":1.5',
        '"repetition_penalty":0',
        '"repetition_penalty":-1',
        '"frequency_penalty":2.01',
        '"presence_penalty":-2.01',
        '"n":0',
        '"n":true',
        '"min_tokens":-1',
        '"stream":1',
        '"stop_token_ids":[-1]',
        '"stop_token_ids":["a"]',
        '"cache_salt":7',
        '"priority":1.5',
    ],
)
@pytest.mark.parametrize("stream", ["", ',"stream":true'])
def test_O14_numbers_out_of_range_or_of_the_wrong_type(target: Target, fields: str, stream: str) -> None:
    if fields.startswith('"stream"') and stream:
        return
    name = fields.split(":")[0].strip('"')
    for chat in (True, False):
        refused(raw(target, fields + stream, chat=chat), name)


@pytest.mark.parametrize(
    "fields",
    ['"temperature":0', '"temperature":2', '"top_k":0', '"top_k":-1', '"repetition_penalty":1', '"temperature":null'],
)
def test_O14_borders_that_are_accepted(target: Target, fields: str) -> None:
    assert raw(target, fields + ',"max_tokens":1').status == 200


@pytest.mark.parametrize("seed", ["18446744073709551616", "9223372036854775808", "1.5", '"7"', "-9223372036854775809"])
def test_O15_seeds_outside_64_bits(target: Target, seed: str) -> None:
    refused(raw(target, f'"seed":{seed}'), "seed")


@pytest.mark.parametrize("seed", ["-1", "0", "9223372036854775807", "-9223372036854775808", "null"])
def test_O15_seeds_inside_64_bits(target: Target, seed: str) -> None:
    first, second = (
        raw(target, f'"seed":{seed},"max_tokens":8').json["choices"][0]["message"]["content"] for _ in "12"
    )
    assert seed == "null" or first == second


@pytest.mark.parametrize(
    "bias",
    [
        '{"99999999":5}',
        '{"-1":5}',
        '{"abc":5}',
        '{"5":101}',
        '{"5":-101}',
        '{"5":"x"}',
        '{"5":NaN}',
        "[1]",
        '{"5":true}',
    ],
)
def test_O16_logit_bias_for_ids_that_do_not_exist(target: Target, bias: str) -> None:
    refused(raw(target, f'"logit_bias":{bias}'), "logit_bias")


def test_O16_the_bound_is_the_tokenizers(target: Target) -> None:
    last = target.tokenizer.n_vocab - 1
    assert raw(target, f'"logit_bias":{{"{last}":5}},"max_tokens":1').status == 200
    refused(raw(target, f'"logit_bias":{{"{last + 1}":5}}'), "logit_bias")
    assert raw(target, '"logit_bias":{},"max_tokens":1').status == 200
    forced = raw(target, '"logit_bias":{"65":100},"temperature":0,"max_tokens":3').json
    assert forced["choices"][0]["message"]["content"] == "AAA"


@pytest.mark.parametrize("min_tokens", [0, 1])
def test_O16_a_token_must_be_left_to_draw(target: Target, min_tokens: int) -> None:
    n_vocab = target.tokenizer.n_vocab
    ends = target.tokenizer.end_ids
    banned = [i for i in range(n_vocab) if not min_tokens or i not in ends]
    fields: dict[str, Any] = {"logit_bias": {str(i): -100 for i in banned}, "min_tokens": min_tokens, "max_tokens": 2}
    for answer in (target.chat(**fields), target.complete(stream=True, **fields)):
        assert "forbid all" in refused(answer, "logit_bias")["message"]
    assert target.complete(echo=True, logprobs=0, logit_bias=fields["logit_bias"], max_tokens=0).status == 200
    del fields["logit_bias"]["120"]
    assert target.complete(**fields).status == 200


@pytest.mark.parametrize(
    "prompt", ["", [""], [], [[]], ["ok", ""], None, [None], ["a", 1], [[1], "a"], [[1], []], 5, {}]
)
def test_O17_empty_and_mixed_prompts(target: Target, prompt: Any) -> None:
    before = target.submitted
    refused(target.complete(prompt), "prompt")
    refused(target.complete(prompt, stream=True), "prompt")
    assert target.submitted == before


def test_O17_no_prompt_at_all(target: Target) -> None:
    assert refused(target.post("/v1/completions", {}), "prompt")["code"] == "missing_field"


def test_token_ids_out_of_range(target: Target) -> None:
    for prompt in ([-1], [5, 99999999], [[5], [-1]], [2**70]):
        refused(target.complete(prompt), "prompt")


def test_O18_max_tokens(target: Target) -> None:
    for value in ("null", "5"):
        assert raw(target, f'"max_tokens":{value}').status == 200
    for value in ("-1", "1.5", "0", "1000000000000", '"5"', "true"):
        refused(raw(target, f'"max_tokens":{value}'), "max_tokens")
    refused(raw(target, '"max_completion_tokens":-1'), "max_completion_tokens")
    refused(raw(target, '"max_completion_tokens":0'), "max_completion_tokens")
    refused(raw(target, '"max_tokens":4,"max_completion_tokens":5'), "max_completion_tokens")
    for fields in ('"max_completion_tokens":5', '"max_tokens":5,"max_completion_tokens":5'):
        assert raw(target, fields).json["usage"]["completion_tokens"] == 5
    refused(raw(target, '"max_completion_tokens":5', chat=False), "max_completion_tokens")
    refused(raw(target, '"max_tokens":4,"min_tokens":5'), "min_tokens")


def test_O18_what_the_context_holds(target: Target) -> None:
    fits = target.complete([97] * (CONTEXT - 3))
    assert fits.json["usage"] == {
        "prompt_tokens": CONTEXT - 3,
        "completion_tokens": 3,
        "total_tokens": CONTEXT,
        "prompt_tokens_details": {"cached_tokens": 0},
    }
    error = refused(target.complete([97] * (CONTEXT - 3), max_tokens=10), "max_tokens")
    assert error["code"] == "context_length_exceeded"
    assert str(CONTEXT - 3) in error["message"] and str(CONTEXT) in error["message"]
    for n_tokens in (CONTEXT, CONTEXT + 50):
        for stream in (False, True):
            error = refused(target.complete([97] * n_tokens, max_tokens=1, stream=stream), "prompt")
            assert error["code"] == "context_length_exceeded"
            assert f"{n_tokens} tokens" in error["message"] and f"{CONTEXT} tokens" in error["message"]
            assert "-" not in error["message"].replace("context_length", "")
    error = refused(target.chat("a" * CONTEXT), "messages")
    assert error["code"] == "context_length_exceeded"


SURROGATES = {
    "messages[0].content": b'{"messages":[{"role":"user","content":"\\ud800"}]}',
    "stop": b'{"messages":[{"role":"user","content":"x"}],"stop":["a","\\udc00"]}',
    "tools[0].function.name": b'{"messages":[{"role":"user","content":"x"}],"tools":[{"function":{"name":"\\ud800"}}]}',
    "model": b'{"model":"\\ud800\\ud800","messages":[{"role":"user","content":"x"}]}',
    "response_format": b'{"messages":[{"role":"user","content":"x"}],"response_format":{"\\ud800":1}}',
    "user": b'{"messages":[{"role":"user","content":"x"}],"user":"\xed\xa0\x80"}',
    "messages[1].content": b'{"messages":[{"role":"user","content":"x"},{"role":"user",'
    b'"content":[{"type":"text","text":"\\ud83dx"}]}]}',
}


@pytest.mark.parametrize("param", SURROGATES)
def test_O19_lone_surrogates_name_their_field(target: Target, param: str) -> None:
    body = SURROGATES[param]
    refused(target.post("/v1/chat/completions", body), param)
    refused(target.post("/v1/chat/completions", body[:-1] + b',"stream":true}'), param)


def test_O19_a_pair_is_a_character(target: Target) -> None:
    answer = target.post("/v1/completions", b'{"prompt":"\\ud83d\\ude00","max_tokens":0,"echo":true}')
    assert answer.json["choices"][0]["text"] == "\U0001f600"


@pytest.mark.parametrize("name", sorted(INERT))
def test_inert_fields_are_accepted(target: Target, name: str) -> None:
    values = {
        "metadata": {"a": "b"},
        "parallel_tool_calls": True,
        "prediction": {"type": "content"},
        "spaces_between_special_tokens": True,
        "store": False,
    }
    assert target.chat(script=["a"], **{name: values.get(name, "x")}).status == 200
    assert target.chat(script=["a"], **{name: None}).status == 200


@pytest.mark.parametrize("name", sorted(UNSUPPORTED))
def test_unsupported_fields_are_refused_by_name(target: Target, name: str) -> None:
    values = {"best_of": 3, "suffix": "x", "echo": True}
    in_chat = name in ChatRequest.__struct_fields__ and name not in ChatRequest.OFFERED
    call = target.chat if in_chat else target.complete
    error = refused(call(**{name: values.get(name, {"x": 1})}), name)
    assert error["code"] == "unsupported_field"
    assert error["message"].endswith("is not supported by this server")
    for neutral in (None, *UNSUPPORTED[name]):
        assert call(script=["a"], **{name: neutral}).status == 200


def test_unknown_fields_are_refused_by_name(target: Target) -> None:
    for fields, param in (
        ({"foo": 1}, "foo"),
        ({"stream_options": {"foo": 1}, "stream": True}, "stream_options.foo"),
        ({"guided_json": {}}, "guided_json"),
        ({"x" * 5000: 1}, "x" * 199 + "\N{HORIZONTAL ELLIPSIS}"),
    ):
        assert refused(target.chat(**fields), param)["code"] == "unknown_field"
    refused(
        target.post("/v1/chat/completions", {"messages": [{"role": "user", "content": "x", "foo": 1}]}),
        "messages[0].foo",
    )


def test_unknown_fields_can_be_ignored_aloud(serve: Any) -> None:
    target, _ = serve(unknown_fields="ignore")
    for stream in (False, True):
        answer = target.chat(script=["a"], foo=1, stream=stream, bar={"x": [1]}, logit_bias={"5": 1})
        assert answer.status == 200
        assert answer.headers["x-sixfold-ignored-fields"] == "foo, bar"
    messages = [{"role": "user", "content": "x", "foo": 1}]
    answer = target.post("/v1/chat/completions", {"messages": messages, "max_tokens": 1})
    assert answer.headers["x-sixfold-ignored-fields"] == "messages[0].foo"
    refused(target.chat(foo=1, temperature="x"), "temperature")
    assert target.chat(script=["a"]).headers["x-sixfold-ignored-fields"] is None


def test_logprobs_fields(target: Target) -> None:
    refused(target.chat(top_logprobs=3), "top_logprobs")
    refused(target.chat(logprobs=True, top_logprobs=21), "top_logprobs")
    refused(target.chat(logprobs=True, top_logprobs=-1), "top_logprobs")
    refused(target.chat(logprobs=2), "logprobs")
    refused(target.complete(logprobs=21), "logprobs")
    refused(target.complete(logprobs=True), "logprobs")
    assert target.complete(logprobs=20, max_tokens=1).status == 200
    refused(target.chat(stream_options={"include_usage": True}), "stream_options")


def test_best_of_equal_to_n_is_n(target: Target) -> None:
    assert len(target.complete(n=2, best_of=2, max_tokens=1).json["choices"]) == 2
    refused(target.complete(n=2, best_of=3), "best_of")


def test_the_model(target: Target) -> None:
    error = refused(target.post("/v1/completions", {"model": "gpt-9", "prompt": "x"}), "model", 404)
    assert error["code"] == "model_not_found"
    assert refused(target.post("/v1/completions", {"model": "", "prompt": "x"}), "model", 404)
    assert target.post("/v1/completions", {"prompt": "x", "max_tokens": 1}).status == 200
    long = refused(target.post("/v1/completions", {"model": "\U0001f600" * 5000, "prompt": "x"}), "model", 404)
    assert len(long["message"]) < 300


@pytest.mark.parametrize("script", [[], ["a", "b"]])
def test_O58_usage_is_the_same_by_every_name(target: Target, script: list[str]) -> None:
    """Responses and messages count what a chat counts, streamed or not."""
    fields = {"script": [*script, "<|im_end|>"], "model": target.model}
    usage = target.chat("hi", script=fields["script"]).json["usage"]
    expected = (usage["prompt_tokens"], usage["completion_tokens"])
    assert expected[1] == len(script) + 1
    response = {"input": "hi", **fields}
    events = target.post("/v1/responses", {**response, "stream": True}).body.decode().split("\n\n")
    last = json.loads(events[-2].partition("\ndata: ")[2])["response"]
    for document in (target.post("/v1/responses", response).json, last):
        counted = document["usage"]
        assert (counted["input_tokens"], counted["output_tokens"]) == expected
        assert counted["total_tokens"] == sum(expected)
        assert counted["input_tokens_details"]["cached_tokens"] <= expected[0]
    message = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 9, **fields}
    events = target.post("/v1/messages", {**message, "stream": True}).body.decode().split("\n\n")
    last = json.loads(events[-3].partition("\ndata: ")[2])
    for document in (target.post("/v1/messages", message).json, last):
        counted = document["usage"]
        assert counted["input_tokens"] + counted["cache_read_input_tokens"] == expected[0]
        assert counted["output_tokens"] == expected[1]


def test_script_needs_the_scripted_executor(serve: Any) -> None:
    fake = FakeEngine()
    fake.scripted = False
    target, _ = serve(fake)
    refused(target.chat(script=["a"]), "script")


def test_O49_bounds_on_everything_that_multiplies(target: Target) -> None:
    before = target.submitted
    started = time.monotonic()
    refused(target.complete(["a"] * 50_000), "prompt")
    refused(target.complete(["a"] * 100, n=3), "prompt")
    refused(target.chat(n=1_000_000), "n")
    refused(target.chat(stop=["x"] * 10_000), "stop")
    refused(target.chat(logit_bias={str(i): 1 for i in range(300_000)}), "logit_bias")
    refused(target.chat(logprobs=True, top_logprobs=1_000_000), "top_logprobs")
    refused(target.chat(tools=[{"type": "function"}] * 10_000), "tools")
    refused(target.chat([{"role": "user", "content": "x"}] * 5000), "messages")
    assert time.monotonic() - started < 8
    assert target.submitted == before
    target.check_alive()


MESSAGE = {"role": "user", "content": "x"}
FUNCTION = {"type": "function", "name": "f"}


@pytest.mark.parametrize(
    ("path", "field", "value"),
    [
        ("/v1/messages", "messages", [MESSAGE] * 5000),
        ("/v1/messages", "system", [{"type": "text", "text": "x"}] * 100_000),
        ("/v1/messages", "stop_sequences", ["x"] * 10_000),
        ("/v1/messages", "tools", [{"name": "f", "input_schema": {"type": "object"}}] * 10_000),
        ("/v1/messages", "messages", [{"role": "user", "content": [{"type": "text", "text": "x"}] * 100_000}]),
        ("/v1/messages/count_tokens", "messages", [MESSAGE] * 5000),
        ("/v1/responses", "input", [MESSAGE] * 5000),
        ("/v1/responses", "tools", [{**FUNCTION, "name": f"f{i}"} for i in range(10_000)]),
        ("/v1/responses", "stop", ["x"] * 10_000),
        ("/v1/responses", "logit_bias", {str(i): 1 for i in range(300_000)}),
        ("/v1/responses", "metadata", {str(i): "x" for i in range(100_000)}),
        ("/v1/responses", "include", ["message.output_text.logprobs"] * 100_000),
        ("/v1/responses", "input", [{"role": "user", "content": [{"type": "input_text", "text": "x"}] * 100_000}]),
        ("/v1/chat/completions", "messages", [{"role": "user", "content": [{"type": "text", "text": "x"}] * 100_000}]),
        ("/v1/chat/completions", "bad_words", ["x"] * 100_000),
        ("/v1/chat/completions", "allowed_token_ids", [97] * 400_000),
        ("/v1/chat/completions", "stop_token_ids", [97] * 400_000),
        ("/v1/chat/completions", "script", ["a"] * 400_000),
        ("/v1/embeddings", "input", ["a"] * 50_000),
        ("/tokenize", "messages", [MESSAGE] * 5000),
        ("/apply-template", "messages", [MESSAGE] * 5000),
    ],
)
def test_O49_bounds_on_everything_that_multiplies_anywhere(target: Target, path: str, field: str, value: Any) -> None:
    before = target.submitted
    needed: dict[str, dict[str, Any]] = {
        "/v1/messages": {"messages": [MESSAGE], "max_tokens": 5},
        "/v1/responses": {"input": "x"},
        "/v1/chat/completions": {"messages": [MESSAGE]},
    }
    answer = target.post(path, {**needed.get(path, {}), field: value})
    assert answer.status == 400, answer.body[:300]
    message = answer.json["error"]["message"]
    assert field in message or "arrays and objects" in message or answer.error["param"].startswith(field)
    assert len(answer.body) < 1000
    assert target.submitted == before
    target.check_alive()


def test_O35_the_cache_salt_reaches_the_engine(serve: Any) -> None:
    target, live = serve()
    for salt, expected in (("x", "x"), ("y", "y"), (None, "")):
        assert target.complete("hi", cache_salt=salt, max_tokens=1).status == 200
        assert live.fake.requests[-1].cache_salt == expected
    refused(target.complete(cache_salt="x" * 257), "cache_salt")


def test_O36_cached_tokens_are_reported(serve: Any) -> None:
    fake = FakeEngine()
    fake.n_cached = 16
    target, _ = serve(fake)
    for n in (1, 2):
        usage = target.complete([97] * 17, max_tokens=1, n=n).json["usage"]
        assert usage["prompt_tokens_details"] == {"cached_tokens": 16}


@pytest.mark.parametrize("piece", ["<", "<|", "<|im_end|", "x", " \n"])
def test_what_cannot_fit_is_refused_before_it_is_tokenized(target: Target, piece: str) -> None:
    text = piece * (3_900_000 // len(piece.encode("unicode_escape")))
    for answer, param in ((target.chat(text), "messages"), (target.complete(["a", text]), "prompt")):
        error = refused(answer, param)
        assert error["code"] == "context_length_exceeded"
        assert str(CONTEXT) in error["message"]
    started = time.monotonic()
    threads = [threading.Thread(target=target.chat, args=(text,)) for _ in range(4)]
    for thread in threads:
        thread.start()
    assert target.complete("hi", max_tokens=1).status == 200
    assert time.monotonic() - started < 3
    for thread in threads:
        thread.join()


def test_a_long_text_can_be_tokenized_and_holds_up_nobody(serve: Any) -> None:
    fake = FakeEngine()
    target, _ = serve(fake)
    assert target.post("/tokenize", {"prompt": "<" * 10_000}).json["count"] == 10_000
    encode, released = fake.tokenizer.encode_batch, threading.Event()

    def slow(texts: list[str], **options: bool) -> list[list[int]]:
        if texts == ["slow"]:
            released.wait(10)
        return encode(texts, **options)

    fake.tokenizer.encode_batch = slow  # type: ignore[method-assign, assignment]
    threads = [threading.Thread(target=target.post, args=("/tokenize", {"prompt": "slow"})) for _ in range(4)]
    for thread in threads:
        thread.start()
    assert target.complete("hi", max_tokens=1).status == 200
    assert all(thread.is_alive() for thread in threads)
    released.set()
    for thread in threads:
        thread.join()


def test_wrong_types_are_told_in_the_words_of_json(target: Target) -> None:
    for fields, message in (
        ('"max_tokens":1.5', "max_tokens must be an integer or null, not a number with a fraction or an exponent"),
        ('"max_tokens":"5"', "max_tokens must be an integer or null, not a string"),
        ('"temperature":true', "temperature must be a number or null, not a boolean"),
        ('"stop":["a",5]', "stop[1] must be a string, not an integer"),
        ('"stop":5', "stop must be a string or an array or null, not an integer"),
        ('"logit_bias":{"a":1}', "a key of logit_bias must be an integer, not a string"),
        (
            '"response_format":{"type":"json"}',
            "response_format.type must be one of text, json_object, json_schema, not json",
        ),
        ('"truncation_side":"up"', "truncation_side must be one of left, right, not up"),
        ('"stream_options":[]', "stream_options must be an object or null, not an array"),
    ):
        answer = raw(target, fields)
        assert (answer.error["message"], answer.error["code"]) == (message, "invalid_type")
    assert target.post("/v1/completions", b"[1]").error["message"] == "the body must be an object, not an array"


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("max_token", "max_tokens"),
        ("maxTokens", "max_tokens"),
        ("temprature", "temperature"),
        ("stopp", "stop"),
        ("top_logprob", "top_logprobs"),
        ("max_output_tokens", "max_tokens"),
        ("guided_json", "structured_outputs.json"),
        ("guided_choice", "structured_outputs.choice"),
        ("guided_regex", "structured_outputs.regex"),
        ("guided_grammar", "structured_outputs.grammar"),
        ("guided_whitespace_pattern", None),
        ("input", "messages"),
        ("prompt", "messages"),
        ("system", "messages"),
        ("instructions", "messages"),
        ("stop_sequences", "stop"),
        ("json_schema", "structured_outputs.json"),
        ("grammar", "structured_outputs.grammar"),
        ("n_predict", "max_tokens"),
        ("num_predict", "max_tokens"),
        ("text", "response_format"),
        ("length_penalty", None),
        ("tool", "tools"),
        ("foo", None),
        ("max_tokens" * 100, None),
    ],
)
def test_an_unknown_field_is_answered_with_the_one_that_was_meant(target: Target, name: str, meant: str | None) -> None:
    error = refused(target.chat(**{name: 1}), name if len(name) < 200 else name[:199] + "\N{HORIZONTAL ELLIPSIS}")
    assert error["code"] == "unknown_field"
    assert error["message"].partition("; ")[2] == (f"did you mean {meant}?" if meant else "")


@pytest.mark.parametrize(
    ("path", "name", "meant"),
    [
        ("responses", "max_tokens", "max_output_tokens"),
        ("responses", "max_completion_tokens", "max_output_tokens"),
        ("responses", "messages", "input"),
        ("responses", "system", "instructions"),
        ("responses", "stop_sequences", "stop"),
        ("responses", "response_format", "text.format"),
        ("responses", "json_schema", "text.format"),
        ("messages", "stop", "stop_sequences"),
        ("messages", "max_completion_tokens", "max_tokens"),
        ("messages", "min_tokens", None),
        ("messages", "instructions", "system"),
        ("messages", "response_format", "output_config.format"),
        ("completions", "messages", "prompt"),
        ("completions", "system", None),
        ("completions", "min_token", "min_tokens"),
        ("embeddings", "prompt", "input"),
        ("embeddings", "max_tokens", None),
    ],
)
def test_a_field_of_another_api_is_answered_with_its_name_here(
    target: Target, path: str, name: str, meant: str | None
) -> None:
    message = target.post(f"/v1/{path}", {name: 1}).json["error"]["message"]
    assert message == f"unknown field: {name}" + (f"; did you mean {meant}?" if meant else "")


def test_a_slip_inside_an_object_is_compared_with_its_own_fields(target: Target) -> None:
    error = refused(target.chat(stream=True, stream_options={"include_usag": True}), "stream_options.include_usag")
    assert error["message"].endswith("; did you mean include_usage?")
    error = refused(target.complete(max_completion_tokens=5), "max_completion_tokens")
    assert error["message"].endswith("; did you mean max_tokens?")
    error = refused(target.chat([{"role": "user", "contents": "x"}]), "messages[0].contents")
    assert error["message"].endswith("; did you mean content?")


def test_max_tokens_has_one_range_per_endpoint(target: Target) -> None:
    for chat, low in ((True, 1), (False, 0)):
        for value in (low - 1, -5, 2**31):
            error = refused(raw(target, f'"max_tokens":{value}', chat=chat), "max_tokens")
            assert error["message"] == f"max_tokens must be between {low} and 2147483647, not {value}"
    error = refused(raw(target, '"max_completion_tokens":0'), "max_completion_tokens")
    assert error["message"] == "max_completion_tokens must be between 1 and 2147483647, not 0"
