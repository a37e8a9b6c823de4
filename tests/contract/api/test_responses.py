"""The Responses API: documents, events, tools, what is kept and what is refused."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from sixfold.text import ChatTemplate

from .conftest import Answer, LiveServer, Target, eventually, post_bytes
from .fake_engine import FAULT, FakeEngine

TOOL = {
    "type": "function",
    "name": "weather",
    "description": "The weather in a town",
    "parameters": {"type": "object", "properties": {"town": {"type": "string"}}, "required": ["town"]},
}
CALL = '<tool_call>\n{"name": "weather", "arguments": {"town": "Oslo"}}\n</tool_call>'

THINKING = """{% for m in messages %}<|im_start|>{{ m.role }}
{% if m.reasoning_content %}<think>{{ m.reasoning_content }}</think>{% endif %}{{ m.content }}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% if enable_thinking is defined and not enable_thinking %}<think>

</think>

{% endif %}{% endif %}"""


class Served(NamedTuple):
    target: Target
    live: LiveServer
    fake: FakeEngine
    path: Path

    def respond(self, input: Any = "hi", **fields: Any) -> Answer:
        return self.target.post("/v1/responses", {"input": input, **fields})

    def events(self, input: Any = "hi", **fields: Any) -> list[Any]:
        return events_of(self.respond(input, stream=True, **fields))

    def prompt(self) -> str:
        """The latest one."""
        return self.fake.tokenizer.decode(self.fake.requests[-1].prompt_token_ids, skip_special=False)


def events_of(answer: Answer) -> list[Any]:
    """The events, after a check of their framing."""
    assert answer.status == 200, answer.body
    assert answer.headers["content-type"].startswith("text/event-stream")
    text = answer.body.decode()
    assert text.endswith("\n\n")
    found = []
    for block in text[:-2].split("\n\n"):
        name, data = block.split("\n")
        assert name.startswith("event: ") and data.startswith("data: ")
        found.append(json.loads(data[6:]))
        assert found[-1]["type"] == name[7:]
    assert [event["sequence_number"] for event in found] == list(range(len(found)))
    return found


@pytest.fixture
def served(serve: Any, tmp_path: Path) -> Iterator[Served]:
    fake = FakeEngine(max_model_len=4096)
    path = tmp_path / "responses.sqlite"
    target, live = serve(fake, response_store=str(path))
    yield Served(target, live, fake, path)


def without(document: dict[str, Any]) -> dict[str, Any]:
    """The document without what differs from call to call."""
    dropped = ("id", "created_at", "completed_at", "call_id")
    out = {key: value for key, value in document.items() if key not in dropped}
    if "output" in out:
        out["output"] = [without(item) for item in out["output"]]
    return out


def test_a_text_is_answered_with_a_document(served: Served) -> None:
    answer = served.respond("hi", script=list("hello"), instructions="Be brief", metadata={"a": "b"}, user="me")
    document = answer.json
    assert answer.status == 200
    assert document["object"] == "response"
    assert document["id"].startswith("resp_")
    assert document["status"] == "completed"
    assert (document["error"], document["incomplete_details"]) == (None, None)
    assert (document["model"], document["instructions"], document["metadata"]) == ("fake", "Be brief", {"a": "b"})
    assert document["store"] is True
    (message,) = document["output"]
    assert (message["type"], message["role"], message["status"]) == ("message", "assistant", "completed")
    assert message["content"] == [{"type": "output_text", "text": "hello", "annotations": [], "logprobs": []}]
    usage = document["usage"]
    assert usage["output_tokens"] == 6
    assert usage["total_tokens"] == usage["input_tokens"] + 6
    assert usage["output_tokens_details"] == {"reasoning_tokens": 0}
    assert served.prompt().count("system\nBe brief") == 1
    assert served.prompt().count("user\nhi") == 1


def test_items_are_messages_of_the_chat(served: Served) -> None:
    items = [
        {"role": "developer", "content": "D"},
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "a"}] * 2},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "b", "annotations": []}]},
        {"role": "user", "content": "c"},
    ]
    assert served.respond(items, script=["x"]).status == 200
    turns = [part.partition("\n") for part in served.prompt().split("<|im_start|>")[1:]]
    said = [(role, text.removesuffix("\n").removesuffix("<|im_end|>")) for role, _, text in turns]
    assert said == [("system", "D"), ("user", "a\na"), ("assistant", "b"), ("user", "c"), ("assistant", "")]


def test_the_events_of_a_text(served: Served) -> None:
    events = served.events(script=["a", "b", "c"])
    assert [event["type"] for event in events] == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
        *["response.output_text.delta"] * 3,
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.completed",
    ]
    created, last = events[0]["response"], events[-1]["response"]
    assert (created["status"], created["output"], created["usage"]) == ("in_progress", [], None)
    assert created["id"] == last["id"]
    item = last["output"][0]
    assert events[2]["item"] == {**item, "content": [], "status": "in_progress"}
    assert events[3]["part"] == {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
    for event in events[3:9]:
        assert (event["item_id"], event["output_index"], event["content_index"]) == (item["id"], 0, 0)
    assert [event["delta"] for event in events[4:7]] == ["a", "b", "c"]
    assert (events[7]["text"], events[8]["part"]) == ("abc", item["content"][0])
    assert events[9]["item"] == item


@pytest.mark.parametrize(
    "fields",
    [
        {"script": ["a", " b", "\u00e9", "c"]},
        {"script": list("abcdef"), "max_output_tokens": 3},
        {"script": list(CALL), "tools": [TOOL]},
        {"script": list("I ask. " + CALL + CALL), "tools": [TOOL]},
        {"script": list(CALL), "tools": [TOOL], "max_output_tokens": 60},
        {"script": [], "max_output_tokens": 5},
        {"script": list("one STOP two"), "stop": "STOP"},
        {"script": list("abc"), "include": ["message.output_text.logprobs"], "top_logprobs": 2},
    ],
)
def test_O03_the_joined_stream_is_the_plain_answer(served: Served, fields: dict[str, Any]) -> None:
    plain = served.respond(temperature=0, **fields).json
    events = served.events(temperature=0, **fields)
    last = events[-1]["response"]
    assert without(last) == without(plain)
    assert events[-1]["type"] == f"response.{plain['status']}"
    for index, item in enumerate(last["output"]):
        own = [event for event in events if event.get("output_index") == index]
        deltas = "".join(event["delta"] for event in own if event["type"].endswith(".delta"))
        text = item["arguments"] if item["type"] == "function_call" else item["content"][0]["text"]
        assert deltas == text
        assert own[-1] == {**own[-1], "type": "response.output_item.done", "item": item}
        entries = [entry for event in own if event["type"].endswith("text.delta") for entry in event["logprobs"]]
        assert item["type"] == "function_call" or entries == item["content"][0]["logprobs"]


def test_an_answer_cut_short_is_incomplete(served: Served) -> None:
    document = served.respond(script=list("abcdef"), max_output_tokens=3).json
    assert (document["status"], document["incomplete_details"]) == ("incomplete", {"reason": "max_output_tokens"})
    assert (document["output"][0]["status"], document["completed_at"]) == ("incomplete", None)
    events = served.events(script=list("abcdef"), max_output_tokens=3)
    assert events[-1]["type"] == "response.incomplete"
    assert events[-2]["item"]["status"] == "incomplete"


def test_an_empty_answer_is_an_empty_message(served: Served) -> None:
    end = [served.fake.end_id]
    (message,) = served.respond(script=end).json["output"]
    assert (message["content"][0]["text"], message["status"]) == ("", "completed")
    assert not [event for event in served.events(script=end) if event["type"].endswith(".delta")]


def test_logprobs_are_those_of_the_text(served: Served) -> None:
    fields = {"include": ["message.output_text.logprobs"], "top_logprobs": 2}
    (message,) = served.respond(script=["a", "b"], **fields).json["output"]
    entries = message["content"][0]["logprobs"]
    assert [entry["token"] for entry in entries] == ["a", "b"]
    assert all(len(entry["top_logprobs"]) == 2 and entry["bytes"] for entry in entries)
    (message,) = served.respond(script=["a"], include=["message.output_text.logprobs"]).json["output"]
    assert message["content"][0]["logprobs"][0]["top_logprobs"] == []


# tools


def test_a_round_trip_with_a_tool(served: Served) -> None:
    first = served.respond("Weather?", tools=[TOOL], script=list("Let me see. " + CALL)).json
    message, call = first["output"]
    assert first["status"] == "completed"
    assert message["content"][0]["text"].strip() == "Let me see."
    assert (call["type"], call["name"], json.loads(call["arguments"])) == ("function_call", "weather", {"town": "Oslo"})
    assert call["call_id"].startswith("call_") and call["id"].startswith("fc_")
    output = {"type": "function_call_output", "call_id": call["call_id"], "output": "rain in Oslo"}
    second = served.respond([output], tools=[TOOL], previous_response_id=first["id"], script=["x"])
    assert second.status == 200, second.body
    assert second.json["previous_response_id"] == first["id"]
    stored_prompt = served.prompt()
    for words in ("Weather?", "Let me see.", '"town": "Oslo"', "rain in Oslo"):
        assert stored_prompt.count(words) == 1, stored_prompt
    # The same by hand, from the items.
    items = [{"role": "user", "content": "Weather?"}, *first["output"], output]
    assert served.respond(items, tools=[TOOL], store=False, script=["x"]).status == 200
    assert served.prompt() == stored_prompt


@pytest.mark.parametrize(
    "arguments", ['{"city": "Os', "[]", '"x"', "null", "", '{"city":"Oslo"}', 42, {"city": "Oslo"}]
)
def test_O28_malformed_arguments_of_a_call_sent_back(served: Served, arguments: Any) -> None:
    items = [
        {"role": "user", "content": "x"},
        {"type": "function_call", "call_id": "c", "name": "weather", "arguments": arguments},
        {"type": "function_call_output", "call_id": "c", "output": "rain"},
    ]
    for stream in (False, True):
        answer = served.respond(items, tools=[TOOL], script=["a"], stream=stream)
        if isinstance(arguments, str):
            assert answer.status == 200, answer.body
            shown = '{"city": "Oslo"}' if "Oslo" in arguments else "{}"
            assert f'"arguments": {shown}' in served.prompt() and "rain" in served.prompt()
        else:
            assert (answer.status, answer.error["param"]) == (400, "input[1].arguments")


def test_the_events_of_a_call(served: Served) -> None:
    events = served.events(tools=[TOOL], script=list(CALL))
    kinds = [event["type"].removeprefix("response.") for event in events if not event["type"].endswith(".delta")]
    assert kinds == [
        "created",
        "in_progress",
        "output_item.added",
        "function_call_arguments.done",
        "output_item.done",
        "completed",
    ]
    added = next(event["item"] for event in events if event["type"] == "response.output_item.added")
    assert (added["name"], added["arguments"], added["status"]) == ("weather", "", "in_progress")
    (done,) = [event for event in events if event["type"] == "response.function_call_arguments.done"]
    assert json.loads(done["arguments"]) == {"town": "Oslo"}


def test_two_calls_are_two_items(served: Served) -> None:
    first, second = served.respond(tools=[TOOL], script=list(CALL + CALL)).json["output"]
    assert first["call_id"] != second["call_id"] and first["id"] != second["id"]
    (only,) = served.respond(tools=[TOOL], parallel_tool_calls=False, script=list(CALL + CALL)).json["output"]
    assert only["type"] == "function_call"


@pytest.mark.parametrize("again", [False, True])
def test_an_output_without_its_call_is_refused(served: Served, again: bool) -> None:
    output = {"type": "function_call_output", "call_id": "c", "output": "x"}
    call = {"type": "function_call", "call_id": "c", "name": "weather", "arguments": "{}"}
    items = [call, output, output] if again else [output]
    error = served.respond(items).error
    assert error["param"] == f"input[{len(items) - 1}].call_id"


def test_a_format_is_the_grammar_of_the_answer(served: Served) -> None:
    schema = {"type": "object", "properties": {"town": {"type": "string"}}, "additionalProperties": False}
    format = {"type": "json_schema", "name": "place", "schema": schema, "strict": True}
    document = served.respond(text={"format": format}, script=["x"]).json
    assert document["text"]["format"] == {**format, "description": None}
    assert '"town"' in served.fake.requests[-1].sampling.grammar
    served.respond(text={"format": {"type": "json_object"}}, script=["x"])
    assert "object" in served.fake.requests[-1].sampling.grammar
    served.respond(text={"format": {"type": "text"}}, script=["x"])
    assert served.fake.requests[-1].sampling.grammar == ""


def test_a_call_that_must_be_is_enforced(served: Served) -> None:
    for choice in ("required", {"type": "function", "name": "weather"}):
        document = served.respond(tools=[TOOL], tool_choice=choice, script=list(CALL)).json
        assert document["output"][0]["type"] == "function_call"
        assert document["tool_choice"] == choice
        assert served.fake.requests[-1].sampling.grammar


# reasoning


@pytest.fixture
def thinking(served: Served) -> Served:
    served.fake.chat_template = ChatTemplate(THINKING, served.fake.tokenizer)
    return served


def test_reasoning_is_an_item(thinking: Served) -> None:
    script = list("<think>so</think>well")
    plain = thinking.respond("q", script=script).json
    reasoning, message = plain["output"]
    assert (reasoning["type"], reasoning["summary"]) == ("reasoning", [])
    assert reasoning["content"] == [{"type": "reasoning_text", "text": "so"}]
    assert message["content"][0]["text"] == "well"
    assert plain["usage"]["output_tokens_details"]["reasoning_tokens"] > 0
    events = thinking.events("q", script=script)
    assert without(events[-1]["response"]) == without(plain)
    kinds = [event["type"].removeprefix("response.") for event in events if event.get("output_index") == 0]
    assert list(dict.fromkeys(kinds)) == [
        "output_item.added",
        "content_part.added",
        "reasoning_text.delta",
        "reasoning_text.done",
        "content_part.done",
        "output_item.done",
    ]
    assert thinking.respond("more", previous_response_id=plain["id"], script=["x"]).status == 200
    assert "assistant\n<think>so</think>well<|im_end|>" in thinking.prompt()


def test_effort_turns_the_templates_switch(thinking: Served) -> None:
    assert thinking.respond("q", reasoning={"effort": "none"}, script=["x"]).json["reasoning"]["effort"] == "none"
    assert thinking.prompt().endswith("</think>\n\n")
    thinking.respond("q", reasoning={"effort": "high"}, script=["x"])
    assert thinking.prompt().endswith("assistant\n")


def test_effort_without_a_switch_is_refused(served: Served) -> None:
    assert served.respond(reasoning={"effort": "none"}, script=["x"]).status == 200
    assert served.respond(reasoning={"effort": "high"}).error["param"] == "reasoning.effort"
    assert served.respond(reasoning={"effort": "much"}).error["param"] == "reasoning.effort"
    assert served.respond(reasoning={"summary": "detailed"}).error["param"] == "reasoning.summary"
    assert served.respond(reasoning={"summary": "auto"}, script=["x"]).status == 200


# faults


@pytest.mark.parametrize("died", [False, True])
def test_O03_a_fault_in_the_middle_is_the_last_event(served: Served, died: bool) -> None:
    if died:
        served.fake.step_s = 0.01
        sock = served.target.connect()
        sock.sendall(post_bytes("/v1/responses", {"input": "x", "stream": True}, "Connection: close\r\n"))
        data = b""
        while b"output_text.delta" not in data:
            data += sock.recv(65536)
        served.live.call(served.fake.kill)
        while piece := sock.recv(65536):
            data += piece
        sock.close()
        assert data.count(b"event: response.failed") == 1
        assert data.endswith(b"0\r\n\r\n")
        return
    events = served.events(script=["a", "b", FAULT])
    assert events[-1]["type"] == "response.failed"
    failed = events[-1]["response"]
    assert (failed["status"], failed["error"]["code"]) == ("failed", "server_error")
    assert failed["error"]["message"]
    assert (failed["output"][0]["content"][0]["text"], failed["output"][0]["status"]) == ("ab", "incomplete")
    assert failed["store"] is False
    assert served.target.get(f"/v1/responses/{failed['id']}").status == 404
    answer = served.respond(script=["a", FAULT])
    assert (answer.status, answer.error["code"]) == (500, "request_failed")


def test_O32_a_client_that_leaves_is_aborted_and_nothing_is_kept(served: Served) -> None:
    served.fake.step_s = 0.005
    sock = served.target.connect()
    sock.sendall(post_bytes("/v1/responses", {"input": "x", "stream": True}))
    while b"output_text.delta" not in sock.recv(65536):
        pass
    sock.close()
    eventually(lambda: not served.fake.live)
    assert served.fake.aborts == 1
    assert not served.path.exists()


# what is kept


def test_a_response_is_kept_until_it_is_deleted(served: Served) -> None:
    document = served.respond("hi", script=["a"]).json
    path = f"/v1/responses/{document['id']}"
    assert served.target.get(path).json == document
    assert served.target.get(f"{path}?stream=false").json == document
    answer = served.target.request("DELETE", path)
    assert answer.json == {"id": document["id"], "object": "response", "deleted": True}
    for method in ("GET", "DELETE"):
        answer = served.target.request(method, path)
        assert (answer.status, answer.error["code"]) == (404, "response_not_found")
    assert served.target.get(f"{path}/input_items").status == 404
    error = served.respond(previous_response_id=document["id"]).error
    assert (error["param"], error["code"]) == ("previous_response_id", "previous_response_not_found")


def test_a_streamed_response_is_there_when_its_last_event_is(served: Served) -> None:
    last = served.events(script=["a", "b"])[-1]["response"]
    assert served.target.get(f"/v1/responses/{last['id']}").json == last


def test_a_conversation_goes_on_by_its_id(served: Served) -> None:
    previous = None
    for turn in ("one", "two", "three"):
        document = served.respond(
            turn, previous_response_id=previous, instructions=f"now {turn}", script=list(f"<{turn}>")
        ).json
        previous = document["id"]
    prompt = served.prompt()
    order = [prompt.index(words) for words in ("now three", "one", "<one>", "two", "<two>", "user\nthree")]
    assert order == sorted(order)
    assert "now one" not in prompt, "instructions are those of one call"


def test_branches_of_a_conversation_do_not_mix(served: Served) -> None:
    root = served.respond("root", script=["r"]).json["id"]
    for branch in ("left", "right"):
        served.respond(branch, previous_response_id=root, script=[branch[0]])
        assert ("left" in served.prompt()) == (branch == "left")


def test_without_store_nothing_is_kept(served: Served) -> None:
    document = served.respond(store=False, script=["a"]).json
    assert document["store"] is False
    assert served.target.get(f"/v1/responses/{document['id']}").status == 404
    assert not served.path.exists()


def test_a_server_without_a_store(serve: Any) -> None:
    target, _ = serve(response_store="off")
    document = target.post("/v1/responses", {"input": "x", "script": ["a"]}).json
    assert document["store"] is False
    assert target.get(f"/v1/responses/{document['id']}").status == 404
    assert target.post("/v1/responses", {"input": "x", "store": True}).error["param"] == "store"
    error = target.post("/v1/responses", {"input": "x", "previous_response_id": "resp_1"}).error
    assert error["param"] == "previous_response_id"


def test_a_store_that_cannot_be_written_breaks_no_answer(served: Served) -> None:
    served.path.mkdir()
    for stream in (False, True):
        answer = served.respond(script=["a"], stream=stream)
        document = events_of(answer)[-1]["response"] if stream else answer.json
        assert (document["status"], document["store"]) == ("completed", False)
    answer = served.target.get("/v1/responses/resp_1")
    assert (answer.status, answer.error["code"]) == (503, "response_store_unavailable")
    assert answer.headers["retry-after"]
    assert served.respond(previous_response_id="resp_1").status == 503


def test_a_broken_file_is_a_503_and_no_500(served: Served) -> None:
    document = served.respond(script=["a"]).json
    with sqlite3.connect(served.path) as db:
        db.execute("DROP TABLE responses")
    assert served.target.get(f"/v1/responses/{document['id']}").status == 503
    assert served.respond(script=["a"]).json["store"] is False


def test_the_input_items_are_listed_in_pages(served: Served) -> None:
    items = [{"role": "user", "content": text} for text in "abcde"]
    id = served.respond(items, script=["x"]).json["id"]
    path = f"/v1/responses/{id}/input_items"

    def page(query: str) -> Any:
        return served.target.get(path + query).json

    def texts(document: Any) -> str:
        return "".join(item["content"][0]["text"] for item in document["data"])

    everything = page("")
    assert texts(everything) == "edcba"
    assert everything["object"] == "list" and everything["has_more"] is False
    assert everything["data"][0] == {
        "type": "message",
        "id": everything["first_id"],
        "role": "user",
        "content": [{"type": "input_text", "text": "e"}],
        "status": "completed",
    }
    first = page("?order=asc&limit=2")
    assert (texts(first), first["has_more"]) == ("ab", True)
    second = page(f"?order=asc&limit=3&after={first['last_id']}")
    assert (texts(second), second["has_more"]) == ("cde", False)
    last = page(f"?after={everything['last_id']}")
    assert (last["data"], last["first_id"], last["has_more"]) == ([], None, False)


@pytest.mark.parametrize(
    ("query", "param"),
    [
        ("?limit=0", "limit"),
        ("?limit=101", "limit"),
        ("?limit=x", "limit"),
        ("?order=up", "order"),
        ("?after=nobody", "after"),
        ("?blob=1", "blob"),
        ("?include[]=x", "include[]"),
    ],
)
def test_queries_that_are_refused(served: Served, query: str, param: str) -> None:
    id = served.respond(script=["x"]).json["id"]
    answer = served.target.get(f"/v1/responses/{id}/input_items{query}")
    assert (answer.status, answer.error["param"]) == (400, param)


def test_a_stored_response_is_not_streamed(served: Served) -> None:
    id = served.respond(script=["x"]).json["id"]
    assert served.target.get(f"/v1/responses/{id}?stream=true").error["param"] == "stream"


# what is refused

USER = {"role": "user", "content": "x"}
WRONG: list[tuple[dict[str, Any], str]] = [
    ({"input": None}, "input"),
    ({"input": []}, "input"),
    ({"input": 5}, "input"),
    ({"input": [5]}, "input"),
    ({"input": [USER] * 4097}, "input"),
    ({"input": [{}]}, "input[0].role"),
    ({"input": [USER, {"role": "wizard", "content": "x"}]}, "input[1].role"),
    ({"input": [{"role": "user"}]}, "input[0].content"),
    ({"input": [{"role": "user", "content": []}]}, "input[0].content"),
    ({"input": [{**USER, "blob": 1}]}, "input[0].blob"),
    ({"input": [{"type": 5}]}, "input[0].type"),
    ({"input": [{"type": "item_reference", "id": "x"}]}, "input[0].type"),
    ({"input": [{"type": "computer_call", "action": {}}]}, "input[0].type"),
    ({"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]}, "input[0].content[0].type"),
    ({"input": [{"role": "user", "content": [{"type": "input_file", "file_id": "x"}]}]}, "input[0].content[0].type"),
    ({"input": [{"role": "user", "content": [{"type": "input_audio"}]}]}, "input[0].content[0].type"),
    ({"input": [{"role": "user", "content": [{"text": "x"}]}]}, "input[0].content[0].type"),
    ({"input": [{"role": "user", "content": [{"type": "input_text"}]}]}, "input[0].content[0].text"),
    ({"input": [{"role": "user", "content": [{"type": "input_text", "text": 5}]}]}, "input[0].content[0].text"),
    ({"input": [{"type": "function_call", "call_id": "c", "name": "n"}]}, "input[0].arguments"),
    ({"input": [{"type": "function_call_output", "call_id": "", "output": "x"}]}, "input[0].call_id"),
    ({"input": [{"type": "reasoning", "summary": [], "encrypted_content": "x"}]}, "input[0].encrypted_content"),
    ({"blob": 1}, "blob"),
    ({"messages": []}, "messages"),
    ({"model": "other"}, "model"),
    ({"max_output_tokens": 0}, "max_output_tokens"),
    ({"max_output_tokens": 10**6}, "max_output_tokens"),
    ({"temperature": 3}, "temperature"),
    ({"top_p": 0}, "top_p"),
    ({"top_logprobs": 3}, "top_logprobs"),
    ({"top_logprobs": 21, "include": ["message.output_text.logprobs"]}, "top_logprobs"),
    ({"include": ["file_search_call.results"]}, "include"),
    ({"stream": False, "stream_options": {}}, "stream_options"),
    ({"stream": True, "stream_options": {"include_usage": True}}, "stream_options.include_usage"),
    ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
    ({"tools": [TOOL, {"type": "mcp", "server_label": "x"}]}, "tools[1].type"),
    ({"tools": [{**TOOL, "name": "no name"}]}, "tools[0].name"),
    ({"tools": [TOOL, TOOL]}, "tools[1].name"),
    ({"tools": [{**TOOL, "blob": 1}]}, "tools[0].blob"),
    ({"tools": [{"type": "function", "function": TOOL}]}, "tools[0].function"),
    ({"tool_choice": "required"}, "tool_choice"),
    ({"tool_choice": "sometimes"}, "tool_choice"),
    ({"tool_choice": {"type": "function", "name": "x"}}, "tool_choice.name"),
    ({"tool_choice": {"type": "file_search"}}, "tool_choice.type"),
    ({"text": {"format": {"type": "yaml"}}}, "text.format.type"),
    ({"text": {"format": {"type": "json_schema", "name": "x"}}}, "text.format.schema"),
    ({"text": {"format": {"type": "text", "schema": {}}}}, "text.format.schema"),
    ({"text": {"format": {"type": "json_schema", "name": "x", "schema": {"type": 5}}}}, "text.format.schema"),
    ({"text": {"verbosity": "low"}}, "text.verbosity"),
    ({"metadata": {str(i): "x" for i in range(17)}}, "metadata"),
    ({"metadata": {"a": 5}}, "metadata"),
    ({"metadata": {"a": "x" * 513}}, "metadata"),
    ({"previous_response_id": "resp_of_nobody"}, "previous_response_id"),
    ({"truncation": "auto"}, "truncation"),
    ({"background": True}, "background"),
    ({"conversation": "conv_1"}, "conversation"),
    ({"prompt": {"id": "x"}}, "prompt"),
    ({"max_tool_calls": 3}, "max_tool_calls"),
]


@pytest.mark.parametrize(("fields", "param"), WRONG, ids=[param for _, param in WRONG])
def test_every_wrong_field_is_named(served: Served, fields: dict[str, Any], param: str) -> None:
    for stream in (False, True):
        answer = served.target.post("/v1/responses", {"input": "x", "stream": stream, **fields})
        assert answer.status == (404 if param == "model" else 400), answer.body
        assert answer.error["param"] == param, answer.body
    assert not served.fake.requests


def test_what_asks_for_nothing_is_accepted(served: Served) -> None:
    neutral = {
        "background": False,
        "truncation": "disabled",
        "conversation": None,
        "prompt": None,
        "max_tool_calls": None,
        "text": {"format": {"type": "text"}, "verbosity": "medium"},
        "tools": [],
        "tool_choice": "auto",
        "include": ["reasoning.encrypted_content"],
        "user": "u",
        "service_tier": "auto",
        "prompt_cache_key": "k",
        "prompt_cache_retention": "24h",
        "safety_identifier": "s",
        "reasoning": {"effort": None, "summary": "auto"},
    }
    document = served.respond(script=["a"], **neutral).json
    assert document["status"] == "completed"
    assert (document["prompt_cache_key"], document["safety_identifier"], document["user"]) == ("k", "s", "u")


def test_unknown_fields_are_left_out_where_the_server_says_so(serve: Any) -> None:
    target, _ = serve(FakeEngine(max_model_len=4096), unknown_fields="ignore")
    items = [{"role": "user", "blob": 1, "content": [{"type": "input_text", "text": "a", "glob": 2}]}]
    answer = target.post("/v1/responses", {"input": items, "flob": 3, "script": ["x"], "tools": [{**TOOL, "slob": 4}]})
    assert answer.status == 200, answer.body
    named = set(answer.headers["x-sixfold-ignored-fields"].split(", "))
    assert named == {"flob", "input[0].blob", "input[0].content[0].glob", "tools[0].slob"}


def test_a_conversation_longer_than_the_context(served: Served) -> None:
    served.fake.max_model_len = 512
    first = served.respond("x" * 200, script=["a"]).json["id"]
    second = served.respond("y" * 100, previous_response_id=first, script=["a"]).json["id"]
    error = served.respond("z" * 200, previous_response_id=second).error
    assert (error["code"], error["param"]) == ("context_length_exceeded", "input")
