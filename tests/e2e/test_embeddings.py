"""Embeddings of the default model, through processes and HTTP."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import openai
import pytest
from tests.e2e.serving import Server

from sixfold import LLM

pytestmark = pytest.mark.model

PAIRS = [
    ("The cat sleeps on the sofa.", "A kitten is napping on the couch."),
    ("The stock market fell sharply on Monday.", "Share prices dropped at the start of the week."),
    ("She boiled pasta for dinner.", "He cooked noodles in the evening."),
]


@pytest.fixture(scope="module")
def server(model_path: Path) -> Iterator[Server]:
    with Server(str(model_path), "--served-model-name", "small", "--max-num-batched-tokens", "24") as server:
        yield server


def test_similar_sentences_are_closer_than_others(server: Server) -> None:
    texts = [text for pair in PAIRS for text in pair]
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none") as client:
        answer = client.embeddings.create(model="small", input=texts)
    vectors = np.array([entry.embedding for entry in answer.data])
    assert vectors.shape == (len(texts), 576) and answer.usage.prompt_tokens > len(texts)
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-6)
    closeness = vectors @ vectors.T - 2 * np.eye(len(texts))
    for i in range(len(texts)):
        assert closeness[i].argmax() == i ^ 1, texts[i]
    server.wait_idle()


def test_http_and_python_give_the_same_bits(server: Server, model_path: Path) -> None:
    """In other chunks, with other companions, in another process."""
    texts = [text * 9 for pair in PAIRS for text in pair]
    answer = server.post("/v1/embeddings", {"input": texts})
    with LLM(str(model_path)) as llm:
        np.testing.assert_array_equal(
            np.array([entry["embedding"] for entry in answer["data"]], np.float32), llm.embed(texts)
        )
