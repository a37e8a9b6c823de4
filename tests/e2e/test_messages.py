"""The default model behind Anthropic's Messages API, asked by Anthropic's client."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.e2e.serving import Server

anthropic = pytest.importorskip("anthropic", reason="the anthropic package is not installed")

pytestmark = pytest.mark.model

MODEL = "small"
USER = {"role": "user", "content": "Name three colours, and say which of them you like most."}
ASKED: dict[str, Any] = {"model": MODEL, "max_tokens": 24, "messages": [USER], "extra_body": {"temperature": 0.0}}
CITY = {"type": "object", "properties": {"city": {"enum": ["Oslo", "Lima"]}}, "required": ["city"]}
WEATHER = {"name": "weather", "description": "Tells the weather of a city.", "input_schema": CITY}


@pytest.fixture(scope="module")
def client(model_path: Path) -> Iterator[Any]:
    with (
        Server(str(model_path), "--served-model-name", MODEL) as server,
        anthropic.Anthropic(base_url=server.url, api_key="none", max_retries=0) as client,
    ):
        yield client


def without_names(message: Any) -> Any:
    """What does not differ between two answers to one request."""
    return message.model_dump(exclude={"id", "usage", "content"}), [block.model_dump() for block in message.content]


def test_a_stream_says_what_the_whole_message_says(client: Any) -> None:
    whole = client.messages.create(**ASKED)
    with client.messages.stream(**ASKED) as stream:
        text = "".join(stream.text_stream)
        streamed = stream.get_final_message()
    assert text == whole.content[0].text and text
    assert without_names(streamed)[0] == without_names(whole)[0]
    counted = client.messages.count_tokens(model=MODEL, messages=[USER]).input_tokens
    for usage in (whole.usage, streamed.usage):
        assert usage.input_tokens + usage.cache_read_input_tokens == counted
    assert streamed.usage.output_tokens == whole.usage.output_tokens


def test_max_tokens_zero_reads_the_prompt_into_the_cache(client: Any) -> None:
    asked = {**ASKED, "system": "Answer in the manner of somebody who has seen many colours in a long life at sea."}
    warm = client.messages.create(**{**asked, "max_tokens": 0})
    assert (warm.content, warm.stop_reason, warm.usage.cache_read_input_tokens) == ([], "max_tokens", 0)
    assert client.messages.create(**asked).usage.cache_read_input_tokens >= 16


def test_a_stop_sequence(client: Any) -> None:
    text = client.messages.create(**ASKED).content[0].text
    stop = text[5:8]
    message = client.messages.create(**ASKED, stop_sequences=[stop])
    assert (message.stop_reason, message.stop_sequence) == ("stop_sequence", stop)
    assert message.content[0].text == text[: text.index(stop)]


def test_a_tool_that_must_be_called(client: Any) -> None:
    asked = {
        **ASKED,
        "max_tokens": 100,
        "tools": [WEATHER],
        "tool_choice": {"type": "any", "disable_parallel_tool_use": True},
    }
    with client.messages.stream(**asked) as stream:
        message = stream.get_final_message()
    (call,) = message.content[:1]
    assert (message.stop_reason, call.type, call.name) == ("tool_use", "tool_use", "weather")
    assert call.input["city"] in ("Oslo", "Lima")
    result = {"type": "tool_result", "tool_use_id": call.id, "content": "17 degrees"}
    results = [{**result, "tool_use_id": block.id} for block in message.content]
    messages = [USER, message.to_param(), {"role": "user", "content": results}]
    answer = client.messages.create(**{**ASKED, "messages": messages, "tools": [WEATHER]})
    assert answer.usage.output_tokens > 0


def test_an_answer_of_a_shape(client: Any) -> None:
    shape = {"format": {"type": "json_schema", "schema": {**CITY, "additionalProperties": False}}}
    message = client.messages.create(**ASKED, output_config=shape)
    assert json.loads(message.content[0].text)["city"] in ("Oslo", "Lima")
