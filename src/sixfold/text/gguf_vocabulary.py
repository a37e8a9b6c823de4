"""The tokenizer of a GGUF file: byte-level BPE built from the vocabulary and merges in its metadata.

A token of such a vocabulary is written in the byte-level alphabet of GPT-2: each of the 256 byte values has a printable
character, so that a token is a string without blanks ("Ġt" is " t"). Which rules cut a text into words before the
merges apply is named by `tokenizer.ggml.pre`; a wrong guess degrades the model silently, so an unknown name is refused.

Token types (`tokenizer.ggml.token_type`): 1 normal, 2 unknown, 3 control, 4 user defined (matches in any text),
5 unused, 6 byte.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from tokenizers import AddedToken, models, pre_tokenizers
from tokenizers import Tokenizer as LibraryTokenizer

from sixfold.errors import ModelFileError
from sixfold.model_file import GGUFFile
from sixfold.text.tokenizer import Tokenizer

__all__ = ["gguf_tokenizer"]

_UNKNOWN, _CONTROL, _USER_DEFINED = 2, 3, 4

_END_KEYS = ("eos_token_id", "eos_token_ids", "eot_token_id", "eot_token_ids", "eom_token_id", "eom_token_ids")
"""Each may be a number or an array. All of them end a turn."""

_END_MARKS = ("<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<end_of_turn>", "<|end|>", "<|endofturn|>", "<|end_of_text|>")
"""Marks that chat templates close a turn with. One that the file's template writes ends a turn even if not declared."""


def _pre_smollm() -> pre_tokenizers.PreTokenizer:
    """Digits one by one, then GPT-2's words."""
    return pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
        ]
    )


_PRE_TOKENIZERS: dict[str, Callable[[], pre_tokenizers.PreTokenizer]] = {"smollm": _pre_smollm}
"""`tokenizer.ggml.pre` -> the rules of that name. Each is compared with the model's own ids in the tests."""


def gguf_tokenizer(file: GGUFFile) -> Tokenizer:
    """Build the tokenizer that a model file describes. Takes about 0.15 s for 49,152 tokens.

    Raises:
        ModelFileError: the metadata is incomplete or inconsistent, or names a tokenizer that is not supported.
    """
    with file.naming_faults():
        return _build(file)


def _build(file: GGUFFile) -> Tokenizer:
    model = file.text("tokenizer.ggml.model")
    if model != "gpt2":
        raise ModelFileError(f"tokenizer model {model!r} is not supported (only 'gpt2', byte-level BPE, is)")
    pre = file.text("tokenizer.ggml.pre", "")
    if pre not in _PRE_TOKENIZERS:
        known = ", ".join(sorted(_PRE_TOKENIZERS))
        fault = f"{pre!r} is not supported" if pre else "is missing"
        raise ModelFileError(f"pre-tokenizer (tokenizer.ggml.pre) {fault}; known: {known}")
    tokens = file.strings("tokenizer.ggml.tokens")
    types = _token_types(file, len(tokens))
    control = {tokens[i]: i for i in np.flatnonzero((types == _CONTROL) | (types == _UNKNOWN)).tolist()}
    own_text = np.flatnonzero(types == _USER_DEFINED).tolist()
    bos_id = _optional_id(file, "bos_token_id", len(tokens))
    eos_id = _optional_id(file, "eos_token_id", len(tokens))
    return Tokenizer(
        encoder=_ByteLevelBPE(tokens, file.strings("tokenizer.ggml.merges"), control, own_text, pre),
        token_bytes=_token_bytes(tokens, [*control.values(), *own_text]),
        control=control,
        end_ids=_end_ids(file, len(tokens), control),
        bos_id=bos_id,
        adds_bos=file.flag("tokenizer.ggml.add_bos_token", False),
        eos_id=eos_id,
    )


