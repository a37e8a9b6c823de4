"""Vocabularies of the families: ids against llama.cpp's, SentencePiece's blanks, and what is refused.

The small vocabularies of tests/golden/tokenizers are cut out of real ones (tests/fixtures/make_tokenizer_golden.py).
"""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
from tests import gguf_writer as w
from tests.fixtures.make_tokenizer_golden import digits, special_literals, summed_texts
from tests.fixtures.tokenizer_texts import HARD, texts

from sixfold.detokenizer import Detokenizer
from sixfold.errors import ModelFileError
from sixfold.model_file import GGUFFile
from sixfold.text import Tokenizer, gguf_tokenizer, load_text_files
from sixfold.text.word_rules import word_rule

GOLDEN = Path(__file__).parents[2] / "golden" / "tokenizers"
FAMILIES = sorted(path.stem for path in GOLDEN.glob("*.json") if not path.stem.endswith("-whole"))
SPM = ["baichuan", "gemma3", "llama-spm", "phi-3"]


def load(name: str) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads((GOLDEN / f"{name}.json").read_text())
    return loaded


def build(folder: Path, metadata: dict[str, Any]) -> Tokenizer:
    path = folder / "v.gguf"
    path.write_bytes(w.gguf({key: value for key, value in metadata.items() if value is not None}))
    return gguf_tokenizer(GGUFFile.open(path))


def check_ids(tokenizer: Tokenizer, golden: dict[str, Any], literals: list[str]) -> None:
    for text, ids in zip(HARD, golden["ids"], strict=True):
        plain, parsed = ids if ids and isinstance(ids[0], list) else (ids, ids)
        assert tokenizer.encode(text, parse_control=False, add_bos=False) == plain, text
        assert tokenizer.encode(text, parse_control=True, add_bos=False) == parsed, text
    cases = summed_texts(literals)
    both = [tokenizer.encode_batch(cases, parse_control=parse, add_bos=False) for parse in (False, True)]
    assert len(golden["sums"]) == 6 * len(cases)
    for i, (text, plain, parsed) in enumerate(zip(cases, *both, strict=True)):
        assert digits(plain, parsed) == golden["sums"][6 * i : 6 * i + 6], text


@pytest.mark.parametrize("family", FAMILIES)
def test_o53_ids_equal_the_reference(family: str, tmp_path: Path) -> None:
    golden = load(family)
    tokenizer = build(tmp_path, golden["vocabulary"])
    check_ids(tokenizer, golden, special_literals(GGUFFile.open(tmp_path / "v.gguf")))


@pytest.fixture(scope="module")
def gemma(gemma_path: Path) -> Tokenizer:
    return gguf_tokenizer(GGUFFile.open(gemma_path))


@pytest.mark.model
def test_gemma_is_a_base_model(gemma_path: Path) -> None:
    assert load_text_files(gemma_path).chat_template is None


@pytest.mark.model
def test_o53_ids_of_the_whole_gemma_vocabulary(gemma: Tokenizer, gemma_path: Path) -> None:
    check_ids(gemma, load("gemma3-whole"), special_literals(GGUFFile.open(gemma_path)))
    assert (gemma.bos_id, gemma.adds_bos, gemma.end_ids) == (2, True, {1})
    assert gemma.encode("Hi", parse_control=False) == [2, *gemma.encode("Hi", parse_control=False, add_bos=False)]


@pytest.mark.model
def test_o53_ids_of_the_whole_smollm2_vocabulary(model_path: Path) -> None:
    file = GGUFFile.open(model_path)
    check_ids(gguf_tokenizer(file), load("smollm2-whole"), special_literals(file))


