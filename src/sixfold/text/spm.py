"""SentencePiece vocabularies: texts with scores, blanks written as U+2581, and a token for each byte.

A text begins as characters; the neighbours that make the best-scored token become one, again and again
(`native/text/spm.h`). There is no list of merges and no cutting into words. A native class does it because the
alternative, spelling out half a million merges for a general library, takes two seconds and 200 MB for Gemma's
vocabulary.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Mapping, Sequence

from sixfold.errors import ModelFileError
from sixfold.text.literals import LiteralSplitter

__all__ = ["SPACE", "SpmEncoder", "spm_token_bytes"]

SPACE = "▁"
"""U+2581, which stands for a blank."""
_BYTE = re.compile("<0x([0-9A-Fa-f]{2})>")


class SpmEncoder:
    """Encodes ordinary text: user-defined tokens are found first, the rest is merged by score."""

    def __init__(
        self,
        tokens: Sequence[str],
        scores: array[float],
        *,
        ordinary: bytes,
        byte_ids: Mapping[int, int],
        unknown_id: int | None,
        own_text: LiteralSplitter,
        adds_space: bool,
    ) -> None:
        """
        Args:
            tokens: [n_vocab]
            scores: [n_vocab] in single precision.
            ordinary: [n_vocab] 1: a text can become the token; 0: it never comes from its text (control, byte).
            byte_ids: byte value -> token.
            unknown_id: for a character that is no token when its bytes have none either; None leaves it out.
            own_text: user-defined tokens, found wherever their literal stands.
            adds_space: a blank goes in front of the text, and of what follows a control or user-defined token.

        Raises:
            ModelFileError: a token is empty or there twice.
        """
        from sixfold import _native

        by_byte = array("i", [-1]) * 256
        for value, token in byte_ids.items():
            by_byte[value] = token
        try:
            self._vocabulary = _native.text.SpmVocabulary(
                [token.encode() for token in tokens],
                scores,
                ordinary,
                by_byte,
                -1 if unknown_id is None else unknown_id,
            )
        except ValueError as error:
            raise ModelFileError(f"tokenizer.ggml.tokens: {error}") from error
        self._own_text = own_text
        self._adds_space = adds_space

    def encode_batch(self, texts: Sequence[str], begins: Sequence[bool]) -> list[list[int]]:
        cut = [self._own_text.split(text) for text in texts]
        plain = [part.encode() for parts in cut for part in parts if isinstance(part, str)]
        encoded = iter(self._vocabulary.encode_batch(plain, self._adds_space))
        found: list[list[int]] = []
        for parts in cut:
            ids: list[int] = []
            for part in parts:
                if isinstance(part, str):
                    ids += next(encoded)
                else:
                    ids.append(part)
            found.append(ids)
        return found


def byte_value(token: str) -> int | None:
    """The byte that a token like `<0x0A>` stands for; None for any other."""
    match = _BYTE.fullmatch(token)
    return int(match[1], 16) if match else None


def spm_token_bytes(tokens: Sequence[str], verbatim: Sequence[int], byte_ids: Mapping[int, int]) -> list[bytes]:
    """[n_vocab] What each token stands for. Those of `verbatim` (control, user defined) are text as it stands."""
    # One replacement of everything. A token may hold any character, so the pieces are told apart by their lengths.
    shown = "".join(tokens).replace(SPACE, " ")
    table: list[bytes] = []
    pos = 0
    for token in tokens:
        end = pos + len(token)
        table.append(shown[pos:end].encode())
        pos = end
    for i in verbatim:
        table[i] = tokens[i].encode()
    for value, i in byte_ids.items():
        table[i] = bytes([value])
    return table
