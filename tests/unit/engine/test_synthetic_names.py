"""A synthetic model is asked for by name like any other, and made where the cache is."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest

from sixfold.cli.main import main
from sixfold.config import Config
from sixfold.engine import free_memory, resolve
from sixfold.engine.free_memory import FreeMemory
from sixfold.errors import ConfigError, DownloadError, ModelFileError, ModelNotFound
from sixfold.llm import LLM
from sixfold.model_file.random_blocks import RANDOM_TYPES
from sixfold.model_file.synthetic import SHAPES, SyntheticModel
from sixfold.sampling_params import SamplingParams


def model_path(name: str) -> Path:
    return resolve.model_path(Config.from_flat({"model": name}))


def test_made_in_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SIXFOLD_CACHE", str(tmp_path))
    assert model_path("synthetic:tiny@q8_0") == tmp_path / "synthetic" / "tiny-q8_0.gguf"
    assert model_path("synthetic:tiny@q8_0").is_file()


def test_no_such_shape() -> None:
    with pytest.raises(ModelNotFound, match="no synthetic model"):
        model_path("synthetic:large")


def test_a_cache_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("SIXFOLD_CACHE", str(tmp_path / "file"))
    with pytest.raises(DownloadError, match="synthetic:tiny cannot be written to the cache"):
        model_path("synthetic:tiny")


@pytest.mark.parametrize(
    "changes",
    [
        "hidden=33",
        "ffn=31",
        "head_dim=33",
        "head_dim=1024",
        "n_heads=3,n_kv_heads=2",
        "n_heads=32",
        "n_experts=4,n_experts_used=5",
    ],
)
def test_numbers_that_make_no_model_leave_nothing(
    changes: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SIXFOLD_CACHE", str(tmp_path))
    with pytest.raises(ModelFileError, match=re.escape(f"tiny+{changes.replace(',', '+')}-q4_1.gguf: ")):
        model_path(f"synthetic:tiny,{changes}")
    assert not list(tmp_path.iterdir())


def test_a_model_that_does_not_fit_is_refused_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SIXFOLD_CACHE", str(tmp_path))
    monkeypatch.setattr(free_memory, "free_memory", lambda *_: FreeMemory(2_000_000_000))
    name = "synthetic:mixtral-8x7b@q8_0"
    fault = re.escape(f"{name} does not fit: its weights need 49.6 GB and the processes ") + ".*2.0 GB are free"
    with pytest.raises(ConfigError, match=fault):
        LLM(name)
    for command in (["serve", name], ["bench", name], ["run", name, "hi"]):
        with pytest.raises(SystemExit) as left:
            main(command)
        err = capsys.readouterr().err
        assert left.value.code == 1 and re.search(fault, err) and "writing" not in err
    assert not list(tmp_path.iterdir())


def test_writing_is_announced_where_it_is_done(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SIXFOLD_CACHE", str(tmp_path))
    told: list[int] = []
    config = Config.from_flat({"model": "synthetic:tiny"})
    for _ in range(2):
        resolve.model_path(config, told.append)
    assert told == [SyntheticModel.parse("synthetic:tiny").n_bytes]


def test_a_disk_without_room_is_told_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SIXFOLD_CACHE", str(tmp_path))
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=1000))
    with pytest.raises(DownloadError, match=r"it needs \d+ KB of disk space; 1 KB are free"):
        model_path("synthetic:tiny@f32")
    assert not list((tmp_path / "synthetic").iterdir())


SMALL = "n_layers=2,hidden=256,n_heads=4,n_kv_heads=2,head_dim=64,ffn=512,vocab=400"
NAMES = [f"{shape}@q4_1" for shape in SHAPES] + [
    f"{shape}@{kind}" for shape in ("tiny", "phi3-mini") for kind in RANDOM_TYPES
]


@pytest.mark.parametrize("name", NAMES)
def test_every_shape_and_type_answers(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SIXFOLD_CACHE", str(tmp_path))
    shape, _, kind = name.partition("@")
    experts = ",n_experts=4,n_experts_used=2" if SHAPES[shape].n_experts else ""
    settings = {"num_kv_blocks": 16, "max_num_seqs": 2, "threads": 1, "max_model_len": 256}
    with LLM(f"synthetic:{shape},{SMALL}{experts}@{kind}", **settings) as llm:
        [answer] = llm.chat(
            [{"role": "user", "content": "Grüße <|im_end|>"}], SamplingParams(max_tokens=3, temperature=0)
        )
    assert answer.outputs[0].finish_reason in ("length", "stop")
