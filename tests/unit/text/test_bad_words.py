"""Words -> the token sequences that an answer must not complete."""

from __future__ import annotations

import pytest

from sixfold.errors import InvalidRequest
from sixfold.text import byte_tokenizer
from sixfold.text.bad_words import bad_word_ids


def test_a_word_is_forbidden_with_and_without_a_blank_in_front() -> None:
    tokenizer = byte_tokenizer((" cat", "cat"))
    cat, blank_cat = (tokenizer.encode(text, parse_control=True, add_bos=False) for text in ("cat", " cat"))
    assert len(cat) == len(blank_cat) == 1
    expected = {tuple(cat), tuple(blank_cat)}
    assert set(bad_word_ids(["cat"], tokenizer)) == set(bad_word_ids([" cat"], tokenizer)) == expected
    assert set(bad_word_ids(["cat", " cat", "cat"], tokenizer)) == expected
    assert bad_word_ids([], tokenizer) == ()


def test_blanks_and_control_tokens_are_words_too() -> None:
    tokenizer = byte_tokenizer()
    assert bad_word_ids([" "], tokenizer) == ((32,),)
    assert bad_word_ids(["\n\n"], tokenizer) == ((10, 10),)
    end = tokenizer.control["<|im_end|>"]
    assert (end,) in bad_word_ids(["<|im_end|>"], tokenizer)


def test_half_a_pair_is_refused() -> None:
    with pytest.raises(InvalidRequest):
        bad_word_ids(["\ud800"], byte_tokenizer())
