"""The conversation loop against a stand-in for `LLM`."""

from __future__ import annotations

import io
import os
import signal
import sys
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import click
import msgspec
import pytest

from sixfold.cli import chat, standard_streams
from sixfold.detokenizer import ChoiceDelta
from sixfold.errors import ConfigError, ContextLengthExceeded, InvalidRequest
from sixfold.sampling_params import SamplingParams


class FakeLLM:
    """Answers with the number of messages that it was shown."""

    def __init__(self) -> None:
        self.text = SimpleNamespace(name="fake", chat_template=object(), sampling_defaults={})
        self.shown: list[Any] = []
        self.aborted = 0
        self.interrupt_after: int | None = None
        self.full = False
        self.room: int | None = None
        self.params: list[SamplingParams] = []

    def stream(self, asked: Any, params: SamplingParams) -> Iterator[ChoiceDelta]:
        if self.full:
            raise ContextLengthExceeded("too long")
        if self.room is not None and (params.max_tokens or 0) > self.room:
            raise ContextLengthExceeded(f"room for {self.room}")
        self.shown.append(asked)
        self.params.append(params)
        return self._deltas(asked, params)

    def _deltas(self, asked: Any, params: SamplingParams) -> Iterator[ChoiceDelta]:
        done = False
        try:
            for index, piece in enumerate(("answer ", "to ", f"{len(asked)}", "\x1b[2J")):
                if index == self.interrupt_after:
                    os.kill(os.getpid(), signal.SIGINT)
                yield ChoiceDelta(index=0, text=piece, token_ids=[index])
            if params.max_tokens == 4 or self.room == 4:
                yield ChoiceDelta(index=0, finish_reason="length")
            done = True
        finally:
            self.aborted += not done


def converse(
    monkeypatch: pytest.MonkeyPatch, llm: FakeLLM, lines: str, opening: list[dict[str, str]] | None = None
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO(lines))
    chat._converse(llm, SamplingParams(), opening or [])  # type: ignore[arg-type]


