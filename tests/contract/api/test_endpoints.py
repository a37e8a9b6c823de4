"""The smaller endpoints, metrics, the OpenAPI document, and stopping."""

from __future__ import annotations

import json
import shlex
import threading
import time
from typing import Any

import openai
import pytest
from prometheus_client.parser import text_string_to_metric_families
from tests import chat_templates

from sixfold import __version__
from sixfold.api.app import ROUTES
from sixfold.api.http.decoding import decode
from sixfold.api.openapi import OPERATIONS, Operation, statuses
from sixfold.observability.families import COUNTERS, GAUGES, HISTOGRAMS
from sixfold.text import ChatTemplate

from .conftest import Target, eventually
from .fake_engine import CONTEXT, FakeEngine

USER: dict[str, Any] = {"messages": [{"role": "user", "content": "a"}]}


def test_models(target: Target) -> None:
    document = target.get("/v1/models").json
    assert document["object"] == "list"
    (model,) = document["data"]
    assert (model["id"], model["object"], model["owned_by"]) == (target.model, "model", "sixfold")
    assert model["max_model_len"] == CONTEXT and isinstance(model["created"], int)
    assert target.get(f"/v1/models/{target.model}").json == model
    assert model["sampling_defaults"] == {}
    answer = target.get("/v1/models/nope/x")
    assert (answer.status, answer.error["param"], answer.error["code"]) == (404, "model", "model_not_found")


def test_models_whose_names_have_slashes(serve: Any) -> None:
    fake = FakeEngine()
    fake.model_name = "org/model with blanks"
    target, _ = serve(fake)
    for path in ("org/model%20with%20blanks", "org%2Fmodel%20with%20blanks"):
        assert target.get(f"/v1/models/{path}").json["id"] == fake.model_name
    with openai.OpenAI(base_url=f"http://127.0.0.1:{target.port}/v1", api_key="none", max_retries=0) as client:
        assert client.models.retrieve(fake.model_name).id == fake.model_name
        assert [model.id for model in client.models.list()] == [fake.model_name]
        with pytest.raises(openai.NotFoundError):
            client.models.retrieve("org/other")


def test_apply_template_shows_what_a_chat_reads(target: Target) -> None:
    messages = [{"role": "developer", "content": "be brief"}, {"role": "user", "content": "hi"}]
    answer = target.post("/apply-template", {"messages": messages}).json
    assert set(answer) == {"prompt"}
    assert answer["prompt"].endswith("<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n")
    whole = target.post("/apply-template", {"messages": messages, "return_token_ids": True}).json
    assert whole["prompt"] == answer["prompt"]
    assert whole["prompt_token_ids"] == target.post("/tokenize", {"messages": messages}).json["tokens"]
    closed = target.post("/apply-template", {"messages": messages, "add_generation_prompt": False}).json["prompt"]
    assert answer["prompt"] == closed + "<|im_start|>assistant\n"


def test_apply_template_shows_calls_and_results_as_a_chat_reads_them(target: Target) -> None:
    function = {"name": "weather", "arguments": '{"city": "Lima"}'}
    messages = [
        {"role": "user", "content": "hi"},
        {"role": "assistant", "tool_calls": [{"id": "a", "type": "function", "function": function}]},
        {"role": "tool", "tool_call_id": "a", "content": "<|im_end|>"},
    ]
    shown = target.post("/apply-template", {"messages": messages, "return_token_ids": True}).json
    assert "Lima" in shown["prompt"]
    chat = target.chat(messages, max_tokens=1, return_token_ids=True).json
    assert shown["prompt_token_ids"] == chat["prompt_token_ids"]
    assert shown["prompt"] == target.tokenizer.decode(chat["prompt_token_ids"], skip_special=False)


@pytest.mark.parametrize(
    "kwargs", [{"": 1}, {"a-b": 1}, {"sixfold_x": 1}, {"a": "x" * 70000}, {f"k{i}": 1 for i in range(65)}]
)
def test_O48_template_variables_are_checked_alike(target: Target, kwargs: dict[str, Any]) -> None:
    chat = target.chat("hi", max_tokens=1, chat_template_kwargs=kwargs).error
    document = {"messages": [{"role": "user", "content": "hi"}], "chat_template_kwargs": kwargs}
    assert target.post("/apply-template", document).error == chat
    assert chat["param"] == "chat_template_kwargs"


