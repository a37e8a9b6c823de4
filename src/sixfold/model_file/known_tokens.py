"""How many ids a folder's tokenizer.json knows, without building the tokenizer."""

from __future__ import annotations

from pathlib import Path

import msgspec

from sixfold.errors import ModelFileError

__all__ = ["known_tokens"]

_FILE = "tokenizer.json"
_BYTES_MAX = 256 << 20


class _Token(msgspec.Struct):
    id: int


class _Model(msgspec.Struct):
    vocab: dict[str, int] = {}


class _File(msgspec.Struct):
    model: _Model
    added_tokens: list[_Token] = []


def known_tokens(folder: Path) -> int | None:
    """The largest id and one; None: the folder has no tokenizer.json.

    Raises:
        ModelFileError: the file is not a tokenizer.
    """
    path = folder / _FILE
    try:
        if path.stat().st_size > _BYTES_MAX:
            raise ModelFileError(f"{_FILE} is larger than {_BYTES_MAX >> 20} MB")
        file = msgspec.json.decode(path.read_bytes(), type=_File)
    except FileNotFoundError:
        return None
    except (OSError, msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
        raise ModelFileError(f"{_FILE}: not a tokenizer ({error})") from error
    ids = [*file.model.vocab.values(), *(token.id for token in file.added_tokens)]
    return max(ids, default=-1) + 1 or None
