"""The `anthropic` client."""

from __future__ import annotations

import asyncio

import anthropic
from script import ANSWER, HELLO, MODEL, PARAMETERS, SCHEMA, check_arguments, check_document, raises

TOOL = {"name": "weather", "description": "The weather here", "input_schema": PARAMETERS}


def _client(url: str) -> anthropic.Anthropic:
    return anthropic.Anthropic(base_url=url, api_key="none", max_retries=0)


def messages(url: str) -> None:
    answer = _client(url).messages.create(model=MODEL, max_tokens=100, system="Be brief.", messages=HELLO)
    assert [block.type for block in answer.content] == ["text"]
    assert answer.content[0].text == ANSWER
    assert (answer.role, answer.stop_reason, answer.model) == ("assistant", "end_turn", MODEL)
    assert answer.usage.output_tokens == len(ANSWER) + 1


def limits(url: str) -> None:
    create = _client(url).messages.create
    assert create(model=MODEL, max_tokens=5, messages=HELLO).stop_reason == "max_tokens"
    answer = create(model=MODEL, max_tokens=100, messages=HELLO, stop_sequences=["weather"])
    assert (answer.stop_reason, answer.stop_sequence) == ("stop_sequence", "weather")
    assert answer.content[0].text == ANSWER.partition("weather")[0]


def stream(url: str) -> None:
    with _client(url).messages.stream(model=MODEL, max_tokens=100, messages=HELLO) as stream:
        assert "".join(stream.text_stream) == ANSWER
        answer = stream.get_final_message()
    assert answer.content[0].text == ANSWER
    assert answer.stop_reason == "end_turn"
    assert answer.usage.output_tokens == len(ANSWER) + 1


def stream_async(url: str) -> None:
    async def main() -> None:
        client = anthropic.AsyncAnthropic(base_url=url, api_key="none", max_retries=0)
        async with client, client.messages.stream(model=MODEL, max_tokens=100, messages=HELLO) as stream:
            assert "".join([text async for text in stream.text_stream]) == ANSWER

    asyncio.run(main())


def tools(url: str) -> None:
    client = _client(url)
    answer = client.messages.create(model=MODEL, max_tokens=200, messages=HELLO, tools=[TOOL])
    assert answer.stop_reason == "tool_use"
    (call,) = [block for block in answer.content if block.type == "tool_use"]
    assert call.name == "weather"
    check_arguments(call.input)
    result = {"role": "user", "content": [{"type": "tool_result", "tool_use_id": call.id, "content": "sunny"}]}
    after = [*HELLO, {"role": "assistant", "content": answer.content}, result]
    answer = client.messages.create(
        model=MODEL, max_tokens=200, messages=after, tools=[TOOL], tool_choice={"type": "none"}
    )
    assert answer.content[0].text == ANSWER


def tools_stream(url: str) -> None:
    with _client(url).messages.stream(model=MODEL, max_tokens=200, messages=HELLO, tools=[TOOL]) as stream:
        events = list(stream)
        answer = stream.get_final_message()
    assert any(event.type == "input_json" for event in events)
    (call,) = [block for block in answer.content if block.type == "tool_use"]
    check_arguments(call.input)


def tool_choice(url: str) -> None:
    for choice in ({"type": "any"}, {"type": "tool", "name": "weather"}):
        answer = _client(url).messages.create(
            model=MODEL, max_tokens=300, messages=HELLO, tools=[TOOL], tool_choice=choice
        )
        assert answer.stop_reason == "tool_use"
        check_arguments(answer.content[0].input)


def json_schema(url: str) -> None:
    answer = _client(url).messages.create(
        model=MODEL,
        max_tokens=300,
        messages=HELLO,
        output_config={"format": {"type": "json_schema", "schema": SCHEMA}},
    )
    check_document(answer.content[0].text)


def count_tokens(url: str) -> None:
    client = _client(url)
    counted = client.messages.count_tokens(model=MODEL, system="Be brief.", messages=HELLO)
    answer = client.messages.create(model=MODEL, max_tokens=1, system="Be brief.", messages=HELLO)
    cached = answer.usage.cache_read_input_tokens or 0
    assert counted.input_tokens == answer.usage.input_tokens + cached


def errors(url: str) -> None:
    create = _client(url).messages.create
    hot = {"extra_body": {"temperature": 3}}  # the client itself knows no temperature any more
    error = raises(anthropic.BadRequestError, create, model=MODEL, max_tokens=5, messages=HELLO, **hot)
    assert error.body["type"] == "error"
    assert error.body["error"]["type"] == "invalid_request_error"
    assert "temperature" in error.body["error"]["message"]
    error = raises(anthropic.NotFoundError, create, model="another", max_tokens=5, messages=HELLO)
    assert error.body["error"]["type"] == "not_found_error"
    raises(anthropic.BadRequestError, create, model=MODEL, max_tokens=-1, messages=HELLO)
    fields = {"model": MODEL, "max_tokens": 5, "messages": HELLO, "extra_body": {"script": [-1]}}
    raises(anthropic.InternalServerError, create, **fields)
