"""Every kind of vocabulary over random texts: decoding undoes encoding, and the deltas of a stream are its text."""

from __future__ import annotations

import json
import tempfile
from functools import cache
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests import gguf_writer as w

from sixfold.detokenizer import Detokenizer
from sixfold.model_file import GGUFFile
from sixfold.text import Tokenizer, byte_tokenizer, gguf_tokenizer

GOLDEN = Path(__file__).parents[1] / "golden" / "tokenizers"
SPELLED = ("baichuan", "gemma3", "llama-spm", "phi-3")
KINDS = ("bytes", *sorted(path.stem for path in GOLDEN.glob("*.json") if not path.stem.endswith("-whole")))

blanks = st.sampled_from([" ", "  ", "\n", "\r\n", "\t", "\u00a0", "\u0085", "\u2003", "\ufeff", "\u200b", "\x00", "▁"])
literals = st.sampled_from(
    ["<s>", "</s>", "<unk>", "<|im_end|>", "<|endoftext|>", "<|assistant|>", "<table>", "<0x0A>"]
)
pieces = st.one_of(
    st.text(max_size=20),
    st.text(st.characters(codec="ascii"), max_size=20),
    st.text(st.sampled_from("👩👧🏽\u200d\ufe0f🇩🇪❤e\u0301ी中か한"), max_size=10),
    blanks.map(lambda one: one * 7),
    blanks,
    literals,
    st.builds(lambda text, end: text[:end], literals, st.integers(1, 8)),
    st.sampled_from(["the ", " Hello", "don't", "1234567", "    if", "ĠĊ"]),
)
any_text = st.lists(pieces, max_size=12).map("".join)


@cache
def tokenizer_of(kind: str) -> Tokenizer:
    if kind == "bytes":
        return byte_tokenizer(["hello", " ", b"\xf0\x9f"])
    metadata = json.loads((GOLDEN / f"{kind}.json").read_text())["vocabulary"]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "v.gguf")
        path.write_bytes(w.gguf(metadata))
        return gguf_tokenizer(GGUFFile.open(path))


@cache
def spoken(kind: str) -> frozenset[int]:
    """Bytes that some ordinary token has: a vocabulary may lack some, and cannot say what holds them."""
    tokenizer = tokenizer_of(kind)
    return frozenset(
        b for i, token in enumerate(tokenizer.token_bytes) if i not in tokenizer.control_ids for b in token
    )


def what_it_can_say(kind: str, text: str) -> str:
    """SentencePiece writes a blank as U+2581, and cannot tell the two apart."""
    text = text.replace("▁", " ") if kind in SPELLED else text
    return "".join(char for char in text if spoken(kind).issuperset(char.encode()))


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=60)
@given(text=any_text)
def test_decoding_undoes_encoding(kind: str, text: str) -> None:
    tokenizer, text = tokenizer_of(kind), what_it_can_say(kind, text)
    ids = tokenizer.encode(text, parse_control=False, add_bos=False)
    assert tokenizer.control_ids.isdisjoint(ids)
    assert tokenizer.decode(ids) == text
    assert tokenizer.decode(tokenizer.encode(text, parse_control=False)) == text
    parsed = tokenizer.encode(text, parse_control=True, add_bos=False)
    if kind != "phi-3":  # its control tokens swallow the blanks behind them
        assert tokenizer.decode(parsed, skip_special=False) == text


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=60)
@given(data=st.data())
def test_o08_joined_deltas_are_the_full_decode(kind: str, data: st.DataObject) -> None:
    tokenizer = tokenizer_of(kind)
    random_ids = st.lists(st.integers(0, tokenizer.n_vocab - 1), max_size=30)
    texts = any_text.map(lambda text: tokenizer.encode(text, parse_control=True))
    ids = [token for part in data.draw(st.lists(random_ids | texts, max_size=3)) for token in part]
    for skip in (True, False):
        detokenizer = Detokenizer(tokenizer.token_bytes, tokenizer.control_ids, skip_special=skip)
        deltas = [detokenizer.push([token])[0] for token in ids] + [detokenizer.flush()]
        assert "".join(deltas) == tokenizer.decode(ids, skip_special=skip, continues=True)
