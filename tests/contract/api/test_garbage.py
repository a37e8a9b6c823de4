"""A call that is over is gone: its prompt, its tokens and its connection are freed at once, and not kept until the
garbage collector comes."""

from __future__ import annotations

import http.client
import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from tests.garbage import garbage_of
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from sixfold.api.call import Call
from sixfold.api.generation import Generation
from sixfold.messages import GenerateRequest

from .conftest import Target, eventually, post_bytes
from .fake_engine import FakeEngine

JSON = {"Content-Type": "application/json"}
OF_A_CALL = (Call, Generation, GenerateRequest, RequestResponseCycle, HttpToolsProtocol)


@pytest.fixture
def left() -> Iterator[Callable[[], list[Any]]]:
    with garbage_of(*OF_A_CALL) as left:
        yield left


def refused(target: Target) -> None:
    assert target.complete(max_tokens=-1).status == 400


def not_there(target: Target) -> None:
    assert target.get("/nothing").status == 404


def plain(target: Target) -> None:
    assert target.complete(max_tokens=3).status == 200


def streamed(target: Target) -> None:
    assert target.complete(max_tokens=3, stream=True).status == 200


def chat(target: Target) -> None:
    assert target.chat(max_tokens=3).status == 200


def chat_streamed(target: Target) -> None:
    assert target.chat(max_tokens=3, stream=True).status == 200


def message(target: Target) -> None:
    document = {"model": target.model, "max_tokens": 3, "messages": [{"role": "user", "content": "hi"}]}
    assert target.post("/v1/messages", {**document, "stream": True}).status == 200
    assert target.post("/v1/messages", document).status == 200


def response(target: Target) -> None:
    document = {"model": target.model, "max_output_tokens": 3, "input": "hi", "store": False}
    assert target.post("/v1/responses", {**document, "stream": True}).status == 200
    assert target.post("/v1/responses", document).status == 200


def embedding(target: Target) -> None:
    assert target.post("/v1/embeddings", {"model": target.model, "input": "hi"}).status == 200


def metrics(target: Target) -> None:
    assert target.get("/metrics").status == 200


def late(target: Target) -> None:
    assert target.complete(max_tokens=400, timeout=0.05).status == 504


def leaving(target: Target) -> None:
    with target.connect() as sock:
        sock.sendall(post_bytes("/v1/completions", {"prompt": "x", "max_tokens": 400, "stream": True}))
        assert b"data:" in sock.recv(1 << 16) + sock.recv(1 << 16)


def kept_connection(target: Target) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", target.port, timeout=20)
    for _ in range(3):
        connection.request("POST", "/v1/completions", json.dumps({"prompt": "x", "max_tokens": 2}), JSON)
        assert json.loads(connection.getresponse().read())["usage"]["completion_tokens"] == 2
    connection.close()


CALLS = (
    refused,
    not_there,
    plain,
    streamed,
    chat,
    chat_streamed,
    message,
    response,
    embedding,
    metrics,
    late,
    leaving,
    kept_connection,
)


@pytest.mark.parametrize("call", CALLS, ids=lambda call: call.__name__)
def test_a_call_that_is_over_leaves_nothing_to_the_collector(
    call: Any, serve: Any, left: Callable[[], list[Any]]
) -> None:
    fake = FakeEngine()
    fake.step_s = 0.001
    target, _ = serve(fake)
    call(target)
    fake.requests.clear()
    fake.handles.clear()
    eventually(lambda: not left())
