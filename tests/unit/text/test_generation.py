"""What a model's files recommend for sampling, and which of it is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests import gguf_writer as w

from sixfold.errors import ModelFileError
from sixfold.text import sampling_defaults
from sixfold.text.generation import declared_end_ids


def folder(tmp_path: Path, **content: Any) -> Path:
    (tmp_path / "generation_config.json").write_text(json.dumps(content))
    return tmp_path


def gguf(tmp_path: Path, **sampling: Any) -> Path:
    path = tmp_path / "m.gguf"
    path.write_bytes(w.gguf({f"general.sampling.{key}": value for key, value in sampling.items()}))
    return path


def test_a_model_may_recommend_nothing(tmp_path: Path) -> None:
    assert sampling_defaults(tmp_path) == {}
    assert sampling_defaults(gguf(tmp_path)) == {}
    assert declared_end_ids(tmp_path) == frozenset()


def test_folder(tmp_path: Path) -> None:
    said = {"temperature": 0.6, "top_k": 20, "top_p": 0.95, "min_p": 0.1, "repetition_penalty": 1.05}
    other = {"max_new_tokens": 32, "max_length": 20, "num_beams": 4, "typical_p": 0.5, "transformers_version": "4"}
    assert sampling_defaults(folder(tmp_path, **said, **other, do_sample=True)) == said
    assert sampling_defaults(folder(tmp_path, temperature=1, top_p=None)) == {"temperature": 1}
    assert declared_end_ids(folder(tmp_path, eos_token_id=5)) == {5}
    assert declared_end_ids(folder(tmp_path, eos_token_id=[5, 7])) == {5, 7}


def test_without_sampling_the_temperature_is_zero(tmp_path: Path) -> None:
    path = folder(tmp_path, do_sample=False, temperature=0.6, top_k=5, repetition_penalty=1.1)
    assert sampling_defaults(path) == {"temperature": 0.0, "repetition_penalty": 1.1}


def test_gguf(tmp_path: Path) -> None:
    path = gguf(tmp_path, temp=0.7, top_k=40, top_p=0.95, min_p=0.05, penalty_repeat=1.1, mirostat=2, sequence="k")
    said = {"temperature": 0.7, "top_k": 40, "top_p": 0.95, "min_p": 0.05, "repetition_penalty": 1.1}
    assert sampling_defaults(path) == said


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("temperature", "hot"),
        ("temperature", True),
        ("temperature", 3),
        ("temperature", 10**400),
        ("top_p", 7),
        ("top_p", 0),
        ("top_k", 1.5),
        ("top_k", -2),
        ("min_p", -0.1),
        ("repetition_penalty", 0),
        ("repetition_penalty", [1]),
    ],
)
def test_what_no_request_may_ask_for_is_refused_by_name(tmp_path: Path, name: str, value: Any) -> None:
    with pytest.raises(ModelFileError, match=rf"^generation_config\.json: {name} must"):
        sampling_defaults(folder(tmp_path, **{name: value}))


@pytest.mark.parametrize(
    ("key", "value"), [("temp", -1.0), ("temp", float("nan")), ("top_k", 0.5), ("top_p", "x"), ("penalty_repeat", 9.0)]
)
def test_the_key_of_a_gguf_file_is_named(tmp_path: Path, key: str, value: Any) -> None:
    with pytest.raises(ModelFileError, match=rf"^m\.gguf: general\.sampling\.{key} must"):
        sampling_defaults(gguf(tmp_path, **{key: value}))


@pytest.mark.parametrize("content", ['{"eos_token_id": "a"}', '{"eos_token_id": [true]}', "[]", "{"])
def test_a_broken_file_is_named(tmp_path: Path, content: str) -> None:
    (tmp_path / "generation_config.json").write_text(content)
    with pytest.raises(ModelFileError, match=r"generation_config\.json"):
        declared_end_ids(tmp_path)
