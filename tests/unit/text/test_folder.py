"""Hugging Face folders: tokenizer.json against the same vocabulary from GGUF, special tokens, templates, generation."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests import gguf_writer as w
from tests.fixtures.tokenizer_texts import HARD, texts
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers, processors
from tokenizers import Tokenizer as LibraryTokenizer

from sixfold.errors import InvalidRequest, ModelFileError
from sixfold.model_file import GGUFFile
from sixfold.text import Tokenizer, folder_tokenizer, gguf_tokenizer, load_text_files
from sixfold.text.word_rules import word_rule

GOLDEN = Path(__file__).parents[2] / "golden" / "tokenizers"
USER = [{"role": "user", "content": "hi"}]


def vocabulary(name: str) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads((GOLDEN / f"{name}.json").read_text())["vocabulary"]
    return loaded


def added(metadata: dict[str, Any], kinds: tuple[int, ...]) -> list[str]:
    types = metadata["tokenizer.ggml.token_type"]
    return [token for token, kind in zip(metadata["tokenizer.ggml.tokens"], types, strict=True) if kind in kinds]


def byte_level_library(metadata: dict[str, Any]) -> LibraryTokenizer:
    tokens = metadata["tokenizer.ggml.tokens"]
    rule = word_rule(metadata["tokenizer.ggml.pre"])
    merges = [tuple(merge.split(" ")) for merge in metadata["tokenizer.ggml.merges"]]
    vocab = {token: i for i, token in enumerate(tokens)}
    library = LibraryTokenizer(models.BPE(vocab=vocab, merges=merges, ignore_merges=rule.whole_words))
    library.pre_tokenizer = rule.pre_tokenizer()
    library.decoder = decoders.ByteLevel()
    return library


def spm_library(metadata: dict[str, Any], *, prefix: str) -> LibraryTokenizer:
    """`prefix`: how a blank comes in front: "" not at all, "always" by the normalizer, "first" by the words."""
    tokens, scores = metadata["tokenizer.ggml.tokens"], metadata["tokenizer.ggml.scores"]
    kinds = metadata["tokenizer.ggml.token_type"]
    ordinary = {i for i, kind in enumerate(kinds) if kind in (1, 4, 5)}
    names = {tokens[i] for i in ordinary}
    merges = [
        (tokens[i][:k], tokens[i][k:])
        for i in sorted(ordinary, key=lambda i: -scores[i])
        for k in range(1, len(tokens[i]))
        if tokens[i][:k] in names and tokens[i][k:] in names
    ]
    unknown = next(token for token in tokens if token == "<unk>")
    vocab = {token: i for i, token in enumerate(tokens)}
    library = LibraryTokenizer(
        models.BPE(vocab=vocab, merges=merges, byte_fallback=True, fuse_unk=True, unk_token=unknown)
    )
    back = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    if prefix == "first":
        library.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
        library.decoder = decoders.Sequence([decoders.Metaspace(prepend_scheme="first"), *back[1:]])
    else:
        steps = [normalizers.Prepend("▁")] if prefix else []
        library.normalizer = normalizers.Sequence([*steps, normalizers.Replace(" ", "▁")])
        library.decoder = decoders.Sequence([*back, *([decoders.Strip(" ", 1, 0)] if prefix else [])])
    return library


def folder_of(folder: Path, library: LibraryTokenizer, metadata: dict[str, Any], **files: Any) -> Path:
    """Save a folder; each of `files` is the content of `<name>.json`."""
    library.add_special_tokens(added(metadata, (2, 3)))
    library.add_tokens([AddedToken(token, normalized=False, special=False) for token in added(metadata, (4,))])
    tokens = metadata["tokenizer.ggml.tokens"]
    names = {name: tokens[metadata[f"tokenizer.ggml.{name}_id"]] for name in ("bos_token", "eos_token")}
    files.setdefault("tokenizer_config", {"add_bos_token": metadata.get("tokenizer.ggml.add_bos_token", True), **names})
    library.save(str(folder / "tokenizer.json"))
    for name, content in files.items():
        (folder / f"{name}.json").write_text(content if isinstance(content, str) else json.dumps(content))
    return folder


def of_gguf(folder: Path, metadata: dict[str, Any]) -> Tokenizer:
    path = folder / "v.gguf"
    path.write_bytes(w.gguf(metadata))
    return gguf_tokenizer(GGUFFile.open(path))


def check_equal(one: Tokenizer, other: Tokenizer, cases: list[str]) -> None:
    assert one.control == other.control
    assert one.token_bytes == other.token_bytes
    assert (one.bos_id, one.eos_id, one.adds_bos) == (other.bos_id, other.eos_id, other.adds_bos)
    for text in cases:
        for parse in (False, True):
            ids = one.encode(text, parse_control=parse)
            assert ids == other.encode(text, parse_control=parse), text
            assert one.decode(ids) == other.decode(ids)


@pytest.mark.parametrize("family", ["llama-bpe", "qwen2", "gpt-2", "mpt"])
def test_byte_level_folder_equals_gguf(family: str, tmp_path: Path) -> None:
    metadata = vocabulary(family)
    metadata.setdefault("tokenizer.ggml.add_bos_token", False)
    folder = folder_of(tmp_path, byte_level_library(metadata), metadata)
    check_equal(folder_tokenizer(folder), of_gguf(tmp_path, metadata), HARD + texts(100, added(metadata, (3,))))


@pytest.mark.parametrize(("family", "prefix"), [("gemma3", ""), ("llama-spm", "always")])
def test_sentence_piece_folder_equals_gguf(family: str, prefix: str, tmp_path: Path) -> None:
    metadata = vocabulary(family)
    # Runs of blanks have equal scores in Llama's vocabulary; a list of merges cannot say "the leftmost".
    cases = [text for text in HARD + texts(100, added(metadata, (3,))) if "   " not in text and "▁" not in text]
    folder = folder_of(tmp_path, spm_library(metadata, prefix=prefix), metadata)
    check_equal(folder_tokenizer(folder), of_gguf(tmp_path, metadata), cases)


def test_a_blank_in_front_of_the_first_text_only(tmp_path: Path) -> None:
    metadata = vocabulary("llama-spm")
    tokenizer = folder_tokenizer(folder_of(tmp_path, spm_library(metadata, prefix="first"), metadata))
    ids = tokenizer.encode("a</s>b", parse_control=True, add_bos=False)
    assert [tokenizer.piece(i) for i in ids] == [" a", "</s>", "b"]
    assert tokenizer.decode([1, *ids], skip_special=False) == "<s>a</s>b"
    assert tokenizer.decode(tokenizer.encode("a b", parse_control=False)) == "a b"


def test_o12_control_tokens_stay_out_of_user_text(tmp_path: Path) -> None:
    metadata = vocabulary("llama-bpe")
    tokenizer = folder_tokenizer(folder_of(tmp_path, byte_level_library(metadata), metadata))
    literals = "".join(tokenizer.control)
    ids = tokenizer.encode(literals, parse_control=False, add_bos=False)
    assert tokenizer.control_ids.isdisjoint(ids)
    assert tokenizer.decode(ids) == literals
    assert tokenizer.encode(literals, parse_control=True, add_bos=False) == list(tokenizer.control.values())


def test_a_text_that_can_become_control_is_refused(tmp_path: Path) -> None:
    metadata = vocabulary("gpt-2")
    library = byte_level_library(metadata)
    library.add_special_tokens(["he"])
    folder = folder_of(tmp_path, library, metadata)
    with pytest.raises(ModelFileError, match=r"tokenizer\.json: .*can become the control token 'he'"):
        folder_tokenizer(folder)


def test_o09_every_declared_end_ends(tmp_path: Path) -> None:
    metadata = vocabulary("qwen2")
    files = {"generation_config": {"eos_token_id": [1, 7]}, "config": {"eos_token_id": 3}}
    folder = folder_of(tmp_path, byte_level_library(metadata), metadata, **files)
    tokenizer = folder_tokenizer(folder)
    assert tokenizer.end_ids == {1, 3, 7, tokenizer.eos_id}
    end = tokenizer.control["<|im_end|>"]
    assert end not in tokenizer.end_ids
    (folder / "chat_template.jinja").write_text("{{ messages[0].content }}<|im_end|>")
    assert end in load_text_files(folder).tokenizer.end_ids


@pytest.mark.parametrize(
    ("said", "finishing", "adds"),
    [(None, True, True), (None, False, False), (False, True, False), (True, False, True)],
)
def test_o11_where_the_bos_comes_from(tmp_path: Path, said: bool | None, finishing: bool, adds: bool) -> None:
    metadata = vocabulary("llama-bpe")
    library = byte_level_library(metadata)
    bos = metadata["tokenizer.ggml.tokens"][metadata["tokenizer.ggml.bos_token_id"]]
    if finishing:
        library.add_special_tokens([bos])
        token = library.token_to_id(bos)
        library.post_processor = processors.TemplateProcessing(single=f"{bos} $A", special_tokens=[(bos, token)])
    config = {"bos_token": {"content": bos}, **({} if said is None else {"add_bos_token": said})}
    tokenizer = folder_tokenizer(folder_of(tmp_path, library, metadata, tokenizer_config=config))
    assert tokenizer.adds_bos is adds
    ids = tokenizer.encode(f"{bos}a", parse_control=True)
    assert ids.count(tokenizer.bos_id or 0) == 1


def test_templates(tmp_path: Path) -> None:
    metadata = vocabulary("qwen2")
    folder = folder_of(tmp_path, byte_level_library(metadata), metadata)
    assert load_text_files(folder).chat_template is None
    config = json.loads((folder / "tokenizer_config.json").read_text())

    def rendered() -> str:
        template = load_text_files(folder).chat_template
        assert template is not None
        return template.render_text(USER)

    several = [{"name": "tool_use", "template": "T"}, {"name": "default", "template": "D{{ messages[0].content }}"}]
    (folder / "tokenizer_config.json").write_text(json.dumps({**config, "chat_template": several}))
    assert rendered() == "Dhi"
    (folder / "chat_template.json").write_text(json.dumps({"chat_template": "J{{ messages[0].content }}"}))
    assert rendered() == "Jhi"
    (folder / "chat_template.jinja").write_text("{{ raise_exception('no') if messages[1] else 'F' }}")
    assert rendered() == "F"
    with pytest.raises(InvalidRequest, match="no"):
        load_text_files(folder).chat_template.render(USER * 2)  # type: ignore[union-attr]
    (folder / "chat_template.jinja").write_text("{% if %}")
    with pytest.raises(ModelFileError, match="does not compile"):
        load_text_files(folder)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (None, "cannot be opened"),
        ("", "not a tokenizer"),
        ("[" * 10_000, "not a tokenizer"),
        ('{"model": {"type": "Unigram", "vocab": []}}', "'Unigram' is not supported"),
        ('{"model": {"type": "BPE"}}', "the library refuses it"),
        ('{"model": {"type": "BPE", "vocab": {"a": 0}, "merges": []}, "decoder": null}', "decoder"),
        (
            '{"model": {"type": "BPE", "vocab": {"a": 4000000000}, "merges": []}, "decoder": {"type": "Fuse"}}',
            "out of range",
        ),
    ],
)
def test_broken_folders_are_refused_by_name(tmp_path: Path, content: str | None, reason: str) -> None:
    if content is not None:
        (tmp_path / "tokenizer.json").write_text(content)
    with pytest.raises(ModelFileError, match=rf"tokenizer\.json: .*{reason}"):
        folder_tokenizer(tmp_path)
