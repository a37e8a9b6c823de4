"""What a log line can hold."""

from __future__ import annotations

import contextlib
import fcntl
import json
import logging
import os
import re
import select
import socket
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import Any

import msgspec
import pytest

from sixfold.api.access.keys import new_key
from sixfold.log_stream import LogStream
from sixfold.logs import JsonFormatter, PlainFormatter, safe

ErrorInfo = tuple[type[BaseException], BaseException, TracebackType | None]


def record(message: str, *args: Any, error: ErrorInfo | None = None) -> logging.LogRecord:
    return logging.LogRecord("sixfold.n", logging.ERROR, __file__, 1, message, args, error)


def test_threat_15_a_line_is_one_line() -> None:
    assert safe("a\r\nFORGED\x1b[2J\x00\u2028b\x9d") == "a\\r\\nFORGED\\x1b[2J\\x00\\u2028b\\x9d"
    assert safe("grüße 世界 😀") == "grüße 世界 😀"


def test_threat_15_keys_are_cut_out() -> None:
    key, _ = new_key()
    assert safe(f"x {key} y") == "x [API key] y"
    assert safe("authorization: Bearer abc.def-123456 y") == "authorization: [API key] y"


@pytest.mark.parametrize("messages", [False, True])
def test_threat_15_an_unexpected_error_shows_its_place_and_no_text(messages: bool) -> None:
    text = "a prompt\nof somebody"
    try:
        raise KeyError(text)
    except KeyError as error:
        found = record(
            "request %(request_id)s failed", {"request_id": "r\n1"}, error=(KeyError, error, error.__traceback__)
        )
    plain = PlainFormatter("api 0", messages=messages).format(found)
    assert " ERROR api 0 sixfold.n: request r\\n1 failed\n" in plain and "test_logs.py" in plain
    assert plain.splitlines()[-1].startswith("KeyError") and ("a prompt" in plain) == messages
    line = JsonFormatter("api 0", messages=messages).format(found)
    document = json.loads(line)
    assert "\n" not in line and document["request_id"] == "r\n1" and document["message"] == "request r\n1 failed"
    assert document["error"]["type"] == "KeyError" and "test_logs.py" in document["error"]["places"][0]
    assert ("a prompt" in line) == ("message" in document["error"]) == messages


def test_fields_that_a_message_does_not_show_follow_it() -> None:
    fields = {"child": "worker 0", "cause": "signal 9", "n": 3, "all": ["stop", "length"], "text": 'a "b" c'}
    line = PlainFormatter("supervisor").format(record("%(child)s ended", fields))
    assert line.endswith('sixfold.n: worker 0 ended cause="signal 9" n=3 all=stop,length text="a \\"b\\" c"')
    assert re.match(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}[+-]\d\d:\d\d ERROR supervisor ", line)


def test_a_json_line_is_one_object_whatever_it_is_told() -> None:
    key, _ = new_key()
    nasty = f"\x00\n\r\x7f\u2028\u202e\udc80 {key} Bearer abc.def-123456"
    line = JsonFormatter("engine").format(record("%(text)s", {"text": nasty, "odd": object(), "none": None}))
    document = json.loads(line)
    assert line.isascii() and line.isprintable() and key not in line and "abc.def" not in line
    assert document["text"] == "\x00\n\r\x7f\u2028\u202e\\udc80 [API key] [API key]"
    assert document["none"] is None and document["level"] == "error" and document["role"] == "engine"
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}[+-]\d\d:\d\d", document["time"])


@pytest.mark.parametrize(
    "text", ["\bearer abcdefghij", "Bearer\tabcdefghij", 'bearer abcdefghij"', "\ud800", float("nan"), [float("inf")]]
)
def test_threat_15_no_text_breaks_a_json_line(text: object) -> None:
    line = JsonFormatter("api 0").format(record("x", {"a": text, "b": {"c": text}}))
    document = msgspec.json.decode(line)  # strict: no NaN, no half of a surrogate pair, no unknown escape
    assert document["b"]["c"] == document["a"] and ("abcdefghij" in line) == (text == "\bearer abcdefghij")


