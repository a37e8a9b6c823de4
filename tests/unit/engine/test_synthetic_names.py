"""A synthetic model is asked for by name like any other, and made where the cache is."""

from __future__ import annotations

from pathlib import Path

import pytest

from sixfold.engine.launch import model_path
from sixfold.errors import DownloadError, ModelNotFound
from sixfold.llm import LLM
from sixfold.model_file.random_blocks import RANDOM_TYPES
from sixfold.model_file.synthetic import SHAPES
from sixfold.sampling_params import SamplingParams


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
