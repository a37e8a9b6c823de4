"""Log lines that cannot lie and cannot tell secrets.

Whatever is logged, by us or by a library: control characters are escaped, so that no caller writes a line of his own;
what looks like an API key is cut out; and of an unexpected error there are the places in the code, but not its message,
which may quote a prompt (it is shown at level debug).
"""

from __future__ import annotations

import logging
import re
import traceback
from types import TracebackType

from sixfold.api.keys import KEY_PREFIX

__all__ = ["SafeFormatter", "safe"]

_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")
_KEY = re.compile(rf"{re.escape(KEY_PREFIX)}[A-Za-z0-9_-]+|(?i:bearer\s+)[A-Za-z0-9._~+/=-]{{8,}}")


def safe(text: str) -> str:
    """One line, without keys."""
    text = _KEY.sub("[API key]", text)
    return _CONTROL.sub(lambda found: ascii(found.group())[1:-1], text)


class SafeFormatter(logging.Formatter):
    """See the module's docstring.

    Args:
        messages: whether errors' messages are shown.
    """

    def __init__(self, format: str, *, messages: bool = False) -> None:
        super().__init__(format)
        self._messages = messages

    def formatMessage(self, record: logging.LogRecord) -> str:
        return safe(super().formatMessage(record))

    def formatException(
        self, ei: tuple[type[BaseException], BaseException, TracebackType | None] | tuple[None, None, None]
    ) -> str:
        kind, error, places = ei
        lines = [part for place in traceback.format_tb(places) for part in place.splitlines()]
        name = kind.__name__ if kind is not None else "no error"
        lines.append(f"{name}: {error}" if self._messages else name)
        return "\n".join(map(safe, lines))
