"""A live server over the fake engine, on a real socket, in a thread of its own."""

from __future__ import annotations

import asyncio
import http.client
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple
from urllib.parse import urlparse

import pytest
from tests.e2e.serving import Server

from sixfold.api.openapi import OPERATIONS, statuses
from sixfold.api.server import ApiServer
from sixfold.config import ApiConfig
from sixfold.text import Tokenizer, byte_tokenizer

from .fake_engine import CONTEXT, FakeEngine


class Answer(NamedTuple):
    status: int
    headers: http.client.HTTPMessage
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def error(self) -> dict[str, Any]:
        """The error's fields, after a check of the one shape."""
        assert self.headers["content-type"] == "application/json"
        document = self.json
        assert set(document) == {"error"}
        assert set(document["error"]) == {"message", "type", "param", "code"}
        assert document["error"]["message"]
        assert "Traceback" not in document["error"]["message"]
        return dict(document["error"])

    @property
    def events(self) -> list[Any]:
        """The stream's JSON events, after a check of its framing."""
        assert self.status == 200, self.body
        assert self.headers["content-type"].startswith("text/event-stream")
        text = self.body.decode("utf-8")
        assert text.endswith("\n\n")
        blocks = [block for block in text[:-2].split("\n\n") if not block.startswith(":")]
        assert all(block.startswith("data: ") and "\n" not in block for block in blocks), blocks
        assert blocks.count("data: [DONE]") == 1
        assert blocks[-1] == "data: [DONE]"
        events = [json.loads(block[6:]) for block in blocks[:-1]]
        ordinary = [event for event in events if "error" not in event]
        for key in ("id", "created", "model", "object"):
            assert len({event[key] for event in ordinary}) <= 1
        return events


def check_documented(method: str, path: str, status: int) -> None:
    """No answer has a status that `/openapi.json` does not tell."""
    path = "/v1/models/{id}" if path.startswith("/v1/models/") else path.partition("?")[0]
    path = "/page/{name}" if path.startswith("/page/") else path
    for op in OPERATIONS:
        if (op.method.upper(), op.path) == (method, path):
            assert status in statuses(op), f"{method} {path} answers {status}"


class Target:
    """A server under test; `fake` is its engine where that is not a real one."""

    def __init__(self, port: int, model: str, tokenizer: Tokenizer, fake: FakeEngine | None = None) -> None:
        self.port = port
        self.model = model
        self.tokenizer = tokenizer
        self._fake = fake

    @property
    def submitted(self) -> int | None:
        """Execution requests so far; None where nobody counts."""
        return len(self._fake.requests) if self._fake is not None else None

    def token(self, text: str) -> int:
        """The one token that the text is."""
        (token_id,) = self.tokenizer.encode(text, parse_control=True, add_bos=False)
        return token_id

    def request(
        self, method: str, path: str, body: bytes | None = None, headers: dict[str, str] | None = None
    ) -> Answer:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=20)
        try:
            sent = {"Content-Type": "application/json", **(headers or {})} if body is not None else headers or {}
            connection.request(method, path, body, sent)
            response = connection.getresponse()
            check_documented(method, path, response.status)
            return Answer(response.status, response.headers, response.read())
        finally:
            connection.close()

    def get(self, path: str, **headers: str) -> Answer:
        return self.request("GET", path, headers=headers)

    def post(self, path: str, document: Any, **headers: str) -> Answer:
        body = document if isinstance(document, bytes) else json.dumps(document).encode()
        return self.request("POST", path, body, headers)

    def chat(self, content: Any = "hi", **fields: Any) -> Answer:
        messages = content if isinstance(content, list) and content and "role" in content[0] else None
        document = {"model": self.model, "messages": messages or [{"role": "user", "content": content}], **fields}
        return self.post("/v1/chat/completions", document)

    def complete(self, prompt: Any = "hi", **fields: Any) -> Answer:
        return self.post("/v1/completions", {"model": self.model, "prompt": prompt, **fields})

    def check_alive(self) -> None:
        """The server is well and answers."""
        assert self.get("/health").status == 200
        assert self.complete(max_tokens=1).status == 200

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), timeout=20)


class LiveServer:
    """The server's thread. `place`: as `ApiServer` takes them, where it is one of several processes."""

    def __init__(self, fake: FakeEngine, config: ApiConfig, **place: Any) -> None:
        self.fake = fake
        self._config = config
        self._place = place
        self._sock = socket.create_server(("127.0.0.1", 0), backlog=512)
        self.port: int = self._sock.getsockname()[1]
        self._started = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._main()), name="server")
        self.loop: asyncio.AbstractEventLoop
        self.server: ApiServer

    def start(self) -> None:
        self._thread.start()
        assert self._started.wait(60)

    async def _main(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.server = ApiServer(self.fake, self._config, **self._place)
        await self.server.run([self._sock], lambda _: self._started.set())

    def call(self, work: Callable[[], Any]) -> None:
        """Run in the server's loop."""
        self.loop.call_soon_threadsafe(work)

    def keep_send_buffers_small(self) -> None:
        """Of connections from now on: what a client does not read stays in the server, not in the system."""
        self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)

    def stop(self) -> None:
        if self._thread.is_alive():
            self.call(self.server.stop)
        self._thread.join(10)
        assert not self._thread.is_alive()


@pytest.fixture
def serve() -> Iterator[Callable[..., tuple[Target, LiveServer]]]:
    """Starts servers: `serve(fake, **fields of ApiConfig)`; with `run_dir` and `api_server`, one of several."""
    servers: list[LiveServer] = []

    def start(fake: FakeEngine | None = None, **config: Any) -> tuple[Target, LiveServer]:
        fake = fake or FakeEngine()
        place = {name: config.pop(name) for name in ("run_dir", "api_server", "start") if name in config}
        live = LiveServer(fake, ApiConfig(**config), **place)
        live.start()
        servers.append(live)
        return Target(live.port, fake.model_name, fake.tokenizer, fake), live

    yield start
    for live in servers:
        live.stop()


EXTRA_TOKENS = (" D", "EF", " G", "HI", " xyz", "abc", "Is it ok")


@pytest.fixture(scope="session", params=["fake", "scripted"])
def target(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    """A server for the tests that leave nothing behind: over the fake engine, and all processes over the scripted
    executor."""
    if request.param == "fake":
        fake = FakeEngine(extra_tokens=EXTRA_TOKENS)
        live = LiveServer(fake, ApiConfig())
        live.start()
        yield Target(live.port, fake.model_name, fake.tokenizer, fake)
        live.stop()
        return
    script = tmp_path_factory.mktemp("scripted") / "script.json"
    script.write_text(json.dumps({"tokens": EXTRA_TOKENS}))
    arguments = ("scripted", "--executor", "scripted", "--script", str(script), "--max-model-len", str(CONTEXT))
    with Server(*arguments) as server:
        port = urlparse(server.url).port
        assert port is not None
        yield Target(port, "scripted", byte_tokenizer(EXTRA_TOKENS))


def post_bytes(path: str, document: dict[str, Any], headers: str = "") -> bytes:
    """A whole POST as it goes over the wire."""
    body = json.dumps(document).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\n{headers}Content-Type: application/json\r\n"
    return head.encode() + b"Content-Length: %d\r\n\r\n" % len(body) + body


def eventually(check: Callable[[], bool], timeout_s: float = 30.0) -> None:
    """Wait until `check` holds."""
    end = time.monotonic() + timeout_s
    while not check():
        assert time.monotonic() < end, "it did not come true in time"
        time.sleep(0.01)
