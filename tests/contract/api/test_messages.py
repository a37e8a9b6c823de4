"""Anthropic's Messages API: answers and events, what a request means, and its errors."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from sixfold.api.anthropic.answers import content_of
from sixfold.api.anthropic.wire import MessagesRequest, ToolUseBlock
from sixfold.api.http.decoding import decode
from sixfold.text import ChatTemplate
from sixfold.text.answer_parts import CallArguments, CallBegin

from .conftest import EXTRA_TOKENS, Answer, Target, eventually, post_bytes
from .fake_engine import FakeEngine

USER = {"role": "user", "content": "hi"}
WEATHER = {"name": "weather", "description": "of a city", "input_schema": {"type": "object", "properties": {}}}
CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Lima", "n": 1.0}}\n</tool_call>'


def ask(target: Target, messages: Any = None, path: str = "/v1/messages", **fields: Any) -> Answer:
    document = {"model": target.model, "max_tokens": 100, "messages": messages or [USER], **fields}
    if path.endswith("count_tokens"):
        del document["max_tokens"]
    return target.post(path, document)


def error_of(answer: Answer) -> dict[str, Any]:
    """The error's fields, after a check of its shape."""
    document = answer.json
    assert set(document) == {"type", "error", "request_id"}, document
    assert document["type"] == "error"
    assert set(document["error"]) == {"type", "message"}
    assert document["request_id"] == answer.headers["request-id"] == answer.headers["x-request-id"]
    return dict(document["error"])


def events_of(answer: Answer) -> list[dict[str, Any]]:
    """The events, after a check of their framing and order."""
    assert answer.status == 200, answer.body
    assert answer.headers["content-type"].startswith("text/event-stream")
    events = []
    for block in answer.body.decode().removesuffix("\n\n").split("\n\n"):
        name, data = block.split("\n")
        event = json.loads(data.removeprefix("data: "))
        assert name == f"event: {event['type']}"
        events.append(event)
    return events


def arguments_of(text: str) -> Any:
    """Of a call; none where it was cut short."""
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        return {}


def joined(events: list[dict[str, Any]]) -> dict[str, Any]:
    """The whole message that the events make up."""
    events = [event for event in events if event["type"] != "ping"]
    assert events[0]["type"] == "message_start" and events[-1]["type"] == "message_stop"
    message = events[0]["message"]
    assert message["content"] == [] and message["stop_reason"] is None
    block, pieces = None, []
    for event in events[1:-1]:
        if event["type"] == "content_block_start":
            assert block is None and event["index"] == len(message["content"])
            block, pieces = event["content_block"], []
        elif event["type"] == "content_block_delta":
            assert block is not None and event["index"] == len(message["content"])
            delta = event["delta"]
            kind = delta.pop("type")
            ((key, value),) = delta.items()
            assert kind == ("input_json_delta" if key == "partial_json" else f"{key}_delta")
            if key == "partial_json":
                pieces.append(value)
            else:
                block[key] += value
        elif event["type"] == "content_block_stop":
            assert event["index"] == len(message["content"])
            if pieces:
                block["input"] = arguments_of("".join(pieces))
            message["content"].append(block)
            block = None
        else:
            assert event["type"] == "message_delta" and block is None and event is events[-2]
            message.update(event["delta"])
            message["usage"] = event["usage"]
    return message


def anonymous(message: dict[str, Any]) -> dict[str, Any]:
    """Without what is new in every answer."""
    content = [{**block, "id": "toolu_"} if block["type"] == "tool_use" else block for block in message["content"]]
    return {**message, "id": "msg_", "content": content}


@pytest.fixture
def roomy(serve: Any) -> Target:
    """A server with room for tools in the prompt."""
    target, _ = serve(FakeEngine(extra_tokens=EXTRA_TOKENS, max_model_len=1 << 16))
    return target  # type: ignore[no-any-return]


