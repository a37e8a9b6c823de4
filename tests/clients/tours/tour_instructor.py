"""`instructor`: answers as objects."""

from __future__ import annotations

from typing import Any, Literal

import anthropic
import instructor
import openai
import pydantic
from instructor.core import IncompleteOutputException, InstructorRetryException
from script import HELLO, MODEL, raises


class Arguments(pydantic.BaseModel):
    unit: Literal["celsius", "fahrenheit"]


class Call(pydantic.BaseModel):
    """A call of a function."""

    name: Literal["weather"]
    arguments: Arguments


class weather(pydantic.BaseModel):
    """The weather here."""

    unit: Literal["celsius", "fahrenheit"]


def _openai(url: str, mode: instructor.Mode) -> Any:
    client = openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)
    return instructor.from_openai(client, mode=mode)


def _ask(client: Any, kind: type, **more: Any) -> None:
    answer = client.create(model=MODEL, messages=HELLO, response_model=kind, max_retries=0, **more)
    assert isinstance(answer, kind)


def tools(url: str) -> None:
    _ask(_openai(url, instructor.Mode.TOOLS), weather)


def tools_partial(url: str) -> None:
    stream = _openai(url, instructor.Mode.TOOLS).create_partial(
        model=MODEL, messages=HELLO, response_model=weather, max_retries=0
    )
    assert list(stream)[-1].unit in ("celsius", "fahrenheit")


def json_schema(url: str) -> None:
    _ask(_openai(url, instructor.Mode.JSON_SCHEMA), Call)


def json_object(url: str) -> None:
    _ask(_openai(url, instructor.Mode.JSON), Call)


def responses_tools(url: str) -> None:
    _ask(_openai(url, instructor.Mode.RESPONSES_TOOLS), weather)


def messages_tools(url: str) -> None:
    client = anthropic.Anthropic(base_url=url, api_key="none", max_retries=0)
    _ask(instructor.from_anthropic(client, mode=instructor.Mode.ANTHROPIC_TOOLS), weather, max_tokens=300)


def errors(url: str) -> None:
    client = _openai(url, instructor.Mode.JSON_SCHEMA)
    raises((IncompleteOutputException, InstructorRetryException), _ask, client, Call, max_tokens=3)
    assert "temperature" in str(raises(Exception, _ask, client, Call, temperature=3))
