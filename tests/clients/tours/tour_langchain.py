"""`langchain-openai`."""

from __future__ import annotations

from typing import Any, Literal

import openai
import pydantic
from langchain_core.messages import HumanMessage, ToolMessage
from langchain_openai import ChatOpenAI, OpenAIEmbeddings
from script import ANSWER, ARGUMENTS, FUNCTION, MODEL, raises


class Arguments(pydantic.BaseModel):
    unit: Literal["celsius", "fahrenheit"]


class Call(pydantic.BaseModel):
    """A call of a function."""

    name: Literal["weather"]
    arguments: Arguments


def _chat(url: str, **more: Any) -> ChatOpenAI:
    return ChatOpenAI(model=MODEL, base_url=f"{url}/v1", api_key="none", max_retries=0, **more)


def chat(url: str) -> None:
    answer = _chat(url, temperature=0).invoke([("system", "Be brief."), ("user", "Hello")])
    assert answer.content == ANSWER
    assert answer.usage_metadata["output_tokens"] == len(ANSWER) + 1
    assert answer.response_metadata["finish_reason"] == "stop"


def chat_stream(url: str) -> None:
    chunks = list(_chat(url, stream_usage=True).stream("Hello"))
    assert "".join(str(chunk.content) for chunk in chunks) == ANSWER
    assert sum(chunk.usage_metadata["output_tokens"] for chunk in chunks if chunk.usage_metadata) == len(ANSWER) + 1


def batch(url: str) -> None:
    assert [answer.content for answer in _chat(url).batch(["Hello"] * 4)] == [ANSWER] * 4


def tools(url: str) -> None:
    model = _chat(url).bind_tools([{"type": "function", "function": FUNCTION}])
    answer = model.invoke("Hello")
    (call,) = answer.tool_calls
    assert (call["name"], call["args"]) == ("weather", ARGUMENTS)
    after = _chat(url).invoke([HumanMessage("Hello"), answer, ToolMessage("sunny", tool_call_id=call["id"])])
    assert after.content == ANSWER
    gathered = None
    for chunk in model.stream("Hello"):
        gathered = chunk if gathered is None else gathered + chunk
    assert [call["args"] for call in gathered.tool_calls] == [ARGUMENTS]


def json_schema(url: str) -> None:
    assert isinstance(_chat(url).with_structured_output(Call, method="json_schema").invoke("Hello"), Call)


def function_calling(url: str) -> None:
    assert isinstance(_chat(url).with_structured_output(Call, method="function_calling").invoke("Hello"), Call)


def json_mode(url: str) -> None:
    assert isinstance(_chat(url).with_structured_output(Call, method="json_mode").invoke("Hello"), Call)


def embeddings(url: str) -> None:
    model = OpenAIEmbeddings(
        model=MODEL, base_url=f"{url}/v1", api_key="none", max_retries=0, check_embedding_ctx_length=False
    )
    one, two = model.embed_documents(["Hello", "there"])
    assert len(one) == len(two) == len(model.embed_query("Hello"))


def responses(url: str) -> None:
    answer = _chat(url, use_responses_api=True).invoke("Hello")
    assert answer.text == ANSWER
    assert "".join(chunk.text for chunk in _chat(url, use_responses_api=True).stream("Hello")) == ANSWER


def responses_tools(url: str) -> None:
    model = _chat(url, use_responses_api=True).bind_tools([{"type": "function", "function": FUNCTION}])
    (call,) = model.invoke("Hello").tool_calls
    assert call["args"] == ARGUMENTS


def errors(url: str) -> None:
    assert raises(openai.BadRequestError, _chat(url, temperature=3).invoke, "Hello").param == "temperature"
    raises(openai.NotFoundError, ChatOpenAI(model="another", base_url=f"{url}/v1", api_key="none").invoke, "Hello")