def test_an_answer(target: Target) -> None:
    message = ask(target, script=["abc", " D"]).json
    assert message.pop("id").startswith("msg_")
    usage = message.pop("usage")
    assert message == {
        "type": "message",
        "role": "assistant",
        "model": target.model,
        "content": [{"type": "text", "text": "abc D"}],
        "stop_reason": "end_turn",
        "stop_sequence": None,
    }
    prompt = target.chat("hi", script=["a"]).json["usage"]["prompt_tokens"]
    assert usage["input_tokens"] + usage["cache_read_input_tokens"] == prompt
    assert (usage["output_tokens"], usage["cache_creation_input_tokens"]) == (3, 0)


@pytest.mark.parametrize(
    ("script", "fields"),
    [
        (["abc", " D", "EF"], {}),
        (["abc", " D", "EF"], {"max_tokens": 2}),
        (["abc", " D", "EF", "HI"], {"stop_sequences": ["EFH", "DE"]}),
        ([], {}),
        ([], {"max_tokens": 0}),
        (["<think>", "a b", "</think>", "abc"], {}),
    ],
)
def test_the_joined_events_are_the_whole_message(target: Target, script: list[str], fields: dict[str, Any]) -> None:
    check_joined(target, script, fields)


@pytest.mark.parametrize(
    ("script", "fields"),
    [
        ([CALL], {"tools": [WEATHER]}),
        (["Is it ok", *CALL, "\n", *CALL], {"tools": [WEATHER], "max_tokens": 300}),
        ([*CALL], {"tools": [WEATHER], "max_tokens": 60}),
        ([*'{"name": "weather", "arguments": {}}'], {"tools": [WEATHER]}),
    ],
)
def test_the_joined_events_of_calls_are_the_whole_message(
    roomy: Target, script: list[str], fields: dict[str, Any]
) -> None:
    check_joined(roomy, script, fields)


def check_joined(target: Target, script: list[str], fields: dict[str, Any]) -> None:
    end = [] if script else ["<|im_end|>"]
    whole = ask(target, script=script + end, **fields)
    assert whole.status == 200, whole.body
    events = events_of(ask(target, script=script + end, stream=True, **fields))
    assert anonymous(joined(events)) == anonymous(whole.json)


def test_stop_reasons(target: Target) -> None:
    def stop(script: list[str], **fields: Any) -> tuple[str, str | None]:
        message = ask(target, script=script, **fields).json
        return message["stop_reason"], message["stop_sequence"]

    assert stop(["abc"]) == ("end_turn", None)
    assert stop(["abc", "EF"], max_tokens=1) == ("max_tokens", None)
    assert stop(["abc", "EF"], stop_sequences=["x", "E"]) == ("stop_sequence", "E")
    assert stop(["abc"], max_tokens=0) == ("max_tokens", None)


def test_max_tokens_is_a_bound_and_no_wish(target: Target) -> None:
    message = ask(target, max_tokens=100_000, script=["abc"]).json
    assert message["stop_reason"] == "end_turn"
    message = ask(target, max_tokens=100_000, temperature=0).json
    assert message["stop_reason"] == "model_context_window_exceeded"
    usage = message["usage"]
    assert usage["input_tokens"] + usage["cache_read_input_tokens"] + usage["output_tokens"] == 512
    error = error_of(ask(target, [{"role": "user", "content": "x" * 600}]))
    assert error["type"] == "invalid_request_error" and "512" in error["message"]


