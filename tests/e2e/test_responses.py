"""Responses of a real model, kept in a file that processes share and that outlives them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.e2e.serving import Server

openai = pytest.importorskip("openai")

pytestmark = pytest.mark.model

MODEL = "small"


@contextmanager
def served(model_path: Path, store: Path) -> Iterator[Any]:
    arguments = ("--served-model-name", MODEL, "--response-store", str(store), "--api-server-count", "2")
    with (
        Server(str(model_path), *arguments) as server,
        openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client,
    ):
        yield client


def test_a_conversation_outlives_the_server(model_path: Path, tmp_path: Path) -> None:
    store = tmp_path / "responses.sqlite"
    asked = {"model": MODEL, "temperature": 0, "max_output_tokens": 24}
    with served(model_path, store) as client:
        first = client.responses.create(input="My name is Ada. Say hello to me.", **asked)
        assert first.output_text
        events = list(client.responses.create(input="My name is Ada. Say hello to me.", stream=True, **asked))
        assert "".join(e.delta for e in events if e.type == "response.output_text.delta") == first.output_text
        assert events[-1].response.usage.output_tokens == first.usage.output_tokens
        # Whichever process takes the connection, it finds what the others kept.
        for _ in range(8):
            with openai.OpenAI(base_url=client.base_url, api_key="none", max_retries=0) as other:
                assert other.responses.retrieve(first.id) == first
    with served(model_path, store) as client:
        assert client.responses.retrieve(first.id) == first
        second = client.responses.create(input="What is my name?", previous_response_id=first.id, **asked)
        history = [
            {"role": "user", "content": "My name is Ada. Say hello to me."},
            {"role": "assistant", "content": first.output_text},
            {"role": "user", "content": "What is my name?"},
        ]
        chat = client.chat.completions.create(model=MODEL, messages=history, temperature=0, max_tokens=24)
        assert second.output_text == chat.choices[0].message.content
        assert second.usage.input_tokens == chat.usage.prompt_tokens
