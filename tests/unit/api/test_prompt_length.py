"""The bound on a prompt's tokens, against the tokenizers themselves."""

from __future__ import annotations

import random
import time
from pathlib import Path

import pytest

from sixfold.api.prompt_length import PromptLength
from sixfold.errors import ContextLengthExceeded
from sixfold.model_file import GGUFFile
from sixfold.text import Tokenizer, byte_tokenizer, gguf_tokenizer

EXTRA = (" the", "ing", "    ", "<a>", "\u00e9t\u00e9", b"\xf0\x9f", "aaaaaaaaaaaaaaaaaaaaaaaa")
ALPHABETS = ("a", "<", " ", " the", "aing <", "\u00e9t\U0001fae0", "\x04\x05a", "ab\n\t \u6f22<|im_end|>", "\U000f0000")


def check_bound(tokenizer: Tokenizer) -> None:
    """It never says more than there are, and says enough to be of use."""
    length = PromptLength(tokenizer.token_bytes, 512)
    rng = random.Random(1)
    for alphabet in ALPHABETS:
        for n_chars in (0, 1, 5, 400, 4000):
            text = "".join(rng.choice(alphabet) for _ in range(n_chars))
            n_tokens = len(tokenizer.encode(text, parse_control=True, add_bos=False))
            assert length.least_tokens(text.encode()) <= n_tokens, (alphabet, n_chars)
    assert length.least_tokens(b"<" * 1_000_000) > 10_000


def test_it_is_a_bound_for_bytes_and_more() -> None:
    check_bound(byte_tokenizer())
    check_bound(byte_tokenizer(EXTRA))
    assert PromptLength(byte_tokenizer().token_bytes, 9).least_tokens(b"~" * 1000) == 1000


@pytest.mark.model
def test_it_is_a_bound_for_the_model(model_path: Path) -> None:
    tokenizer = gguf_tokenizer(GGUFFile.open(model_path))
    check_bound(tokenizer)
    # Bytes that the vocabulary lacks are left out: such a text has no tokens, however long it is.
    assert tokenizer.encode("\x04" * 100_000, parse_control=True) == []
    PromptLength(tokenizer.token_bytes, 512).check(["\x04" * 100_000], "prompt")


def test_what_fits_is_passed_and_what_cannot_is_refused() -> None:
    length = PromptLength(byte_tokenizer().token_bytes, 100)
    for parts in ([], ["a" * 99], [257, "\u00e9" * 49], [258] * 99, ["\ud800" * 30]):
        length.check(parts, "prompt")
    for parts in (["~" * 100], [257, "~" * 99], [258] * 100, ["~" * 60, 258, "~" * 60]):
        with pytest.raises(ContextLengthExceeded, match=r"at least .* the context is 100 tokens") as caught:
            length.check(parts, "messages")
        assert (caught.value.param, caught.value.code) == ("messages", "context_length_exceeded")


def test_it_is_quick() -> None:
    length = PromptLength(byte_tokenizer(EXTRA).token_bytes, 8192)
    started = time.perf_counter()
    with pytest.raises(ContextLengthExceeded):
        length.check(["<" * (4 << 20)], "prompt")
    assert time.perf_counter() - started < 0.5
