"""A vocabulary that needs no file: every byte, three control tokens, and whatever a test wants besides.

[0, 256)    the byte of that value
256         <|endoftext|>      control, ends a turn
257         <|im_start|>       control
258         <|im_end|>         control, ends a turn
[259, ...)  the extra tokens, in the order given
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from sixfold.errors import ConfigError
from sixfold.text.tokenizer import Tokenizer

__all__ = ["byte_tokenizer"]

_N_BYTES = 256
_CONTROL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
_END = ("<|endoftext|>", "<|im_end|>")


class _GreedyBytes:
    """From left to right, the longest extra token that fits, else one byte."""

    def __init__(self, extra: dict[bytes, int]) -> None:
        longest_first = sorted(extra, key=len, reverse=True)
        self._ids = {bytes([value]): value for value in range(_N_BYTES)} | extra
        self._next = re.compile(b"|".join([*map(re.escape, longest_first), rb"[\x00-\xff]"])) if extra else None

    def encode_batch(self, texts: Sequence[str], begins: Sequence[bool]) -> list[list[int]]:
        if self._next is None:
            return [list(text.encode()) for text in texts]
        ids = self._ids
        return [[ids[piece] for piece in self._next.findall(text.encode())] for text in texts]


def byte_tokenizer(extra_tokens: Sequence[str | bytes] = ()) -> Tokenizer:
    """The tokenizer described above.

    Args:
        extra_tokens: more ordinary tokens; bytes where they shall hold part of a character.

    Raises:
        ConfigError: one is empty or there twice.
    """
    extra = [token.encode() if isinstance(token, str) else token for token in extra_tokens]
    if b"" in extra or len(set(extra)) != len(extra):
        raise ConfigError("extra tokens must be different and not empty", param="tokens")
    table = [bytes([value]) for value in range(_N_BYTES)] + [literal.encode() for literal in _CONTROL]
    first = len(table)
    control = {literal: _N_BYTES + i for i, literal in enumerate(_CONTROL)}
    return Tokenizer(
        encoder=_GreedyBytes({token: first + i for i, token in enumerate(extra)}),
        token_bytes=table + extra,
        control=control,
        end_ids=[control[literal] for literal in _END],
        eos_id=control["<|im_end|>"],
        kept_bytes=range(256),
    )
