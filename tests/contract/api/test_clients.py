"""Clients that leave, clients that share ids, and the `openai` client."""

from __future__ import annotations

import json
import socket
import struct
import threading
import time
from typing import Any

import pytest

from .conftest import Target, eventually
from .conftest import post_bytes as post
from .fake_engine import FakeEngine


def leave(sock: socket.socket, how: str) -> None:
    if how == "half":
        sock.shutdown(socket.SHUT_WR)
        return
    if how == "reset":
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    sock.close()


@pytest.mark.parametrize("how", ["close", "half", "reset"])
def test_O32_a_client_that_leaves_frees_its_request(serve: Any, how: str) -> None:
    fake = FakeEngine()
    fake.step_s = 0.005
    target, live = serve(fake)
    reference = target.complete("hey", temperature=0, max_tokens=20).json["choices"][0]["text"]
    context = live.server.app.context
    for wait in ("nothing", "chunk", "flow"):
        socks = []
        for i in range(12):
            sock = target.connect()
            sock.sendall(post("/v1/completions", {"prompt": "hey", "stream": i < 8, "n": 1 + i % 2, "max_tokens": 400}))
            socks.append(sock)
        eventually(lambda: len(fake.live) == 12)
        if wait != "nothing":
            for sock in socks[:8]:
                while b"data: " not in sock.recv(65536):
                    pass
        if wait == "flow":
            time.sleep(0.05)
        started = time.monotonic()
        for sock in socks:
            leave(sock, how)
        eventually(lambda: not fake.live, 1.0)
        assert time.monotonic() - started < 1.0
        for sock in socks:
            sock.close()
    eventually(lambda: context.admission.in_flight == 0 and not context.generations)
    assert context.body_budget.held == 0
    assert fake.aborts == 36
    assert target.complete("hey", temperature=0, max_tokens=20).json["choices"][0]["text"] == reference
    assert b'finished_reason="abort"' in target.get("/metrics").body
    target.check_alive()


def test_O32_a_client_that_leaves_while_the_engine_decides(serve: Any) -> None:
    fake = FakeEngine()
    fake.prefill_s = 10
    target, _ = serve(fake)
    for stream in (True, False):
        sock = target.connect()
        sock.sendall(post("/v1/chat/completions", {"messages": [{"role": "user", "content": "x"}], "stream": stream}))
        eventually(lambda: len(fake.live) == 1)
        sock.close()
        eventually(lambda: not fake.live, 1.0)


def test_several_prompts_are_all_taken_back(serve: Any) -> None:
    fake = FakeEngine()
    fake.step_s = 0.005
    target, _ = serve(fake)
    sock = target.connect()
    sock.sendall(post("/v1/completions", {"prompt": ["a", "b", "c"], "stream": True, "n": 2}))
    eventually(lambda: len(fake.live) == 3)
    sock.close()
    eventually(lambda: not fake.live, 1.0)
    assert fake.aborts == 3


def test_O33_equal_request_ids_are_different_requests(serve: Any) -> None:
    fake = FakeEngine()
    fake.step_s = 0.002
    target, _ = serve(fake)
    answers: dict[str, Any] = {}

    def call(name: str) -> None:
        body = json.dumps({"prompt": name, "temperature": 0, "max_tokens": 50}).encode()
        headers = {"Content-Type": "application/json", "X-Request-Id": "same"}
        answers[name] = target.request("POST", "/v1/completions", body, headers)

    alone = {name: target.complete(name, temperature=0, max_tokens=50).json["choices"][0]["text"] for name in "ab"}
    threads = [threading.Thread(target=call, args=(name,)) for name in "ab"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {name: answer.json["choices"][0]["text"] for name, answer in answers.items()} == alone
    assert answers["a"].json["id"] != answers["b"].json["id"]
    assert all(answer.headers["x-request-id"] == "same" for answer in answers.values())
    assert len({request.uid for request in fake.requests}) == len(fake.requests)


def test_O33_start_abort_start_again(serve: Any) -> None:
    fake = FakeEngine()
    fake.step_s = 0.001
    target, _ = serve(fake)
    document = {"prompt": "a", "stream": True, "max_tokens": 400}
    request = post("/v1/completions", document, "X-Request-Id: same\r\n")
    for _ in range(50):
        sock = target.connect()
        sock.sendall(request)
        sock.close()
    eventually(lambda: not fake.live)
    target.check_alive()


def test_openai_client(target: Target) -> None:
    openai = pytest.importorskip("openai")
    with openai.OpenAI(base_url=f"http://127.0.0.1:{target.port}/v1", api_key="none", max_retries=0) as client:
        assert [model.id for model in client.models.list()] == [target.model]
        assert client.models.retrieve(target.model).id == target.model
        messages = [{"role": "user", "content": "hi"}]
        extra = {"script": ["abc", " D", "EF"]}
        plain = client.chat.completions.create(model=target.model, messages=messages, extra_body=extra)
        assert plain.choices[0].message.content == "abc DEF"
        assert plain.usage.completion_tokens == 4
        stream = client.chat.completions.create(
            model=target.model,
            messages=messages,
            extra_body=extra,
            stream=True,
            stream_options={"include_usage": True},
            logprobs=True,
            top_logprobs=2,
        )
        chunks = list(stream)
        assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == "abc DEF"
        assert chunks[-1].usage.total_tokens == plain.usage.total_tokens
        assert chunks[0].choices[0].logprobs.content[0].token == "abc"
        text = client.completions.create(model=target.model, prompt="hey", max_tokens=0, echo=True, logprobs=1)
        assert text.choices[0].logprobs.tokens == ["h", "e", "y"]
        with pytest.raises(openai.BadRequestError) as caught:
            client.chat.completions.create(model=target.model, messages=messages, temperature=3)
        assert caught.value.param == "temperature"
        with pytest.raises(openai.NotFoundError):
            client.chat.completions.create(model="other", messages=messages)
        with pytest.raises(openai.APIError, match="logits"):
            broken = {"script": ["abc", -1]}
            list(client.chat.completions.create(model=target.model, messages=messages, extra_body=broken, stream=True))
