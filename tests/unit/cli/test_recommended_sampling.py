"""`show` and `doctor` tell what a model's files recommend for sampling."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.unit.engine.test_odd_models import save

from sixfold.cli.main import main


def printed(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[object, str]:
    with pytest.raises(SystemExit) as left:
        main([*arguments])
    return left.value.code, capsys.readouterr().out


def test_show_and_doctor(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plain = str(save(tmp_path / "plain.gguf"))
    said = str(save(tmp_path / "said.gguf", **{"general.sampling.temp": 0.6, "general.sampling.top_k": 20}))
    assert "nothing is recommended" in printed(capsys, "show", plain)[1]
    assert "temperature 0.6, top_k 20: of requests that do not give them" in printed(capsys, "show", said)[1]
    assert json.loads(printed(capsys, "show", said, "--json")[1])["sampling"] == {"temperature": 0.6, "top_k": 20}

    def entry(*arguments: str) -> object:
        return json.loads(printed(capsys, "doctor", *arguments, "--json")[1])["settings"]["--generation-config"]

    auto = {"value": "auto", "origin": "default"}
    assert entry(plain) == auto
    assert entry(said) == {**auto, "means": "temperature 0.6, top_k 20"}
    assert entry(said, "--generation-config", "none") == {"value": "none", "origin": "flag"}


def test_doctor_names_a_recommendation_that_cannot_be_used(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = str(save(tmp_path / "m.gguf", **{"general.sampling.top_p": 0.0}))
    code, text = printed(capsys, "doctor", path)
    assert code == 1
    assert "gguf: general.sampling.top_p must be above 0 and at most 1" in text.replace("\n", " ")


def test_show_tells_a_recommendation_that_cannot_be_used(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = str(save(tmp_path / "m.gguf", **{"general.sampling.top_p": 0.0}))
    code, text = printed(capsys, "show", path)
    assert code == 0 and "sampling      m.gguf: general.sampling.top_p must be above 0" in text
    report = json.loads(printed(capsys, "show", path, "--json")[1])
    assert report["sampling"] == {} and "top_p" in report["sampling_fault"]