def test_a_tool_use_and_its_result(roomy: Target) -> None:
    message = ask(roomy, script=["abc", CALL, CALL], tools=[WEATHER], max_tokens=300).json
    assert message["stop_reason"] == "tool_use"
    text, one, two = message["content"]
    assert text == {"type": "text", "text": "abc"}
    assert one["id"] != two["id"] and one["id"].startswith("toolu_")
    assert (one["type"], one["name"], one["input"]) == ("tool_use", "weather", {"city": "Lima", "n": 1.0})
    results = [
        {"type": "tool_result", "tool_use_id": one["id"], "content": [{"type": "text", "text": "warm"}]},
        {"type": "tool_result", "tool_use_id": two["id"], "content": "no such city", "is_error": True},
        {"type": "text", "text": "and now?"},
    ]
    messages = [USER, {"role": "assistant", "content": message["content"]}, {"role": "user", "content": results}]
    assert ask(roomy, messages, script=["abc"], tools=[WEATHER]).json["stop_reason"] == "end_turn"
    count = ask(roomy, messages, "/v1/messages/count_tokens", tools=[WEATHER]).json
    usage = ask(roomy, messages, script=["abc"], tools=[WEATHER]).json["usage"]
    assert count == {"input_tokens": usage["input_tokens"] + usage["cache_read_input_tokens"]}


def sent_back(arguments: str) -> dict[str, Any]:
    """The call that a model wrote with these arguments, after a request that sends it back was read."""
    [block] = content_of([CallBegin(0, "weather"), CallArguments(0, arguments)])
    turns = [USER, {"role": "assistant", "content": [json.loads(msgspec.json.encode(block))]}]
    body = json.dumps({"max_tokens": 1, "messages": turns}).encode()
    request, _ = decode(MessagesRequest, body)
    content = request.messages[1].content
    assert isinstance(content, list) and isinstance(content[0], ToolUseBlock)
    return content[0].input


@pytest.mark.parametrize("value", ["1e999", "9" * 5000, r'"\ud800"', "[" * 60 + "]" * 60, "tru", "{" * 5000])
def test_an_input_that_could_not_be_sent_back_is_empty(value: str) -> None:
    """Clients send a call back as they got it; a conversation must not end because of what a model wrote."""
    assert sent_back('{"a": %s}' % value) == {}  # noqa: UP031


def test_the_deepest_input_can_be_sent_back() -> None:
    deepest = '{"a": ' + "[" * 58 + "]" * 58 + "}"
    assert sent_back(deepest) == json.loads(deepest)
    assert sent_back('{"a": [' + deepest + "]}") == {}


def test_one_call_only(roomy: Target) -> None:
    choice = {"type": "auto", "disable_parallel_tool_use": True}
    content = ask(roomy, script=[CALL, CALL], tools=[WEATHER], tool_choice=choice, max_tokens=300).json["content"]
    assert [block["type"] for block in content] == ["tool_use"]


SEEN = """{{ messages|tojson }}{{ tools|tojson if tools }}{{ enable_thinking }}{{ add_generation_prompt }}"""


@pytest.fixture
def seen(serve: Any) -> Any:
    """What the template sees: `seen(messages, **fields)` -> the rendered text."""
    fake = FakeEngine(max_model_len=1 << 16)
    # The words make it a template that shows tools and thinks.
    fake.chat_template = ChatTemplate(SEEN + "{# <tool_call> <think> #}", fake.tokenizer)
    target, _ = serve(fake)

    def see(messages: Any, **fields: Any) -> str:
        answer = ask(target, messages, script=["a"], **fields)
        assert answer.status == 200, answer.body
        return fake.tokenizer.decode(fake.requests[-1].prompt_token_ids)

    return see


