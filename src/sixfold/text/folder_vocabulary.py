"""The tokenizer of a Hugging Face folder: tokenizer.json, and what the other files say of its special tokens.

    tokenizer.json          the vocabulary and its rules, run by the library that defines the format
    tokenizer_config.json   names of the special tokens, chat template
    special_tokens_map.json names of the special tokens, where the file above has none
    generation_config.json  ids that end a turn (`generation.py`)
    config.json             the same, for older folders

The rules about control tokens are those of every other vocabulary here: added tokens marked `special` are control
tokens, and the library is told to leave their literals alone.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
from tokenizers import Tokenizer as LibraryTokenizer

from sixfold.errors import ModelFileError
from sixfold.text.byte_level import byte_level_token_bytes
from sixfold.text.folder_files import read_json, read_json_object
from sixfold.text.generation import GenerationConfig
from sixfold.text.literals import BLANKS
from sixfold.text.spm import SPACE, byte_value, spm_token_bytes
from sixfold.text.tokenizer import Tokenizer
from sixfold.text.turn_ends import ALWAYS_CONTROL, END_MARKS

__all__ = ["folder_tokenizer"]

_FILE = "tokenizer.json"
_BYTES_MAX = 256 << 20
_GAPS_MAX = 1 << 16
"""Ids without a token: a table has a place for each."""
_KEEPING_STEPS = frozenset({"Prepend", "ByteLevel", "Digits", "Metaspace", "Split", "Punctuation"})
"""Normalizers and pre-tokenizers that cut a text and add to it, but take nothing away (unless a `behavior` says so)."""


class _AddedToken(msgspec.Struct):
    id: int
    content: str
    special: bool = False
    lstrip: bool = False
    rstrip: bool = False


class _Model(msgspec.Struct):
    type: str = "BPE"
    unk_token: str | None = None
    byte_fallback: bool = False


class _File(msgspec.Struct):
    """The part of tokenizer.json that the library does not tell."""

    model: _Model
    added_tokens: list[_AddedToken] = []
    normalizer: dict[str, Any] | None = None
    pre_tokenizer: dict[str, Any] | None = None
    decoder: dict[str, Any] | None = None


def folder_tokenizer(folder: Path, template: str = "") -> Tokenizer:
    """Build the tokenizer of a folder. Takes about 0.1 s for 32,000 tokens, 2 s for 262,144.

    Args:
        folder: the one with tokenizer.json.
        template: source of the chat template; an end-of-turn mark that it writes ends a turn.

    Raises:
        ModelFileError: a file is missing, broken, or of a kind that is not supported.
    """
    raw = _read(folder / _FILE)
    try:
        file = msgspec.json.decode(raw, type=_File)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
        raise ModelFileError(f"{_FILE}: not a tokenizer ({error})") from error
    if file.model.type != "BPE":
        raise ModelFileError(f"{_FILE}: tokenizer model {file.model.type!r} is not supported (only 'BPE' is)")
    library = _library(raw)
    unknown = file.model.unk_token
    if unknown is not None and library.token_to_id(unknown) is None:
        raise ModelFileError(f"{_FILE}: model.unk_token {unknown[:40]!r} is no token")
    for token in file.added_tokens:
        if token.content and library.token_to_id(token.content) != token.id:
            raise ModelFileError(f"{_FILE}: the added token {token.content[:40]!r} cannot have the id {token.id}")
    special = _special_tokens(folder)
    names = set(special.values())
    control = {
        token.content: token.id
        for token in file.added_tokens
        if token.content and (token.special or token.content in ALWAYS_CONTROL or token.content in names)
    }
    own_text = [token.id for token in file.added_tokens if token.content not in control]
    table = _token_bytes(file, library, [*control.values(), *own_text])
    encoder = _FolderEncoder(library, _without_prefix(raw))
    bos_id, eos_id = control.get(special.get("bos_token", "")), control.get(special.get("eos_token", ""))
    space_after = _space_after(encoder, table, control, own_text)
    adds_bos = bos_id is not None and _adds_bos(library, folder, bos_id)
    library.encode_special_tokens = True
    _check_control(library, control)
    end_ids = _end_ids(folder, eos_id, len(table)) | {control[m] for m in END_MARKS if m in control and m in template}
    return Tokenizer(
        encoder=encoder,
        token_bytes=table,
        control=control,
        end_ids=end_ids,
        bos_id=bos_id,
        adds_bos=adds_bos,
        eos_id=eos_id if eos_id is not None else min(end_ids, default=None),
        strips_after=[token.content for token in file.added_tokens if token.rstrip],
        space_after=space_after,
        kept_bytes=_kept_bytes(file),
    )


class _FolderEncoder:
    """The library with control tokens switched off."""

    def __init__(self, library: LibraryTokenizer, rest: LibraryTokenizer | None) -> None:
        """
        Args:
            library: for texts at the beginning of a sequence.
            rest: for those behind a control token; None: the same.
        """
        self._library = library
        self._rest = rest

    @property
    def prefixes_first_only(self) -> bool:
        """A blank is put in front of a sequence, but not behind control tokens."""
        return self._rest is not None

    def encode_batch(self, texts: Sequence[str], begins: Sequence[bool]) -> list[list[int]]:
        if self._rest is None or all(begins):
            return _encode(self._library, texts)
        first = iter(_encode(self._library, [text for text, begin in zip(texts, begins, strict=True) if begin]))
        rest = iter(_encode(self._rest, [text for text, begin in zip(texts, begins, strict=True) if not begin]))
        return [next(first if begin else rest) for begin in begins]


def _encode(library: LibraryTokenizer, texts: Sequence[str]) -> list[list[int]]:
    return [encoding.ids for encoding in library.encode_batch_fast(list(texts), add_special_tokens=False)]


def _read(path: Path) -> bytes:
    try:
        if path.stat().st_size > _BYTES_MAX:
            raise ModelFileError(f"{path.name}: larger than {_BYTES_MAX >> 20} MB")
        return path.read_bytes()
    except OSError as error:
        raise ModelFileError(f"{path.name}: cannot be read ({error.strerror})") from error


def _library(raw: bytes) -> LibraryTokenizer:
    try:
        library = LibraryTokenizer.from_str(raw.decode())
    except Exception as error:
        raise ModelFileError(f"{_FILE}: the library refuses it ({str(error)[:200]})") from error
    library.no_truncation()
    library.no_padding()
    return library


def _without_prefix(raw: bytes) -> LibraryTokenizer | None:
    """A second tokenizer for what follows a control token, where the first puts a blank only in front of all."""
    if not re.search(rb'"prepend_scheme"\s*:\s*"first"', raw):
        return None
    library = _library(re.sub(rb'("prepend_scheme"\s*:\s*)"first"', rb'\1"never"', raw))
    library.encode_special_tokens = True
    return library


def _token_bytes(file: _File, library: LibraryTokenizer, verbatim: list[int]) -> list[bytes]:
    """[n_vocab] What each token stands for; b"" for an id without a token."""
    vocabulary = library.get_vocab(with_added_tokens=True)
    n = max(vocabulary.values(), default=-1) + 1
    if n > len(vocabulary) + _GAPS_MAX:
        raise ModelFileError(f"{_FILE}: token id {n - 1} is out of range")
    tokens = [""] * n
    for token, i in vocabulary.items():
        tokens[i] = token
    kinds = _decoder_kinds(file.decoder)
    if "ByteLevel" in kinds:
        return byte_level_token_bytes(tokens, verbatim)
    if kinds & {"Metaspace", "ByteFallback", "Replace"}:
        byte_ids = {}
        if file.model.byte_fallback or "ByteFallback" in kinds:
            values = ((byte_value(token), i) for i, token in enumerate(tokens) if token.startswith("<0x"))
            byte_ids = {value: i for value, i in values if value is not None}
        return spm_token_bytes(tokens, verbatim, byte_ids)
    raise ModelFileError(f"{_FILE}: its decoder ({', '.join(sorted(kinds)) or 'none'}) is not supported")


def _decoder_kinds(decoder: Mapping[str, Any] | None) -> set[str]:
    return {str(step.get("type")) for step in _steps(decoder)}


def _steps(one: Mapping[str, Any] | None) -> list[Mapping[str, Any]]:
    """A normalizer, pre-tokenizer or decoder, which may be a sequence of them, as a list without sequences."""
    found: list[Mapping[str, Any]] = []
    left: list[Any] = [one]
    while left:
        step = left.pop()
        if isinstance(step, Mapping):
            lists = [inner for key in ("normalizers", "pretokenizers", "decoders") if (inner := step.get(key))]
            left += [inner for many in lists if isinstance(many, list) for inner in many]
            if not lists:
                found.append(step)
    return found


def _kept_bytes(file: _File) -> set[int]:
    """See `Tokenizer`. Nothing is sure where a step is not known here."""
    spells_all = file.model.byte_fallback or "ByteLevel" in _decoder_kinds(file.decoder)
    kept = set(range(256 if spells_all else 128))
    for step in _steps(file.normalizer) + _steps(file.pre_tokenizer):
        kind = step.get("type")
        if kind in ("NFC", "NFD", "NFKC", "NFKD"):
            kept &= set(range(128))
        elif kind == "Replace":
            if (step.get("pattern"), step.get("content")) != ({"String": " "}, SPACE):
                return set()
        elif step.get("behavior") == "Removed" or kind not in _KEEPING_STEPS:
            return set()
    if any(token.lstrip or token.rstrip for token in file.added_tokens):
        kept = kept & set(range(128)) - set(BLANKS)  # blanks of all Unicode
    return kept


def _space_after(
    encoder: _FolderEncoder, table: list[bytes], control: Mapping[str, int], own_text: list[int]
) -> list[int] | None:
    """Where the encoder puts a blank (see `Tokenizer`): tried out, since several steps of it can do so."""
    [ids] = encoder.encode_batch(["a"], [True])
    if b"".join(table[i] for i in ids) != b" a":
        return None
    return [] if encoder.prefixes_first_only else [*control.values(), *own_text]


def _special_tokens(folder: Path) -> dict[str, str]:
    """`bos_token`, `eos_token`, ...: their literals."""
    found: dict[str, str] = {}
    for name in ("special_tokens_map.json", "tokenizer_config.json"):
        for key, value in read_json_object(folder / name).items():
            literal = value.get("content") if isinstance(value, dict) else value
            if key.endswith("_token") and isinstance(literal, str) and literal:
                found[key] = literal
    return found


def _adds_bos(library: LibraryTokenizer, folder: Path, bos_id: int) -> bool:
    """What tokenizer_config.json says, or else what the library's own finishing step does."""
    said = read_json_object(folder / "tokenizer_config.json").get("add_bos_token")
    if isinstance(said, bool):
        return said
    return library.encode("").ids[:1] == [bos_id]


def _check_control(library: LibraryTokenizer, control: Mapping[str, int]) -> None:
    """A literal must not become its token by way of merges."""
    ids = set(control.values())
    for literal, encoded in zip(control, _encode(library, list(control)), strict=True):
        if control[literal] in encoded and ids.intersection(encoded):
            raise ModelFileError(f"{_FILE}: ordinary text can become the control token {literal!r}")


def _end_ids(folder: Path, eos_id: int | None, n_vocab: int) -> set[int]:
    """Every id that a file of the folder declares as an end."""
    found = set() if eos_id is None else {eos_id}
    found.update(GenerationConfig.of_folder(folder).eos_ids)
    declared = read_json(folder / "config.json")
    value = declared.get("eos_token_id") if isinstance(declared, dict) else None
    found.update(i for i in (value if isinstance(value, list) else [value]) if type(i) is int)
    return {i for i in found if 0 <= i < n_vocab}