def test_apply_template_hands_variables_to_the_template(serve: Any) -> None:
    fake = FakeEngine()
    fake.chat_template = ChatTemplate("{{ mood }} {{ messages[0].content }}", fake.tokenizer)
    target, _ = serve(fake)
    document = {"messages": [{"role": "user", "content": "hi"}], "chat_template_kwargs": {"mood": "glad"}}
    assert target.post("/apply-template", document).json == {"prompt": "glad hi"}
    fake.chat_template = None
    assert target.post("/apply-template", document).error["code"] == "no_chat_template"


@pytest.mark.parametrize("name", ["messages", "tools", "tokenize", "add_generation_prompt", "chat_template"])
def test_O48_reserved_names_of_template_variables_are_refused(target: Target, name: str) -> None:
    document = {"messages": [{"role": "user", "content": "hi"}], "chat_template_kwargs": {name: True}}
    answer = target.post("/apply-template", document)
    assert answer.status == 400 and answer.error["param"] == "chat_template_kwargs"
    answer = target.post("/apply-template", {"messages": document["messages"], "chat_template": "{{ 1 }}"})
    assert answer.status == 400 and answer.error["param"] == "chat_template"


def test_tokenize_and_back(target: Target) -> None:
    text = "h\u00e9 <|im_start|>\U0001f600"
    tokens = target.post("/tokenize", {"prompt": text}).json
    assert tokens["count"] == len(tokens["tokens"])
    assert tokens["max_model_len"] == 512
    assert target.post("/detokenize", {"tokens": tokens["tokens"]}).json == {"prompt": text}
    hidden = target.post("/detokenize", {"tokens": tokens["tokens"], "skip_special_tokens": True}).json["prompt"]
    assert hidden == text.replace("<|im_start|>", "")
    pieces = target.post("/tokenize", {"prompt": "ab", "return_token_strs": True}).json["token_strs"]
    assert pieces == ["a", "b"]
    assert target.post("/tokenize", {"prompt": ""}).json["count"] == 0
    assert target.post("/detokenize", {"tokens": []}).json == {"prompt": ""}


def test_tokenize_of_a_chat_counts_what_the_chat_counts(target: Target) -> None:
    messages = [{"role": "user", "content": "hi"}]
    count = target.post("/tokenize", {"messages": messages}).json["count"]
    assert count == target.chat(messages, script=["a"]).json["usage"]["prompt_tokens"]
    without = target.post("/tokenize", {"messages": messages, "add_generation_prompt": False}).json["count"]
    assert without < count


@pytest.mark.parametrize(
    "options",
    [
        {"tools": [{"type": "function", "function": {"name": "clock"}}]},
        {"continue_final_message": True, "messages": [*USER["messages"], {"role": "assistant", "content": "so"}]},
        {"add_special_tokens": False},
        {"reasoning_effort": "none"},
        {"chat_template_kwargs": {"enable_thinking": False}},
    ],
)
def test_all_that_makes_a_prompt_is_shown(serve: Any, options: dict[str, Any]) -> None:
    fake = FakeEngine(max_model_len=4096)
    fake.chat_template = ChatTemplate(chat_templates.THINKING, fake.tokenizer)
    target, _ = serve(fake)
    document = {**USER, **options}
    answer = target.post("/v1/chat/completions", {**document, "script": ["a"], "return_token_ids": True}).json
    ids = answer["prompt_token_ids"]
    assert target.post("/tokenize", document).json["tokens"] == ids
    shown = target.post("/apply-template", {**document, "return_token_ids": True}).json
    assert shown["prompt_token_ids"] == ids
    assert shown["prompt"] == target.post("/detokenize", {"tokens": ids}).json["prompt"]