def test_what_the_template_sees(seen: Any) -> None:
    messages = [
        {"role": "user", "content": "a"},
        {"role": "user", "content": [{"type": "text", "text": "b", "cache_control": {"type": "ephemeral"}}]},
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "hm", "signature": "x"},
                {"type": "redacted_thinking", "data": "SECRET"},
                {"type": "text", "text": "c", "citations": None},
                {"type": "tool_use", "id": "t1", "name": "weather", "input": {"k": [1]}, "caller": {"type": "direct"}},
            ],
        },
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t1", "is_error": True, "content": "e"}]},
        {"role": "user", "content": "d"},
    ]
    system = [{"type": "text", "text": "s1"}, {"type": "text", "text": "s2"}]
    text = seen(messages, system=system, tools=[WEATHER])
    assert json.JSONDecoder().raw_decode(text)[0] == [
        {"role": "system", "content": "s1\ns2"},
        {"role": "user", "content": "a\nb"},
        {
            "role": "assistant",
            "content": "c",
            "reasoning_content": "hm",
            "tool_calls": [{"id": "t1", "type": "function", "function": {"name": "weather", "arguments": {"k": [1]}}}],
        },
        {"role": "tool", "tool_call_id": "t1", "name": "weather", "content": "Error: e"},
        {"role": "user", "content": "d"},
    ]
    assert "SECRET" not in text
    assert '"name": "weather"' in text and "of a city" in text
    assert "of a city" not in seen([USER], tools=[WEATHER], tool_choice={"type": "none"})


def test_thinking_is_the_templates_switch(serve: Any, seen: Any, target: Target) -> None:
    assert "True" in seen([USER], thinking={"type": "enabled", "budget_tokens": 1024}, max_tokens=2000).split("]")[-1]
    assert "FalseTrue" in seen([USER], thinking={"type": "disabled"})
    for thinking in (None, {"type": "adaptive"}):
        assert seen([USER], thinking=thinking).endswith("]True")
    # A template without a switch, of a model that does not think.
    assert ask(target, thinking={"type": "disabled"}, script=["a"]).status == 200
    answer = ask(target, thinking={"type": "enabled", "budget_tokens": 1024}, max_tokens=2000)
    assert (answer.status, error_of(answer)["message"].split(":")[0]) == (400, "thinking")


def test_thoughts_are_blocks_of_their_own(serve: Any) -> None:
    fake = FakeEngine()
    fake.chat_template = ChatTemplate("{{ messages[0].content }}{# <think> #}", fake.tokenizer)
    target, _ = serve(fake)
    script = ["<think>", "a ", "b", "</think>", "\n\n", "c", "d"]
    whole = ask(target, script=script).json
    assert whole["content"] == [
        {"type": "thinking", "thinking": "a b", "signature": "unsigned"},
        {"type": "text", "text": "cd"},
    ]
    events = events_of(ask(target, script=script, stream=True))
    assert anonymous(joined(events)) == anonymous(whole)
    back = [USER, {"role": "assistant", "content": whole["content"]}, USER]
    assert ask(target, back, script=["a"]).status == 200


def test_a_last_assistant_message_is_continued(target: Target) -> None:
    prefill = [USER, {"role": "assistant", "content": "The answer is ("}]
    answer = ask(target, prefill, script=["abc"]).json
    assert answer["content"] == [{"type": "text", "text": "abc"}]

    def count(messages: Any) -> int:
        return int(ask(target, messages, "/v1/messages/count_tokens").json["input_tokens"])

    assert count(prefill) - count([USER]) == len("The answer is (")
    assert count([USER, {"role": "assistant", "content": ""}]) == count([USER])


