"""Byte-level BPE vocabularies: words, merges, and tokens written in the byte-level alphabet of GPT-2.

Each of the 256 byte values has a printable character in that alphabet, so that a token is a string without blanks
("Ġt" is " t").
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from operator import add

from tokenizers import AddedToken, models
from tokenizers import Tokenizer as LibraryTokenizer

from sixfold.errors import ModelFileError
from sixfold.text.word_rules import WordRule

__all__ = ["ByteLevelBPE", "byte_level_token_bytes"]


class ByteLevelBPE:
    """The library's BPE over ordinary and user-defined tokens.

    A vocabulary may lack bytes (SmolLM2's lacks 0x04, 0xf1 and others that its training text never had). There is no
    token to say them with, so they are left out; their neighbours do not merge across the gap. So does llama.cpp.
    """

    def __init__(
        self, tokens: list[str], merges: Iterable[str], control: dict[str, int], own_text: list[int], rule: WordRule
    ) -> None:
        """
        Args:
            tokens: [n_vocab]
            merges: "left right", the first applied first.
            control: literal -> id of what text never becomes.
            own_text: user-defined tokens, found wherever their literal stands.
            rule: how a text is cut into words.

        Raises:
            ModelFileError: a token is there twice, or the merges do not fit.
        """
        vocabulary = dict(zip(tokens, range(len(tokens)), strict=True))
        if len(vocabulary) != len(tokens):
            raise ModelFileError("tokenizer.ggml.tokens holds a token twice")
        if clash := control.keys() & _BYTE_ALPHABET.keys():
            raise ModelFileError(f"tokenizer.ggml.tokens has control token {min(clash)!r}, which is the name of a byte")
        # The library never sees a control token: no merge can build one, and no whole word can be one.
        for literal in control:
            del vocabulary[literal]
        pairs = _pairs(merges)
        if any(not control.keys().isdisjoint(texts) for texts in _texts(pairs)):
            pairs = [(a, b) for a, b in pairs if a + b not in control and a not in control and b not in control]
        try:
            model = models.BPE(vocab=vocabulary, merges=pairs, ignore_merges=rule.whole_words)
        except Exception as error:
            raise ModelFileError(f"tokenizer.ggml.merges does not fit tokenizer.ggml.tokens: {error}") from error
        library = LibraryTokenizer(model)
        library.pre_tokenizer = rule.pre_tokenizer(missing=[char for char in _BYTE_ALPHABET if char not in vocabulary])
        if own_text:
            library.add_tokens([AddedToken(tokens[i], normalized=False, special=False) for i in own_text])
        self._library = library

    def encode_batch(self, texts: Sequence[str], begins: Sequence[bool]) -> list[list[int]]:
        # The batch calls release the GIL; `encode` holds it, 0.7 s for 1 MB of text.
        return [encoding.ids for encoding in self._library.encode_batch_fast(list(texts), add_special_tokens=False)]


def _pairs(merges: Iterable[str]) -> list[tuple[str, str]]:
    parts = [merge.partition(" ") for merge in merges]
    pairs = [(left, right) for left, _, right in parts if left and right]
    if len(pairs) < len(parts):
        merge = next("".join(part) for part in parts if not (part[0] and part[2]))
        raise ModelFileError(f"tokenizer.ggml.merges holds {merge[:40]!r}, which is not a pair")
    return pairs


def _texts(pairs: list[tuple[str, str]]) -> tuple[Iterable[str], ...]:
    """What is merged, and into what. Tens of thousands are looked through at each start: not one by one in Python."""
    lefts, rights = [left for left, _ in pairs], [right for _, right in pairs]
    return lefts, rights, map(add, lefts, rights)


def _byte_alphabet() -> dict[str, int]:
    """GPT-2's byte-level alphabet: character -> byte. Printable Latin-1 stands for itself, the rest follows U+0100."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    other = [value for value in range(256) if value not in set(printable)]
    return {chr(value): value for value in printable} | {chr(0x100 + i): value for i, value in enumerate(other)}


_BYTE_ALPHABET = _byte_alphabet()


def byte_level_token_bytes(tokens: list[str], verbatim: list[int]) -> list[bytes]:
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
