"""Standard input and output where they are closed, full, or hold something that is no text.

Each such fault is the user's to mend and is one sentence that names the stream.
"""

from __future__ import annotations

import contextlib
import errno
import io
import os
import sys
from collections.abc import Iterator
from typing import TextIO

import click

from sixfold.errors import InvalidRequest

__all__ = [
    "NOT_TEXT",
    "complain",
    "discard_missing_output",
    "output_fault",
    "read_input",
    "read_line",
    "silence",
]

NOT_TEXT = "not_text"
"""`code` of the error for input that is no text: what follows may be."""

_missing: set[str] = set()


def prepare_streams() -> None:
    """Make the standard streams fit to be used; before anything is read.

    One that the caller has closed gets a descriptor again: without it the next file or socket would get its number, and
    a child, or a library in C, would print into that. Reading from such an input and writing to such an output fail,
    as they do for other programs; messages are lost.
    """
    for fd, name, flags in ((0, "stdin", os.O_WRONLY), (1, "stdout", os.O_RDONLY), (2, "stderr", os.O_WRONLY)):
        if getattr(sys, name) is None:
            opened = os.open(os.devnull, flags)  # the lowest number that is free: fd, as a rule
            os.set_inheritable(opened, True)
            setattr(sys, name, open(opened, "w" if fd else "r", closefd=False))  # noqa: SIM115
            _missing.add(name)
    if isinstance(sys.stdin, io.TextIOWrapper):
        sys.stdin.reconfigure(errors="strict")  # some locales let any byte pass, as half a surrogate pair


def discard_missing_output() -> None:
    """For a program that can do without standard output: what it writes is lost, if the caller has closed it."""
    if "stdout" in _missing:
        silence(sys.stdout)


def read_input() -> str:
    """All of standard input.

    Raises:
        InvalidRequest: it is closed, cannot be read, or is not text.
    """
    with _input_faults():
        return sys.stdin.read()


def read_line() -> str:
    """The next line of standard input, as a person types it or with its end.

    Raises:
        EOFError: there is none.
        InvalidRequest: see `read_input`.
    """
    with _input_faults():
        if sys.stdin.isatty():
            import readline  # noqa: F401  history and line editing for input()

            return input("> ")
        if line := sys.stdin.readline():
            return line
    raise EOFError


@contextlib.contextmanager
def _input_faults() -> Iterator[None]:
    try:
        yield
    except UnicodeDecodeError as error:
        raise InvalidRequest(
            f"standard input is not valid {error.encoding.upper()}: {error.reason} at byte {error.start}", code=NOT_TEXT
        ) from None
    except OSError as error:
        raise InvalidRequest(f"standard input cannot be read: {_reason(error)}") from None


def output_fault(error: OSError) -> str | None:
    """A sentence, if the error came from writing to standard output or for want of disk space."""
    try:
        sys.stdout.flush()  # what could not be written is still there, and fails again
    except OSError as fault:
        return f"standard output cannot be written: {_reason(fault)}"
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        return f"nothing can be written: {_reason(error)}"  # standard output may be without a buffer
    return None


def silence(stream: TextIO) -> None:
    """Lose what the stream still holds and all that comes: Python would complain again when it flushes at exit."""
    with contextlib.suppress(OSError, AttributeError):  # a stand-in without a descriptor
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)


def complain(error: str | click.ClickException) -> None:
    """Print to standard error, if that can be written to."""
    try:
        if isinstance(error, click.ClickException):
            error.show()
        else:
            click.echo(error, err=True)
    except OSError:
        silence(sys.stderr)


def _reason(error: OSError) -> str:
    text = "it is closed" if error.errno == errno.EBADF else error.strerror or str(error)
    return text[:1].lower() + text[1:]
