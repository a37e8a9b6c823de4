"""The tokenizer of a Hugging Face folder: tokenizer.json, and what the other files say of its special tokens.

    tokenizer.json          the vocabulary and its rules (`tokenizer_json.py`)
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

from tokenizers import Tokenizer as LibraryTokenizer

from sixfold.errors import ModelFileError
from sixfold.text.byte_level import byte_level_token_bytes
from sixfold.text.folder_files import read_json, read_json_object
from sixfold.text.generation import declared_end_ids
from sixfold.text.literals import ASCII_BLANKS, UNICODE_BLANKS, LiteralSplitter
from sixfold.text.spm import SPACE, byte_value, spm_token_bytes
from sixfold.text.tokenizer import Tokenizer
from sixfold.text.tokenizer_json import FILE, AddedToken, TokenizerJson, load_library, read_tokenizer_json, steps
from sixfold.text.turn_ends import ALWAYS_CONTROL, END_MARKS

__all__ = ["folder_tokenizer"]

_CONFIG = "tokenizer_config.json"
_KEEPING_STEPS = frozenset({"Prepend", "ByteLevel", "Digits", "Metaspace", "Split", "Punctuation"})
"""Normalizers and pre-tokenizers that cut a text and add to it, but take nothing away (unless a `behavior` says so)."""


def folder_tokenizer(folder: Path, template: str = "", *, n_rows: int | None = None) -> Tokenizer:
    """Build the tokenizer of a folder. Takes about 0.1 s for 32,000 tokens, 2 s for 262,144.

    Args:
        folder: the one with tokenizer.json.
        template: source of the chat template; an end-of-turn mark that it writes ends a turn.
        n_rows: ids that the model knows. A tokenizer may know more, and those are none for this model: a text that
            contains one has an id outside [0, n_vocab). None: all.

    Raises:
        ModelFileError: a file is missing, broken, or of a kind that is not supported.
    """
    file, library, vocabulary, raw = read_tokenizer_json(folder / FILE)
    special = _special_tokens(folder)
    control_tokens = _control_tokens(file, set(special.values()))
    control = {token.content: token.id for token in control_tokens}
    own_text = [token.id for token in file.added_tokens if token.content not in control]
    table = _token_bytes(file, vocabulary, [*control.values(), *own_text])[:n_rows]
    bos_id, eos_id = (_named_id(name, special, control, len(table)) for name in ("bos_token", "eos_token"))
    adds_bos = _adds_bos(library, folder, bos_id)
    encoder = _FolderEncoder(library, _without_prefix(raw))
    library.encode_special_tokens = True
    _check_control(library, control)
    end_ids = _end_ids(folder, eos_id) | {control[m] for m in END_MARKS if m in control and m in template}
    end_ids = {i for i in end_ids if 0 <= i < len(table)}
    known = set(vocabulary.values())
    return Tokenizer(
        encoder=encoder,
        token_bytes=table,
        control=control,
        control_literals=LiteralSplitter(
            control,
            strips_before=[token.content for token in control_tokens if token.lstrip],
            strips_after=[token.content for token in control_tokens if token.rstrip],
            blanks=UNICODE_BLANKS,
        ),
        end_ids=end_ids,
        bos_id=bos_id,
        adds_bos=adds_bos,
        eos_id=eos_id if eos_id is not None else min(end_ids, default=None),
        space_after=_space_after(encoder, table, control, own_text),
        kept_bytes=_kept_bytes(file),
        absent_ids=[i for i in range(len(table)) if i not in known],
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


def _control_tokens(file: TokenizerJson, named: set[str]) -> list[AddedToken]:
    """Added tokens that a text never becomes by itself.

    Args:
        named: literals that tokenizer_config.json gives a role.
    """
    found = [t for t in file.added_tokens if t.content and (t.special or t.content in ALWAYS_CONTROL | named)]
    for token in found:
        if token.single_word:
            raise ModelFileError(f"{FILE}: single_word of the control token {token.content!r} is not supported")
    return found


def _without_prefix(raw: bytes) -> LibraryTokenizer | None:
    """A second tokenizer for what follows a control token, where the first puts a blank only in front of all."""
    if not re.search(rb'"prepend_scheme"\s*:\s*"first"', raw):
        return None
    library = load_library(re.sub(rb'("prepend_scheme"\s*:\s*)"first"', rb'\1"never"', raw))
    library.encode_special_tokens = True
    return library


def _token_bytes(file: TokenizerJson, vocabulary: Mapping[str, int], verbatim: list[int]) -> list[bytes]:
    """[last id + 1] What each token stands for; b"" for an id without a token."""
    tokens = [""] * (max(vocabulary.values(), default=-1) + 1)
    for token, i in vocabulary.items():
        tokens[i] = token
    if file.is_byte_level:
        return byte_level_token_bytes(tokens, verbatim)
    byte_ids = {}
    if file.spells_bytes:
        values = ((byte_value(token), i) for i, token in enumerate(tokens) if token.startswith("<0x"))
        byte_ids = {value: i for value, i in values if value is not None}
    return spm_token_bytes(tokens, verbatim, byte_ids)


def _kept_bytes(file: TokenizerJson) -> set[int]:
    """See `Tokenizer`. Nothing is sure where a step is not known here."""
    kept = set(range(256 if file.spells_bytes or file.is_byte_level else 128))
    for step in steps(file.normalizer) + steps(file.pre_tokenizer):
        kind = step.get("type")
        if kind in ("NFC", "NFD", "NFKC", "NFKD"):
            kept &= set(range(128))
        elif kind == "Replace":
            if (step.get("pattern"), step.get("content")) != ({"String": " "}, SPACE):
                return set()
        elif step.get("behavior") == "Removed" or kind not in _KEEPING_STEPS:
            return set()
    if any(token.lstrip or token.rstrip for token in file.added_tokens):
        kept = kept & set(range(128)) - set(ASCII_BLANKS.encode())
    return kept


def _space_after(
    encoder: _FolderEncoder, table: list[bytes], control: Mapping[str, int], own_text: list[int]
) -> list[int] | None:
    """Where the encoder puts a blank (see `Tokenizer`): tried out, since several steps of it can do so."""
    [ids] = encoder.encode_batch(["a"], [True])
    if b"".join(table[i] for i in ids if i < len(table)) != b" a":
        return None
    return [] if encoder.prefixes_first_only else [*control.values(), *own_text]


def _special_tokens(folder: Path) -> dict[str, str]:
    """`bos_token`, `eos_token`, ...: their literals."""
    found: dict[str, str] = {}
    for name in ("special_tokens_map.json", _CONFIG):
        for key, value in read_json_object(folder / name).items():
            literal = value.get("content") if isinstance(value, dict) else value
            if key.endswith("_token") and isinstance(literal, str) and literal:
                found[key] = literal
    return found


def _named_id(name: str, special: Mapping[str, str], control: Mapping[str, int], n_vocab: int) -> int | None:
    token_id = control.get(special.get(name, ""))
    if token_id is not None and token_id >= n_vocab:
        raise ModelFileError(f"{name} {special[name]!r} has the id {token_id}; the model has {n_vocab}")
    return token_id


def _adds_bos(library: LibraryTokenizer, folder: Path, bos_id: int | None) -> bool:
    """What tokenizer_config.json says, or else what the library's own finishing step does.

    Raises:
        ModelFileError: something else than a BOS in front would belong to a text.
    """
    finished, bare = library.encode("a").ids, library.encode("a", add_special_tokens=False).ids
    if finished not in (bare, [bos_id, *bare]):
        raise ModelFileError(
            f"{FILE}: the post_processor makes {finished} of {bare}; only a bos_token in front is supported"
        )
    config = read_json_object(folder / _CONFIG)
    if config.get("add_eos_token") is True:
        raise ModelFileError(f"{_CONFIG}: add_eos_token is not supported: nothing can be continued behind an end")
    said = config.get("add_bos_token")
    return bos_id is not None and (said if isinstance(said, bool) else finished != bare)


def _check_control(library: LibraryTokenizer, control: Mapping[str, int]) -> None:
    """A literal must not become its token by way of merges."""
    ids = set(control.values())
    for literal, encoded in zip(control, _encode(library, list(control)), strict=True):
        if control[literal] in encoded and ids.intersection(encoded):
            raise ModelFileError(f"{FILE}: ordinary text can become the control token {literal!r}")


def _end_ids(folder: Path, eos_id: int | None) -> set[int]:
    """Every id that a file of the folder declares as an end."""
    found = set() if eos_id is None else {eos_id}
    found.update(declared_end_ids(folder))
    declared = read_json(folder / "config.json")
    value = declared.get("eos_token_id") if isinstance(declared, dict) else None
    found.update(i for i in (value if isinstance(value, list) else [value]) if type(i) is int)
    return found