@pytest.mark.parametrize("family", FAMILIES)
def test_round_trips(family: str, tmp_path: Path) -> None:
    tokenizer = build(tmp_path, load(family)["vocabulary"])
    lossy = {b for b in range(256) if bytes([b]) not in set(tokenizer.token_bytes)}
    for text in texts(300, ["<unk>", "<table>", "\n\n"]):
        if lossy.intersection(text.encode()) or (family in SPM and "▁" in text):
            continue  # a byte without a token is lost; SentencePiece cannot tell U+2581 from a blank
        ids = tokenizer.encode(text, parse_control=False)
        assert tokenizer.decode(ids) == text
        assert tokenizer.control_ids.isdisjoint(ids[1:] if tokenizer.adds_bos else ids)


# --- SentencePiece --------------------------------------------------------------------------------------------------


def pieces_of(tokenizer: Tokenizer, text: str, *, parse_control: bool = False) -> list[str]:
    ids = tokenizer.encode(text, parse_control=parse_control, add_bos=False)
    return [tokenizer.piece(token) for token in ids]


def test_the_best_score_merges_first_and_of_equals_the_leftmost(tmp_path: Path) -> None:
    tokenizer = build(tmp_path, w.tiny_spm(**{"tokenizer.ggml.add_space_prefix": False}))
    assert pieces_of(tokenizer, "abc") == ["abc"]
    assert pieces_of(tokenizer, "babcb") == ["b", "abc", "b"]
    assert pieces_of(tokenizer, "bcbcab") == ["bc", "bc", "ab"]
    assert pieces_of(tokenizer, "   ") == ["  ", " "]
    assert pieces_of(tokenizer, "aéa") == ["a", "�", "�", "a"]


def test_a_control_token_is_not_built_from_its_text(tmp_path: Path) -> None:
    tokenizer = build(tmp_path, w.tiny_spm())
    ids = tokenizer.encode("a<b <s></s><unk> <0x41>", parse_control=False, add_bos=False)
    assert tokenizer.control_ids.isdisjoint(ids)
    assert tokenizer.decode(ids) == "a<b <s></s><unk> <0x41>"


def test_a_blank_is_added_in_front_and_behind_special_tokens(tmp_path: Path) -> None:
    tokenizer = build(tmp_path, w.tiny_spm())
    assert pieces_of(tokenizer, "ab") == [" ab"]
    assert pieces_of(tokenizer, " ab") == ["  ", "ab"]
    assert pieces_of(tokenizer, "ab<tool>ab") == [" ab", "<tool>", " ab"]
    assert pieces_of(tokenizer, "</s>ab", parse_control=True) == ["</s>", " ab"]
    for text in ("ab", " ab", "  ab<tool> c</s>", "", " ", "<tool>"):
        for parse in (False, True):
            ids = tokenizer.encode(text, parse_control=parse)
            assert ids[0] == 1
            assert tokenizer.decode(ids[1:], skip_special=False) == text
    assert tokenizer.decode(tokenizer.encode("ab</s>ab", parse_control=True)) == "abab"


def test_o11_bos_leads_once_and_by_default(tmp_path: Path) -> None:
    tokenizer = build(tmp_path, w.tiny_spm())
    assert tokenizer.encode("<s>ab", parse_control=True) == tokenizer.encode("ab", parse_control=True)
    assert tokenizer.encode("", parse_control=False) == [1]
    assert not build(tmp_path, w.tiny_spm(**{"tokenizer.ggml.add_bos_token": False})).adds_bos


@pytest.mark.parametrize("family", SPM)
def test_o08_joined_deltas_are_the_full_decode(family: str, tmp_path: Path) -> None:
    tokenizer = build(tmp_path, load(family)["vocabulary"])
    rng = random.Random(3)
    words = tokenizer.encode("Hello big world", parse_control=False, add_bos=False)
    blank = tokenizer.token_bytes.index(b" ")
    answers = [words, [blank, *words], [blank, blank], [*words, tokenizer.eos_id or 2, *words]]
    answers += [[rng.randrange(tokenizer.n_vocab) for _ in range(50)] for _ in range(50)]
    for ids in answers:
        for skip in (True, False):
            detokenizer = Detokenizer(tokenizer.token_bytes, tokenizer.control_ids, skip_special=skip)
            deltas = [detokenizer.push([token])[0] for token in ids] + [detokenizer.flush()]
            assert "".join(deltas) == tokenizer.decode(ids, skip_special=skip, continues=True)


