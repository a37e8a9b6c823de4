"""Small JSON files of a Hugging Face folder, read with bounds."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import msgspec

from sixfold.errors import ModelFileError
from sixfold.model_file import read_whole

__all__ = ["read_json", "read_json_object", "read_text"]

_BYTES_MAX = 16 << 20


def read_text(path: Path) -> str | None:
    """The file's text; None if there is no such file.

    Raises:
        ModelFileError: it cannot be read, is too long or not UTF-8.
    """
    if not os.path.lexists(path):
        return None
    try:
        return read_whole(path, bytes_max=_BYTES_MAX).decode()
    except UnicodeDecodeError as error:
        raise ModelFileError(f"{path.name}: not UTF-8") from error


def read_json(path: Path) -> Any:
    """The file's content; None if there is no such file.

    Raises:
        ModelFileError: as above, or it is not JSON.
    """
    text = read_text(path)
    if text is None:
        return None
    try:
        return msgspec.json.decode(text)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise ModelFileError(f"{path.name}: not JSON ({error})") from error


def read_json_object(path: Path) -> dict[str, Any]:
    """The file's object; empty if there is no such file.

    Raises:
        ModelFileError: as above, or it is something else.
    """
    content = read_json(path)
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise ModelFileError(f"{path.name}: not an object")
    return content
