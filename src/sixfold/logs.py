"""Log lines of every process of the server: plain or JSON, lines that cannot lie and cannot tell secrets.

Whatever is logged, by us or by a library, goes through `set_up_logging`'s handler to standard error. Control characters
are escaped, so that no caller writes a line of his own; what looks like an API key is cut out; and of an unexpected
error there are the places in the code, but not its message where that may quote a prompt.

A line may carry fields: `logger.info("%(child)s ended", {"child": role, "status": 9})`. In JSON each is a member of the
object; in the plain form those that the message does not show follow it as `name=value`.
"""

from __future__ import annotations

import logging
import math
import os
import re
import select
import sys
import threading
import time
import traceback
from collections.abc import Mapping
from types import TracebackType
from typing import Any

from sixfold.log_stream import LogStream, can_write

__all__ = [
    "KEY_PREFIX",
    "READY",
    "JsonFormatter",
    "PlainFormatter",
    "last_words",
    "message_with_fields",
    "safe",
    "set_up_logging",
]

KEY_PREFIX = "sk-sixfold-"
"""By which an API key is known where it should not be: in a log, in a repository."""

READY = logging.getLogger("sixfold.ready")
"""Says where a server is reached, whatever the level."""

_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")
_KEY = re.compile(rf"{re.escape(KEY_PREFIX)}[A-Za-z0-9_-]+|(?i:bearer\s+)[A-Za-z0-9._~+/=-]{{8,}}")
_BARE = re.compile(r"[^\s\"'=]+")
"""A value that needs no quotes in a plain line."""

_CONTINUED = "    "
_LONG_CHARS = (select.PIPE_BUF - 1) // 4 - len(_CONTINUED)
"""Of a part of a plain line that is too long for a pipe to take it whole; a character has up to four bytes."""

_form = "plain"
"""Value of `--log-format`, of this process."""

ErrorInfo = tuple[type[BaseException], BaseException, TracebackType | None] | tuple[None, None, None]


def safe(text: str) -> str:
    """One line, without keys."""
    text = _KEY.sub("[API key]", text)
    return _CONTROL.sub(lambda found: ascii(found.group())[1:-1], text)


def set_up_logging(role: str, level: str, form: str = "plain", *, holds_text: bool = False) -> None:
    """Messages of this process to standard error: its own from `level` on, those of libraries from warnings on. What
    would end a thread or the process without being caught is a line too. May be called again.

    Args:
        role: of the process, as in its title: `engine`, `api 0`.
        level: value of `--log-level`.
        form: value of `--log-format`.
        holds_text: whether prompts and answers pass here: then errors' messages are shown at level debug alone.
    """
    global _form
    own = logging.getLevelNamesMapping()[level.upper()]
    messages = not holds_text or own <= logging.DEBUG
    handler = _Lines((JsonFormatter if form == "json" else PlainFormatter)(role, messages=messages))
    logging.basicConfig(level=max(own, logging.WARNING), handlers=[handler], force=True)
    logging.getLogger("sixfold").setLevel(own)
    READY.setLevel(logging.INFO)
    _form = form
    logging.raiseExceptions = False  # a line that cannot be written is lost: nobody is left to be told
    logger = logging.getLogger("sixfold." + role.partition(" ")[0])

    def on_error(kind: type[BaseException], error: BaseException, places: TracebackType | None) -> None:
        logger.critical("the process ends by an unexpected error", exc_info=(kind, error, places))

    def on_thread_error(args: threading.ExceptHookArgs) -> None:
        if args.exc_value is not None and args.thread is not None:
            info = (args.exc_type, args.exc_value, args.exc_traceback)
            logger.error("%(thread)s ends by an unexpected error", {"thread": args.thread.name}, exc_info=info)

    sys.excepthook, threading.excepthook = on_error, on_thread_error


class _Lines(logging.Handler):
    """Lines to standard error, for which nobody waits."""

    def __init__(self, formatter: logging.Formatter) -> None:
        super().__init__()
        self.setFormatter(formatter)
        self._stream = LogStream(2, self._lost)

    def emit(self, record: logging.LogRecord) -> None:
        try:
            self._stream.write(self.format(record))
        except Exception:  # noqa: BLE001  whatever is wrong with a line: the process goes on without it
            self.handleError(record)

    def close(self) -> None:
        self._stream.close()
        super().close()

    def _lost(self, n: int) -> str:
        fields = {"n": n}
        message = "%(n)d lines are lost: standard error was not read"
        return self.format(logging.LogRecord("sixfold.logs", logging.WARNING, __file__, 0, message, (fields,), None))


