"""tokenizer.json against the library that defines it, and what is refused by name instead of read differently."""

from __future__ import annotations

import itertools
import json
import random
from pathlib import Path
from typing import Any

import pytest
from tests.fixtures.tokenizer_texts import HARD, long_texts, texts
from tests.tokenizer_json_writer import added, byte_level, spelled
from tokenizers import Tokenizer as LibraryTokenizer

from sixfold.errors import ModelFileError
from sixfold.text import Tokenizer, folder_tokenizer


def load(folder: Path, file: dict[str, Any], config: dict[str, Any] | None = None, **options: Any) -> Tokenizer:
    (folder / "tokenizer.json").write_text(json.dumps(file))
    (folder / "tokenizer_config.json").write_text(json.dumps(config or {"bos_token": "<s>", "eos_token": "</s>"}))
    return folder_tokenizer(folder, **options)


FLAGS = [{"lstrip": left, "rstrip": right} for left, right in itertools.product((False, True), repeat=2)]
METASPACE = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "first", "split": False}


@pytest.mark.parametrize(
    "file",
    [
        byte_level(),
        byte_level(pre_tokenizer__add_prefix_space=True),
        byte_level(normalizer={"type": "NFC"}),
        spelled(),
        spelled(normalizer=None, pre_tokenizer=METASPACE),
        spelled(normalizer=None, pre_tokenizer={**METASPACE, "prepend_scheme": "always"}),
        spelled(normalizer={"type": "Replace", "pattern": {"String": " "}, "content": "▁"}),
    ],
)
@pytest.mark.parametrize("flags", FLAGS)
def test_o53_ids_equal_the_library(file: dict[str, Any], flags: dict[str, bool], tmp_path: Path) -> None:
    """Control literals parsed here, and by the library; with every way of swallowing blanks around them."""
    first = 1 + max(max(file["model"]["vocab"].values()), *(token["id"] for token in file["added_tokens"]))
    control = [added(first, "<|user|>", **flags), added(first + 1, "<|end|>", **flags)]
    own_text = [added(first + 2, "<tool>", special=False), added(first + 3, "<b>", special=False, **flags)]
    file = {**file, "added_tokens": [*file["added_tokens"], *control, *own_text]}
    ours, theirs = load(tmp_path, file), LibraryTokenizer.from_str(json.dumps(file))
    literals = [token["content"] for token in file["added_tokens"]]
    cases = [*HARD, *texts(150, literals), *long_texts(20, literals)]
    rng = random.Random(5)
    blanks = ["", "", " ", "\n", "\u00a0", "\u2003\t", "\x1c", "\u200b", "a", "b c"]
    for _ in range(200):
        cases.append("".join(rng.choice(literals) + rng.choice(blanks) for _ in range(rng.randint(1, 5))))
    found = ours.encode_batch(cases, parse_control=True, add_bos=False)
    for text, ids in zip(cases, found, strict=True):
        assert ids == theirs.encode(text, add_special_tokens=False).ids, ascii(text)
    theirs.encode_special_tokens = True
    found = ours.encode_batch(cases, parse_control=False, add_bos=False)
    for text, ids in zip(cases, found, strict=True):
        assert ids == theirs.encode(text, add_special_tokens=False).ids, ascii(text)


TEMPLATE = {
    "type": "TemplateProcessing",
    "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
    "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
    "special_tokens": {
        token: {"id": token, "ids": [token_id], "tokens": [token]} for token, token_id in (("<s>", 258), ("</s>", 259))
    },
}
END = {"SpecialToken": {"id": "</s>", "type_id": 0}}