@pytest.mark.parametrize(
    ("path", "document", "param"),
    [
        ("/tokenize", {}, "prompt"),
        ("/tokenize", {"prompt": "a", "messages": []}, "prompt"),
        ("/tokenize", {"messages": []}, "messages"),
        ("/tokenize", {"prompt": 5}, "prompt"),
        ("/tokenize", {"prompt": "a", "foo": 1}, "foo"),
        ("/tokenize", {"prompt": "a", "model": "other"}, "model"),
        ("/tokenize", {"prompt": "a", "add_generation_prompt": True}, "add_generation_prompt"),
        ("/tokenize", {"prompt": "a", "tools": []}, "tools"),
        ("/tokenize", {"prompt": "a", "reasoning_effort": "low"}, "reasoning_effort"),
        ("/tokenize", {**USER, "reasoning_effort": "low"}, "reasoning_effort"),
        ("/tokenize", {**USER, "continue_final_message": True}, "continue_final_message"),
        ("/tokenize", {**USER, "chat_template_kwargs": {"tools": 1}}, "chat_template_kwargs"),
        ("/apply-template", {**USER, "continue_final_message": True}, "continue_final_message"),
        ("/apply-template", {**USER, "tools": [{"type": "search"}]}, "tools[0].type"),
        ("/apply-template", {**USER, "reasoning_effort": "much"}, "reasoning_effort"),
        ("/apply-template", {}, "messages"),
        ("/apply-template", {"messages": []}, "messages"),
        ("/apply-template", {"messages": [{"role": "cat", "content": "a"}]}, "messages[0].role"),
        ("/apply-template", {"messages": "a"}, "messages"),
        ("/apply-template", {"messages": [], "chat_template_kwargs": 5}, "chat_template_kwargs"),
        ("/detokenize", {}, "tokens"),
        ("/detokenize", {"tokens": [99999999]}, "tokens"),
        ("/detokenize", {"tokens": [-1]}, "tokens"),
        ("/detokenize", {"tokens": ["a"]}, "tokens"),
    ],
)
def test_tokenize_refuses(target: Target, path: str, document: Any, param: str) -> None:
    answer = target.post(path, document)
    assert (answer.status, answer.error["param"]) == (404 if param == "model" else 400, param)


def test_version_and_health(target: Target) -> None:
    assert target.get("/version").json["build"].startswith("scripted")
    for path in ("/health", "/livez", "/readyz"):
        assert target.get(path).json == {"status": "ok"}


def test_the_address_itself_says_where_to_go(target: Target) -> None:
    answer = target.get("/")
    assert (answer.status, answer.headers["content-type"]) == (200, "text/plain; charset=utf-8")
    text = answer.body.decode()
    for word in (target.model, __version__, "/v1/models", "/openapi.json", "/health"):
        assert word in text
    command = shlex.split(text[text.index("curl") :])
    assert command[2] == f"http://127.0.0.1:{target.port}/v1/chat/completions"
    assert target.post("/v1/chat/completions", command[-1].encode()).events


def test_the_address_of_a_base_model_shows_what_it_answers(serve: Any) -> None:
    fake = FakeEngine()
    fake.chat_template = None
    target, _ = serve(fake)
    text = target.get("/").body.decode()
    command = shlex.split(text[text.index("curl") :])
    assert command[2].endswith("/v1/completions")
    assert target.post("/v1/completions", command[-1].encode()).events


def test_the_address_itself_quotes_what_it_repeats(serve: Any) -> None:
    fake = FakeEngine()
    fake.model_name = "o'brien's"
    fake.ready = False
    target, _ = serve(fake, allowed_hosts="*")
    text = target.get("/", Host="x;$(reboot)").body.decode()
    assert "reboot" not in text
    assert json.loads(shlex.split(text[text.index("curl") :])[-1])["model"] == fake.model_name


def test_not_ready(serve: Any) -> None:
    fake = FakeEngine()
    fake.ready = False
    target, _ = serve(fake)
    for path in ("/health", "/readyz"):
        answer = target.get(path)
        assert (answer.status, answer.error["code"], answer.headers["retry-after"]) == (503, "not_ready", "1")
    assert target.get("/livez").status == 200
    assert target.chat().status == 503


def test_openapi_describes_every_route(target: Target) -> None:
    document = target.get("/openapi.json").json
    assert document["openapi"].startswith("3.1")
    described = {(op.method.upper(), op.path) for op in OPERATIONS}
    assert described == {(method, path.replace(":path", "")) for method, path, _ in ROUTES}
    for path in document["paths"].values():
        for operation in path.values():
            assert operation["responses"]["200"]
    schemas = document["components"]["schemas"]
    assert schemas["ChatRequest"]["additionalProperties"] is False
    assert schemas["ChatRequest"]["required"] == ["messages"]
    for op in OPERATIONS:
        answers = document["paths"][op.path][op.method]["responses"]
        assert {int(status) for status in answers} == set(statuses(op))
    temperature = schemas["ChatRequest"]["properties"]["temperature"]
    assert temperature["default"] == 1.0 and "greedy" in temperature["description"]
    refs = {word for word in json.dumps(document).split('"') if word.startswith("#/components/schemas/")}
    assert refs and all(ref.rsplit("/", 1)[1] in schemas for ref in refs)


