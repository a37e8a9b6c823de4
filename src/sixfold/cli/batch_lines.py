"""The input of `sixfold batch`: lines of OpenAI's batch format, checked before anything runs.

    {"custom_id": "a-1", "method": "POST", "url": "/v1/chat/completions", "body": {...}}

https://platform.openai.com/docs/api-reference/batch/request-input describes it. A body is not looked into: the server
does that, as for any other call. Files may be of any size: lines are read one by one, and what must be remembered of
all of them (which custom_id was on which line, and whether it is answered) lies in a temporary database on disk.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import msgspec

from sixfold.errors import InvalidRequest

__all__ = ["URLS", "Faults", "Index", "InputLine", "check", "read_lines"]

URLS = ("/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/v1/responses")
MAX_LINE_BYTES = 64 << 20
MAX_ID_CHARS = 512
MAX_FAULTS_SHOWN = 20
BOM = b"\xef\xbb\xbf"


class InputLine(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A request of the file. `body` is its JSON text as it stands there."""

    custom_id: str
    method: str
    url: str
    body: msgspec.Raw


class _Body(msgspec.Struct):
    """Any object; the one field that a batch cannot have."""

    stream: Any = None


class Faults:
    """What is wrong with a file: the first few in words, all of them counted."""

    def __init__(self) -> None:
        self.shown: list[str] = []
        self.count = 0

    def add(self, where: str, what: str) -> None:
        self.count += 1
        if len(self.shown) < MAX_FAULTS_SHOWN:
            self.shown.append(f"{where}: {what}")

    def text(self) -> str:
        more = self.count - len(self.shown)
        return "\n".join([*self.shown, *([f"and {more} more"] if more else [])])


class Earlier(NamedTuple):
    """What the index knows of a custom_id."""

    number: int
    """Line of the input."""
    done: bool


class Index:
    """custom_id -> its line's number and whether it is answered. Not in memory: SQLite's unnamed database is a
    temporary file, deleted when it is closed."""

    def __init__(self) -> None:
        self._db = sqlite3.connect("", isolation_level=None, check_same_thread=False)
        self._db.executescript(
            "PRAGMA journal_mode=OFF; PRAGMA synchronous=OFF;"
            "CREATE TABLE line (id TEXT PRIMARY KEY, number INTEGER, done INTEGER DEFAULT 0) WITHOUT ROWID;"
        )

    def close(self) -> None:
        self._db.close()

    def add(self, custom_id: str, number: int) -> int | None:
        """Returns: None, or the line that has this id already."""
        try:
            self._db.execute("INSERT INTO line (id, number) VALUES (?, ?)", (custom_id, number))
        except sqlite3.IntegrityError:
            earlier = self.get(custom_id)
            return earlier.number if earlier is not None else None
        return None

    def get(self, custom_id: str) -> Earlier | None:
        row = self._db.execute("SELECT number, done FROM line WHERE id = ?", (custom_id,)).fetchone()
        return Earlier(row[0], bool(row[1])) if row is not None else None

    def mark_done(self, custom_id: str) -> None:
        self._db.execute("UPDATE line SET done = 1 WHERE id = ?", (custom_id,))


def check(path: Path, index: Index) -> tuple[int, Faults]:
    """Read the whole file and put its ids into the index.

    Returns: requests, and faults with the numbers of their lines.

    Raises:
        InvalidRequest: the file cannot be read.
    """
    faults = Faults()
    n = 0
    for number, line in _numbered(path):
        n += 1
        try:
            parsed = parse(line)
        except InvalidRequest as error:
            faults.add(f"{path}:{number}", error.message)
            continue
        before = index.add(parsed.custom_id, number)
        if before is not None:
            faults.add(f"{path}:{number}", f"custom_id {parsed.custom_id!r} is that of line {before}")
    if not n:
        faults.add(str(path), "there is no request in it")
    return n, faults


def read_lines(path: Path, index: Index) -> Iterator[InputLine]:
    """The requests that are not answered yet, in the order of the file.

    Raises:
        InvalidRequest: the file is not the one that was checked any more.
    """
    for number, line in _numbered(path):
        try:
            parsed = parse(line)
            known = index.get(parsed.custom_id)
        except InvalidRequest:
            known = None
        if known is None or known.number != number:
            raise InvalidRequest(f"{path} was changed while it was read, at line {number}")
        if not known.done:
            yield parsed


def parse(line: bytes) -> InputLine:
    """One line.

    Raises:
        InvalidRequest: what is wrong with it.
    """
    if len(line) > MAX_LINE_BYTES:
        raise InvalidRequest(f"the line is longer than {MAX_LINE_BYTES >> 20} MiB")
    try:
        parsed = msgspec.json.decode(line, type=InputLine)
        parsed.custom_id.encode()
    except msgspec.ValidationError as error:
        raise InvalidRequest(_sentence(str(error))) from None
    except (msgspec.DecodeError, UnicodeError) as error:
        raise InvalidRequest(f"not valid JSON: {error}") from None
    except RecursionError:
        raise InvalidRequest("the line nests too deep") from None
    if not 1 <= len(parsed.custom_id) <= MAX_ID_CHARS:
        raise InvalidRequest(f"custom_id must have 1 to {MAX_ID_CHARS} characters")
    if parsed.method != "POST":
        raise InvalidRequest(f"method must be POST, not {parsed.method[:50]!r}")
    if parsed.url not in URLS:
        raise InvalidRequest(f"url must be one of {', '.join(URLS)}, not {parsed.url[:100]!r}")
    try:
        body = msgspec.json.decode(parsed.body, type=_Body)
    except msgspec.ValidationError:
        raise InvalidRequest("body must be an object") from None
    if body.stream is True:
        raise InvalidRequest("body.stream must not be true: the answers of a batch are whole")
    return parsed


def _sentence(message: str) -> str:
    """msgspec's words, in those of the file: `Object missing required field `url`` -> `the field url is missing`."""
    name = message.split("`")[1] if "`" in message else ""
    if message.startswith("Object missing required field"):
        return f"the field {name} is missing"
    if message.startswith("Object contains unknown field"):
        return f"there is no field {name[:100]}"
    field = message.rpartition("$.")[2].strip("`") if "$." in message else ""
    return f"{field} must be text" if field else "the line must be an object"


def _numbered(path: Path) -> Iterator[tuple[int, bytes]]:
    """(number from 1, text) of the lines that are not empty; of too long a line, its beginning."""
    try:
        with path.open("rb") as file:
            for number, line in enumerate(_bounded(file), 1):
                text = line.removeprefix(BOM) if number == 1 else line
                if text.strip():
                    yield number, text
    except OSError as error:
        raise InvalidRequest(f"{path} cannot be read: {(error.strerror or str(error)).lower()}") from None


def _bounded(file: BinaryIO) -> Iterator[bytes]:
    while line := file.readline(MAX_LINE_BYTES + 2):
        yield line
        while not line.endswith(b"\n") and len(line) > MAX_LINE_BYTES:
            line = file.readline(MAX_LINE_BYTES + 2)
