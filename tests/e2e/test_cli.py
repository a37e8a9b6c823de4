"""The `sixfold` command as a person runs it: real processes and a terminal, on the scripted executor."""

from __future__ import annotations

import contextlib
import json
import os
import re
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from sixfold import LLM, SamplingParams
from sixfold.cli.measurement import tokens_sha256

SCRIPTED = ("scripted", "--executor", "scripted")
WAIT_S = 30.0


def sixfold(*arguments: str, stdin: str = "", **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "sixfold", *arguments],
        input=stdin,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env={**os.environ, **environment},
    )


class Terminal:
    """A process at a pseudo-terminal."""

    def __init__(self, process: subprocess.Popen[bytes], fd: int) -> None:
        self.process = process
        self.fd = fd
        self.seen = ""

    def type(self, text: str) -> None:
        os.write(self.fd, text.encode())

    def press_ctrl_c(self) -> None:
        self.process.send_signal(signal.SIGINT)

    def wait_for(self, expected: str, *, after: int = 0, wait_s: float = WAIT_S) -> int:
        """Read until `expected` appears beyond index `after`; returns the index behind it."""
        deadline = time.monotonic() + wait_s
        while (at := self.seen.find(expected, after)) < 0:
            ready, _, _ = select.select([self.fd], [], [], max(0.0, deadline - time.monotonic()))
            if not ready:
                raise TimeoutError(f"{expected!r} did not come; there was {self.seen!r}")
            self.seen += os.read(self.fd, 4096).decode()
        return at + len(expected)

    def press_ctrl_c_until(self, expected: str, *, after: int) -> int:
        """At the prompt. A signal between printing the prompt and waiting for a key is only noticed with the next one
        (so it is in CPython), hence the repetition; both together count once."""
        for _ in range(10):
            self.press_ctrl_c()
            with contextlib.suppress(TimeoutError):
                return self.wait_for(expected, after=after, wait_s=2.0)
        raise AssertionError(f"{expected!r} did not come; there was {self.seen!r}")


@contextlib.contextmanager
def terminal(*arguments: str) -> Iterator[Terminal]:
    ours, theirs = os.openpty()
    command = [sys.executable, "-m", "sixfold", *arguments]
    with subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True) as process:
        os.close(theirs)
        try:
            yield Terminal(process, ours)
        finally:
            process.kill()
            os.close(ours)


@pytest.fixture
def answer(tmp_path: Path) -> str:
    """A script file: every answer is these tokens, 20 ms each."""
    path = tmp_path / "script.json"
    path.write_text(json.dumps({"script": list("abcdefghijklmnopqrstuvwxyz" * 4), "step_ms": 20}))
    return str(path)


def test_chat_in_a_terminal_ctrl_c_stops_the_answer(answer: str) -> None:
    with terminal("chat", *SCRIPTED, "--script", answer) as screen:
        at = screen.wait_for("You talk to scripted")
        at = screen.wait_for("> ", after=at)
        screen.type("hello\n")
        at = screen.wait_for("abcdef", after=at)
        screen.press_ctrl_c()
        at = screen.wait_for("> ", after=at)
        assert screen.seen.count("xyz") < 4, "the answer ran to its end"
        screen.type("again\n")
        at = screen.wait_for("abcdef", after=at)
        screen.press_ctrl_c()
        at = screen.wait_for("> ", after=at)
        screen.type("/reset\n")
        at = screen.wait_for("(forgotten)", after=at)
        at = screen.wait_for("> ", after=at)
        at = screen.press_ctrl_c_until("(Ctrl-C again leaves)", after=at)
        at = screen.wait_for("> ", after=at)
        screen.press_ctrl_c_until("\n", after=at)
        assert screen.process.wait(WAIT_S) == 0


def test_chat_reads_a_pipe(answer: str) -> None:
    done = sixfold("chat", *SCRIPTED, "--script", answer, "--max-tokens", "3", stdin="one\n/reset\ntwo\n")
    cut = "(cut at 3 tokens; --max-tokens)\n"
    assert (done.returncode, done.stdout, done.stderr) == (0, "abc\n(forgotten)\nabc\n", 2 * cut)


def test_run_prints_the_answer_and_nothing_else(answer: str) -> None:
    for arguments in (("run", "hi"), ("run", "scripted", "hi"), ("run", "scripted", "hi", "--raw")):
        done = sixfold(*arguments, "--executor", "scripted", "--script", answer, "--max-tokens", "5")
        assert (done.returncode, done.stdout) == (0, "abcde\n")
        assert done.stderr == "(cut at 5 tokens; --max-tokens)\n"
    whole = sixfold("run", "scripted", "hi", "--script", answer)
    assert (whole.stdout, whole.stderr) == ("abcdefghijklmnopqrstuvwxyz" * 4 + "\n", "")
    done = sixfold(
        "run", "scripted", "-", "--executor", "scripted", "--script", answer, "--max-tokens", "2", stdin="hi"
    )
    assert done.stdout == "ab\n"


