"""The output of `sixfold batch`: a line for each answered request, in the order in which they were finished.

    {"id": "batch_req_...", "custom_id": "a-1",
     "response": {"status_code": 200, "request_id": "req-...", "body": {...}}, "error": null}

`response` is null, and `error` has `code` and `message`, where there was no answer that could be written down. See
https://platform.openai.com/docs/api-reference/batch/request-output. A line is written whole and at once, so that of a
run that was killed all but perhaps the last line counts; opening the file again takes away half a line at its end.
"""

from __future__ import annotations

import contextlib
import fcntl
import io
import os
import secrets
import stat
import tempfile
import threading
from pathlib import Path
from typing import Any

import msgspec

from sixfold.cli.batch_lines import Index
from sixfold.cli.output_file import output_error
from sixfold.errors import ConfigError, InvalidRequest, SixfoldError

__all__ = ["Fault", "Response", "Results"]

REASONS_MAX = 3
REASON_CHARS = 200
NO_REASON = "no reason given"
START = b'{"id":"batch_req_'
"""How each line begins: half a line that begins otherwise is not ours to take away."""


class Response(msgspec.Struct, frozen=True):
    """What the server answered; `body` is its JSON text."""

    status_code: int
    request_id: str
    body: msgspec.Raw

    @property
    def ok(self) -> bool:
        return 200 <= self.status_code < 300


class Fault(msgspec.Struct, frozen=True):
    """Why there is no response."""

    code: str
    message: str


class _OutputLine(msgspec.Struct, frozen=True):
    id: str
    custom_id: str
    response: Response | None
    error: Fault | None


class _Error(msgspec.Struct, frozen=True):
    message: str


class _ErrorBody(msgspec.Struct, frozen=True):
    """As much of an answer that is an error as is told."""

    error: _Error


class _WrittenResponse(msgspec.Struct, frozen=True):
    status_code: int


class _Written(msgspec.Struct, frozen=True):
    """As much of a line as a later run must know."""

    id: str
    custom_id: str
    response: _WrittenResponse | None
    error: Any = None

    @property
    def ok(self) -> bool:
        return self.response is not None and 200 <= self.response.status_code < 300


