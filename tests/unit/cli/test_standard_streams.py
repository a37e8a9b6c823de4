"""Closed, full and non-text standard streams, as a shell makes them."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

SIXFOLD = f"{shlex.quote(sys.executable)} -m sixfold"


def shell(line: str, **environment: str) -> tuple[int, str, str]:
    """(exit code, standard output, standard error) of a line in which SIXFOLD is the command."""
    done = subprocess.run(
        ["bash", "-o", "pipefail", "-c", re.sub(r"\bSIXFOLD\b(?!')", lambda _: SIXFOLD, line)],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "PYTHONUNBUFFERED": "", **environment},
        check=False,
    )
    return done.returncode, done.stdout, done.stderr


CLOSED = "sixfold: standard output cannot be written: it is closed\n"
FULL = "sixfold: standard output cannot be written: no space left on device\n"


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("SIXFOLD list >&-", CLOSED),
        ("SIXFOLD --help >&-", CLOSED),
        ("SIXFOLD doctor --executor scripted >&-", CLOSED),
        ("SIXFOLD list >/dev/full", FULL),
        ("SIXFOLD doctor --executor scripted >/dev/full", FULL),
        ("SIXFOLD run scripted - --executor scripted <&-", "sixfold: standard input cannot be read: it is closed\n"),
        (
            r"printf 'a\xff' | SIXFOLD run scripted - --executor scripted",
            "sixfold: standard input is not valid UTF-8: invalid start byte at byte 1\n",
        ),
        (
            r"printf 'a\xff' | LC_ALL=C SIXFOLD run scripted - --executor scripted",
            "sixfold: standard input is not valid UTF-8: invalid start byte at byte 1\n",
        ),
        ("SIXFOLD list 2>&- >&-", ""),
        ("SIXFOLD list 2>/dev/full >/dev/full", ""),
    ],
)
def test_a_fault_is_one_sentence(line: str, said: str) -> None:
    assert shell(line) == (1, "", said)


def test_a_full_disk_without_a_buffer() -> None:
    code, _, said = shell("SIXFOLD list >/dev/full", PYTHONUNBUFFERED="1")
    assert (code, said) == (1, "sixfold: nothing can be written: no space left on device\n")


@pytest.mark.parametrize("command", ["list", "--help", "doctor --executor scripted"])
def test_a_reader_that_leaves_is_no_matter(command: str) -> None:
    # The reader is gone before the command writes.
    _, _, said = shell(f"SIXFOLD {command} > >(exec head -c 0)")
    assert said == ""
    _, out, said = shell(f"SIXFOLD {command} | head -1")
    assert out.count("\n") == 1
    assert said == ""


@pytest.mark.parametrize("streams", ["<&-", "2>&-", "<&- 2>&-"])
def test_what_is_not_needed_may_be_closed(streams: str) -> None:
    code, out, _ = shell(f"SIXFOLD list {streams}")
    assert code == 0
    assert "smollm2" in out


@pytest.mark.parametrize(
    "line",
    [
        r"SIXFOLD run scripted $'\xff'",
        r"SIXFOLD run scripted a --system $'\xff'",
        r"SIXFOLD serve scripted --served-model-name $'\xff'",
        r"env SIXFOLD''_SERVED_MODEL_NAME=$'\xff' SIXFOLD serve scripted",
    ],
)
def test_arguments_that_are_no_text_are_usage_errors(line: str) -> None:
    code, out, said = shell(line)
    assert (code, out) == (2, "")
    assert "not valid UTF-8" in said
    assert "Traceback" not in said


@pytest.mark.parametrize("streams", [">&-", "<&- >&- 2>&-"])
def test_a_server_does_without_standard_streams(streams: str, runtime_dir: Path) -> None:
    """And none of its files and sockets takes their numbers."""
    line = f"exec {SIXFOLD} serve scripted --executor scripted --port 0 {streams}"
    process = subprocess.Popen(["bash", "-c", line])
    try:
        deadline = time.monotonic() + 60
        while len(children := children_of(process.pid)) < 3 or not list(runtime_dir.glob("*/*")):
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.05)
        time.sleep(0.5)
        for pid in (process.pid, *children):
            for fd in (1, *((0, 2) if "2>" in streams else ())):
                assert os.readlink(f"/proc/{pid}/fd/{fd}") == "/dev/null"
    finally:
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0


def children_of(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
