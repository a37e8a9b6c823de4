"""The bound on a prompt's tokens, against the tokenizers themselves."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
from tests.fixtures.tokenizer_texts import HARD, texts
from tests.gguf_writer import gguf
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers
from tokenizers import Tokenizer as LibraryTokenizer

from sixfold.api.fields.prompt_length import PromptLength
from sixfold.errors import ContextLengthExceeded
from sixfold.model_file import GGUFFile
from sixfold.text import Tokenizer, byte_tokenizer, folder_tokenizer, gguf_tokenizer

EXTRA = (" the", "ing", "    ", "<a>", "\u00e9t\u00e9", b"\xf0\x9f", "aaaaaaaaaaaaaaaaaaaaaaaa")
GOLDEN = Path(__file__).parents[2] / "golden" / "tokenizers"
FAMILIES = sorted(path.stem for path in GOLDEN.glob("*.json") if not path.stem.endswith("-whole"))
ALPHABETS = (
    "a",
    "<",
    " ",
    " the",
    "aing <",
    "\u00e9t\U0001fae0",
    "\x04\x05a",
    "ab\n\t \u6f22<|im_end|>",
    "\U000f0000",
    "e\u0301",
    "\u2581",
    "\u2581a ",
)


def check_bound(tokenizer: Tokenizer) -> None:
    """It never says more than there are, and says enough to be of use."""
    length = PromptLength(tokenizer, 512)
    rng = random.Random(1)
    for text in [*HARD, *texts(200, list(tokenizer.control))]:
        assert length.least_tokens(text) <= len(tokenizer.encode(text, parse_control=True, add_bos=False)), text
    for alphabet in ALPHABETS:
        for n_chars in (0, 1, 5, 400, 4000):
            text = "".join(rng.choice(alphabet) for _ in range(n_chars))
            n_tokens = len(tokenizer.encode(text, parse_control=True, add_bos=False))
            assert length.least_tokens(text) <= n_tokens, (alphabet, n_chars)
    assert length.least_tokens("<" * 1_000_000) > 10_000


def test_it_is_a_bound_for_bytes_and_more() -> None:
    check_bound(byte_tokenizer())
    check_bound(byte_tokenizer(EXTRA))
    assert PromptLength(byte_tokenizer(), 9).least_tokens("~" * 1000) == 1000


@pytest.mark.parametrize("family", FAMILIES)
def test_it_is_a_bound_for_the_families(family: str, tmp_path: Path) -> None:
    metadata = json.loads((GOLDEN / f"{family}.json").read_text())["vocabulary"]
    path = tmp_path / "v.gguf"
    path.write_bytes(gguf({key: value for key, value in metadata.items() if value is not None}))
    tokenizer = gguf_tokenizer(GGUFFile.open(path))
    check_bound(tokenizer)
    for literal in tokenizer.control:  # some swallow the blanks behind them
        text = literal + " " * 5000
        n_tokens = len(tokenizer.encode(text, parse_control=True))
        assert PromptLength(tokenizer, 512).least_tokens(text) <= n_tokens


def bpe(**steps: Any) -> LibraryTokenizer:
    """A small byte-level vocabulary with long tokens, and the given steps before them."""
    words = ["the", "a", "aa", "aaaa", "th", "\u00c3\u00a9"]  # the last: an accented e
    names = [*pre_tokenizers.ByteLevel.alphabet(), *(word for word in words if len(word) > 1)]
    merges = [("t", "h"), ("th", "e"), ("a", "a"), ("aa", "aa"), ("\u00c3", "\u00a9")]
    library = LibraryTokenizer(models.BPE(vocab={name: i for i, name in enumerate(names)}, merges=merges))
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    library.decoder = decoders.ByteLevel()
    for name, step in steps.items():
        setattr(library, name, step)
    return library


LOSING: dict[str, Any] = {
    "normalizer": normalizers.Replace("a", ""),
    "pre_tokenizer": pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), pre_tokenizers.ByteLevel()]),
}


def folder(tmp_path: Path, library: LibraryTokenizer) -> Tokenizer:
    library.add_special_tokens(["<|end|>"])
    library.save(str(tmp_path / "tokenizer.json"))
    return folder_tokenizer(tmp_path)


@pytest.mark.parametrize("normalizer", [None, normalizers.NFC(), normalizers.NFKC()])
def test_it_is_a_bound_for_folders(tmp_path: Path, normalizer: Any) -> None:
    tokenizer = folder(tmp_path, bpe() if normalizer is None else bpe(normalizer=normalizer))
    check_bound(tokenizer)


@pytest.mark.parametrize("step", LOSING)
def test_steps_that_lose_bytes_are_not_counted_on(tmp_path: Path, step: str) -> None:
    tokenizer = folder(tmp_path, bpe(**{step: LOSING[step]}))
    assert PromptLength(tokenizer, 512).least_tokens("a b " * 1000) == 0


def test_added_tokens_that_swallow_blanks_are_counted_without(tmp_path: Path) -> None:
    library = bpe()
    library.add_tokens([AddedToken("<x>", lstrip=True, normalized=False)])
    text = " " * 1000 + "\u2003" * 1000 + "<x>"
    tokenizer = folder(tmp_path, library)
    assert PromptLength(tokenizer, 512).least_tokens(text) <= len(tokenizer.encode(text, parse_control=True)) == 1


@pytest.mark.model
def test_it_is_a_bound_for_the_model(model_path: Path) -> None:
    tokenizer = gguf_tokenizer(GGUFFile.open(model_path))
    check_bound(tokenizer)
    # Bytes that the vocabulary lacks are left out: such a text has no tokens, however long it is.
    assert tokenizer.encode("\x04" * 100_000, parse_control=True) == []
    PromptLength(tokenizer, 512).check(["\x04" * 100_000], "prompt")


def test_what_fits_is_passed_and_what_cannot_is_refused() -> None:
    length = PromptLength(byte_tokenizer(), 100)
    for parts in ([], ["a" * 99], [257, "\u00e9" * 49], [258] * 99, ["\ud800" * 30]):
        length.check(parts, "prompt")
    for parts in (["~" * 100], [257, "~" * 99], [258] * 100, ["~" * 60, 258, "~" * 60]):
        with pytest.raises(ContextLengthExceeded, match=r"at least .* context length is 100 tokens") as caught:
            length.check(parts, "messages")
        assert (caught.value.param, caught.value.code) == ("messages", "context_length_exceeded")


def test_the_largest_body_of_beginnings_of_literals() -> None:
    length = PromptLength(byte_tokenizer(EXTRA), 8192)
    with pytest.raises(ContextLengthExceeded):
        length.check(["<" * (4 << 20)], "prompt")  # what is not linear does not come to an end