@pytest.mark.parametrize(
    ("messages", "says"),
    [
        ([], "messages"),
        (None, "messages"),
        ("hi", "messages"),
        ([{"role": "tool", "content": "x"}], "messages[0].role"),
        ([{"role": "user", "content": ""}], "messages[0].content"),
        ([{"role": "user", "content": []}], "messages[0].content"),
        ([{"role": "user", "content": None}], "messages[0].content"),
        ([{"role": "user", "content": [{"type": "text", "text": ""}]}], "messages[0].content[0]"),
        ([{"role": "assistant", "content": ""}, USER], "messages[0].content"),
        ([{"role": "assistant", "content": [{"type": "thinking", "thinking": "x"}]}], "messages[0].content"),
        ([{"role": "user", "content": [{"type": "image", "source": {}}]}], "type image is not supported"),
        ([{"role": "user", "content": [{"source": {}, "type": "document"}]}], "type document is not supported"),
        ([{"role": "user", "content": [{"type": "text", "text": "a", "x": 1}]}], "messages[0].content"),
        ([{"role": "user", "content": [{"text": "a"}]}], "messages[0].content"),
        ([{"role": "user", "content": [{"type": "tool_use", "id": "a", "name": "b", "input": {}}]}], "tool_use"),
        ([{"role": "user", "content": [{"type": "tool_result", "tool_use_id": "zz"}]}], "zz"),
        ([USER, {"role": "assistant", "content": [{"type": "tool_result", "tool_use_id": "zz"}]}, USER], "tool_result"),
        (
            [{"role": "user", "content": [{"type": "text", "text": "a", "citations": [{"type": "x"}]}]}],
            "messages[0].content[0].citations",
        ),
    ],
)
def test_messages_that_are_refused(target: Target, messages: Any, says: str) -> None:
    for path, more in (("/v1/messages", {"stream": True}), ("/v1/messages", {}), ("/v1/messages/count_tokens", {})):
        document = {"messages": messages, **({} if "count" in path else {"max_tokens": 5}), **more}
        answer = target.post(path, document)
        assert answer.status == 400, answer.body
        error = error_of(answer)
        assert error["type"] == "invalid_request_error"
        assert says in error["message"]
    target.check_alive()


def test_calls_and_results_belong_together(target: Target) -> None:
    def call(*ids: str) -> dict[str, Any]:
        blocks = [{"type": "tool_use", "id": id_, "name": "weather", "input": {}} for id_ in ids]
        return {"role": "assistant", "content": blocks}

    def result(*ids: str) -> dict[str, Any]:
        return {"role": "user", "content": [{"type": "tool_result", "tool_use_id": id_} for id_ in ids]}

    text_first = {"role": "user", "content": [{"type": "text", "text": "a"}, *result("a")["content"]]}
    assert ask(target, [USER, call("a", "b"), result("b", "a")], script=["a"]).status == 200
    assert ask(target, [USER, call("a"), result("a"), call("a"), result("a")], script=["a"]).status == 200
    for messages in (
        [USER, call("a"), USER],
        [USER, call("a")],
        [USER, call("a", "b"), result("a")],
        [USER, call("a"), result("a", "a")],
        [USER, call("a"), result("b")],
        [USER, call("a", "a"), result("a")],
        [USER, call(*map(str, range(129))), result(*map(str, range(129)))],
        [USER, call("a"), text_first],
        [USER, call("a"), result("a"), {"role": "assistant", "content": "x"}, result("a")],
        [USER, call("a"), {"role": "system", "content": "x"}, result("a")],
    ):
        answer = ask(target, messages)
        assert answer.status == 400, messages
        assert "messages[" in error_of(answer)["message"]


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"max_tokens": None}, "max_tokens"),
        ({"max_tokens": -1}, "max_tokens"),
        ({"max_tokens": 1.5}, "max_tokens"),
        ({"temperature": 3}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"stop_sequences": ["x"] * 17}, "stop_sequences"),
        ({"stop_sequences": [""]}, "stop_sequences"),
        ({"stop_sequences": "x"}, "stop_sequences"),
        ({"stop": ["x"]}, "stop"),
        ({"n": 2}, "n"),
        ({"system": 5}, "system"),
        ({"system": [{"type": "image"}]}, "type image is not supported"),
        ({"system": [{"type": "tool_result", "tool_use_id": "x"}]}, "system[0]"),
        ({"thinking": {"type": "enabled"}}, "thinking.budget_tokens"),
        ({"thinking": {"type": "enabled", "budget_tokens": 5}}, "thinking.budget_tokens"),
        ({"thinking": {"type": "enabled", "budget_tokens": 2000}}, "thinking.budget_tokens"),
        ({"thinking": {"type": "disabled", "budget_tokens": 2000}}, "thinking.budget_tokens"),
        ({"thinking": {"type": "between_tools"}}, "thinking.type"),
        ({"thinking": {"type": "adaptive", "display": "omitted"}}, "thinking.display"),
        ({"tool_choice": {"type": "any"}}, "tool_choice"),
        ({"tool_choice": {"type": "maybe"}}, "tool_choice.type"),
        ({"tool_choice": {"type": "tool"}, "tools": [WEATHER]}, "tool_choice.name"),
        ({"tool_choice": {"type": "tool", "name": "other"}, "tools": [WEATHER]}, "tool_choice.name"),
        ({"tools": [{"name": "x"}]}, "tools[0].input_schema"),
        ({"tools": [WEATHER, WEATHER]}, "tools[1].name"),
        ({"tools": [{**WEATHER, "name": "no blanks"}]}, "tools[0].name"),
        ({"tools": [{**WEATHER, "input_schema": {"type": "string"}}]}, "tools[0].input_schema"),
        ({"tools": [{**WEATHER, "defer_loading": True}]}, "tools[0].defer_loading"),
        ({"tools": [{"type": "web_search_20250305", "name": "web_search", "max_uses": 5}]}, "web_search_20250305"),
        ({"tools": [{"max_uses": 5, "name": "web_search", "type": "web_search_20250305"}]}, "web_search_20250305"),
        ({"tools": [{**WEATHER, "type": "bash_20250124"}]}, "bash_20250124"),
        ({"mcp_servers": [{"type": "url"}]}, "mcp_servers"),
        ({"container": "x"}, "container"),
        ({"output_config": {"effort": "low"}}, "output_config.effort"),
        ({"output_config": {"format": {"type": "text", "schema": {}}}}, "output_config.format.type"),
    ],
)
def test_fields_that_are_refused(target: Target, fields: dict[str, Any], says: str) -> None:
    before = target.submitted
    for stream in (False, True):
        answer = ask(target, **fields, stream=stream)
        assert answer.status == 400, answer.body
        error = error_of(answer)
        assert error["type"] == "invalid_request_error"
        assert says in error["message"], error
    assert target.submitted == before