class Results:
    """The file, held by one run at a time. May be used by several threads.

    Args:
        again: requests that failed are taken out of the file, and so are to be done again.

    Raises:
        InvalidRequest: it holds something else than answers to this input.
        ConfigError: it cannot be written, is no regular file, or another run has it.
    """

    def __init__(self, path: Path, index: Index, *, again: bool = False) -> None:
        self._path = path
        self._index = index
        self._lock = threading.Lock()
        self.n_ok = 0
        self.n_failed = 0
        self.reasons: list[str] = []
        """Of the first failures, also those of earlier runs, one line each."""
        self._file = self._open()
        try:
            self._read(again)
            if again and self.n_failed:
                self._drop_failed()
        except BaseException:
            self._file.close()
            raise
        self.n_before = self.n_ok + self.n_failed

    def close(self) -> None:
        with self._lock:
            self._file.close()

    def write(self, custom_id: str, answer: Response | Fault) -> None:
        """Append a line. Does nothing after `close`.

        Raises:
            OSError: the disk is full, or the like.
        """
        ok = isinstance(answer, Response) and answer.ok
        line = _OutputLine(
            f"batch_req_{secrets.token_hex(12)}",
            custom_id,
            answer if isinstance(answer, Response) else None,
            answer if isinstance(answer, Fault) else None,
        )
        data = memoryview(msgspec.json.encode(line) + b"\n")
        with self._lock:
            if self._file.closed:
                return
            while data:
                data = data[self._file.write(data) or 0 :]
            self.n_ok += ok
            self.n_failed += not ok
            if not ok:
                self._tell(custom_id, _why(answer))

    def _tell(self, custom_id: str, why: str) -> None:
        if len(self.reasons) < REASONS_MAX:
            self.reasons.append(f"{custom_id[:100]}: {why}")

    def _open(self) -> io.FileIO:
        try:
            fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        except OSError as error:
            raise output_error(self._path, error) from None
        file = io.FileIO(fd, "r+")
        try:
            if not stat.S_ISREG(os.fstat(fd).st_mode):
                raise ConfigError(f"{self._path} is not a file: it could not be gone on with later", param="-o")
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.close()
            raise ConfigError(f"another run is writing {self._path}", param="-o") from None
        except BaseException:
            file.close()
            raise
        return file

    def _read(self, again: bool) -> None:
        """Count what is there, and cut off half a line at the end."""
        end = 0
        with open(self._file.fileno(), "rb", closefd=False) as reader:
            for number, line in enumerate(reader, 1):
                if not line.endswith(b"\n"):
                    if not (line.startswith(START) or START.startswith(line)):
                        raise self._foreign(number)
                    break
                self._take(number, line, again)
                end += len(line)
        self._file.truncate(end)
        self._file.seek(end)

    def _take(self, number: int, line: bytes, again: bool) -> None:
        written = self._parse(number, line)
        known = self._index.get(written.custom_id)
        if known is None:
            raise InvalidRequest(
                f"{self._path}:{number}: custom_id {written.custom_id[:100]!r} is not in the input; "
                "give another file with -o"
            )
        if known.done:
            raise InvalidRequest(f"{self._path}:{number}: custom_id {written.custom_id[:100]!r} is there twice")
        if written.ok:
            self.n_ok += 1
        else:
            self.n_failed += 1
            if not again:
                self._tell(written.custom_id, _again_why(line))
        if written.ok or not again:
            self._index.mark_done(written.custom_id)

    def _parse(self, number: int, line: bytes) -> _Written:
        try:
            written = msgspec.json.decode(line, type=_Written)
        except (msgspec.MsgspecError, UnicodeError, RecursionError):
            raise self._foreign(number) from None
        if not written.id.startswith("batch_req_"):
            raise self._foreign(number)
        return written

    def _foreign(self, number: int) -> SixfoldError:
        return InvalidRequest(f"{self._path}:{number} is no line of a batch's output; give another file with -o")

    def _drop_failed(self) -> None:
        """Put a copy without the failed lines in the file's place; whenever this is cut short, one of both is there."""
        self._file.seek(0)
        fd, name = tempfile.mkstemp(prefix=f".{self._path.name}.", dir=self._path.resolve().parent)
        copy = io.FileIO(fd, "r+")
        try:
            os.fchmod(fd, stat.S_IMODE(os.fstat(self._file.fileno()).st_mode))
            fcntl.flock(fd, fcntl.LOCK_EX)
            with (
                open(self._file.fileno(), "rb", closefd=False) as reader,
                open(fd, "wb", closefd=False) as writer,
            ):
                writer.writelines(line for number, line in enumerate(reader, 1) if self._parse(number, line).ok)
            os.replace(name, self._path.resolve())
        except BaseException:
            copy.close()
            with contextlib.suppress(OSError):
                os.unlink(name)
            raise
        self._file.close()
        self._file = copy
        self._file.seek(0, os.SEEK_END)
        self.n_failed = 0


def _again_why(line: bytes) -> str:
    """Why the request of a line failed that an earlier run wrote."""
    try:
        written = msgspec.json.decode(line, type=_OutputLine)
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return NO_REASON
    return _why(written.response or written.error or Fault("", NO_REASON))


def _why(answer: Response | Fault) -> str:
    """Why a request failed, in one line."""
    if isinstance(answer, Fault):
        text = answer.message
    else:
        try:
            text = msgspec.json.decode(answer.body, type=_ErrorBody).error.message
        except (msgspec.MsgspecError, UnicodeError, RecursionError):
            text = NO_REASON
        text = f"{answer.status_code}, {text}"
    text = " ".join(text.split())
    return text if len(text) <= REASON_CHARS else text[: REASON_CHARS - 1] + "\N{HORIZONTAL ELLIPSIS}"
