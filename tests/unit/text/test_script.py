"""Scripts of the scripted executor."""

from __future__ import annotations

import pytest

from sixfold.errors import InvalidRequest
from sixfold.text import byte_tokenizer
from sixfold.text.script import FAULT, script_ids


def test_texts_numbers_control_literals_and_faults() -> None:
    tokenizer = byte_tokenizer(["abc", " D"])
    ids = script_ids(["abc", " D", "xy", 3, FAULT, "<|im_end|>"], tokenizer)
    pieces = [tokenizer.piece(i) if i >= 0 else i for i in ids]
    assert pieces == ["abc", " D", "x", "y", "\x03", FAULT, "<|im_end|>"]


@pytest.mark.parametrize("entry", ["", -5, 10**6])
def test_entries_without_a_token_are_named(entry: str | int) -> None:
    with pytest.raises(InvalidRequest, match=r"script\[1\]"):
        script_ids(["a", entry], byte_tokenizer())