def test_a_turns_end_is_control_even_if_the_file_says_user_defined(tmp_path: Path) -> None:
    types = w.tiny_spm()["tokenizer.ggml.token_type"]
    types[2] = 4
    tokenizer = build(tmp_path, w.tiny_spm(**{"tokenizer.ggml.token_type": types}))
    assert 2 in tokenizer.control_ids
    assert 2 not in tokenizer.encode("a</s>", parse_control=False)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"tokenizer.ggml.scores": None}, "tokenizer.ggml.scores is missing"),
        ({"tokenizer.ggml.scores": [0.0]}, "tokenizer.ggml.scores must hold"),
        ({"tokenizer.ggml.scores": [float("nan")] * 271}, "not finite"),
        ({"tokenizer.ggml.token_type": [1]}, "tokenizer.ggml.token_type must hold"),
        ({"tokenizer.ggml.unknown_token_id": 9999}, "unknown_token_id is 9999"),
    ],
)
def test_o53_what_cannot_be_used_is_refused_by_name(tmp_path: Path, changes: dict[str, Any], reason: str) -> None:
    with pytest.raises(ModelFileError, match=reason):
        build(tmp_path, w.tiny_spm(**changes))


@pytest.mark.parametrize(("place", "text"), [(260, "▁"), (260, ""), (4, "<0x00>"), (4, "<0xZZ>")])
def test_broken_tokens_are_refused(tmp_path: Path, place: int, text: str) -> None:
    tokens = w.tiny_spm()["tokenizer.ggml.tokens"]
    tokens[place] = text
    with pytest.raises(ModelFileError, match=r"tokenizer\.ggml\.tokens"):
        build(tmp_path, w.tiny_spm(**{"tokenizer.ggml.tokens": tokens}))


LONG = [
    unit * (300_000 // len(unit))
    for unit in ("a", " ", "<", "\n", "1", "漢字", "<u", "🙂", "<|im_end|", "'s", "e\u0301")
]
"""What is not linear in these does not come to an end."""


@pytest.mark.model
def test_long_texts_take_linear_time(gemma: Tokenizer) -> None:
    for text in LONG:
        assert gemma.decode(gemma.encode(text, parse_control=True)) == text


@pytest.mark.parametrize("family", ["llama-bpe", "llama-spm", "smollm2"])
def test_long_texts_take_linear_time_in_small_vocabularies(family: str, tmp_path: Path) -> None:
    tokenizer = build(tmp_path, load(family)["vocabulary"])
    for text in LONG:
        assert tokenizer.decode(tokenizer.encode(text[:100_000], parse_control=True)) == text[:100_000]


# --- words ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("names", "text", "words"),
    [
        (["gpt-2", "olmo", "phi-2", "mpt"], "It's 1234  x", ["It", "'s", "Ġ1234", "Ġ", "Ġx"]),
        (["smollm", "starcoder", "command-r"], "IT'S 12", ["IT", "'", "S", "Ġ", "1", "2"]),
        (["llama-bpe", "dbrx", "smaug-bpe"], "IT'S 1234!!\n\n x", ["IT", "'S", "Ġ", "123", "4", "!!ĊĊ", "Ġx"]),
        (["qwen2", "stablelm2"], "IT'S 12 \n x", ["IT", "'S", "Ġ", "1", "2", "ĠĊ", "Ġx"]),
        (["tekken"], "iPhone's 12/\n", ["i", "Phone", "'s", "Ġ", "1", "2", "/Ċ"]),
        (["gpt-4o", "llama4"], "iPhone's 1234/", ["i", "Phone's", "Ġ", "123", "4", "/"]),
    ],
)
def test_word_rules(names: list[str], text: str, words: list[str]) -> None:
    for name in names:
        assert [word for word, _ in word_rule(name).pre_tokenizer().pre_tokenize_str(text)] == words, name
