"""Overload: refused at once, before anything expensive, with the wait that makes sense; slow readers; draining."""

from __future__ import annotations

import http.client
import json
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from sixfold.api import server
from sixfold.api.fields.prompt_length import PromptLength
from sixfold.api.threads import SHORT_TEXT_CHARS
from sixfold.text import Tokenizer

from .conftest import Answer, eventually, post_bytes
from .fake_engine import FakeEngine
from .test_keys import Keys, code

PATHS: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 1},
    "/v1/completions": {"prompt": "hi", "max_tokens": 1},
    "/v1/responses": {"input": "hi", "max_output_tokens": 16, "store": False},
    "/v1/messages": {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 1},
    "/v1/embeddings": {"input": "hi"},
}


def check_refusal(answer: Answer, least_s: float = 1.0) -> None:
    assert answer.status == 429, answer.body
    wait_s, wait_ms = int(answer.headers["retry-after"]), int(answer.headers["retry-after-ms"])
    assert least_s <= wait_s and wait_ms <= wait_s * 1000 * 1.25 and wait_ms >= (wait_s - 1) * 1000 * 0.75


@pytest.fixture
def untokenized(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Fails what tokenizes."""
    seen: list[str] = []
    for name in ("encode_batch", "encode_parts"):
        monkeypatch.setattr(Tokenizer, name, lambda *_, **__: seen.append("tokenized"))
    return seen


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    "told", [{"queued_tokens": 1000, "place_s": 2.5}, {"n_open_elsewhere": 256}, {"queue_wait_s": 50.0}], ids=str
)
def test_O41_a_full_queue_refuses_before_tokenizing(
    serve: Any, untokenized: list[str], path: str, stream: bool, told: dict[str, Any]
) -> None:
    fake = FakeEngine()
    fake.max_queued_tokens = 1000
    fake.max_queue_wait_s = 20.0
    fake.n_open_elsewhere = told.get("n_open_elsewhere", 0)
    fake.told = {name: value for name, value in told.items() if name != "n_open_elsewhere"}
    target, live = serve(fake)
    document = {**PATHS[path], **({"stream": True} if stream and path != "/v1/embeddings" else {})}
    check_refusal(target.post(path, document), 2.5 if "place_s" in told else 1.0)
    assert not untokenized and not fake.requests and not live.server.app.context.admission.in_flight
    assert target.get("/readyz").status == 200


@pytest.mark.parametrize("path", PATHS)
def test_a_full_queue_refuses_before_the_body_is_read(serve: Any, path: str) -> None:
    fake = FakeEngine()
    fake.n_open_elsewhere = fake.max_outstanding
    target, _ = serve(fake)
    with target.connect() as sock:
        head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        sock.sendall(f"{head}Content-Length: 100000\r\n\r\n".encode())
        answer = sock.recv(1 << 16)
        assert answer.startswith(b"HTTP/1.1 429") and b"connection: close" in answer
    assert target.post("/tokenize", {"prompt": "a"}).status == 200
    assert target.post("/v1/messages/count_tokens", {"messages": [{"role": "user", "content": "a"}]}).status == 200


def test_a_refusal_keeps_the_connection(serve: Any) -> None:
    """Where the body has come, though nobody reads it: to connect again would cost more than to refuse."""
    fake = FakeEngine()
    fake.n_open_elsewhere = fake.max_outstanding
    target, _ = serve(fake)
    connection = http.client.HTTPConnection("127.0.0.1", target.port, timeout=20)
    connection.connect()
    sock = connection.sock
    for _ in range(3):
        sock.sendall(post_bytes("/v1/completions", {"prompt": "a" * 5000, "max_tokens": 1}))
        response = http.client.HTTPResponse(sock)
        response.begin()
        assert response.status == 429 and response.getheader("connection") is None
        response.read()
    fake.n_open_elsewhere = 0
    sock.sendall(post_bytes("/v1/completions", {"prompt": "a", "max_tokens": 1}))
    response = http.client.HTTPResponse(sock)
    response.begin()
    assert response.status == 200
    connection.close()


def test_what_is_being_prepared_has_a_place(serve: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A burst is refused before all of it has been tokenized."""
    go_on, begun = threading.Event(), threading.Semaphore(0)
    encode = Tokenizer.encode_batch

    def slowly(*args: Any, **kwargs: Any) -> Any:
        begun.release()
        assert go_on.wait(10)
        return encode(*args, **kwargs)

    monkeypatch.setattr(Tokenizer, "encode_batch", slowly)
    fake = FakeEngine(max_model_len=2 * SHORT_TEXT_CHARS)
    fake.max_outstanding = 3
    target, live = serve(fake)
    with ThreadPoolExecutor(2) as pool:
        long = "a" * (SHORT_TEXT_CHARS + 1)
        first = [pool.submit(target.complete, prompt=long, max_tokens=1, n=n) for n in (1, 2)]
        assert begun.acquire(timeout=10) and begun.acquire(timeout=10)
        answer = target.complete(max_tokens=1)
        check_refusal(answer)
        assert code(answer) == "queue_full"
        go_on.set()
        assert [call.result().status for call in first] == [200, 200]
    eventually(lambda: live.server.app.context.admission.in_flight == 0)
    assert target.complete(max_tokens=1).status == 200
    assert target.complete(max_tokens=-1).status == 400
    eventually(lambda: live.server.app.context.admission.in_flight == 0)


def test_only_a_short_text_is_tokenized_in_the_event_loop(serve: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    encode, threads = Tokenizer.encode_batch, []

    def noting(*args: Any, **kwargs: Any) -> Any:
        threads.append(threading.current_thread().name)
        return encode(*args, **kwargs)

    target, _ = serve(FakeEngine(max_model_len=5 * SHORT_TEXT_CHARS))
    monkeypatch.setattr(Tokenizer, "encode_batch", noting)
    short, long = "a" * SHORT_TEXT_CHARS, "a" * (SHORT_TEXT_CHARS + 1)
    for prompt in (short, long, [short, short]):
        assert target.complete(prompt=prompt, max_tokens=1).status == 200
    assert [name.startswith("text") for name in threads] == [False, True, True]


def test_a_short_text_that_may_be_too_long_is_not_counted_in_the_event_loop(
    serve: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first that is counted takes 0.2 s."""
    count, threads = PromptLength.least_tokens, []

    def noting(*args: Any) -> int:
        threads.append(threading.current_thread().name)
        return count(*args)

    target, _ = serve(FakeEngine(max_model_len=100))
    monkeypatch.setattr(PromptLength, "least_tokens", noting)
    assert [target.complete(prompt="a" * n, max_tokens=1).status for n in (24, 25, 200)] == [200, 200, 400]
    assert [name.startswith("text") for name in threads] == [True, True]


def test_a_deadline_that_the_queue_will_miss_is_refused_at_once(serve: Any) -> None:
    fake = FakeEngine()
    fake.told = {"queue_wait_s": 10.0, "place_s": 0.1}
    target, _ = serve(fake)
    for headers, fields in (({"X-Request-Timeout-Ms": "9000"}, {}), ({}, {"timeout": 9.0})):
        answer = target.post("/v1/completions", {"prompt": "a", "max_tokens": 1, **fields}, **headers)
        check_refusal(answer)
        assert code(answer) == "deadline_unreachable"
    assert not fake.requests
    assert target.complete(max_tokens=1, timeout=30.0).status == 200
    assert target.complete(max_tokens=1).status == 200


def test_a_deadline_that_the_answer_itself_will_miss_is_refused_at_once(serve: Any) -> None:
    fake = FakeEngine()
    fake.told = {"queue_wait_s": 10.0, "run_s": 15.0, "place_s": 0.1}
    target, _ = serve(fake)
    refused = target.post("/v1/completions", {"prompt": "a", "max_tokens": 1, "timeout": 20.0})
    check_refusal(refused)
    assert code(refused) == "deadline_unreachable"
    assert target.complete(max_tokens=1, timeout=60.0).status == 200


@pytest.mark.parametrize("limit", ["requests_per_minute", "tokens_per_minute", "tokens_per_day", "max_concurrent"])
def test_a_keys_limit_has_its_own_code(serve: Any, tmp_path: Path, limit: str) -> None:
    keys = Keys(tmp_path, **{limit: 3 if limit == "requests_per_minute" else 12 if "tokens" in limit else 1})
    fake = FakeEngine()
    fake.step_s = 0.05 if limit == "max_concurrent" else 0.0
    target, live = serve(fake, api_key_file=str(keys.path))
    document = {"prompt": "abc", "script": list("wxyz"), "max_tokens": 4}

    def post(name: str) -> Answer:
        return target.post("/v1/completions", document, **keys.bearer(name))

    if limit == "max_concurrent":
        with target.connect() as sock:
            head = f"Authorization: Bearer {keys.key['alice']}\r\n"
            long = {**document, "script": ["x"] * 300, "max_tokens": 300, "stream": True}
            sock.sendall(post_bytes("/v1/completions", long, head))
            assert sock.recv(100)
            refused = post("alice")
        eventually(lambda: not fake.live)
        eventually(lambda: post("alice").status == 200)
    else:
        answers = [post("alice") for _ in range(8)]
        refused = answers[-1]
        assert answers[0].status == 200
    check_refusal(refused)
    assert code(refused) == f"{limit}_exceeded"
    assert post("bob").status == 200 and post("root").status == 200
    caller = live.server.app.context.keys._callers[0][1]
    eventually(lambda: caller.allowance.n_running == 0)


def test_a_request_that_fails_gives_its_tokens_back(serve: Any, tmp_path: Path) -> None:
    keys = Keys(tmp_path, tokens_per_minute=1000)
    target, _ = serve(api_key_file=str(keys.path))
    for _ in range(30):
        answer = target.post("/v1/completions", {"prompt": "a" * 600, "max_tokens": 4}, **keys.bearer("alice"))
        assert answer.status == 400, answer.body


def test_refused_before_the_body_is_read(serve: Any, tmp_path: Path) -> None:
    keys = Keys(tmp_path, requests_per_minute=1)
    target, _ = serve(api_key_file=str(keys.path))
    assert target.post("/v1/completions", {"prompt": "a", "max_tokens": 1}, **keys.bearer("bob")).status == 200
    with target.connect() as sock:
        head = f"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {keys.key['bob']}\r\n"
        sock.sendall(f"{head}Content-Type: application/json\r\nContent-Length: 100000\r\n\r\n".encode())
        assert sock.recv(12) == b"HTTP/1.1 429"


@pytest.mark.parametrize("bound", [{"stream_unread_bytes": 4096}, {"stream_unread_s": 0.2}], ids=str)
def test_threat_18_a_client_that_does_not_read_is_cut_off(serve: Any, bound: dict[str, Any]) -> None:
    fake = FakeEngine(extra_tokens=("x" * 2000,))
    fake.step_s = 0.005
    target, live = serve(fake, **bound)
    live.keep_send_buffers_small()
    script = ["x" * 2000] * 400
    with target.connect() as sock:
        sock.sendall(
            post_bytes("/v1/completions", {"prompt": "a", "script": script, "max_tokens": 400, "stream": True})
        )
        eventually(lambda: bool(fake.live))
        eventually(lambda: fake.aborts == 1, 10)
        assert live.server.app.context.admission.in_flight == 0
    assert b"sixfold_streams_cut_total" in target.get("/metrics").body
    assert live.server.app.context.metrics.streams_cut == 1
    target.check_alive()


def test_a_client_that_catches_up_loses_nothing(serve: Any) -> None:
    fake = FakeEngine(extra_tokens=("x" * 2000,))
    target, live = serve(fake)
    live.keep_send_buffers_small()
    connection = http.client.HTTPConnection("127.0.0.1", target.port, timeout=20)
    document = {"prompt": "a", "script": ["x" * 2000] * 200, "max_tokens": 200, "stream": True}
    connection.request("POST", "/v1/completions", json.dumps(document), {"Content-Type": "application/json"})
    eventually(lambda: not fake.live and bool(fake.ended), 10)
    data = connection.getresponse().read()
    connection.close()
    assert data.count(b"x" * 2000) == 200 and data.endswith(b"data: [DONE]\n\n")


def test_draining_is_told_at_once(serve: Any) -> None:
    fake = FakeEngine()
    fake.step_s = 0.02
    target, live = serve(fake)
    with target.connect() as sock:
        document = {"prompt": "a", "script": ["x"] * 60, "max_tokens": 60, "stream": True}
        sock.sendall(post_bytes("/v1/completions", document))
        assert sock.recv(100)
        live.call(lambda: live.server.drain(20.0))
        eventually(lambda: target.get("/readyz").status == 503)
        assert target.get("/livez").status == 200
        answer = target.complete(max_tokens=1)
        assert answer.status == 503 and answer.headers["retry-after"] and code(answer) == "draining"
        data = b""
        while b"[DONE]" not in data:
            data += sock.recv(1 << 16)
    assert b'"error"' not in data and json.loads(data.split(b"data: ")[-2].split(b"\n")[0])


def test_who_was_accepted_before_the_end_is_answered(serve: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of several processes an idle one is done at once, while its newest caller's request is on its way."""
    monkeypatch.setattr(server, "UNASKED_S", 20.0)
    target, live = serve(FakeEngine())
    with target.connect() as sock:
        eventually(lambda: len(live.server._server.server_state.connections) == 1)
        live.call(lambda: live.server.drain(20.0))
        eventually(lambda: not live.server._server.servers[0].is_serving())
        sock.sendall(post_bytes("/v1/completions", {"prompt": "a", "max_tokens": 1}))
        answer = b""
        while more := sock.recv(1 << 16):
            answer += more
    assert b" 503 " in answer.split(b"\r\n")[0] and b'"draining"' in answer