def test_fields_that_change_nothing(target: Target) -> None:
    fields = {
        "metadata": {"user_id": "u"},
        "service_tier": "auto",
        "cache_control": {"type": "ephemeral"},
        "thinking": None,
        "context_management": {"edits": []},
        "container": None,
        "output_config": {},
        "tools": [],
        "temperature": 1.0,
        "top_k": 5,
    }
    message = ask(target, script=["abc"], **fields).json
    assert message["content"] == [{"type": "text", "text": "abc"}]
    headers = {"anthropic-version": "2023-06-01", "x-api-key": "none", "anthropic-beta": "x"}
    document = {"max_tokens": 5, "messages": [USER], "script": ["a"]}
    assert target.post("/v1/messages?beta=true", document, **headers).status == 200


def test_every_error_has_the_shape(serve: Any) -> None:
    fake = FakeEngine()
    target, live = serve(fake, max_body_bytes=4096)
    body = {"Content-Type": "text/plain"}
    cases = [
        (target.get("/v1/messages"), 405, "invalid_request_error"),
        (target.get("/v1/messages/batches"), 404, "not_found_error"),
        (target.post("/v1/v1/messages", {}), 404, "not_found_error"),  # the client's base URL ends in /v1
        (target.post("/messages", {}), 404, "not_found_error"),
        (target.post("/v1/v1/messages/count_tokens", {}), 404, "not_found_error"),
        (target.post("/v1/messages", {}, Host="evil.example"), 403, "permission_error"),
        (target.post("/v1/messages", b"{"), 400, "invalid_request_error"),
        (target.request("POST", "/v1/messages", b"{}", body), 415, "invalid_request_error"),
        (target.post("/v1/messages", b" " * 5000), 413, "request_too_large"),
        (ask(target, model="other"), 404, "not_found_error"),
        (ask(target, script=["a", -1]), 500, "api_error"),
    ]
    fake.ready = False
    cases.append((ask(target), 503, "overloaded_error"))
    fake.ready = True
    fake.max_outstanding = 0
    live.server.app.context.admission.in_flight = 0
    for answer, status, kind in cases:
        assert answer.status == status, answer.body
        assert error_of(answer)["type"] == kind
    assert ask(target).status == 400
    assert "did you mean /v1/messages?" in error_of(target.post("/v1/v1/messages", {}))["message"]
    for path in ("/v1/models/x", "/v1/models/x/messages", "/v1/responses/messages"):
        assert target.get(path).error  # the others keep theirs