def last_words(role: str, sentence: str) -> None:
    """Of a process that has no memory left: written with as little of it as can be, past the handler, unless that would
    make it wait."""
    if not can_write(2):
        return
    if _form != "json":
        os.write(2, f"sixfold: {role}: {sentence}\n".encode())
        return
    where = f'"logger": "sixfold.{role.partition(" ")[0]}", "role": "{role}", "pid": {os.getpid()}'
    line = f'{{"time": "{_stamp(time.time())}", "level": "critical", {where}, "message": "{sentence}"}}\n'
    os.write(2, line.encode())


def _fields(record: logging.LogRecord) -> Mapping[str, Any]:
    return record.args if isinstance(record.args, Mapping) else {}


def message_with_fields(record: logging.LogRecord) -> str:
    """The message, and behind it the fields that it does not show."""
    template = str(record.msg)
    unshown = {name: value for name, value in _fields(record).items() if f"%({name})" not in template}
    return " ".join([record.getMessage(), *(f"{name}={_shown(value)}" for name, value in unshown.items())])


def _wrapped(line: str) -> str:
    """A line that a pipe might take in parts is made of several: between two parts another process's line could come,
    and what a caller wrote would begin one."""
    data = line.encode(errors="backslashreplace")
    if len(data) < select.PIPE_BUF:
        return line
    text = data.decode()
    return f"\n{_CONTINUED}".join(text[i : i + _LONG_CHARS] for i in range(0, len(text), _LONG_CHARS))


def _stamp(at_s: float) -> str:
    """Local time with its zone (RFC 3339), to the millisecond."""
    local = time.localtime(at_s)
    zone = time.strftime("%z", local)
    return f"{time.strftime('%Y-%m-%dT%H:%M:%S', local)}.{int(at_s * 1000) % 1000:03d}{zone[:3]}:{zone[3:5]}"


def _places(info: ErrorInfo) -> list[str]:
    return [part for place in traceback.format_tb(info[2]) for part in place.splitlines()]


class PlainFormatter(logging.Formatter):
    """`TIME LEVEL ROLE LOGGER: MESSAGE name=value ...`, and below it the places of an error.

    Args:
        role: of the process.
        messages: whether errors' messages are shown.
    """

    def __init__(self, role: str, *, messages: bool = False) -> None:
        super().__init__()
        self._role = role
        self._messages = messages

    def format(self, record: logging.LogRecord) -> str:
        line = _wrapped(
            safe(
                f"{_stamp(record.created)} {record.levelname} {self._role} {record.name}: {message_with_fields(record)}"
            )
        )
        return f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line

    def formatException(self, ei: ErrorInfo) -> str:
        kind, error, _ = ei
        name = kind.__name__ if kind is not None else "no error"
        lines = [*_places(ei), f"{name}: {error}" if self._messages else name]
        return "\n".join(_wrapped(safe(line)) for line in lines)


def _shown(value: object) -> str:
    if isinstance(value, list | tuple):
        return ",".join(map(_shown, value))
    text = "-" if value is None else str(value)
    return text if _BARE.fullmatch(text) else '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _plain(value: object) -> object:
    """The same without keys, in what JSON has: no NaN, no half of a surrogate pair."""
    if value is None or isinstance(value, int) or (isinstance(value, float) and math.isfinite(value)):
        return value
    if isinstance(value, dict):
        return {str(name): _plain(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    return _KEY.sub("[API key]", str(value)).encode(errors="backslashreplace").decode()


class JsonFormatter(logging.Formatter):
    """One JSON object per line, in ASCII: `time`, `level`, `logger`, `role`, `pid`, `message`, the line's fields, and
    where there is an error `error` with its `type`, `places` and maybe `message`.

    Args:
        role: of the process.
        messages: whether errors' messages are shown.
    """

    def __init__(self, role: str, *, messages: bool = False) -> None:
        super().__init__()
        import json  # loaded only where it is wanted: it is not needed otherwise

        self._encode = json.JSONEncoder(allow_nan=False).encode
        self._role = role
        self._messages = messages
        self._pid = os.getpid()

    def format(self, record: logging.LogRecord) -> str:
        document: dict[str, Any] = {
            "time": _stamp(record.created),
            "level": record.levelname.lower(),
            "logger": record.name,
            "role": self._role,
            "pid": self._pid,
            "message": record.getMessage(),
            **_fields(record),
        }
        if record.exc_info and record.exc_info[0] is not None:
            kind, error, _ = record.exc_info
            document["error"] = {"type": kind.__name__, "places": _places(record.exc_info)}
            if self._messages:
                document["error"]["message"] = str(error)
        # Keys are cut out before the encoding: behind it, a text may begin with the second half of an escape.
        return self._encode(_plain(document)).replace("\x7f", "\\u007f")
