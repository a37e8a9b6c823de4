"""API keys: nothing that is not listed as open answers without one, and one tenant is not another."""

from __future__ import annotations

import json
import logging
import os
import socket
from pathlib import Path
from typing import Any

import pytest

from sixfold.api.access.keys import new_key
from sixfold.api.app import OPEN_PATHS, ROUTES

from .conftest import Answer, Target, eventually, post_bytes
from .fake_engine import FakeEngine

NAMES = ("alice", "bob", "root", "alice2")


class Keys:
    """A key file with a user each of two tenants, a second key of the first, and an admin."""

    def __init__(self, folder: Path, **limits: int) -> None:
        self.path = folder / "keys.toml"
        made = {name: new_key() for name in NAMES}
        self.key = {name: key for name, (key, _) in made.items()}
        lines = []
        for name, (_, digest) in made.items():
            lines += [f"[{name}]", f'sha256 = "{digest}"']
            lines += ['scope = "admin"'] if name == "root" else []
            lines += ['tenant = "alice"'] if name == "alice2" else []
            lines += [f"{field} = {value}" for field, value in limits.items() if name != "root"]
        self.path.write_text("\n".join(lines))
        os.chmod(self.path, 0o600)

    def bearer(self, name: str) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.key[name]}"}


@pytest.fixture
def keys(tmp_path: Path) -> Keys:
    return Keys(tmp_path)


@pytest.fixture
def guarded(serve: Any, keys: Keys, tmp_path: Path) -> Target:
    target, _ = serve(api_key_file=str(keys.path), response_store=str(tmp_path / "responses.sqlite"))
    assert isinstance(target, Target)
    return target


def code(answer: Answer) -> str:
    document = answer.json
    return str(document["error"].get("code") or document["error"]["type"])


def raw(target: Target, line: str, headers: str = "") -> bytes:
    """Send a request line as it stands; the answer's status line and head."""
    with socket.create_connection(("127.0.0.1", target.port), timeout=20) as sock:
        sock.sendall(f"{line} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n{headers}\r\n".encode())
        data = b""
        while piece := sock.recv(65536):
            data += piece
    return data


@pytest.mark.parametrize(("method", "path"), [(method, path) for method, path, _ in ROUTES])
def test_O47_every_route_asks_for_a_key(guarded: Target, keys: Keys, method: str, path: str) -> None:
    path = path.replace("{id:path}", "x").replace("{id}", "x") + ("?frames=1" if path == "/debug/live" else "")
    body = b"{}" if method == "POST" else None
    for headers in ({}, {"Authorization": "Bearer sk-sixfold-wrong"}, {"X-Api-Key": "wrong"}):
        answer = guarded.request(method, path, body, headers)
        if path in OPEN_PATHS:
            assert answer.status == 200
            continue
        assert answer.status == 401
        assert answer.headers["www-authenticate"].startswith("Bearer")
        error = answer.json["error"]
        assert error["type"] == ("authentication_error" if path.startswith("/v1/messages") else "invalid_request_error")
    assert guarded.request(method, path, body, keys.bearer("root")).status not in (401, 403)


@pytest.mark.parametrize(
    "target_",
    [
        "/v1/models/",
        "//v1/models",
        "/./v1/models",
        "/livez/../v1/models",
        "/livez/%2e%2e/v1/models",
        "/v1%2fmodels",
        "/%76%31/models",
        "/V1/Models",
        "/livez/",
        "//livez",
        "/livez;/v1/models",
        "/livez%00",
        "/v1/models?key=sk-sixfold-x",
        "/nothing/here",
        "*",
    ],
)
@pytest.mark.parametrize("method", ["GET", "HEAD", "OPTIONS", "POST", "DELETE", "PUT", "TRACE", "PATCH"])
def test_O47_odd_spellings_are_no_way_around(guarded: Target, method: str, target_: str) -> None:
    status = raw(guarded, f"{method} {target_}").split(b"\r\n", 1)[0]
    assert status.split()[1] in (b"401", b"400"), status


def test_O47_an_absolute_target_is_no_way_around(guarded: Target) -> None:
    assert raw(guarded, "GET http://localhost/v1/models").split()[1] in (b"401", b"400", b"404")
    assert raw(guarded, "GET http://localhost/livez/../v1/models").split()[1] in (b"401", b"400", b"404")


def test_O47_probes_are_open_and_say_nothing_of_the_model(guarded: Target) -> None:
    for path in sorted(OPEN_PATHS):
        answer = guarded.get(path)
        assert answer.status == 200 and b"fake" not in answer.body
    assert raw(guarded, "GET /%6civez").split()[1] == b"200"  # the same path, for the router and the check alike


@pytest.mark.parametrize(
    "headers",
    [
        "Authorization: Basic {key}",
        "Authorization: {key}",
        "Authorization: Bearer",
        "Authorization: Bearer {key} {key}",
        "Authorization: Bearer {key}x",
        "Authorization: Bearer {hash}",
        "Authorization: Bearer {key}\r\nAuthorization: Bearer {key}",
        "X-Api-Key: {key}\r\nX-Api-Key: {key}",
        "Authorization: Bearer wrong\r\nX-Api-Key: {key}",
        "Cookie: key={key}",
        "X-Api-Key: " + 1000 * "x",
    ],
)
def test_O47_wrong_ways_to_present_a_key(guarded: Target, keys: Keys, headers: str) -> None:
    digest = keys.path.read_text().split('"')[1]
    sent = headers.format(key=keys.key["alice"], hash=digest) + "\r\n"
    assert raw(guarded, "GET /v1/models", sent).split()[1] == b"401"