def test_a_full_queue(serve: Any) -> None:
    fake = FakeEngine()
    fake.max_outstanding = 1
    fake.step_s = 0.01
    target, _ = serve(fake)
    sock = target.connect()
    document = {"max_tokens": 400, "messages": [USER], "stream": True}
    sock.sendall(post_bytes("/v1/messages", document))
    eventually(lambda: len(fake.live) == 1)
    answer = ask(target)
    assert (answer.status, error_of(answer)["type"]) == (429, "rate_limit_error")
    assert answer.headers["retry-after"] == "1"
    sock.close()
    eventually(lambda: not fake.live)


def test_a_fault_after_the_first_byte_is_an_event(target: Target) -> None:
    events = events_of(ask(target, script=["abc", -1], stream=True))
    assert [event["type"] for event in events][-1] == "error"
    assert "message_stop" not in [event["type"] for event in events]
    assert events[-1]["error"]["type"] == "api_error"
    assert events[-1]["request_id"]


def test_a_silent_stream_gets_pings(serve: Any) -> None:
    fake = FakeEngine()
    fake.prefill_s = 0.5
    target, _ = serve(fake, stream_keep_alive_s=0.1)
    events = events_of(ask(target, script=["abc"], stream=True))
    assert events[0] == {"type": "ping"}
    assert joined(events)["content"] == [{"type": "text", "text": "abc"}]


def test_cached_tokens(serve: Any) -> None:
    fake = FakeEngine()
    fake.n_cached = 7
    target, _ = serve(fake)
    usage = ask(target, script=["a"]).json["usage"]
    assert (usage["cache_read_input_tokens"], usage["cache_creation_input_tokens"]) == (7, 0)
    start = events_of(ask(target, script=["a"], stream=True))[0]
    assert start["message"]["usage"]["input_tokens"] == usage["input_tokens"]
    assert start["message"]["usage"]["cache_read_input_tokens"] == 7


def test_equal_to_a_chat(target: Target) -> None:
    fields = {"temperature": 0.8, "seed": 7, "max_tokens": 20}
    chat = target.chat("hi", **fields).json["choices"][0]["message"]["content"]
    assert ask(target, **fields).json["content"][0]["text"] == chat


def test_a_model_without_a_template(serve: Any) -> None:
    fake = FakeEngine()
    fake.chat_template = None
    target, _ = serve(fake)
    for path in ("/v1/messages", "/v1/messages/count_tokens"):
        answer = ask(target, path=path)
        assert (answer.status, error_of(answer)["type"]) == (400, "invalid_request_error")


def test_unknown_fields_can_be_left_out(serve: Any) -> None:
    target, _ = serve(unknown_fields="ignore")
    message = {"role": "user", "content": [{"type": "text", "text": "a", "odd": 1}], "name": "x"}
    answer = ask(target, [message], script=["a"], foo=1)
    assert answer.status == 200
    assert set(answer.headers["x-sixfold-ignored-fields"].split(", ")) == {
        "foo",
        "messages[0].name",
        "messages[0].content[0].odd",
    }
    assert ask(target, [{"role": "user", "content": [{"type": "image", "source": {}}]}]).status == 400
