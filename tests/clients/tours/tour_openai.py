"""The `openai` client."""

from __future__ import annotations

import asyncio
from typing import Any, Literal

import openai
import pydantic
from script import ANSWER, HELLO, MODEL, SCHEMA, TOOL, check_arguments, check_document, raises


def _client(url: str) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)


class Arguments(pydantic.BaseModel):
    unit: Literal["celsius", "fahrenheit"]


class Call(pydantic.BaseModel):
    name: Literal["weather"]
    arguments: Arguments


FORMAT: Any = {"type": "json_schema", "json_schema": {"name": "call", "schema": SCHEMA, "strict": True}}


def models(url: str) -> None:
    client = _client(url)
    assert [model.id for model in client.models.list()] == [MODEL]
    assert client.models.retrieve(MODEL).id == MODEL


def chat(url: str) -> None:
    answer = _client(url).chat.completions.create(model=MODEL, messages=HELLO, temperature=0, logprobs=True)
    (choice,) = answer.choices
    assert choice.message.content == ANSWER
    assert choice.finish_reason == "stop"
    assert not choice.message.tool_calls
    assert "".join(entry.token for entry in choice.logprobs.content) == ANSWER
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens


def chat_stream(url: str) -> None:
    stream = _client(url).chat.completions.create(
        model=MODEL, messages=HELLO, stream=True, stream_options={"include_usage": True}
    )
    chunks = list(stream)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks[:-1]) == ANSWER
    assert chunks[-1].choices == []
    assert chunks[-1].usage.completion_tokens == len(ANSWER) + 1


def chat_async(url: str) -> None:
    async def main() -> None:
        async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:
            calls = [client.chat.completions.create(model=MODEL, messages=HELLO) for _ in range(8)]
            answers = await asyncio.gather(*calls)
            assert {answer.choices[0].message.content for answer in answers} == {ANSWER}
            stream = await client.chat.completions.create(model=MODEL, messages=HELLO, stream=True)
            assert "".join([chunk.choices[0].delta.content or "" async for chunk in stream]) == ANSWER

    asyncio.run(main())


def completions(url: str) -> None:
    client = _client(url)
    answer = client.completions.create(model=MODEL, prompt=["a", "b"], max_tokens=5)
    assert [choice.text for choice in answer.choices] == [ANSWER[:5]] * 2
    assert {choice.finish_reason for choice in answer.choices} == {"length"}
    stream = client.completions.create(model=MODEL, prompt="a", stream=True)
    assert "".join(chunk.choices[0].text for chunk in stream) == ANSWER


def tools(url: str) -> None:
    client = _client(url)
    answer = client.chat.completions.create(model=MODEL, messages=HELLO, tools=[TOOL])
    (choice,) = answer.choices
    assert choice.finish_reason == "tool_calls"
    (call,) = choice.message.tool_calls
    assert call.function.name == "weather"
    check_arguments(call.function.arguments)
    result = {"role": "tool", "tool_call_id": call.id, "content": "sunny"}
    messages = [*HELLO, choice.message, result]
    answer = client.chat.completions.create(model=MODEL, messages=messages, tools=[TOOL], tool_choice="none")
    assert answer.choices[0].message.content == ANSWER


def tools_stream(url: str) -> None:
    client = _client(url)
    with client.chat.completions.stream(model=MODEL, messages=HELLO, tools=[TOOL]) as stream:
        events = list(stream)
        message = stream.get_final_completion().choices[0].message
    assert [event.name for event in events if event.type == "tool_calls.function.arguments.done"] == ["weather"]
    check_arguments(message.tool_calls[0].function.arguments)


def tool_choice(url: str) -> None:
    named = {"type": "function", "function": {"name": "weather"}}
    for choice in ("required", named):
        answer = _client(url).chat.completions.create(
            model=MODEL, messages=HELLO, tools=[TOOL], tool_choice=choice, parallel_tool_calls=False
        )
        (call,) = answer.choices[0].message.tool_calls
        assert call.function.name == "weather"
        check_arguments(call.function.arguments)


def json_schema(url: str) -> None:
    client = _client(url)
    answer = client.chat.completions.create(model=MODEL, messages=HELLO, response_format=FORMAT)
    check_document(answer.choices[0].message.content)
    parsed = client.chat.completions.parse(model=MODEL, messages=HELLO, response_format=Call)
    assert isinstance(parsed.choices[0].message.parsed, Call)
    stream = client.chat.completions.create(model=MODEL, messages=HELLO, response_format=FORMAT, stream=True)
    check_document("".join(chunk.choices[0].delta.content or "" for chunk in stream))


def json_object(url: str) -> None:
    answer = _client(url).chat.completions.create(model=MODEL, messages=HELLO, response_format={"type": "json_object"})
    check_document(answer.choices[0].message.content)


