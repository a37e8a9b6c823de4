"""tokenizer.json: what of it is read here, and what is refused by name.

The library that defines the format cuts and merges, so its steps need no knowledge here. Three things do: the literals
of control tokens are found by `literals.py`, tokens become text by a table, and the BOS token is put in front by
`Tokenizer`. What a file says about these and is not done here is refused, and so is what the library would skip in
silence: a field that it does not know, and an id that it replaces by another.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
from tokenizers import Tokenizer as LibraryTokenizer

from sixfold.errors import ModelFileError
from sixfold.model_file import read_whole
from sixfold.text.spm import SPACE

__all__ = ["FILE", "AddedToken", "Loaded", "TokenizerJson", "load_library", "read_tokenizer_json", "steps"]

FILE = "tokenizer.json"
_BYTES_MAX = 256 << 20
_GAPS_MAX = 1 << 16
"""Ids without a token: a table has a place for each."""
_OLD_FIELDS = frozenset({"add_prefix_space", "str_rep"})
"""Of Metaspace: the library reads them and writes newer ones."""
_PARTS = ("normalizer", "pre_tokenizer", "post_processor", "decoder")


class AddedToken(msgspec.Struct, forbid_unknown_fields=True):
    """A token that is found in a text before anything is merged."""

    id: int
    content: str
    special: bool = False
    lstrip: bool = False
    rstrip: bool = False
    single_word: bool = False
    normalized: bool = True


class _Model(msgspec.Struct, forbid_unknown_fields=True):
    type: str = "BPE"
    dropout: float | None = None
    unk_token: str | None = None
    continuing_subword_prefix: str | None = None
    end_of_word_suffix: str | None = None
    fuse_unk: bool = False
    byte_fallback: bool = False
    ignore_merges: bool = False
    vocab: msgspec.Raw = msgspec.Raw()
    merges: msgspec.Raw = msgspec.Raw()


class _Kind(msgspec.Struct):
    type: str = "BPE"


class _KindOnly(msgspec.Struct):
    model: _Kind


class TokenizerJson(msgspec.Struct, forbid_unknown_fields=True):
    """The whole file, its vocabulary left to the library."""

    model: _Model
    version: str | None = None
    truncation: Any = None
    padding: Any = None
    added_tokens: list[AddedToken] = []
    normalizer: dict[str, Any] | None = None
    pre_tokenizer: dict[str, Any] | None = None
    post_processor: dict[str, Any] | None = None
    decoder: dict[str, Any] | None = None

    @property
    def is_byte_level(self) -> bool:
        """Tokens are written in GPT-2's byte-level alphabet; otherwise as SentencePiece does."""
        return [step.get("type") for step in steps(self.decoder)] == ["ByteLevel"]

    @property
    def spells_bytes(self) -> bool:
        """Tokens like `<0x0A>` stand for bytes."""
        return self.model.byte_fallback or any(step.get("type") == "ByteFallback" for step in steps(self.decoder))


class Loaded(NamedTuple):
    """A file that can be used."""

    file: TokenizerJson
    library: LibraryTokenizer
    vocabulary: dict[str, int]
    """Token as the file writes it -> id, added tokens included."""
    raw: bytes


def read_tokenizer_json(path: Path) -> Loaded:
    """
    Raises:
        ModelFileError: it is missing, broken, or asks for what is not supported.
    """
    raw = read_whole(path, bytes_max=_BYTES_MAX)
    try:
        kind = msgspec.json.decode(raw, type=_KindOnly).model.type
        if kind != "BPE":
            raise ModelFileError(f"{FILE}: tokenizer model {kind!r} is not supported (only 'BPE' is)")
        file = msgspec.json.decode(raw, type=TokenizerJson)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
        raise ModelFileError(f"{FILE}: not a tokenizer ({error})") from error
    _check_model(file.model)
    library = load_library(raw)
    _check_decoder(file)
    for part in _PARTS:
        if (said := getattr(file, part)) is not None:
            understood = msgspec.json.decode(getattr(library, part).__getstate__())
            if (field := _not_understood(said, understood, part)) is not None:
                raise ModelFileError(f"{FILE}: {field} is not supported")
    vocabulary = library.get_vocab(with_added_tokens=True)
    _check_ids(file, vocabulary)
    return Loaded(file, library, vocabulary, raw)