def test_the_example_of_the_scripted_page_is_right(tmp_path: Path) -> None:
    page = (Path(__file__).parents[2] / "docs" / "scripted.md").read_text()
    [example] = re.findall(r"```json\n(.*?)```", page, re.DOTALL)
    path = tmp_path / "answer.json"
    path.write_text(example)
    done = sixfold("run", "scripted", "Hello?", "--script", str(path), "--max-tokens", "5")  # four, and the end token
    assert (done.stdout, done.stderr) == ("Hello, world!\n", "")
    done = sixfold("run", "scripted", "Hello?", "--script", str(path), "--max-tokens", "3")
    assert done.stdout == "Hello, world\n"
    path.write_text(json.dumps({"script": ["Fine", -1]}))
    done = sixfold("run", "scripted", "Hello?", "--script", str(path))
    assert (done.returncode, done.stdout) == (1, "Fine")
    assert "no usable logits" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (("run", "no-such-model", "hi"), 1, "no-such-model"),
        (("run", "scripted", "hi", "--executor", "scripted", "--temperature", "9"), 2, " --temperature must"),
        (("run", "hi", "--top-p", "0"), 2, " --top-p must be above 0"),
        (("chat", "--top-k", "-5"), 2, " --top-k must be between"),
        (("show", "smollm2", "--max-num-seqs", "5000"), 2, "--max-num-seqs is 5000; it must be between 1 and 4096"),
        (("run", "scripted", "hi", "--executor", "scripted", "--script", "/none.json"), 2, "--script"),
        (("rm", "smollm2"), 1, "sixfold: smollm2 is not on this machine"),
        (("serve", "scripted", "--host", "203.0.113.7", "--port", "0"), 2, "--host 203.0.113.7"),
        (("serve", "--pipeline-depth", "3"), 2, "--pipeline-depth"),
        (("serve", "--config", "/none.toml"), 2, "/none.toml"),
    ],
)
def test_a_mistake_is_one_sentence(arguments: tuple[str, ...], code: int, said: str) -> None:
    done = sixfold(*arguments, SIXFOLD_CACHE="/nonexistent")
    assert done.returncode == code
    assert said in done.stderr
    assert "Traceback" not in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert done.stdout == ""


@pytest.mark.parametrize("arguments", ["serve", "run smollm2 hi", "bench", "doctor"])
def test_a_missing_build_of_the_kernels_is_named(arguments: str) -> None:
    done = sixfold(*arguments.split(), SIXFOLD_ISA="mmx")
    assert done.returncode == (1 if arguments == "doctor" else 2)
    said = done.stdout + done.stderr
    assert said.count("SIXFOLD_ISA: instruction set 'mmx' is not available here; there is: ") == 1
    assert "cannot be loaded" not in said
    assert "generic" in said
    assert "Traceback" not in said


def test_a_missing_build_of_the_kernels_has_a_named_error_in_python() -> None:
    code = "import sixfold\ntry: sixfold.LLM('synthetic:tiny')\nexcept sixfold.errors.ConfigError as e: print(e)"
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "SIXFOLD_ISA": "mmx"},
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    assert "'mmx' is not available here" in done.stdout


def test_doctor_tells_value_and_origin(tmp_path: Path) -> None:
    config = tmp_path / "sixfold.toml"
    config.write_text("threads = 1\n")
    done = sixfold(
        "doctor", "--config", str(config), "--port", "9", "--json", SIXFOLD_SEED="4", SIXFOLD_SERVICE_HOST="x"
    )
    report = json.loads(done.stdout)
    assert report["settings"]["--threads"] == {"value": 1, "origin": str(config)}
    assert report["settings"]["--port"] == {"value": 9, "origin": "flag"}
    assert report["settings"]["--seed"] == {"value": 4, "origin": "SIXFOLD_SEED"}
    assert report["settings"]["--host"] == {"value": "127.0.0.1", "origin": "default"}
    assert report["unknown environment variables"] == ["SIXFOLD_SERVICE_HOST"]
    assert report["problems"] == []
    assert done.returncode == 0
    assert "--threads" in sixfold("doctor").stdout


def test_doctor_tells_what_is_automatic_and_a_taken_port() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        report = json.loads(sixfold("doctor", "scripted", "--port", str(port), "--json").stdout)
    assert report["settings"]["--max-queued-requests"]["means"] == 4 * 64
    assert "means" not in report["settings"]["--max-num-seqs"]
    assert report["notes"] == [f"`serve` cannot listen on 127.0.0.1:{port} now: Address already in use"]


def test_bench_hashes_the_tokens_that_generate_gives() -> None:
    shape = ("--prefill", "40", "--decode", "1,3", "--prompt-tokens", "20", "--output-tokens", "24", "--json")
    report = json.loads(sixfold("bench", *SCRIPTED, *shape).stdout)
    assert {"prefill_40", "decode_1", "decode_3", "limits", "isa", "cores"} <= set(report)
    assert report["tokens_agree"] is True
    with LLM("scripted", executor="scripted") as llm:
        params = SamplingParams(max_tokens=24, temperature=0, ignore_eos=True)
        [output] = llm.generate([report["prompt_token_ids"]], params)
    assert report["tokens_sha256"] == tokens_sha256(output.outputs[0].token_ids)
