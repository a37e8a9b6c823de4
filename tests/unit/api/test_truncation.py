"""Prompts cut on request."""

from __future__ import annotations

from typing import Any

import pytest

from sixfold.api.fields.truncation import Truncation
from sixfold.api.openai.schemas import CompletionRequest
from sixfold.errors import InvalidRequest
from sixfold.text import Tokenizer
from sixfold.text.byte_tokenizer import byte_tokenizer

BOS = 256
PLAIN = byte_tokenizer()


def tokenizer_with_bos() -> Tokenizer:
    class Encoder:
        def encode_batch(self, texts: Any, begins: Any) -> list[list[int]]:
            return [list(text.encode()) for text in texts]

    table = [bytes([i]) for i in range(256)] + [b"<s>"]
    return Tokenizer(encoder=Encoder(), token_bytes=table, control={"<s>": BOS}, bos_id=BOS, adds_bos=True)


def truncation(n: int | None, side: Any = None, max_tokens: int | None = None, limit: int = 10) -> Truncation | None:
    request = CompletionRequest(prompt="x", truncate_prompt_tokens=n, truncation_side=side)
    return Truncation.of(request, max_model_len=limit, max_tokens=max_tokens)


def cut(ids: list[int], n: int, side: Any = None, tokenizer: Tokenizer = PLAIN) -> list[int]:
    found = truncation(n, side)
    assert found is not None
    return found.apply(ids, tokenizer)


def test_nothing_is_cut_unless_asked_for() -> None:
    assert truncation(None) is None


def test_a_bos_that_the_model_wants_stays_and_counts() -> None:
    ids = [BOS, 1, 2, 3, 4]
    model = tokenizer_with_bos()
    assert cut(ids, 3, tokenizer=model) == [BOS, 3, 4]
    assert cut(ids, 1, tokenizer=model) == [BOS]
    assert cut(ids, 5, tokenizer=model) == cut(ids, 9, tokenizer=model) == ids
    assert cut(ids, 3, "right", model) == [BOS, 1, 2]
    assert cut(ids[1:], 2, tokenizer=model) == [3, 4]
    assert cut([7, 1, 2], 2) == [1, 2]


@pytest.mark.parametrize(("max_tokens", "left"), [(None, 9), (0, 9), (1, 9), (4, 6)])
def test_minus_one_is_what_the_answer_leaves(max_tokens: int | None, left: int) -> None:
    assert truncation(-1, max_tokens=max_tokens) == Truncation(left)


@pytest.mark.parametrize("fields", [{"n": 0}, {"n": -2}, {"n": -1, "max_tokens": 10}, {"n": None, "side": "left"}])
def test_what_is_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest) as caught:
        truncation(**fields)
    assert caught.value.param == ("truncation_side" if "side" in fields else "truncate_prompt_tokens")
