"""The `anthropic` package against a live server: what its users call, and what they catch."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from .conftest import Target
from .fake_engine import FakeEngine

anthropic = pytest.importorskip("anthropic", reason="the anthropic package is not installed")

WEATHER = {
    "name": "weather",
    "description": "Tells the weather of a city.",
    "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}
CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Lima"}}\n</tool_call>'
USER = {"role": "user", "content": "hi"}


@pytest.fixture
def target(serve: Any) -> Target:
    target, _ = serve(FakeEngine(max_model_len=1 << 16))
    return target  # type: ignore[no-any-return]


@pytest.fixture
def client(target: Target) -> Iterator[Any]:
    address = f"http://127.0.0.1:{target.port}"
    with anthropic.Anthropic(base_url=address, api_key="none", max_retries=0) as client:
        yield client


def test_a_message_and_its_count(target: Target, client: Any) -> None:
    asked = {"model": target.model, "messages": [USER], "system": "be brief"}
    message = client.messages.create(**asked, max_tokens=50, extra_body={"script": ["abc", "d"]})
    assert (message.role, message.stop_reason, message.stop_sequence) == ("assistant", "end_turn", None)
    assert [block.text for block in message.content] == ["abcd"]
    assert client.messages.count_tokens(**asked).input_tokens == message.usage.input_tokens
    assert message._request_id


def test_streams(target: Target, client: Any) -> None:
    asked = {"model": target.model, "messages": [USER], "max_tokens": 50, "extra_body": {"script": ["ab", "c", "d"]}}
    with client.messages.stream(**asked) as stream:
        assert "".join(stream.text_stream) == "abcd"
        final = stream.get_final_message()
    assert (final.stop_reason, final.usage.output_tokens) == ("end_turn", 5)
    kinds = [event.type for event in client.messages.create(**asked, stream=True)]
    assert kinds[0] == "message_start" and kinds[-2:] == ["message_delta", "message_stop"]


def test_a_tool_is_called_and_answered(target: Target, client: Any) -> None:
    asked: dict[str, Any] = {"model": target.model, "max_tokens": 300, "tools": [WEATHER]}
    with client.messages.stream(**asked, messages=[USER], extra_body={"script": ["Well.", *CALL]}) as stream:
        pieces = [event.partial_json for event in stream if event.type == "input_json"]
        message = stream.get_final_message()
    assert json.loads("".join(pieces)) == {"city": "Lima"}
    text, call = message.content
    assert (message.stop_reason, text.text) == ("tool_use", "Well.")
    assert (call.type, call.name, call.input) == ("tool_use", "weather", {"city": "Lima"})
    result = {"type": "tool_result", "tool_use_id": call.id, "content": "17 degrees"}
    messages = [USER, message.to_param(), {"role": "user", "content": [result]}]
    answer = client.messages.create(**asked, messages=messages, extra_body={"script": ["warm"]})
    assert (answer.stop_reason, answer.content[0].text) == ("end_turn", "warm")


def test_errors_are_its_exceptions(target: Target, client: Any) -> None:
    asked = {"model": target.model, "messages": [USER], "max_tokens": 50}
    with pytest.raises(anthropic.BadRequestError, match="temperature") as caught:
        client.messages.create(**asked, extra_body={"temperature": 3.0})
    assert caught.value.request_id
    with pytest.raises(anthropic.NotFoundError, match="other"):
        client.messages.create(**{**asked, "model": "other"})
    with pytest.raises(anthropic.BadRequestError, match="type image is not supported"):
        source = {"type": "base64", "media_type": "image/png", "data": "AA=="}
        image = {"role": "user", "content": [{"type": "image", "source": source}]}
        client.messages.create(**{**asked, "messages": [image]})
    with pytest.raises(anthropic.InternalServerError):
        client.messages.create(**asked, extra_body={"script": ["a", -1]})
    with pytest.raises(anthropic.APIStatusError, match="logits"):
        list(client.messages.create(**asked, extra_body={"script": ["a", -1]}, stream=True))
