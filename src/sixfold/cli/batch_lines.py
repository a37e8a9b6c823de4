"""The input of `sixfold batch`: lines of OpenAI's batch format, checked before anything runs.

    {"custom_id": "a-1", "method": "POST", "url": "/v1/chat/completions", "body": {...}}

https://platform.openai.com/docs/api-reference/batch/request-input describes it. A run does not look into bodies: the
server does that, as for any other call; `--check` asks the server's types. Files may be of any size: lines are read one
by one, and what must be remembered of all of them (which custom_id was on which line, and whether it is answered) lies
in a temporary database on disk.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import msgspec

from sixfold.errors import InvalidRequest

__all__ = ["FIELDS", "URLS", "Faults", "Index", "InputLine", "check", "read_lines"]

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


FIELDS = InputLine.__struct_fields__


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


def check(path: Path, index: Index, *, bodies: bool = False) -> tuple[int, Faults]:
    """Read the whole file and put its ids into the index.

    Args:
        bodies: their fields and types, too, as a server takes them.

    Returns: requests, and faults with the numbers of their lines.

    Raises:
        InvalidRequest: the file cannot be read.
    """
    faults = Faults()
    n = 0
    for number, line in _numbered(path):
        n += 1
        parsed, found = look(line)
        if parsed is not None and not found and bodies and (fault := _body_fault(parsed)) is not None:
            found = [fault]
        for fault in found:
            faults.add(f"{path}:{number}", fault)
        if parsed is None or not 1 <= len(parsed.custom_id) <= MAX_ID_CHARS:
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
        parsed, found = look(line)
        known = index.get(parsed.custom_id) if parsed is not None and not found else None
        if parsed is None or known is None or known.number != number:
            raise InvalidRequest(f"{path} was changed while it was read, at line {number}")
        if not known.done:
            yield parsed


def look(line: bytes) -> tuple[InputLine | None, list[str]]:
    """-> (the request of one line, what is wrong with it); the request is None where it cannot be told."""
    if len(line) > MAX_LINE_BYTES:
        return None, [f"the line is longer than {MAX_LINE_BYTES >> 20} MiB"]
    try:
        try:
            parsed = msgspec.json.decode(line, type=InputLine)
        except msgspec.ValidationError:
            return None, _field_faults(line)
        parsed.custom_id.encode()
    except (msgspec.DecodeError, UnicodeError) as error:
        return None, [f"not valid JSON: {str(error).removeprefix('JSON is malformed: ')}"]
    except RecursionError:
        return None, ["the line nests too deep"]
    return parsed, _value_faults(parsed.custom_id, parsed.method, parsed.url, parsed.body)


def _field_faults(line: bytes) -> list[str]:
    """Of a line that is JSON, and no request."""
    try:
        fields = msgspec.json.decode(line, type=dict[str, msgspec.Raw])
    except msgspec.ValidationError:
        return ["the line must be an object"]
    texts: dict[str, str | None] = {}
    faults = [f"there is no field {name[:100]}" for name in fields if name not in FIELDS]
    for name in FIELDS:
        if name not in fields:
            faults.append(f"the field {name} is missing")
        elif name != "body":
            try:
                texts[name] = msgspec.json.decode(fields[name], type=str)
            except msgspec.ValidationError:
                faults.append(f"{name} must be text")
    return faults + _value_faults(texts.get("custom_id"), texts.get("method"), texts.get("url"), fields.get("body"))


def _value_faults(custom_id: str | None, method: str | None, url: str | None, body: msgspec.Raw | None) -> list[str]:
    """Of fields that are there and of the right type; None for the others."""
    faults = []
    if custom_id is not None and not 1 <= len(custom_id) <= MAX_ID_CHARS:
        faults.append(f"custom_id must have 1 to {MAX_ID_CHARS} characters")
    if method is not None and method != "POST":
        faults.append(f"method must be POST, not {method[:50]!r}")
    if url is not None and url not in URLS:
        faults.append(f"url must be one of {', '.join(URLS)}, not {url[:100]!r}")
    if body is not None:
        try:
            if msgspec.json.decode(body, type=_Body).stream is True:
                faults.append("body.stream must not be true: the answers of a batch are whole")
        except msgspec.ValidationError:
            faults.append("body must be an object")
    return faults


def _body_fault(line: InputLine) -> str | None:
    """What the server would say to a body's fields and their types."""
    from sixfold.api.http.decoding import decode
    from sixfold.api.openai.schemas import ChatRequest, CompletionRequest, EmbeddingRequest
    from sixfold.api.responses.schemas import ResponsesRequest

    kinds: dict[str, type] = dict(
        zip(URLS, (ChatRequest, CompletionRequest, EmbeddingRequest, ResponsesRequest), strict=True)
    )
    try:
        decode(kinds[line.url], bytes(line.body))
    except InvalidRequest as error:
        return f"body: {error.message}"
    return None


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
