"""Any JSON in any field: an answer of the right shape, and never a fault of the server."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.contract.api.fake_engine import FakeEngine

from sixfold.api.app import App, build_app
from sixfold.api.openai.schemas import (
    ChatMessage,
    ChatRequest,
    CompletionRequest,
    ContentPart,
    DetokenizeRequest,
    TokenizeRequest,
)
from sixfold.config import ApiConfig

SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.integers(-3, 30)
    | st.floats(allow_nan=False)
    | st.text(max_size=8)
    | st.sampled_from(["user", "system", "text", "fake", "none"])
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)


def fields(kind: type, **known: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    names = st.sampled_from([*kind.__struct_fields__, "foo"])
    noise = st.dictionaries(names, VALUES, max_size=3)
    return st.builds(lambda a, b: {**a, **b}, st.fixed_dictionaries(known), noise)


PARTS = st.lists(fields(ContentPart, type=st.just("text"), text=st.text(max_size=5)), max_size=2)
MESSAGES = st.lists(
    fields(ChatMessage, role=st.sampled_from(["user", "assistant", "system"]), content=st.text(max_size=9) | PARTS),
    max_size=3,
)
SHORT = st.integers(0, 4)
CALLS = st.one_of(
    st.tuples(st.just("/v1/chat/completions"), fields(ChatRequest, messages=MESSAGES, max_tokens=SHORT)),
    st.tuples(st.just("/v1/completions"), fields(CompletionRequest, prompt=st.text(max_size=9), max_tokens=SHORT)),
    st.tuples(st.just("/tokenize"), fields(TokenizeRequest, prompt=st.text())),
    st.tuples(st.just("/detokenize"), fields(DetokenizeRequest, tokens=st.lists(st.integers(0, 258), max_size=9))),
)


class Connection:
    """Takes everything."""

    def __init__(self) -> None:
        self.on_writable: Callable[[], None] | None = None
        self.out = b""

    def write_chunk(self, data: bytes) -> bool:
        self.out += data
        return True


async def ask(app: App, path: str, body: bytes) -> tuple[int, bytes]:
    """One call without a socket."""
    inbox = [{"type": "http.request", "body": body, "more_body": False}]
    status, connection = 0, Connection()

    async def receive() -> Any:
        if inbox:
            return inbox.pop()
        await asyncio.Event().wait()

    async def send(message: Any) -> None:
        nonlocal status
        status = message.get("status", status)
        connection.out += message.get("body", b"")

    headers = [(b"host", b"localhost"), (b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
    scope = {"type": "http", "method": "POST", "path": path, "root_path": "", "headers": headers}
    await app({**scope, "sixfold.connection": connection}, receive, send)
    return status, connection.out


def check(app: App, path: str, body: bytes) -> None:
    status, out = asyncio.run(ask(app, path, body))
    assert status in (200, 400, 404, 429), (status, out)
    if status == 200:
        assert out.endswith(b"data: [DONE]\n\n") or json.loads(out)
    else:
        error = json.loads(out)["error"]
        assert set(error) == {"message", "type", "param", "code"}
        assert error["message"]
        assert len(error["message"]) <= 500
        whole = ("invalid_json", "json_too_deep", "invalid_type")  # faults of the document, maybe of no field
        assert error["param"] is not None or error["code"] in whole


@pytest.fixture(scope="module", params=["refuse", "ignore"])
def app(request: pytest.FixtureRequest) -> App:
    return build_app(FakeEngine(max_model_len=40), ApiConfig(unknown_fields=request.param))


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(CALLS)
def test_any_value_in_any_field(app: App, call: tuple[str, dict[str, Any]]) -> None:
    path, document = call
    check(app, path, json.dumps(document).encode())


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(CALLS, st.data())
def test_damaged_bytes(app: App, call: tuple[str, dict[str, Any]], data: st.DataObject) -> None:
    path, document = call
    body = bytearray(json.dumps(document).encode())
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(body)))
        body[at : at + data.draw(st.integers(0, 3))] = data.draw(st.binary(max_size=4))
    if body:
        check(app, path, bytes(body))
