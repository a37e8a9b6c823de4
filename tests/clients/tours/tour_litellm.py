"""`litellm`, which speaks OpenAI's and Anthropic's protocols."""

from __future__ import annotations

from typing import Any

import litellm
from script import ANSWER, HELLO, MODEL, SCHEMA, TOOL, check_arguments, check_document, raises

FORMAT = {"type": "json_schema", "json_schema": {"name": "call", "schema": SCHEMA, "strict": True}}


def _openai(url: str) -> dict[str, Any]:
    return {"model": f"openai/{MODEL}", "api_base": f"{url}/v1", "api_key": "none", "num_retries": 0, "max_retries": 0}


def _anthropic(url: str) -> dict[str, Any]:
    return {**_openai(url), "model": f"anthropic/{MODEL}", "api_base": url, "max_tokens": 200}


def chat(url: str) -> None:
    answer = litellm.completion(messages=HELLO, temperature=0, **_openai(url))
    assert answer.choices[0].message.content == ANSWER
    assert answer.usage.completion_tokens == len(ANSWER) + 1


def chat_stream(url: str) -> None:
    stream = litellm.completion(messages=HELLO, stream=True, **_openai(url))
    assert "".join(chunk.choices[0].delta.content or "" for chunk in stream) == ANSWER


def tools(url: str) -> None:
    answer = litellm.completion(messages=HELLO, tools=[TOOL], tool_choice="auto", **_openai(url))
    (call,) = answer.choices[0].message.tool_calls
    check_arguments(call.function.arguments)
    chunks = list(litellm.completion(messages=HELLO, tools=[TOOL], stream=True, **_openai(url)))
    (call,) = litellm.stream_chunk_builder(chunks).choices[0].message.tool_calls
    check_arguments(call.function.arguments)


def json_schema(url: str) -> None:
    answer = litellm.completion(messages=HELLO, response_format=FORMAT, **_openai(url))
    check_document(answer.choices[0].message.content)


def embeddings(url: str) -> None:
    fields = _openai(url)
    del fields["num_retries"]
    answer = litellm.embedding(input=["Hello", "there"], **fields)
    assert len(answer.data) == 2
    assert len(answer.data[0]["embedding"]) == len(answer.data[1]["embedding"]) > 0


def responses(url: str) -> None:
    answer = litellm.responses(input="Hello", **_openai(url))
    texts = [part.text for item in answer.output if item.type == "message" for part in item.content]
    assert texts == [ANSWER]


def messages(url: str) -> None:
    answer = litellm.completion(messages=HELLO, **_anthropic(url))
    assert answer.choices[0].message.content == ANSWER
    stream = litellm.completion(messages=HELLO, stream=True, **_anthropic(url))
    assert "".join(chunk.choices[0].delta.content or "" for chunk in stream) == ANSWER


def messages_tools(url: str) -> None:
    answer = litellm.completion(messages=HELLO, tools=[TOOL], **_anthropic(url))
    (call,) = answer.choices[0].message.tool_calls
    check_arguments(call.function.arguments)


def errors(url: str) -> None:
    error = raises(litellm.BadRequestError, litellm.completion, messages=HELLO, temperature=3, **_openai(url))
    assert "temperature" in str(error)
    raises(litellm.NotFoundError, litellm.completion, messages=HELLO, **{**_openai(url), "model": "openai/another"})
    fields = {**_openai(url), "messages": [{"role": "user", "content": "x" * 5000}]}
    raises(litellm.ContextWindowExceededError, litellm.completion, **fields)


def messages_errors(url: str) -> None:
    error = raises(litellm.BadRequestError, litellm.completion, messages=HELLO, temperature=3, **_anthropic(url))
    assert "temperature" in str(error)
