"""HTTP itself: bodies, limits, hosts, methods, slow and broken peers."""

from __future__ import annotations

import functools
import http.client
import json
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from sixfold.api import call, server
from sixfold.api.admission import admission
from sixfold.api.app import ROUTES
from sixfold.api.http.guard import GuardLimits

from .conftest import Answer, Target, eventually, post_bytes
from .fake_engine import FakeEngine

HEAD = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"


def talk(target: Target, *pieces: bytes, timeout_s: float = 30) -> bytes:
    """Send the pieces, then read until the server closes."""
    with target.connect() as sock:
        sock.settimeout(timeout_s)
        for piece in pieces:
            sock.sendall(piece)
        return read_all(sock)


def read_all(sock: socket.socket) -> bytes:
    seen = b""
    while piece := sock.recv(65536):
        seen += piece
    return seen


def shape(response: bytes) -> tuple[int, dict[str, Any]]:
    """Status and error of a raw response."""
    head, _, body = response.partition(b"\r\n\r\n")
    assert b"content-type: application/json" in head
    error = json.loads(body)["error"]
    assert set(error) == {"message", "type", "param", "code"}
    return int(head.split()[1]), error


@pytest.mark.parametrize(
    ("body", "param"),
    [
        (b"{", None),
        (b"", None),
        (b"null", None),
        (b"[]", None),
        (b'"x"', None),
        (b'{"prompt":"a"}x', None),
        (b'{"prompt":"a",}', None),
        (b'{"prompt" "a"}', "prompt"),
        (b'{"prompt":"a\x01"}', "prompt"),
        (b'{"prompt":"\xff"}', "prompt"),
        (b'{"prompt":"a","stop":["x", "\xc3("]}', "stop"),
        (b'{"prompt":"a","\xff":1}', None),
        (b"\xef\xbb\xbf{}", None),
        (b"{'prompt':'a'}", None),
        (b'{"prompt":tru}', "prompt"),
        (b'{"prompt":01}', "prompt"),
        (b'{"prompt":"\\x"}', "prompt"),
    ],
)
def test_broken_json_is_400(target: Target, body: bytes, param: str | None) -> None:
    answer = target.post("/v1/completions", body)
    assert (answer.status, answer.error["param"]) == (400, param), answer.body
    assert answer.error["code"] == "invalid_json" or body in (b"null", b"[]", b'"x"')


@pytest.mark.parametrize("opener", [b"[", b'{"a":'])
def test_deep_json_is_400(target: Target, opener: bytes) -> None:
    for depth in (65, 5000, 400_000):
        for field in (b"prompt", b"metadata", b"foo"):
            answer = target.post("/v1/completions", b'{"prompt":"a","%s":%s' % (field, opener * depth))
            assert (answer.status, answer.error["code"]) == (400, "json_too_deep")
    target.check_alive()


def test_many_brackets_are_not_depth(target: Target) -> None:
    metadata = [[]] * 1000 + ["[" * 1000, '"]\\']
    assert target.complete(metadata=metadata, max_tokens=1).status == 200


