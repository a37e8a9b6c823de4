"""What was asked for and would make no difference is refused, and a file that cannot be written is named."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from sixfold import LLM
from sixfold.cli.main import main
from sixfold.cli.output_file import check_output
from sixfold.config import Config, settings
from sixfold.errors import ConfigError

NOBODY = "http://127.0.0.1:9"


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    with pytest.raises(SystemExit) as left:
        main(arguments)
    assert left.value.code == 2
    return capsys.readouterr().err


@pytest.mark.parametrize("command", [["serve"], ["chat"], ["run", "hi"], ["bench"]])
def test_a_script_needs_the_scripted_executor(command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    said = refused(capsys, *command, "--script", "no-such-file.json")
    assert said.startswith("sixfold: --script needs the scripted executor")


def test_a_script_in_python_needs_the_scripted_executor() -> None:
    with pytest.raises(ConfigError, match=r"^script needs the scripted executor"):
        LLM("smollm2", script="x.json")
    for scripted in ({"model": "scripted"}, {"model": "smollm2", "executor": "scripted"}):
        assert Config.from_flat({**scripted, "script": "x.json"}).executor.script == "x.json"


@pytest.mark.parametrize("option", [("--prefill", "64"), ("--repeat", "3")])
def test_a_breakdown_has_no_prefills(option: tuple[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    assert f"{option[0]} has no place with --breakdown" in refused(capsys, "bench", "--breakdown", *option)


def test_a_trace_of_a_request_has_its_own_length(capsys: pytest.CaptureFixture[str]) -> None:
    assert "--seconds has no place" in refused(capsys, "trace", "--request", "r", "--seconds", "5", "--url", NOBODY)


@pytest.mark.parametrize(
    ("name", "said"),
    [("none/x.json", "no such file or directory"), ("file/x.json", "not a directory")],
)
def test_a_trace_that_cannot_be_written_is_said_before_anybody_is_asked(
    name: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")
    path = str(tmp_path / name)
    assert refused(capsys, "trace", "-o", path, "--url", NOBODY) == f"sixfold: -o {path} cannot be written: {said}\n"


def test_an_output_is_looked_at_and_left_alone(tmp_path: Path) -> None:
    check_output(tmp_path / "new")
    check_output(Path("new-in-this-folder"))
    (tmp_path / "old").write_text("kept")
    check_output(tmp_path / "old")
    assert os.listdir(tmp_path) == ["old"] and (tmp_path / "old").read_text() == "kept"
    with pytest.raises(ConfigError, match=r"^--json .* cannot be written: is a directory"):
        check_output(tmp_path, "--json")


@pytest.mark.parametrize(
    ("setting", "value", "said"),
    [
        ("max_num_seqs", "8", "max_num_seqs is '8'; it must be a whole number"),
        ("max_num_seqs", True, "max_num_seqs is True; it must be a whole number"),
        ("max_model_len", 1.0, "max_model_len is 1.0; it must be a whole number"),
        ("max_queue_wait_s", "1", "max_queue_wait_s is '1'; it must be a number"),
        ("kv_cache_memory", 1 << 30, "kv_cache_memory is 1073741824; it must be text"),
        ("enable_prefix_caching", 1, "enable_prefix_caching is 1; it must be true or false"),
    ],
)
def test_a_setting_of_another_type_is_named_in_python(setting: str, value: object, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        LLM("smollm2", **{setting: value})
    assert caught.value.message == said


def test_every_setting_has_its_type() -> None:
    for name in (f.name for _, f in settings().values()):
        with pytest.raises(ConfigError, match="it must be"):
            Config.from_flat({name: None})
    assert Config.from_flat({"hang_timeout_s": 5}).hang_timeout_s == 5


def test_a_host_that_is_none_is_refused_without_a_word_about_who_reaches_it(
    capfd: pytest.CaptureFixture[str], runtime_dir: Path
) -> None:
    with pytest.raises(SystemExit) as left:
        main(["serve", "scripted", "--host", "203.0.113.7", "--insecure-no-auth"])
    assert left.value.code == 2
    (said,) = capfd.readouterr().err.splitlines()
    assert said.startswith("sixfold: --host 203.0.113.7 is no address of this machine")