@pytest.mark.parametrize("form", ["plain", "json"])
def test_an_end_that_nobody_caught_is_a_line(form: str) -> None:
    code = f"""
import threading, logging
from sixfold.logs import set_up_logging
set_up_logging("engine", "warning", {form!r})
thread = threading.Thread(target=lambda: 1 / 0, name="some thread")
thread.start()
thread.join()
logging.getLogger("a.library").warning("%s is odd", "this")
logging.getLogger("a.library").info("nobody wants to know")
raise LookupError("the end")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 1 and not done.stdout
    lines = done.stderr.splitlines()
    if form == "json":
        documents = [json.loads(line) for line in lines]
        assert [d["message"].partition(" ")[0] for d in documents] == ["some", "this", "the"]
        assert documents[0]["error"]["type"] == "ZeroDivisionError"
        assert documents[2]["error"]["message"] == "the end" and documents[2]["level"] == "critical"
    else:
        assert "ERROR engine sixfold.engine: some thread ends by an unexpected error" in lines[0]
        assert lines[-1] == "LookupError: the end" and "Traceback" not in done.stderr


def test_the_last_words_of_a_process_without_memory_have_the_log_s_form() -> None:
    code = (
        "from sixfold.logs import last_words, set_up_logging; set_up_logging('worker 0', 'warning', 'json'); "
        "last_words('worker 0', 'no memory is left')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    document = json.loads(done.stderr)
    assert {"time", "level", "logger", "role", "pid", "message"} == set(document)
    assert (document["role"], document["logger"]) == ("worker 0", "sixfold.worker")


def test_a_quote_cannot_be_left_by_what_is_quoted() -> None:
    line = PlainFormatter("api 0").format(record("request", {"prompt": '\\" status=200 x="'}))
    assert line.endswith('request prompt="\\\\\\" status=200 x=\\""')


def reads_of(fd: int) -> bytes:
    """What is there now."""
    os.set_blocking(fd, False)
    found = b""
    with contextlib.suppress(BlockingIOError):
        while piece := os.read(fd, 1 << 16):
            found += piece
    return found


@pytest.mark.parametrize("kind", ["pipe", "socket", "pipe of another user"])
def test_nobody_waits_for_who_does_not_read(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if kind == "socket":
        ends = socket.socketpair()
        reader, writer = ends[0].detach(), ends[1].detach()
    else:
        reader, writer = os.pipe()
    if kind == "pipe of another user":
        monkeypatch.setattr(os, "isatty", lambda _: False)
        monkeypatch.setattr("sixfold.log_stream.stat.S_ISFIFO", lambda _: False)
    stream = LogStream(writer, lambda n: f"{n} are lost")
    lines = [f"{i} " + "x" * 3000 for i in range(1000)]
    for line in lines:
        stream.write(line)  # a write that waits never returns: nobody reads
    assert stream.n_lost and os.get_blocking(writer)
    n_lost = stream.n_lost
    found = b""
    while b"are lost" not in found:
        found += reads_of(reader)
    said = found.decode().splitlines()
    assert said == [*lines[: 1000 - n_lost], f"{n_lost} are lost"]
    stream.write("again")
    while b"again" not in found:
        found += reads_of(reader)
    os.close(reader)
    with contextlib.suppress(BrokenPipeError):
        stream.write("to nobody")
    stream.close()
    os.close(writer)


def test_a_file_gets_every_line(tmp_path: Path) -> None:
    with open(tmp_path / "log", "wb") as file:
        stream = LogStream(file.fileno(), str)
        for i in range(200):
            stream.write(f"{i} " + "x" * 10_000)
        stream.close()
    assert [line.split()[0] for line in (tmp_path / "log").read_text().splitlines()] == [str(i) for i in range(200)]


@pytest.mark.parametrize("character", ["x", "\U0001f600", "\x1b", "\udc80"])
def test_threat_15_no_part_of_a_long_line_begins_one(character: str) -> None:
    """A pipe takes 4 KiB whole; what is longer might be cut where another process's line comes between."""
    text = PlainFormatter("api 0").format(record("request", {"prompt": character * 3000 + "\U0001f600" * 600}))
    first, *others = text.encode(errors="backslashreplace").splitlines()
    assert others and all(len(line) < select.PIPE_BUF for line in (first, *others))
    assert all(line.startswith(b"    ") for line in others)


def test_threat_15_a_full_pipe_cuts_between_lines() -> None:
    reader, writer = os.pipe()
    fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, 2 * select.PIPE_BUF)
    stream = LogStream(writer, str)
    lines = [letter * 3000 for letter in "abcd"]
    stream.write("\n".join(lines))
    got = os.read(reader, 1 << 16)
    assert got.endswith(b"\n") and got.decode().split() == lines[: got.count(b"\n")]
    while len(got) < 4 * 3001:
        got += os.read(reader, 1 << 16)
    assert got.decode().split() == lines
    stream.close()
    os.close(reader)
    os.close(writer)
