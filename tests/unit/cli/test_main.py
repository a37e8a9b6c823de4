from __future__ import annotations

import subprocess
import sys

import click
import pytest

from sixfold.cli import main as cli_main
from sixfold.cli.settings import TITLES
from sixfold.errors import ConfigError, ModelNotFound


def exit_code(*arguments: str) -> int:
    with pytest.raises(SystemExit) as caught:
        cli_main.main(arguments)
    code = caught.value.code
    assert isinstance(code, int)
    return code


def raise_from_list(monkeypatch: pytest.MonkeyPatch, error: BaseException) -> None:
    def fail() -> int:
        raise error

    command = cli_main.cli.get_command(click.Context(cli_main.cli), "list")
    assert command is not None
    monkeypatch.setattr(command, "callback", fail)


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (ModelNotFound("no model 'x'"), 1, "sixfold: no model 'x'"),
        (ConfigError("--port is at most 65535"), 2, "sixfold: --port is at most 65535"),
        (RuntimeError("boom"), 1, "sixfold: unexpected RuntimeError: boom"),
        (KeyboardInterrupt(), 130, ""),
        (click.UsageError("no"), 2, "no"),
    ],
)
def test_errors_are_one_sentence_and_an_exit_code(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], error: BaseException, code: int, said: str
) -> None:
    raise_from_list(monkeypatch, error)
    assert exit_code("list") == code
    captured = capsys.readouterr()
    assert said in captured.err
    assert "Traceback" not in captured.err + captured.out


def test_traceback_on_demand(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    raise_from_list(monkeypatch, RuntimeError("boom"))
    for arguments in (("--traceback", "list"), ("list", "--traceback")):
        assert exit_code(*arguments) == 1
        assert "Traceback" in capsys.readouterr().err


def test_usage_errors_exit_with_2(capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_code("serve", "--no-such-flag") == 2
    assert exit_code("serve", "--port", "x") == 2
    assert exit_code("serve", "--port", "70000") == 2
    assert exit_code("bench", "--decode", "1,x") == 2
    assert exit_code("bench", "--decode", "0") == 2
    for option in ("--prefill", "--decode"):
        for none in ("", ",", " , "):
            assert exit_code("bench", option, none) == 2
    assert "Traceback" not in capsys.readouterr().err


@pytest.mark.parametrize(
    ("typed", "meant"), [("serv", "serve"), ("banch", "bench"), ("ls", "list"), ("frobnicate", None)]
)
def test_a_misspelt_command_gets_a_hint(typed: str, meant: str | None, capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_code(typed) == 2
    said = capsys.readouterr().err
    assert f"No such command '{typed}'." in said
    assert (f"Did you mean '{meant}'?" in said) if meant else ("Did you mean" not in said)


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_code("--version") == 0
    assert capsys.readouterr().out.startswith("sixfold ")


def test_the_help_of_serve_has_a_heading_for_each_part(capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_code("serve", "--help") == 0
    text = capsys.readouterr().out
    headings = [line.rstrip(":") for line in text.splitlines() if line[:1].isalpha() and line.endswith(":")]
    assert headings == ["Options", *TITLES.values()]
    for title, flag in (("Options", "--config"), ("Scheduler", "--max-num-seqs"), ("HTTP API", "--port")):
        assert flag in text.split(f"\n{title}:")[1].split("\n\n")[0]


def test_help_loads_nothing_heavy() -> None:
    """What makes `sixfold --help` quick is what it does not import; a time would depend on the machine."""
    program = (
        "import sys\n"
        "from sixfold.cli.main import main\n"
        "try: main(['--help'])\n"
        "except SystemExit: pass\n"
        "heavy = {'numpy', 'tokenizers', 'starlette', 'uvicorn', 'rich', 'jinja2', 'asyncio', 'importlib.metadata'}\n"
        "print('LOADED', sorted(heavy & set(sys.modules)))\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.splitlines()[-1] == "LOADED []"
    assert "serve" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "said"),
    [(("help",), "Usage: sixfold"), (("help", "rm"), "Usage: sixfold rm"), (("version",), "sixfold ")],
)
def test_what_people_type_is_understood(
    capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], said: str
) -> None:
    assert exit_code(*arguments) == 0
    assert capsys.readouterr().out.startswith(said)


def test_importing_the_command_leaves_the_handler_of_ctrl_c() -> None:
    program = "import signal, sixfold.cli.main; print(signal.getsignal(signal.SIGINT) is signal.default_int_handler)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "True\n"