def test_both_headers_are_taken(guarded: Target, keys: Keys) -> None:
    key = keys.key["alice"]
    for headers in ({"Authorization": f"Bearer {key}"}, {"authorization": f"bearer  {key}"}, {"X-Api-Key": key}):
        assert guarded.get("/v1/models", **headers).status == 200


def test_a_body_is_not_read_before_the_key(guarded: Target) -> None:
    head = "POST /v1/completions"
    answer = raw(guarded, head, "Content-Type: application/json\r\nContent-Length: 1000000\r\n")
    assert answer.split()[1] == b"401" and b"connection: close" in answer.lower()


def test_threat_5_metrics_are_for_admins(serve: Any, keys: Keys) -> None:
    for access, statuses in (("admin", [401, 403, 200]), ("user", [401, 200, 200]), ("open", [200, 200, 200])):
        target, _ = serve(api_key_file=str(keys.path), metrics_access=access)
        answers = [target.get("/metrics", **headers) for headers in ({}, keys.bearer("alice"), keys.bearer("root"))]
        assert [answer.status for answer in answers] == statuses
    assert b"alice" not in answers[-1].body and b"sk-sixfold" not in answers[-1].body


def test_threat_14_a_tenant_has_cached_blocks_of_its_own(serve: Any, keys: Keys) -> None:
    fake = FakeEngine()
    target, _ = serve(fake, api_key_file=str(keys.path))
    for name, salt in (("alice", ""), ("alice2", ""), ("bob", ""), ("bob", "5:alice:"), ("alice", "x")):
        fields = {"cache_salt": salt} if salt else {}
        answer = target.post("/v1/completions", {"prompt": "a", "max_tokens": 1, **fields}, **keys.bearer(name))
        assert answer.status == 200
    salts = [request.cache_salt for request in fake.requests]
    assert salts[0] == salts[1] and len(set(salts)) == 4
    assert [request.tenant for request in fake.requests] == ["alice", "alice", "bob", "bob", "alice"]


def test_threat_14_without_keys_nothing_changes(serve: Any) -> None:
    fake = FakeEngine()
    target, _ = serve(fake)
    assert target.complete(max_tokens=1, cache_salt="mine").status == 200
    assert (fake.requests[0].cache_salt, fake.requests[0].tenant) == ("mine", "")


def test_threat_20_stored_responses_are_their_tenants(guarded: Target, keys: Keys) -> None:
    made = guarded.post("/v1/responses", {"input": "hi", "script": ["x"]}, **keys.bearer("alice"))
    if made.status == 400:
        made = guarded.post("/v1/responses", {"input": "hi"}, **keys.bearer("alice"))
    assert made.status == 200
    path = f"/v1/responses/{made.json['id']}"
    assert guarded.get(path, **keys.bearer("alice2")).status == 200
    for name in ("bob", "root"):
        assert guarded.get(path, **keys.bearer(name)).status == 404
        assert guarded.request("DELETE", path, headers=keys.bearer(name)).status == 404
        continued = {"input": "on", "previous_response_id": made.json["id"]}
        assert code(guarded.post("/v1/responses", continued, **keys.bearer(name))) == "previous_response_not_found"
    assert guarded.get(path, **keys.bearer("alice")).status == 200


def test_threat_20_abort_is_for_ones_own_requests(serve: Any, keys: Keys) -> None:
    fake = FakeEngine()
    fake.step_s = 0.02
    target, _ = serve(fake, api_key_file=str(keys.path))
    for aborter, status in (("bob", 404), ("alice2", 200), ("root", 200)):
        with target.connect() as sock:
            document = {"prompt": "a", "script": ["x"] * 400, "max_tokens": 400, "stream": True}
            headers = f"X-Request-Id: mine\r\nAuthorization: Bearer {keys.key['alice']}\r\n"
            sock.sendall(post_bytes("/v1/completions", document, headers))
            assert sock.recv(100)
            eventually(lambda: bool(fake.live))
            answer = target.post("/v1/abort", {"id": "mine"}, **keys.bearer(aborter))
            assert answer.status == status
            assert bool(fake.live) == (status == 404)
        eventually(lambda: not fake.live)


def test_threat_15_keys_are_in_no_log_and_no_error(serve: Any, keys: Keys, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, logger="sixfold")
    target, _ = serve(api_key_file=str(keys.path))
    key = keys.key["alice"]
    answers = [
        target.get("/v1/models", Authorization=f"Bearer {key}"),
        target.get("/v1/models", Authorization=f"Bearer {key}x"),
        target.get(f"/v1/models?api_key={key}"),
        target.post("/v1/completions", {"prompt": 1.5}, **keys.bearer("alice")),
    ]
    assert [answer.status for answer in answers] == [200, 401, 401, 400]
    assert not any(key.encode() in answer.body for answer in answers)
    eventually(lambda: len([r for r in caplog.records if r.name == "sixfold.api.requests"]) >= 4)
    assert key not in caplog.text


def test_a_refused_key_costs_the_engine_nothing(serve: Any, keys: Keys) -> None:
    fake = FakeEngine()
    target, live = serve(fake, api_key_file=str(keys.path))
    assert target.complete().status == 401
    assert not fake.requests and live.server.app.context.admission.in_flight == 0
    assert json.loads(target.post("/v1/messages", {"max_tokens": 1}).body)["type"] == "error"