def test_the_content_type_must_be_json(target: Target) -> None:
    body = b'{"prompt":"a","max_tokens":1}'
    for given in ({"Content-Type": "text/plain"}, {"Content-Type": "application/x-www-form-urlencoded"}):
        answer = target.request("POST", "/v1/completions", body, given)
        assert (answer.status, answer.error["code"]) == (415, "unsupported_media_type")
    assert shape(talk(target, b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"))[0] == 415
    for given in ("application/json", "application/json; charset=utf-8", "Application/JSON"):
        assert target.request("POST", "/v1/completions", body, {"Content-Type": given}).status == 200
    gzipped = target.request("POST", "/v1/completions", body, {"Content-Encoding": "gzip"})
    assert gzipped.status == 415


def test_O49_a_huge_body_is_413_without_being_kept(target: Target) -> None:
    started = time.monotonic()
    for n_bytes in (5 << 20, 100 << 20):
        answer = target.post("/v1/completions", b'{"prompt":"' + b"a" * n_bytes + b'"}')
        assert (answer.status, answer.error["code"]) == (413, "payload_too_large")
    assert time.monotonic() - started < 5
    target.check_alive()


def test_a_huge_body_without_length_is_413(target: Target) -> None:
    chunk = b"10000\r\n" + b"a" * 65536 + b"\r\n"
    response = talk(target, HEAD + b"Transfer-Encoding: chunked\r\n\r\n", chunk * 100 + b"0\r\n\r\n")
    assert shape(response)[0] == 413


def test_a_declared_huge_body_is_refused_before_it_comes(target: Target) -> None:
    response = b""
    with target.connect() as sock:
        sock.sendall(HEAD + b"Content-Length: 104857600\r\nExpect: 100-continue\r\n\r\n")
        while b"}}" not in response:
            response += sock.recv(65536)
    assert shape(response)[0] == 413


def test_a_body_that_dribbles_is_408(serve: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(call, "LINGER_S", 0.1)
    target, _ = serve(body_timeout_s=0.2)
    status, error = shape(talk(target, HEAD + b'Content-Length: 100\r\n\r\n{"prompt":'))
    assert (status, error["code"]) == (408, "body_timeout")
    target.check_alive()


def test_a_client_that_leaves_before_its_body_is_complete(target: Target) -> None:
    with target.connect() as sock:
        sock.sendall(HEAD + b'Content-Length: 100\r\n\r\n{"prompt":')
    target.check_alive()


def test_headers_that_dribble_are_408(serve: Any) -> None:
    target, _ = serve(header_timeout_s=0.2)
    assert shape(talk(target, b"POST /v1/completions HTTP/1.1\r\nHost: loc"))[0] == 408
    assert talk(target) == b""
    with target.connect() as sock:
        started = time.monotonic()
        try:
            while time.monotonic() - started < 20:
                sock.sendall(b"a")
                time.sleep(0.05)
        except OSError:
            pass
        assert time.monotonic() - started < 8  # the setting's default is 10
    target.check_alive()


def test_a_head_that_dribbles_behind_a_request_is_408(serve: Any) -> None:
    target, _ = serve(header_timeout_s=0.2)
    seen = talk(target, b"GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\nGET /live", timeout_s=8)
    assert seen.count(b"HTTP/1.1 200") == seen.count(b"HTTP/1.1 408") == 1


def test_blank_lines_do_not_keep_a_connection(serve: Any) -> None:
    target, _ = serve(header_timeout_s=0.3)
    request = b"GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n"
    started = time.monotonic()
    with target.connect() as sock:
        sock.sendall(request)
        assert sock.recv(65536).startswith(b"HTTP/1.1 200")
        sock.sendall(b"\r\n")
        assert b"408" in read_all(sock)
    assert time.monotonic() - started < 8


@pytest.mark.parametrize(
    "head",
    [
        b"GET /livez HTTP/1.1\r\nHost: localhost\r\nX: " + b"a" * 40_000 + b"\r\n\r\n",
        b"GET /livez HTTP/1.1\r\nHost: localhost\r\n" + b"".join(b"X-%d: a\r\n" % i for i in range(150)) + b"\r\n",
        b"GET /livez?" + b"a" * 40_000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"GET /livez HTTP/1.1\r\nHost: localhost\r\nX: " + b"a" * 300_000,
    ],
)
def test_headers_that_are_too_large_are_431(target: Target, head: bytes) -> None:
    status, error = shape(talk(target, head))
    assert (status, error["code"]) == (431, "headers_too_large")


def test_bytes_that_are_not_http_are_400(target: Target) -> None:
    for junk in (b"\x16\x03\x01\x02\x00\x01\x00", b"hello\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n", b"GET  \r\n\r\n"):
        assert shape(talk(target, junk))[0] == 400
    target.check_alive()


UPGRADES = [
    b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQCAAAAAAIAAAAA\r\n",
    b"Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Key: x\r\nSec-WebSocket-Version: 13\r\n",
    b"Connection: close, upgrade\r\nUpgrade: TLS/1.0, HTTP/2.0\r\n",
]


@pytest.mark.parametrize("offer", UPGRADES)
@pytest.mark.parametrize("cut", [None, 1, 100, 200])
def test_an_offer_of_another_protocol_is_not_taken(target: Target, offer: bytes, cut: int | None) -> None:
    body = b'{"prompt":"a","max_tokens":2,"script":["x","y"]}'
    chunked = b"%x\r\n%s\r\n0\r\n\r\n" % (len(body), body)
    for framed in (
        b"Content-Length: %d\r\n\r\n%s" % (len(body), body),
        b"Transfer-Encoding: chunked\r\n\r\n" + chunked,
    ):
        request = HEAD + offer + framed
        pieces = [request] if cut is None else [request[i : i + cut] for i in range(0, len(request), cut)]
        with target.connect() as sock:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            for piece in pieces:
                sock.sendall(piece)
            seen = b""
            while b'"usage"' not in seen or not seen.endswith(b"}}"):
                seen += sock.recv(65536) or pytest.fail(f"closed: {seen!r}")
        assert seen.startswith(b"HTTP/1.1 200")
        assert b'"xy"' in seen


def test_offers_of_another_protocol_one_after_another(target: Target) -> None:
    get = b"GET /livez HTTP/1.1\r\nHost: localhost\r\n"
    requests = [get + UPGRADES[0] + b"\r\n", get + b"\r\n", get + UPGRADES[1] + b"\r\n", get + UPGRADES[2] + b"\r\n"]
    seen = talk(target, b"".join(requests))
    assert seen.count(b"HTTP/1.1 200") == seen.count(b'{"status":"ok"}') == 4
    assert shape(talk(target, get + UPGRADES[0] + b"X: " + b"a" * 40_000 + b"\r\n\r\n"))[0] == 431


@pytest.mark.parametrize("hosts", [b"", b"Host: localhost\r\nHost: evil.example\r\n", b"Host: localhost\r\n" * 2])
def test_a_request_has_one_host(target: Target, hosts: bytes) -> None:
    status, error = shape(talk(target, b"GET /livez HTTP/1.1\r\n" + hosts + b"\r\n"))
    assert (status, error["code"]) == (400, "bad_request")


BROKEN_CHUNKS = [b"zz\r\n", b"3\r\nabcd\r\n", b"-1\r\n", b"fffffffffffffffff\r\n", b"\r\n"]


@pytest.mark.parametrize("chunks", BROKEN_CHUNKS)
@pytest.mark.parametrize("wait_s", [0, 0.1])
def test_a_broken_chunk_is_400(target: Target, chunks: bytes, wait_s: float) -> None:
    with target.connect() as sock:
        sock.sendall(HEAD + b"Transfer-Encoding: chunked\r\n\r\n1\r\n{\r\n" + (b"" if wait_s else chunks))
        if wait_s:
            time.sleep(wait_s)
            sock.sendall(chunks)
        response = read_all(sock)
    assert response.count(b"\r\n\r\n") == 1
    assert (shape(response)[0], shape(response)[1]["code"]) == (400, "bad_request")
    target.check_alive()


@pytest.mark.parametrize(
    "broken",
    [
        b"junk\r\n\r\n",
        HEAD + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"GET / HTTP/1.1\r\nX: " + b"a" * 40_000 + b"\r\n\r\n",
    ],
)
def test_requests_before_a_broken_one_are_answered(serve: Any, broken: bytes) -> None:
    fake = FakeEngine()
    fake.step_s = 0.02
    target, live = serve(fake)
    good = post_bytes("/v1/completions", {"prompt": "a", "max_tokens": 5, "stream": True})
    seen = talk(target, good + b"GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n" + broken)
    assert seen.count(b"HTTP/1.1 200") == 2
    assert seen.index(b"[DONE]") < seen.index(b'{"status":"ok"}') < seen.rindex(b"HTTP/1.1 4")
    assert not fake.live and fake.aborts == 0
    context = live.server.app.context
    eventually(lambda: context.admission.in_flight == 0 and context.body_budget.held == 0)
    target.check_alive()


def test_a_body_that_breaks_after_its_answer_began_closes(target: Target) -> None:
    start = HEAD + b"Transfer-Encoding: chunked\r\n\r\n" + (b"10000\r\n" + b"a" * 65536 + b"\r\n") * 100
    response = talk(target, start, b"zz\r\n")
    assert response.count(b"\r\n\r\n") == 1
    assert shape(response)[0] == 413


def test_refusals_are_not_errors_of_the_server(serve: Any, caplog: pytest.LogCaptureFixture) -> None:
    target, _ = serve()
    get = b"GET /livez HTTP/1.1\r\nHost: localhost\r\n"
    for head in (get + b"X: " + b"a" * 40_000 + b"\r\n\r\n", get + b"X: a\r\n" * 200 + b"\r\n", b"junk\r\n" * 10_000):
        with target.connect() as sock:
            sock.sendall(head)
            sock.sendall(head)  # more, after the refusal
            read_all(sock)
    target.check_alive()
    assert not caplog.records


def test_open_connections_are_bounded(serve: Any) -> None:
    target, _ = serve(max_connections=3)
    idle = [target.connect() for _ in range(3)]
    time.sleep(0.1)
    status, error = shape(talk(target))
    assert (status, error["code"]) == (503, "too_many_connections")
    for sock in idle:
        sock.close()
    eventually(lambda: target.get("/livez").status == 200)


def test_hosts(serve: Any) -> None:
    target, _ = serve(allowed_hosts="models.example, Other.Example")
    port = target.port
    for host in ("localhost", f"localhost:{port}", "127.0.0.1", f"[::1]:{port}", "models.example:80", "OTHER.example"):
        assert target.get("/livez", Host=host).status == 200
    for host in ("evil.example", "", "localhost.evil.example", "10.0.0.7", "localhost:1:2"):
        answer = target.get("/livez", Host=host)
        assert (answer.status, answer.error["code"]) == (403, "host_not_allowed"), host
    assert shape(talk(target, b"GET /livez HTTP/1.0\r\n\r\n"))[0] == 403


def test_hosts_when_bound_to_every_address(serve: Any) -> None:
    target, _ = serve(host="0.0.0.0")
    assert target.get("/livez", Host="10.0.0.7:8000").status == 200
    assert target.get("/livez", Host="evil.example").status == 403
    target, _ = serve(allowed_hosts="*")
    assert target.get("/livez", Host="evil.example").status == 200


def test_paths_and_methods(target: Target) -> None:
    for path in ("/v1", "/v1/completions/", "//v1/completions", "/v1/../health", "/health/", "/docs", "/%00"):
        answer = target.get(path)
        assert (answer.status, answer.error["code"]) == (404, "not_found"), path
    for method, path in (("GET", "/v1/completions"), ("DELETE", "/health"), ("OPTIONS", "/v1/chat/completions")):
        answer = target.request(method, path)
        assert (answer.status, answer.error["code"]) == (405, "method_not_allowed"), path
    head = target.request("HEAD", "/health")
    assert (head.status, head.body) == (200, b"")


@pytest.mark.parametrize(("method", "path"), [(method, path) for method, path, _ in ROUTES if path != "/"])
def test_O47_a_route_has_one_spelling(target: Target, method: str, path: str) -> None:
    """No key is asked for yet; nothing but what the table names is there, so that no alias can pass by a check."""
    known = {other for other, same, _ in ROUTES if same == path}
    names_one = path.endswith("{id}")  # whatever comes behind an id belongs to it
    path = path.replace("{id:path}", target.model).replace("{id}", "resp_x")
    aliases = [f"{path}/", f"/{path}", f"/v1/..{path}", f"/v1/%2e%2e{path}", f"/.{path}", path.replace("/", "//")]
    aliases += [] if names_one else [f"{path};x"]
    for alias in [*aliases, path.upper(), f"/v1{path}", f"/api{path}"]:
        answer = target.request(method, alias, b"{}" if method == "POST" else None)
        assert answer.status == 404 and answer.json["error"]["message"], alias
    for other in {"GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "PROPFIND"} - known:
        answer = target.request(other, path)
        assert answer.status == 405 and answer.json["error"]["message"], other
    target.check_alive()


@pytest.mark.parametrize("name", ["admin", "debug", "shutdown", "reload", "sleep", "profile", "docs", "redoc", "lora"])
def test_O47_nothing_is_there_that_the_table_does_not_name(target: Target, name: str) -> None:
    for path in (f"/{name}", f"/v1/{name}", f"/{name}/x"):
        for method in ("GET", "POST"):
            answer = target.request(method, path, b"{}" if method == "POST" else None)
            assert (answer.status, answer.error["code"]) == (404, "not_found")


@pytest.mark.parametrize(
    ("path", "meant"),
    [
        ("/chat/completions", "/v1/chat/completions"),  # OpenAI's client without /v1
        ("/v1/v1/embeddings", "/v1/embeddings"),
        ("/completions", "/v1/completions"),
        ("/openai/v1/models", "/v1/models"),
        ("/v1/tokenize", "/tokenize"),
        ("/v1/chat/completion", "/v1/chat/completions"),
        ("/v1/completions/", "/v1/completions"),
        ("/Health", "/health"),
    ],
)
def test_a_path_that_is_not_there_names_the_one_that_was_meant(target: Target, path: str, meant: str) -> None:
    assert target.post(path, {}).error["message"] == f"no such path: {path}; did you mean {meant}?"


def test_a_path_in_a_message_is_cut_and_clean(target: Target) -> None:
    shown = target.get("/%1b%5b2J%0a%E2%80%AE").error["message"]
    assert shown == r"no such path: /\x1b[2J\n\u202e; /openapi.json lists what there is"
    assert len(target.get("/" + "x" * 4000).error["message"]) < 200
    assert "did you mean" not in target.get("/" + "x" * 4000 + "/chat/completions").error["message"]


def test_a_host_that_is_not_allowed_is_named(serve: Any) -> None:
    target, _ = serve()
    said = "the Host {} is not allowed here; see --allowed-hosts"
    assert target.get("/livez", Host="evil.example:80").error["message"] == said.format("evil.example")
    assert target.get("/livez", Host="").error["message"] == said.format("(none)")
    assert len(target.get("/livez", Host="x" * 4000).error["message"]) < 200


def test_cors_is_off(target: Target) -> None:
    answer = target.get("/health", Origin="https://evil.example")
    assert not [name for name in answer.headers if name.lower().startswith("access-control")]


def test_request_ids(target: Target) -> None:
    assert target.get("/health", **{"X-Request-Id": "my-id_1.a:b"}).headers["x-request-id"] == "my-id_1.a:b"
    for wrong in ("a b", "a" * 129, "\xe4", "a;b"):
        assert target.get("/health", **{"X-Request-Id": wrong}).headers["x-request-id"].startswith("req-")
    ids = {target.get("/health").headers["x-request-id"] for _ in range(5)}
    assert len(ids) == 5


def test_keep_alive_and_pipelining(target: Target) -> None:
    request = b"GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n"
    with target.connect() as sock:
        sock.sendall(request * 3)
        seen = b""
        while seen.count(b'{"status":"ok"}') < 3:
            seen += sock.recv(65536)
        assert seen.count(b"HTTP/1.1 200") == 3
        sock.sendall(request)
        assert sock.recv(65536).startswith(b"HTTP/1.1 200")


def test_preparing_is_bounded(serve: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admission, "MAX_PREPARING", 2)
    target, _ = serve()
    held = [target.connect() for _ in range(2)]
    for sock in held:
        sock.sendall(HEAD + b'Content-Length: 100\r\n\r\n{"prompt":')
    time.sleep(0.2)
    answer = target.complete()
    assert (answer.status, answer.headers["retry-after"]) == (429, "1")
    for sock in held:
        sock.close()
    eventually(lambda: target.complete(max_tokens=1).status == 200)


def test_O41_a_full_engine_is_429_with_retry_after(serve: Any) -> None:
    fake = FakeEngine()
    fake.max_outstanding = 4
    fake.step_s = 0.02
    target, _ = serve(fake)
    threads = [threading.Thread(target=target.complete, kwargs={"n": 2, "max_tokens": 100}) for _ in range(2)]
    for thread in threads:
        thread.start()
    eventually(lambda: len(fake.live) == 2)
    for fields in ({}, {"stream": True}, {"n": 4}):
        started = time.monotonic()
        answer = target.complete(**fields)
        assert time.monotonic() - started < 0.2
        assert (answer.status, answer.error["type"]) == (429, "server_overloaded")
        assert int(answer.headers["retry-after"]) >= 1
    for thread in threads:
        thread.join()
    target.check_alive()


def test_a_slow_reader_is_cut_off(serve: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "GuardLimits", functools.partial(GuardLimits, write_stall_s=0.3))
    fake = FakeEngine(max_model_len=200_000)
    target, _ = serve(fake)
    body = json.dumps({"prompt": "x", "stream": True, "n": 8, "logprobs": 20}).encode()
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    sock.connect(("127.0.0.1", target.port))
    sock.sendall(HEAD + b"Content-Length: %d\r\n\r\n%s" % (len(body), body))
    eventually(lambda: len(fake.requests) == 1)
    eventually(lambda: not fake.live and fake.aborts == 1, 20)
    sock.close()
    target.check_alive()


def test_a_slow_reader_gets_everything(serve: Any) -> None:
    target, _ = serve(FakeEngine(max_model_len=1000))
    document = {"prompt": "x", "stream": True, "n": 8, "logprobs": 20, "max_tokens": 200, "temperature": 0}
    body = json.dumps(document).encode()
    with socket.socket() as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        sock.connect(("127.0.0.1", target.port))
        sock.sendall(HEAD + b"Content-Length: %d\r\n\r\n%s" % (len(body), body))
        time.sleep(0.5)
        response = http.client.HTTPResponse(sock)
        response.begin()
        slow = Answer(response.status, response.headers, response.read()).events
    quick = target.complete(**document).events
    assert len(quick) == 8 * 200
    assert [event["choices"] for event in slow] == [event["choices"] for event in quick]


def test_an_answer_counts_as_in_flight_until_it_is_read(serve: Any) -> None:
    fake = FakeEngine(max_model_len=1000)
    fake.max_outstanding = 9
    target, live = serve(fake)
    live.keep_send_buffers_small()
    document = {"prompt": "x", "stream": True, "n": 8, "logprobs": 20, "max_tokens": 200}
    with socket.socket() as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        sock.connect(("127.0.0.1", target.port))
        sock.sendall(post_bytes("/v1/completions", document))
        eventually(lambda: fake.ended.get("length") == 8)
        assert target.complete(n=2).status == 429
        live.call(lambda: live.server.drain(20))
        response = http.client.HTTPResponse(sock)
        response.begin()
        assert len(Answer(response.status, response.headers, response.read()).events) == 8 * 200
    eventually(lambda: live.server.app.context.admission.in_flight == 0)


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/embeddings"])
def test_who_leaves_before_the_engines_verdict_is_noticed_at_once(serve: Any, path: str) -> None:
    fake = FakeEngine()
    fake.verdict_s = 60.0
    target, live = serve(fake)
    with target.connect() as sock:
        sock.sendall(post_bytes(path, {"prompt" if path.endswith("ions") else "input": "x"}))
        eventually(lambda: live.server.app.context.admission.in_flight == 1)
    eventually(lambda: not live.server.app.context.calls)
    assert live.server.app.context.admission.in_flight == 0 and not fake.requests


def test_another_call_can_end_one_that_waits_for_its_verdict(serve: Any) -> None:
    fake = FakeEngine()
    fake.verdict_s = 60.0
    target, live = serve(fake)
    with ThreadPoolExecutor() as pool:
        answer = pool.submit(target.post, "/v1/completions", {"prompt": "x"}, **{"X-Request-Id": "slow"})
        eventually(lambda: live.server.app.context.admission.in_flight == 1)
        assert target.post("/v1/abort", {"id": "slow"}).status == 200
        assert answer.result(10).status == 499
    assert live.server.app.context.admission.in_flight == 0 and not fake.requests


def test_who_leaves_with_an_answer_half_read_is_noticed(serve: Any, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", logger="sixfold.api.requests")
    fake = FakeEngine(max_model_len=1000)
    target, live = serve(fake)
    live.keep_send_buffers_small()
    with socket.socket() as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        sock.connect(("127.0.0.1", target.port))
        document = {"prompt": "x", "stream": True, "n": 8, "logprobs": 20, "max_tokens": 200}
        sock.sendall(post_bytes("/v1/completions", document))
        eventually(lambda: fake.ended.get("length") == 8)
    eventually(lambda: "client_gone" in [r.args.get("fault") for r in caplog.records if isinstance(r.args, dict)])
    assert live.server.app.context.admission.in_flight == 0


def test_a_slow_reader_does_not_keep_the_server_from_stopping(serve: Any) -> None:
    fake = FakeEngine(max_model_len=200_000)
    target, live = serve(fake)
    body = json.dumps({"prompt": "x", "stream": True, "n": 8, "logprobs": 20}).encode()
    with target.connect() as sock:
        sock.sendall(HEAD + b"Content-Length: %d\r\n\r\n%s" % (len(body), body))
        eventually(lambda: len(fake.requests) == 1)
        time.sleep(0.3)
        started = time.monotonic()
        live.stop()
        assert time.monotonic() - started < 8
    assert not fake.live