@pytest.mark.parametrize("op", [op for op in OPERATIONS if op.examples], ids=lambda op: op.path)
def test_examples_in_the_description_are_accepted(target: Target, op: Operation) -> None:
    for example in op.examples.values():
        assert op.request is not None and decode(op.request, json.dumps(example).encode())
        assert target.request(op.method.upper(), op.path, json.dumps(example).encode()).status == 200


def test_O50_metrics_parse_and_only_rise(target: Target) -> None:
    def samples() -> dict[tuple[str, str], float]:
        text = target.get("/metrics").body.decode()
        families = list(text_string_to_metric_families(text))
        names = {family.name for family in families}
        for name in (*COUNTERS, *GAUGES, *HISTOGRAMS, "kv_blocks", "request_success", "http_errors"):
            assert f"sixfold_{name}" in names
        return {(s.name, json.dumps(s.labels, sort_keys=True)): s.value for f in families for s in f.samples}

    target.complete(temperature=9)
    before = samples()
    usage = target.complete(["a", "b"], n=2, max_tokens=3, seed=1).json["usage"]
    target.chat(script=["a"], stream=True)
    target.complete(temperature=9)
    after = samples()
    assert all(after[key] >= value for key, value in before.items() if key[0].endswith(("_total", "_count", "_bucket")))

    def risen(name: str, **labels: str) -> float:
        keys = [key for key in after if key[0] == name and all(f'"{k}": "{v}"' in key[1] for k, v in labels.items())]
        return sum(after[key] - before.get(key, 0.0) for key in keys)

    assert risen("sixfold_request_success_total", finished_reason="length") == 4
    assert risen("sixfold_request_success_total", finished_reason="stop") == 1
    assert risen("sixfold_http_errors_total", status="400") == 1
    assert risen("sixfold_e2e_request_latency_seconds_count") == 2
    assert risen("sixfold_time_to_first_token_seconds_count") == 2
    assert risen("sixfold_request_queue_time_seconds_count") == 2
    assert risen("sixfold_request_prompt_tokens_sum") == usage["prompt_tokens"] + 21
    assert risen("sixfold_request_generation_tokens_sum") == usage["completion_tokens"] + 2


def test_stopping_ends_streams_with_an_error(serve: Any) -> None:
    fake = FakeEngine()
    fake.step_s = 0.01
    target, live = serve(fake)
    answers: list[Any] = []
    calls = [{"stream": True}, {"stream": False}]
    threads = [threading.Thread(target=lambda c=c: answers.append(target.complete(max_tokens=500, **c))) for c in calls]
    for thread in threads:
        thread.start()
    eventually(lambda: len(fake.live) == 2)
    started = time.monotonic()
    live.stop()
    assert time.monotonic() - started < 2
    for thread in threads:
        thread.join()
    for answer in answers:
        error = answer.events[-1]["error"] if answer.status == 200 else answer.error
        assert error["code"] == "draining"
    assert not fake.live


def test_stopping_while_the_engine_decides(serve: Any) -> None:
    fake = FakeEngine()
    fake.verdict_s = 0.2
    target, live = serve(fake)
    answers: list[Any] = []
    calls: list[tuple[str, bool]] = [("a", True), ("a", False)]
    threads = [
        threading.Thread(target=lambda c=c: answers.append(target.complete(c[0], stream=c[1], max_tokens=500)))
        for c in calls
    ]
    for thread in threads:
        thread.start()
    eventually(lambda: len(live.server.app.context.generations) == 2)
    live.stop()
    for thread in threads:
        thread.join()
    assert [answer.error["code"] for answer in answers] == ["draining"] * 2
    assert not fake.live and fake.aborts == 2


def test_draining_lets_work_finish(serve: Any) -> None:
    fake = FakeEngine()
    fake.step_s = 0.01
    target, live = serve(fake)
    answers: list[Any] = []
    thread = threading.Thread(target=lambda: answers.append(target.complete(max_tokens=50, stream=True)))
    thread.start()
    eventually(lambda: len(fake.live) == 1)
    live.call(lambda: live.server.drain(10))
    eventually(lambda: target.get("/readyz").status == 503)
    assert target.complete().error["code"] == "draining"
    assert target.get("/livez").status == 200
    thread.join()
    assert answers[0].events[-1]["choices"][0]["finish_reason"] == "length"
    live._thread.join(5)
    assert not live._thread.is_alive()