class _ByteLevelBPE:
    """The library's BPE over ordinary and user-defined tokens.

    A vocabulary may lack bytes (SmolLM2's lacks 0x04, 0xf1 and others that its training text never had). There is no
    token to say them with, so the library leaves them out, and so does llama.cpp.
    """

    def __init__(
        self, tokens: list[str], merges: list[str], control: dict[str, int], own_text: list[int], pre: str
    ) -> None:
        vocabulary = dict(zip(tokens, range(len(tokens)), strict=True))
        if len(vocabulary) != len(tokens):
            raise ModelFileError("tokenizer.ggml.tokens holds a token twice")
        if clash := control.keys() & _BYTE_ALPHABET.keys():
            raise ModelFileError(f"tokenizer.ggml.tokens has control token {min(clash)!r}, which is the name of a byte")
        pairs = [_pair(merge) for merge in merges]
        # A merge that builds a control token would let plain text become one. None of a sound model's merges does.
        pairs = [pair for pair in pairs if pair[0] + pair[1] not in control]
        try:
            library = LibraryTokenizer(models.BPE(vocab=vocabulary, merges=pairs))
        except Exception as error:
            raise ModelFileError(f"tokenizer.ggml.merges does not fit tokenizer.ggml.tokens: {error}") from error
        library.pre_tokenizer = _PRE_TOKENIZERS[pre]()
        if own_text:
            library.add_tokens([AddedToken(tokens[i], normalized=False, special=False) for i in own_text])
        self._library = library

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        # The batch calls release the GIL; `encode` holds it, 0.7 s for 1 MB of text.
        return [encoding.ids for encoding in self._library.encode_batch_fast(list(texts), add_special_tokens=False)]


def _pair(merge: str) -> tuple[str, str]:
    left, blank, right = merge.partition(" ")
    if not (left and blank and right):
        raise ModelFileError(f"tokenizer.ggml.merges holds {merge[:40]!r}, which is not a pair")
    return left, right


def _byte_alphabet() -> dict[str, int]:
    """GPT-2's byte-level alphabet: character -> byte. Printable Latin-1 stands for itself, the rest follows U+0100."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    other = [value for value in range(256) if value not in set(printable)]
    return {chr(value): value for value in printable} | {chr(0x100 + i): value for i, value in enumerate(other)}


_BYTE_ALPHABET = _byte_alphabet()


def _token_bytes(tokens: list[str], verbatim: list[int]) -> list[bytes]:
    """[n_vocab] What each token stands for. Those of `verbatim` (control, user defined) are text as it stands."""
    written = set(verbatim)
    spelled = ["" if i in written else token for i, token in enumerate(tokens)]
    # One translation of everything: a character of the alphabet is one byte, so lengths stay the same.
    whole = "".join(spelled)
    if not set(whole) <= _BYTE_ALPHABET.keys():
        return [_spell(token) if token else tokens[i].encode() for i, token in enumerate(spelled)]
    blob = whole.translate({ord(char): value for char, value in _BYTE_ALPHABET.items()}).encode("latin-1")
    table: list[bytes] = []
    pos = 0
    for token in spelled:
        table.append(blob[pos : pos + len(token)])
        pos += len(token)
    for i in verbatim:
        table[i] = tokens[i].encode()
    return table


def _spell(token: str) -> bytes:
    """A token with a character that is not in the alphabet (an unused one, as a rule) is text as it stands."""
    if any(char not in _BYTE_ALPHABET for char in token):
        return token.encode()
    return bytes(_BYTE_ALPHABET[char] for char in token)


def _token_types(file: GGUFFile, n_tokens: int) -> np.ndarray[tuple[int], np.dtype[np.integer]]:
    """[n_tokens]"""
    types = file.numbers("tokenizer.ggml.token_type")
    if len(types) != n_tokens or types.dtype.kind not in "iu":
        raise ModelFileError(f"tokenizer.ggml.token_type must hold {n_tokens} integers, one for each token")
    return types


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
        if isinstance(value, np.ndarray) and value.dtype.kind in "iu":
            found.update(_checked_id(key, int(token), n_tokens) for token in value)
        else:
            found.add(_checked_id(key, file.u32(key), n_tokens))
    template = file.text("tokenizer.chat_template", "")
    found.update(control[mark] for mark in _END_MARKS if mark in control and mark in template)
    return found
