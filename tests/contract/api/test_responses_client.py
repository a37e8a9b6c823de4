"""The `openai` client's own reading of responses and their events."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from .fake_engine import FAULT, FakeEngine
from .test_responses import CALL, TOOL

openai = pytest.importorskip("openai")


@pytest.fixture
def client(serve: Any, tmp_path: Path) -> Iterator[Any]:
    target, _ = serve(FakeEngine(max_model_len=4096), response_store=str(tmp_path / "responses.sqlite"))
    with openai.OpenAI(base_url=f"http://127.0.0.1:{target.port}/v1", api_key="none", max_retries=0) as client:
        yield client


def script(text: str | list[Any]) -> dict[str, Any]:
    return {"script": list(text)}


def check_strictly(model: Any) -> None:
    """What was received is valid as the client's types have it, which it does not check by itself."""
    assert type(model).model_validate(model.to_dict()).to_dict() == model.to_dict()


def test_a_conversation(client: Any) -> None:
    first = client.responses.create(model="fake", input="hi", extra_body=script("hello"))
    check_strictly(first)
    assert (first.output_text, first.status) == ("hello", "completed")
    assert client.responses.retrieve(first.id) == first
    second = client.responses.create(
        model="fake", input="more", previous_response_id=first.id, extra_body=script("sure"), metadata={"n": "2"}
    )
    assert (second.output_text, second.previous_response_id, second.metadata) == ("sure", first.id, {"n": "2"})
    assert second.usage.input_tokens > first.usage.input_tokens
    (item,) = client.responses.input_items.list(second.id)
    assert (item.role, item.content[0].text) == ("user", "more")
    client.responses.delete(first.id)
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(first.id)
    with pytest.raises(openai.BadRequestError) as caught:
        client.responses.create(model="fake", input="x", previous_response_id=second.id)
    assert caught.value.param == "previous_response_id"


def test_the_clients_gathering_of_a_stream(client: Any) -> None:
    for tools, text in (([], "one two"), ([TOOL], "See. " + CALL + CALL)):
        plain = client.responses.create(model="fake", input="x", tools=tools, extra_body=script(text))
        with client.responses.stream(model="fake", input="x", tools=tools, extra_body=script(text)) as stream:
            events = list(stream)
            last = stream.get_final_response()
        for event in client.responses.create(
            model="fake", input="x", tools=tools, extra_body=script(text), stream=True
        ):
            check_strictly(event)
        assert last.output_text == plain.output_text
        assert [item.type for item in last.output] == [item.type for item in plain.output]
        assert events[-1].type == "response.completed"


def test_a_tools_round_trip(client: Any) -> None:
    first = client.responses.create(model="fake", input="Weather?", tools=[TOOL], extra_body=script(CALL))
    (call,) = first.output
    assert (call.name, json.loads(call.arguments)) == ("weather", {"town": "Oslo"})
    output = {"type": "function_call_output", "call_id": call.call_id, "output": "rain"}
    second = client.responses.create(
        model="fake", input=[output], tools=[TOOL], previous_response_id=first.id, extra_body=script("It rains.")
    )
    assert second.output_text == "It rains."
    stateless = client.responses.create(
        model="fake",
        input=[{"role": "user", "content": "Weather?"}, *first.output, output],
        store=False,
        extra_body=script("Yes."),
    )
    assert stateless.output_text == "Yes."


def test_faults(client: Any) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        client.responses.create(model="fake", input="x", background=True)
    assert caught.value.param == "background"
    with pytest.raises(openai.NotFoundError):
        client.responses.create(model="other", input="x")
    with pytest.raises(openai.InternalServerError):
        client.responses.create(model="fake", input="x", extra_body=script(["a", FAULT]))
    events = list(client.responses.create(model="fake", input="x", stream=True, extra_body=script(["a", FAULT])))
    assert events[-1].type == "response.failed"
    assert "logits" in events[-1].response.error.message
    check_strictly(events[-1])
