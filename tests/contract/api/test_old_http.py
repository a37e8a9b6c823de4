"""HTTP/1.0: no chunks; an answer without a length ends with the connection."""

from __future__ import annotations

import json
from typing import Any

import pytest

from .conftest import Target


def ask(target: Target, path: str, document: dict[str, Any] | None = None) -> tuple[bytes, bytes]:
    """Head and body, up to the connection's end."""
    body = b"" if document is None else json.dumps({"model": target.model, **document}).encode()
    head = f"{'POST' if body else 'GET'} {path} HTTP/1.0\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    with target.connect() as sock:
        sock.sendall(head.encode() + b"Content-Length: %d\r\n\r\n" % len(body) + body)
        seen = b""
        while data := sock.recv(65536):
            seen += data
    answered, _, rest = seen.partition(b"\r\n\r\n")
    assert b"connection: close" in answered.lower() and b"transfer-encoding" not in answered.lower()
    return answered, rest


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
def test_a_stream_has_no_chunks_and_ends_with_the_connection(target: Target, path: str) -> None:
    asked: dict[str, Any] = {"script": ["a", "b", "c"], "stream": True}
    asked |= {"messages": [{"role": "user", "content": "x"}]} if "chat" in path else {"prompt": "x"}
    head, body = ask(target, path, asked)
    assert head.startswith(b"HTTP/1.1 200") and b"content-length" not in head.lower()
    blocks = body.decode().removesuffix("\n\n").split("\n\n")
    assert blocks[-1] == "data: [DONE]" and all(block.startswith("data: ") for block in blocks)
    choices = [json.loads(block[6:])["choices"][0] for block in blocks[:-1]]
    assert "".join(c["text"] if "text" in c else c["delta"].get("content", "") for c in choices) == "abc"


def test_other_answers_have_their_length(target: Target) -> None:
    for path, document in (("/v1/models", None), ("/v1/completions", {"prompt": "x", "max_tokens": 2})):
        head, body = ask(target, path, document)
        assert head.startswith(b"HTTP/1.1 200") and b"content-length: %d" % len(body) in head.lower()
        assert json.loads(body)