def load_library(raw: bytes) -> LibraryTokenizer:
    """Raises: ModelFileError: the library refuses it."""
    try:
        library = LibraryTokenizer.from_str(raw.decode())
    except Exception as error:
        raise ModelFileError(f"{FILE}: the library refuses it ({str(error)[:200]})") from error
    library.no_truncation()
    library.no_padding()
    return library


def steps(one: Mapping[str, Any] | None) -> list[Mapping[str, Any]]:
    """A normalizer, pre-tokenizer or decoder, which may be a sequence of them, as a list without sequences."""
    found: list[Mapping[str, Any]] = []
    left: list[Any] = [one]
    while left:
        step = left.pop(0)
        if isinstance(step, Mapping):
            lists = [inner for key in ("normalizers", "pretokenizers", "decoders") if (inner := step.get(key))]
            left = [inner for many in lists if isinstance(many, list) for inner in many] + left
            if not lists:
                found.append(step)
    return found


def _check_model(model: _Model) -> None:
    for name in ("dropout", "continuing_subword_prefix", "end_of_word_suffix"):
        if value := getattr(model, name):
            raise ModelFileError(f"{FILE}: model.{name} {value!r} is not supported")


def _check_decoder(file: TokenizerJson) -> None:
    if file.is_byte_level:
        return
    found = steps(file.decoder)
    if not found:
        raise ModelFileError(f"{FILE}: there is no decoder")
    for step in found:
        match step:
            case {"type": "ByteFallback" | "Fuse"}:
                continue
            case {"type": "Metaspace", "replacement": replacement} if replacement == SPACE:
                continue
            case {"type": "Replace", "pattern": {"String": replacement}, "content": " "} if replacement == SPACE:
                continue
            case {"type": "Strip", "content": " ", "start": 0 | 1, "stop": 0}:
                continue
        raise ModelFileError(f"{FILE}: the decoder {msgspec.json.encode(step).decode()[:200]} is not supported")


def _check_ids(file: TokenizerJson, vocabulary: dict[str, int]) -> None:
    last = max(vocabulary.values(), default=-1)
    if last >= len(vocabulary) + _GAPS_MAX:
        raise ModelFileError(f"{FILE}: token id {last} is out of range")
    if (unknown := file.model.unk_token) is not None and unknown not in vocabulary:
        raise ModelFileError(f"{FILE}: model.unk_token {unknown[:40]!r} is no token")
    for i, token in enumerate(file.added_tokens):
        if token.content and vocabulary.get(token.content) != token.id:
            raise ModelFileError(f"{FILE}: added_tokens[{i}] {token.content[:40]!r} cannot have the id {token.id}")
    if len(set(vocabulary.values())) != len(vocabulary):
        seen: dict[int, str] = {}
        for text, token_id in vocabulary.items():
            if token_id in seen:
                pair = " and ".join(sorted((repr(seen[token_id]), repr(text))))
                raise ModelFileError(f"{FILE}: the tokens {pair} have the same id {token_id}")
            seen[token_id] = text


def _not_understood(said: Any, understood: Any, name: str) -> str | None:
    """The path of a field of the file that the library has not kept; None: it has kept all."""
    if isinstance(said, dict) and isinstance(understood, dict):
        for key, value in said.items():
            inner = f"{name}.{key}"
            if key not in understood:
                if value is None or (said.get("type") == "Metaspace" and key in _OLD_FIELDS):
                    continue
                return inner
            if (found := _not_understood(value, understood[key], inner)) is not None:
                return found
    elif isinstance(said, list) and isinstance(understood, list):
        for i, pair in enumerate(zip(said, understood, strict=False)):
            if (found := _not_understood(*pair, f"{name}[{i}]")) is not None:
                return found
    return None
