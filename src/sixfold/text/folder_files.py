"""Small JSON files of a Hugging Face folder, read with bounds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from sixfold.errors import ModelFileError

__all__ = ["read_json", "read_json_object", "read_text"]

_BYTES_MAX = 16 << 20


def read_text(path: Path) -> str | None:
    """The file's text; None if there is no such file.

    Raises:
        ModelFileError: it cannot be read, is too long or not UTF-8.
    """
    try:
        if not path.is_file():
            return None
        if path.stat().st_size > _BYTES_MAX:
            raise ModelFileError(f"{path.name}: larger than {_BYTES_MAX >> 20} MB")
        return path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8"
        raise ModelFileError(f"{path.name}: cannot be read ({reason})") from error


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
