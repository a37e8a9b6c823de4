from __future__ import annotations

import json
from pathlib import Path

import pytest

from sixfold.cli.main import main
from sixfold.cli.settings import DEFAULT, names, resolve, unknown_environment
from sixfold.config import Config
from sixfold.errors import ConfigError


def toml(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "sixfold.toml"
    path.write_text(text)
    return path


def test_defaults_are_those_of_the_configuration() -> None:
    resolved = resolve({}, environment={})
    assert resolved.config == Config()
    assert set(resolved.origins.values()) == {DEFAULT}
    assert list(resolved.values) == list(names())


def test_the_later_source_wins_and_is_named(tmp_path: Path) -> None:
    path = toml(tmp_path, 'port = 1\nhost = "a"\nmax-num-seqs = 3\nheader_timeout_s = 2\n')
    resolved = resolve({"port": 3, "seed": None}, path, {"SIXFOLD_PORT": "2", "SIXFOLD_HOST": "b"})
    assert resolved.config.api.port == 3
    assert resolved.config.api.host == "b"
    assert resolved.config.scheduler.max_num_seqs == 3
    assert resolved.config.api.header_timeout_s == 2.0
    assert resolved.origins["port"] == "flag"
    assert resolved.origins["host"] == "SIXFOLD_HOST"
    assert resolved.origins["max_num_seqs"] == str(path)
    assert resolved.origins["seed"] == DEFAULT


def test_chosen_leaves_out_defaults_and_other_parts() -> None:
    resolved = resolve({"port": 3, "threads": 2}, environment={})
    assert resolved.chosen() == {"threads": 2}
    assert resolved.chosen(("api",)) == {"port": 3}


@pytest.mark.parametrize(("text", "value"), [("true", True), ("0", False), ("Off", False), ("yes", True)])
def test_booleans_from_the_environment(text: str, value: bool) -> None:
    resolved = resolve({}, environment={"SIXFOLD_ENABLE_PREFIX_CACHING": text})
    assert resolved.config.cache.enable_prefix_caching is value


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("SIXFOLD_PORT", "http", "a whole number"),
        ("SIXFOLD_THREADS", "tcp://10.0.0.1:80", "a whole number"),
        ("SIXFOLD_BODY_TIMEOUT_S", "soon", "a number"),
        ("SIXFOLD_ENABLE_PREFIX_CACHING", "maybe", "true or false"),
    ],
)
def test_a_bad_environment_variable_is_named(name: str, text: str, said: str) -> None:
    with pytest.raises(ConfigError, match=f"{name} is .* must be {said}"):
        resolve({}, environment={name: text})


def test_a_value_out_of_range_names_its_origin(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"--port is 70000; it must be between 0 and 65535 \(set by SIXFOLD_PORT\)"):
        resolve({}, environment={"SIXFOLD_PORT": "70000"})
    path = toml(tmp_path, "max_num_seqs = 0")
    with pytest.raises(ConfigError, match=r"--max-num-seqs .* \(set by .*sixfold.toml\)"):
        resolve({}, path, {})
    with pytest.raises(ConfigError) as caught:
        resolve({"port": 70000}, environment={})
    assert caught.value.message == "--port is 70000; it must be between 0 and 65535"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("max_num_seq = 1", "no setting 'max_num_seq'; did you mean max_num_seqs"),
        ("port = true", "port must be a whole number"),
        ('port = "1"', "port must be a whole number"),
        ("host = 1", "host must be text"),
        ("[api]\nport = 1", "no setting 'api'"),
        ("port = ", "not valid TOML"),
    ],
)
def test_a_bad_file_is_refused(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        resolve({}, toml(tmp_path, text), {})


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"none.toml cannot be read: No such file"):
        resolve({}, tmp_path / "none.toml", {})


def test_variables_of_an_orchestrator_are_listed_not_refused() -> None:
    links = ["SIXFOLD_CHAT_PORT", "SIXFOLD_PORT_8000_TCP_ADDR", "SIXFOLD_SERVICE_HOST", "SIXFOLD_SERVICE_PORT_HTTP"]
    environment = {**dict.fromkeys(links, "x"), "SIXFOLD_CACHE": "y", "SIXFOLD_PORT": "1", "PATH": "/"}
    assert unknown_environment(environment) == links
    resolve({}, environment=environment)


def test_the_address_that_an_orchestrator_puts_into_a_setting_is_let_be() -> None:
    environment = {"SIXFOLD_PORT": "tcp://10.0.0.1:8000"}
    resolved = resolve({}, environment=environment)
    assert (resolved.config.api.port, resolved.origins["port"]) == (8000, DEFAULT)
    assert unknown_environment(environment) == ["SIXFOLD_PORT"]
    assert resolve({"port": 9}, environment=environment).config.api.port == 9


def test_misspelt_variables_can_be_collected() -> None:
    misspelt: list[ConfigError] = []
    environment = {"SIXFOLD_PROT": "1", "SIXFOLD_HOTS": "h", "SIXFOLD_SERVICE_HOST": "x", "SIXFOLD_SEED": "4"}
    assert resolve({}, environment=environment, misspelt=misspelt).config.seed == 4
    assert [error.param for error in misspelt] == ["SIXFOLD_HOTS", "SIXFOLD_PROT"]


@pytest.mark.parametrize("as_json", [False, True])
def test_doctor_shows_its_table_with_a_misspelt_variable(
    as_json: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SIXFOLD_MAX_NUM_SEQ", "8")
    monkeypatch.setenv("SIXFOLD_PORT", "tcp://10.0.0.1:8000")
    with pytest.raises(SystemExit) as left:
        main(["doctor", "scripted", *(["--json"] if as_json else [])])
    assert left.value.code == 1
    text = capsys.readouterr().out
    said = "Nothing reads the environment variable 'SIXFOLD_MAX_NUM_SEQ'; did you mean SIXFOLD_MAX_NUM_SEQS?"
    if as_json:
        report = json.loads(text)
        assert report["problems"] == [said]
        assert report["unknown environment variables"] == ["SIXFOLD_PORT"]
    else:
        assert "--max-num-seqs" in text and f"problem: {said}" in text
        assert "note: SIXFOLD_PORT is of Kubernetes" in text


@pytest.mark.parametrize(
    ("name", "hint"),
    [("SIXFOLD_MAX_NUM_SEQ", "; did you mean SIXFOLD_MAX_NUM_SEQS?"), ("SIXFOLD_QQ", ""), ("SIXFOLD_", "")],
)
def test_a_misspelt_variable_is_refused(name: str, hint: str) -> None:
    with pytest.raises(ConfigError) as caught:
        resolve({}, environment={name: "8"})
    assert caught.value.message == f"nothing reads the environment variable {name!r}{hint}"