def embeddings(url: str) -> None:
    client = _client(url)
    answer = client.embeddings.create(model=MODEL, input=["Hello", "there"])
    plain = client.embeddings.create(model=MODEL, input=["Hello", "there"], encoding_format="float")
    assert len(answer.data) == 2
    assert [entry.embedding for entry in answer.data] == [entry.embedding for entry in plain.data]
    assert answer.data[0].embedding != answer.data[1].embedding
    assert answer.usage.total_tokens == answer.usage.prompt_tokens > 0


def responses(url: str) -> None:
    client = _client(url)
    answer = client.responses.create(model=MODEL, input="Hello", instructions="Be brief.")
    assert answer.status == "completed"
    assert answer.output_text == ANSWER
    assert answer.usage.total_tokens == answer.usage.input_tokens + answer.usage.output_tokens
    messages = [{"role": "user", "content": [{"type": "input_text", "text": "Hello"}]}]
    cut = client.responses.create(model=MODEL, input=messages, max_output_tokens=5)
    assert cut.status == "incomplete"
    assert cut.incomplete_details.reason == "max_output_tokens"


def responses_stream(url: str) -> None:
    client = _client(url)
    with client.responses.stream(model=MODEL, input="Hello") as stream:
        events = list(stream)
        answer = stream.get_final_response()
    assert [event.type for event in events[:2]] == ["response.created", "response.in_progress"]
    assert events[-1].type == "response.completed"
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert "".join(event.delta for event in events if event.type == "response.output_text.delta") == ANSWER
    assert answer.output_text == ANSWER


def responses_tools(url: str) -> None:
    client = _client(url)
    tool = {"type": "function", **TOOL["function"]}
    answer = client.responses.create(model=MODEL, input="Hello", tools=[tool])
    (call,) = [item for item in answer.output if item.type == "function_call"]
    assert call.name == "weather"
    check_arguments(call.arguments)
    result = {"type": "function_call_output", "call_id": call.call_id, "output": "sunny"}
    items = [{"role": "user", "content": "Hello"}, *answer.output, result]
    after = client.responses.create(model=MODEL, input=items, tools=[tool], tool_choice="none")
    assert after.output_text == ANSWER
    forced = client.responses.create(
        model=MODEL, input="Hello", tools=[{**tool, "strict": True}], tool_choice="required"
    )
    (call,) = [item for item in forced.output if item.type == "function_call"]
    check_arguments(call.arguments)


def responses_schema(url: str) -> None:
    answer = _client(url).responses.parse(model=MODEL, input="Hello", text_format=Call)
    assert isinstance(answer.output_parsed, Call)


def responses_continued(url: str) -> None:
    client = _client(url)
    first = client.responses.create(model=MODEL, input="Hello", store=True)
    assert client.responses.retrieve(first.id).output_text == ANSWER
    second = client.responses.create(model=MODEL, input="And now?", previous_response_id=first.id)
    assert second.previous_response_id == first.id
    assert second.usage.input_tokens > first.usage.input_tokens
    client.responses.delete(first.id)
    raises(openai.NotFoundError, client.responses.retrieve, first.id)


def errors(url: str) -> None:
    client = _client(url)
    chat = client.chat.completions.create
    error = raises(openai.BadRequestError, chat, model=MODEL, messages=HELLO, temperature=3)
    assert error.param == "temperature"
    assert error.type == "invalid_request_error"
    error = raises(openai.BadRequestError, chat, model=MODEL, messages=HELLO, extra_body={"temprature": 1})
    assert error.code == "unknown_field"
    error = raises(openai.BadRequestError, client.completions.create, model=MODEL, prompt="x" * 5000, stream=True)
    assert error.code == "context_length_exceeded"
    raises(openai.NotFoundError, chat, model="another", messages=HELLO)
    raises(openai.InternalServerError, chat, model=MODEL, messages=HELLO, extra_body={"script": [-1]})
    stream = chat(model=MODEL, messages=HELLO, extra_body={"script": ["abc", -1]}, stream=True)
    assert "logits" in str(raises(openai.APIError, list, stream))


def responses_errors(url: str) -> None:
    create = _client(url).responses.create
    error = raises(openai.BadRequestError, create, model=MODEL, input="Hello", temperature=3)
    assert error.param == "temperature"
    raises(openai.NotFoundError, create, model="another", input="Hello")
    error = raises(openai.BadRequestError, create, model=MODEL, input="Hello", tools=[{"type": "web_search"}])
    assert error.param.startswith("tools[0]")


def embeddings_errors(url: str) -> None:
    create = _client(url).embeddings.create
    assert raises(openai.BadRequestError, create, model=MODEL, input=[]).param == "input"
    assert raises(openai.BadRequestError, create, model=MODEL, input="a", dimensions=3).param == "dimensions"