def test_a_conversation_grows_and_reset_forgets(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    llm = FakeLLM()
    opening = [{"role": "system", "content": "Be brief."}]
    converse(monkeypatch, llm, "one\n\ntwo\n/reset\nthree\n/exit\nfour\n", opening)
    assert [len(messages) for messages in llm.shown] == [2, 4, 2]
    assert llm.shown[1][2] == {"role": "assistant", "content": "answer to 2\x1b[2J"}
    assert llm.shown[2][0] == opening[0]
    out = capsys.readouterr().out
    assert "answer to 4" in out
    assert "\x1b" not in out, "a model's text must not reach the terminal as control sequences"


def test_end_of_input_leaves(monkeypatch: pytest.MonkeyPatch) -> None:
    llm = FakeLLM()
    converse(monkeypatch, llm, "one\n")
    assert len(llm.shown) == 1


def test_ctrl_c_stops_the_answer_not_the_program(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    llm = FakeLLM()
    llm.interrupt_after = 1
    before = signal.getsignal(signal.SIGINT)
    converse(monkeypatch, llm, "one\ntwo\n")
    assert signal.getsignal(signal.SIGINT) is before
    assert llm.aborted == 2, "the engine must be told"
    assert [len(messages) for messages in llm.shown] == [1, 3], "what was answered stays in the conversation"
    assert "answer to 1" not in capsys.readouterr().out


def test_a_full_context_is_said_and_the_question_dropped(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    llm = FakeLLM()
    llm.full = True
    converse(monkeypatch, llm, "one\n")
    assert "too long; /reset starts a new conversation" in capsys.readouterr().err


def test_ctrl_c_twice_at_the_prompt_leaves(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    presses = iter([KeyboardInterrupt(), "hello", KeyboardInterrupt(), KeyboardInterrupt()])

    def read() -> str:
        press = next(presses)
        if isinstance(press, BaseException):
            raise press
        return press

    monkeypatch.setattr(chat, "read_line", read)
    llm = FakeLLM()
    chat._converse(llm, SamplingParams(), [])  # type: ignore[arg-type]
    assert len(llm.shown) == 1
    assert capsys.readouterr().out.count("Ctrl-C again leaves") == 2


@pytest.mark.parametrize(("typed", "code"), [(True, standard_streams.NOT_TEXT), (True, None), (False, "not_text")])
def test_a_typed_line_that_is_no_text_is_said_and_forgotten(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], typed: bool, code: str | None
) -> None:
    lines = iter([InvalidRequest("no text", code=code), "hello", EOFError()])

    def read() -> str:
        line = next(lines)
        if isinstance(line, BaseException):
            raise line
        return line

    monkeypatch.setattr(chat, "read_line", read)
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(isatty=lambda: typed))
    llm = FakeLLM()
    if typed and code is not None:
        chat._converse(llm, SamplingParams(), [])  # type: ignore[arg-type]
        assert "(no text)" in capsys.readouterr().err
        assert len(llm.shown) == 1
    else:  # what comes next may be the same for ever
        with pytest.raises(InvalidRequest):
            chat._converse(llm, SamplingParams(), [])  # type: ignore[arg-type]


def test_run_prints_one_answer(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    llm = FakeLLM()
    text, stopped = chat._answer(llm, "Once", SamplingParams())  # type: ignore[arg-type]
    assert (text, stopped) == ("answer to 4\x1b[2J", False)
    assert capsys.readouterr().out == "answer to 4[2J\n"


@pytest.mark.parametrize(("max_tokens", "room", "said"), [(4, None, "--max-tokens"), (1024, 4, "the context is full")])
def test_an_answer_that_was_cut_says_so(
    capsys: pytest.CaptureFixture[str], max_tokens: int, room: int | None, said: str
) -> None:
    llm = FakeLLM()
    llm.room = room
    chat._answer(llm, "Once", SamplingParams(max_tokens=max_tokens))  # type: ignore[arg-type]
    assert capsys.readouterr().err == f"(cut at 4 tokens; {said})\n"


def test_a_length_that_was_asked_for_is_not_shortened() -> None:
    llm = FakeLLM()
    llm.room = 4
    with pytest.raises(ContextLengthExceeded):
        chat._answer(llm, "Once", SamplingParams(max_tokens=5))  # type: ignore[arg-type]


def test_an_unknown_command_is_said(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    llm = FakeLLM()
    converse(monkeypatch, llm, "/foo\n")
    out = capsys.readouterr().out
    assert "unknown command /foo" in out
    assert "Ctrl-C" in out and "Ctrl-D" in out
    assert llm.shown == []


def test_help_is_a_command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    converse(monkeypatch, FakeLLM(), "/help\n")
    out = capsys.readouterr().out
    assert chat.HELP in out and "unknown" not in out


def test_run_takes_a_prompt_or_a_model_and_a_prompt() -> None:
    def parsed(*arguments: str) -> Any:
        with chat.run.make_context("run", list(arguments)) as ctx:
            return ctx.params["words"]

    assert parsed("Why?") == (None, "Why?")
    assert parsed("-") == (None, "-")
    assert parsed("a/b.gguf", "Why?") == ("a/b.gguf", "Why?")
    with pytest.raises(click.UsageError, match="`-` reads it from standard input"):
        parsed()
    for wrong in ((), ("smollm2",), ("model.gguf",), ("Why", "is", "it?")):
        with pytest.raises(click.UsageError):
            parsed(*wrong)


def test_the_user_goes_before_the_model_and_the_model_before_chat() -> None:
    llm: Any = FakeLLM()
    assert chat._params(llm, {}) == SamplingParams(temperature=0.7, top_p=0.95)
    llm.text.sampling_defaults = {"temperature": 0.2, "top_k": 20, "repetition_penalty": 1.1}
    recommended = SamplingParams(temperature=0.2, top_p=0.95, top_k=20, repetition_penalty=1.1)
    assert chat._params(llm, {}) == recommended
    wanted, flags = chat._split({"max_tokens": 5, "temperature": 0.0, "top_p": None, "top_k": None, "seed": 3})
    assert flags == {"seed": 3}
    assert chat._params(llm, wanted) == msgspec.structs.replace(recommended, max_tokens=5, temperature=0.0)
    with pytest.raises(ConfigError, match=r"^--temperature must be at least 0"):
        chat._split({"max_tokens": 5, "temperature": 9.0, "top_p": None, "top_k": None})


@pytest.mark.parametrize("n", ["0", "-1"])
def test_an_answer_of_no_tokens_is_refused(n: str) -> None:
    with pytest.raises(click.BadParameter, match="x>=1"):
        chat.run.main(["hi", "--max-tokens", n], standalone_mode=False)
