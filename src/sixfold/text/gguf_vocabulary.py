"""The tokenizer of a GGUF file, from the vocabulary in its metadata.

`tokenizer.ggml.model` says of which kind it is: `gpt2`, byte-level BPE (`byte_level.py`, with the rules of
`word_rules.py`), or `llama`, SentencePiece (`spm.py`). Any other is refused.

Token types (`tokenizer.ggml.token_type`): 1 normal, 2 unknown, 3 control, 4 user defined (matches in any text),
5 unused, 6 byte.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Collection
from dataclasses import dataclass

from sixfold.errors import ModelFileError
from sixfold.model_file import GGUFFile
from sixfold.text.byte_level import ByteLevelBPE, byte_level_token_bytes
from sixfold.text.literals import ASCII_BLANKS, LiteralSplitter
from sixfold.text.spm import SpmEncoder, byte_value, spm_token_bytes
from sixfold.text.tokenizer import Tokenizer
from sixfold.text.turn_ends import ALWAYS_CONTROL, END_MARKS
from sixfold.text.word_rules import word_rule

__all__ = ["gguf_tokenizer"]

_INTEGERS = frozenset("bBhHiIqQ")
_NORMAL, _UNKNOWN, _CONTROL, _USER_DEFINED, _UNUSED, _BYTE = 1, 2, 3, 4, 5, 6

_END_KEYS = ("eos_token_id", "eos_token_ids", "eot_token_id", "eot_token_ids", "eom_token_id", "eom_token_ids")
"""Each may be a number or an array. All of them end a turn."""


def gguf_tokenizer(file: GGUFFile) -> Tokenizer:
    """Build the tokenizer that a model file describes. Takes about 0.15 s for 49,152 tokens of the byte-level kind and
    0.3 s for 262,144 of SentencePiece's.

    Raises:
        ModelFileError: the metadata is incomplete or inconsistent, or names a tokenizer that is not supported.
    """
    with file.naming_faults():
        if file.flag("tokenizer.ggml.add_eos_token", False):
            raise ModelFileError("tokenizer.ggml.add_eos_token: nothing can be continued behind an end")
        model = file.text("tokenizer.ggml.model")
        if model == "gpt2":
            return _byte_level(file)
        if model == "llama":
            return _sentence_piece(file)
        raise ModelFileError(f"tokenizer model {model!r} is not supported (only 'gpt2' and 'llama' are)")


@dataclass(frozen=True)
class _Tokens:
    """What both kinds have."""

    texts: list[str]
    types: list[int]
    control: dict[str, int]
    """Literal -> id; the unknown token is one of them."""
    own_text: list[int]
    """Ids of the user-defined tokens."""

    @property
    def verbatim(self) -> list[int]:
        """Tokens that stand for their own text."""
        return [*self.control.values(), *self.own_text]


def _tokens(file: GGUFFile) -> _Tokens:
    texts = file.strings("tokenizer.ggml.tokens")
    numbers = file.numbers("tokenizer.ggml.token_type")
    if len(numbers) != len(texts) or numbers.format not in _INTEGERS:
        raise ModelFileError(f"tokenizer.ggml.token_type must hold {len(texts)} integers, one for each token")
    types = numbers.tolist()
    special = [i for i, kind in enumerate(types) if kind != _NORMAL]
    control = {texts[i]: i for i in special if types[i] in (_CONTROL, _UNKNOWN)}
    own_text = [i for i in special if types[i] == _USER_DEFINED]
    # Some files have a turn's end among these, where any text could write it.
    control |= {texts[i]: i for i in own_text if texts[i] in ALWAYS_CONTROL}
    return _Tokens(texts, types, control, [i for i in own_text if texts[i] not in ALWAYS_CONTROL])


def _byte_level(file: GGUFFile) -> Tokenizer:
    rule = word_rule(file.text("tokenizer.ggml.pre", ""))
    tokens = _tokens(file)
    merges = file.strings("tokenizer.ggml.merges")
    return Tokenizer(
        encoder=ByteLevelBPE(tokens.texts, merges, tokens.control, tokens.own_text, rule),
        token_bytes=byte_level_token_bytes(tokens.texts, tokens.verbatim),
        control=tokens.control,
        end_ids=_end_ids(file, len(tokens.texts), tokens.control),
        bos_id=_optional_id(file, "bos_token_id", len(tokens.texts)),
        adds_bos=file.flag("tokenizer.ggml.add_bos_token", rule.adds_bos),
        eos_id=_optional_id(file, "eos_token_id", len(tokens.texts)),
        kept_bytes=range(256),
    )


def _sentence_piece(file: GGUFFile) -> Tokenizer:
    tokens = _tokens(file)
    n_tokens = len(tokens.texts)
    byte_ids = _byte_ids(tokens)
    adds_space = file.flag("tokenizer.ggml.add_space_prefix", True)
    strips_after = _strips_after(file, tokens)
    encoder = SpmEncoder(
        tokens.texts,
        _scores(file, n_tokens),
        ordinary=_ordinary(tokens),
        byte_ids=byte_ids,
        unknown_id=_optional_id(file, "unknown_token_id", n_tokens),
        own_text=LiteralSplitter({tokens.texts[i]: i for i in tokens.own_text}, strips_after=strips_after),
        adds_space=adds_space,
    )
    return Tokenizer(
        encoder=encoder,
        token_bytes=spm_token_bytes(tokens.texts, tokens.verbatim, byte_ids),
        control=tokens.control,
        end_ids=_end_ids(file, n_tokens, tokens.control),
        bos_id=_optional_id(file, "bos_token_id", n_tokens),
        adds_bos=file.flag("tokenizer.ggml.add_bos_token", True),
        eos_id=_optional_id(file, "eos_token_id", n_tokens),
        control_literals=LiteralSplitter(tokens.control, strips_after=strips_after),
        space_after=tokens.verbatim if adds_space else None,
        kept_bytes=_kept_bytes(byte_ids, strips_after),
    )


def _ordinary(tokens: _Tokens) -> bytes:
    """[n_tokens] 1 for what a text can become, else 0."""
    ordinary = bytearray(map({_NORMAL, _USER_DEFINED, _UNUSED}.__contains__, tokens.types))
    for i in tokens.control.values():
        ordinary[i] = 0
    return bytes(ordinary)


def _scores(file: GGUFFile, n_tokens: int) -> array[float]:
    """[n_tokens] In single precision."""
    scores = file.numbers("tokenizer.ggml.scores")
    if len(scores) != n_tokens or scores.format == "?":
        raise ModelFileError(f"tokenizer.ggml.scores must hold {n_tokens} numbers, one for each token")
    singles = array("f", scores.tobytes() if scores.format == "f" else scores.tolist())
    if not math.isfinite(sum(singles)):  # which cannot overflow, as a sum of single precision in double
        raise ModelFileError("tokenizer.ggml.scores holds a value that is not finite")
    return singles


def _byte_ids(tokens: _Tokens) -> dict[int, int]:
    """Byte value -> token."""
    found: dict[int, int] = {}
    for i in [i for i, kind in enumerate(tokens.types) if kind == _BYTE]:
        value = byte_value(tokens.texts[i])
        if value is None or value in found:
            raise ModelFileError(f"tokenizer.ggml.tokens[{i}] should name a byte: {tokens.texts[i][:40]!r}")
        found[value] = i
    return found


def _kept_bytes(byte_ids: dict[int, int], strips_after: Collection[str]) -> set[int]:
    """See `Tokenizer`."""
    return set(range(256 if len(byte_ids) == 256 else 128)) - set(ASCII_BLANKS.encode() if strips_after else b"")


def _strips_after(file: GGUFFile, tokens: _Tokens) -> Collection[str]:
    """Literals that swallow the blanks behind them. Phi-3's do, and a GGUF file has no other sign of it."""
    name = file.text("general.name", "").lower()
    if "phi-3" not in name and "phi3" not in name:
        return ()
    literals = {*tokens.control, *(tokens.texts[i] for i in tokens.own_text)}
    return literals - {"<unk>", "<s>", "<|endoftext|>"}


def _optional_id(file: GGUFFile, name: str, n_tokens: int) -> int | None:
    key = f"tokenizer.ggml.{name}"
    return _checked_id(key, file.u32(key), n_tokens) if key in file.metadata else None


def _checked_id(key: str, token: int, n_tokens: int) -> int:
    if not 0 <= token < n_tokens:
        raise ModelFileError(f"{key} is {token}; the vocabulary has {n_tokens} tokens")
    return token


def _end_ids(file: GGUFFile, n_tokens: int, control: dict[str, int]) -> set[int]:
    """Every id that the file declares, or whose mark its template writes, as the end of a turn."""
    found: set[int] = set()
    for name in _END_KEYS:
        key = f"tokenizer.ggml.{name}"
        value = file.metadata.get(key)
        if value is None:
            continue
        if isinstance(value, memoryview) and value.format in _INTEGERS:
            found.update(_checked_id(key, int(token), n_tokens) for token in value)
        else:
            found.add(_checked_id(key, file.u32(key), n_tokens))
    template = file.text("tokenizer.chat_template", "")
    found.update(control[mark] for mark in END_MARKS if mark in control and mark in template)
    return found