@pytest.mark.parametrize(
    ("file", "reason"),
    [
        (byte_level(model__type="WordPiece"), "tokenizer model 'WordPiece' is not supported"),
        (byte_level(model__dropout=0.1), "model.dropout 0.1 is not supported"),
        (byte_level(model__end_of_word_suffix="</w>"), "model.end_of_word_suffix '</w>' is not supported"),
        (byte_level(model__continuing_subword_prefix="##"), "model.continuing_subword_prefix '##' is not supported"),
        (byte_level(model__later=1), "unknown field `later`"),
        (byte_level(later={}), "unknown field `later`"),
        (byte_level(added_tokens=[added(258, "<s>", later=True)]), "unknown field `later`"),
        (byte_level(pre_tokenizer__later=1), "pre_tokenizer.later is not supported"),
        (byte_level(normalizer={"type": "Later"}), "the library refuses it"),
        (
            spelled(normalizer={"type": "Sequence", "normalizers": [{"type": "NFC"}, {"type": "NFD", "later": 1}]}),
            r"normalizer.normalizers\[1\].later is not supported",
        ),
        (byte_level(decoder=None), "there is no decoder"),
        (byte_level(decoder={"type": "WordPiece", "prefix": "##", "cleanup": True}), "the decoder .*WordPiece"),
        (spelled(decoder={"type": "Strip", "content": " ", "start": 0, "stop": 1}), "the decoder .*Strip"),
        (
            spelled(decoder={"type": "Replace", "pattern": {"String": "x"}, "content": " "}),
            "the decoder .*Replace.* is not supported",
        ),
        (byte_level(added_tokens=[added(300, "<s>")]), r"added_tokens\[0\] '<s>' cannot have the id 300"),
        (byte_level(added_tokens=[added(3, "<s>")]), r"added_tokens\[0\] '<s>' cannot have the id 3"),
        (byte_level(model__vocab__ab=257), "the tokens 'ab' and 'Ġa' have the same id 257"),
        (byte_level(added_tokens=[added(258, "<s>", single_word=True)]), "single_word of the control token '<s>'"),
        (
            byte_level(post_processor={**TEMPLATE, "single": [*TEMPLATE["single"], END]}),  # type: ignore[misc]
            r"the post_processor makes \[258, 64, 259\] of \[64\]",
        ),
    ],
)
def test_o53_what_cannot_be_used_is_refused_by_name(file: dict[str, Any], reason: str, tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match=rf"tokenizer\.json: .*{reason}"):
        load(tmp_path, file)


def test_what_belongs_in_front_or_behind(tmp_path: Path) -> None:
    file = byte_level(post_processor=TEMPLATE)
    assert load(tmp_path, file).adds_bos
    assert not load(tmp_path, file, {"bos_token": "<s>", "add_bos_token": False}).adds_bos
    with pytest.raises(ModelFileError, match="only a bos_token in front"):
        load(tmp_path, file, {"bos_token": "</s>"})
    with pytest.raises(ModelFileError, match=r"tokenizer_config\.json: add_eos_token"):
        load(tmp_path, file, {"bos_token": "<s>", "add_eos_token": True})


def test_old_fields_of_metaspace(tmp_path: Path) -> None:
    old = {"type": "Metaspace", "replacement": "▁", "add_prefix_space": True}
    tokenizer = load(tmp_path, spelled(normalizer=None, pre_tokenizer=old, decoder=old))
    ids = tokenizer.encode("a b", parse_control=False, add_bos=False)
    assert [tokenizer.piece(i) for i in ids] == [" a", " ", "b"]
    assert tokenizer.decode(ids) == "a b"


def test_o54_ids_without_a_token(tmp_path: Path) -> None:
    file = byte_level(model__vocab__Ġb=400, added_tokens=[])
    file["model"]["merges"].append(["Ġ", "b"])
    tokenizer = load(tmp_path, file)
    assert tokenizer.n_vocab == 401
    assert tokenizer.absent_ids == set(range(258, 400))
    assert tokenizer.first_unknown([0, 257, 400]) is None
    assert [tokenizer.first_unknown([0, i]) for i in (258, 399, 401, -1)] == [258, 399, 401, -1]
    assert tokenizer.decode([64, 300, 65]) == tokenizer.decode([64, 65])


def test_o54_ids_that_the_model_does_not_know(tmp_path: Path) -> None:
    tokens = [added(258, "<s>"), added(259, "</s>"), added(260, "<picture>"), added(261, "<tool>", special=False)]
    tokenizer = load(tmp_path, byte_level(added_tokens=tokens), n_rows=260)
    assert tokenizer.n_vocab == len(tokenizer.token_bytes) == 260
    assert tokenizer.first_unknown(tokenizer.encode("a<picture>", parse_control=True)) == 260
    assert tokenizer.first_unknown(tokenizer.encode("a<picture>", parse_control=False)) is None
    assert tokenizer.first_unknown(tokenizer.encode("a<tool>", parse_control=False)) == 261
    for name in ("bos_token", "eos_token"):
        with pytest.raises(ModelFileError, match=f"{name} '<picture>' has the id 260; the model has 260"):
            load(tmp_path, byte_level(added_tokens=tokens), {name: "<picture>"}, n_rows=260)
