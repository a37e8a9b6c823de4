"""Synthetic models: every shape and type is a sound file of the size that it says, always the same."""

from __future__ import annotations

import hashlib
import multiprocessing
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from tests.fixtures import forward

from sixfold.errors import ModelFileError, ModelNotFound
from sixfold.model_file import GGUFFile, ModelFile, open_model
from sixfold.model_file.random_blocks import RANDOM_TYPES, random_blocks
from sixfold.model_file.synthetic import SHAPES, SyntheticModel, cached, is_synthetic, list_cached
from sixfold.text import ChatTemplate, gguf_tokenizer

SMALL = "n_layers=2,hidden=64,n_heads=2,n_kv_heads=1,head_dim=32,ffn=96,vocab=300"


def small(shape: str, folder: Path, kind: str = "f32") -> ModelFile:
    changes = SMALL
    if SHAPES[shape].n_experts:
        changes += ",n_experts=4,n_experts_used=2"
    return open_model(cached(f"synthetic:{shape},{changes}@{kind}", folder))


@pytest.mark.parametrize("shape", SHAPES)
def test_every_shape_can_be_computed_with(shape: str, tmp_path: Path) -> None:
    file = small(shape, tmp_path)
    assert file.config.architecture == SHAPES[shape].architecture
    logits = forward.logits(file, [1, 2, 3, 4])
    assert logits.shape == (4, 300)
    assert 0.2 < logits.std() < 8
    assert file.unused() == []


@pytest.mark.parametrize(
    ("shape", "parameters"),
    [
        ("smollm2-135m", 134.5e6),
        ("llama-1b", 1.236e9),
        ("llama-8b", 8.03e9),
        ("mixtral-8x7b", 46.7e9),
        ("qwen2-7b", 7.6e9),
        ("qwen3-4b", 4.02e9),
        ("qwen3moe-30b", 30.5e9),
        ("gemma3-270m", 268e6),
        ("phi3-mini", 3.82e9),
        ("olmo2-7b", 7.3e9),
        ("gemma2-9b", 9.24e9),
        ("smollm3-3b", 3.08e9),
    ],
)
def test_shapes_have_the_parameters_of_their_models(shape: str, parameters: float) -> None:
    found = sum(np.prod(t.shape, dtype=float) for t in SyntheticModel.parse(f"synthetic:{shape}").tensors())
    assert found == pytest.approx(parameters, rel=0.01)


@pytest.mark.parametrize("kind", RANDOM_TYPES)
def test_every_type_has_the_size_that_it_says(kind: str, tmp_path: Path) -> None:
    name = f"synthetic:tiny,hidden=256,head_dim=128,ffn=512@{kind}"
    path = cached(name, tmp_path)
    file = GGUFFile.open(path)
    assert file.tensor("blk.0.ffn_down.weight").type_name.lower() == kind
    n_bytes = sum(info.n_bytes for info in file.tensors.values())
    assert n_bytes == SyntheticModel.parse(name).n_bytes < path.stat().st_size < n_bytes + 64_000


def test_rows_that_do_not_divide_take_another_type(tmp_path: Path) -> None:
    file = GGUFFile.open(cached("synthetic:tiny,ffn=80@q4_k", tmp_path))
    assert file.tensor("blk.0.ffn_gate.weight").type_name == "Q8_0"
    assert file.tensor("blk.0.ffn_down.weight").type_name == "F16"


def test_random_bytes_are_the_same_everywhere() -> None:
    first = b"".join(piece.tobytes() for piece in random_blocks("a", RANDOM_TYPES["q4_1"], 64, 0.1))
    again = b"".join(piece.tobytes() for piece in random_blocks("a", RANDOM_TYPES["q4_1"], 64, 0.1))
    other = b"".join(piece.tobytes() for piece in random_blocks("b", RANDOM_TYPES["q4_1"], 64, 0.1))
    assert first == again != other
    assert len(first) == 40


@pytest.mark.parametrize("kind", ["f32", "f16", "bf16", "q8_0", "q4_1"])
def test_random_values_have_the_wanted_spread(kind: str) -> None:
    raw = np.concatenate(list(random_blocks("w", RANDOM_TYPES[kind], 1 << 16, 0.125)))
    if kind == "q8_0":
        blocks = raw.reshape(-1, 34)
        values = blocks[:, :2].copy().view("<f2") * blocks[:, 2:].copy().view(np.int8).astype(np.float32)
    elif kind == "q4_1":
        blocks = raw.reshape(-1, 20)
        d, m = blocks[:, :2].copy().view("<f2"), blocks[:, 2:4].copy().view("<f2")
        values = d.astype(np.float32) * np.concatenate([blocks[:, 4:] & 15, blocks[:, 4:] >> 4], axis=1) + m
    else:
        values = forward.to_float32(raw, RANDOM_TYPES[kind])
    assert values.std() == pytest.approx(0.125, rel=0.02)
    assert abs(values.mean()) < 0.003


def test_a_file_is_made_once(tmp_path: Path) -> None:
    path = cached("synthetic:tiny@q8_0", tmp_path)
    stamp = path.stat().st_mtime_ns
    assert cached("synthetic:tiny@q8_0", tmp_path).stat().st_mtime_ns == stamp
    assert [p.name for p in path.parent.iterdir()] == ["tiny-q8_0.gguf"]


@pytest.mark.parametrize(
    ("name", "sha256"),
    [
        ("synthetic:tiny@q4_1", "ac0936074ab1b259dacd4cd5eb6bbd081866e6e8f94fd26d4641876fd45da79a"),
        ("synthetic:tiny,hidden=256,ffn=512@q6_k", "2c5b08d15a3d2c11a401e20ecd278301f338fad7d45ddd574994d1711533617c"),
        ("synthetic:tiny@bf16", "0701b8d3e4956b6953b02a3bce05d9388ae7b0080c0a88b345b5ba8876032ed0"),
    ],
)
def test_a_file_is_the_same_everywhere(name: str, sha256: str, tmp_path: Path) -> None:
    assert hashlib.sha256(cached(name, tmp_path).read_bytes()).hexdigest() == sha256


def test_an_interrupt_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> Iterator[np.ndarray]:
        yield np.zeros(8, np.uint8)
        raise KeyboardInterrupt

    monkeypatch.setattr("sixfold.model_file.synthetic.random_blocks", broken)
    with pytest.raises(KeyboardInterrupt):
        cached("synthetic:tiny", tmp_path)
    assert list((tmp_path / "synthetic").iterdir()) == []


def test_what_is_in_a_cache(tmp_path: Path) -> None:
    assert list_cached(tmp_path) == []
    for name in ("synthetic:tiny,vocab=300,ffn=64@q8_0", "synthetic:tiny@q4_1"):
        cached(name, tmp_path)
    for file in (".tiny-f32.gguf.1.part", "other.gguf", "tiny-layers=3-q8_0.gguf"):
        (tmp_path / "synthetic" / file).write_bytes(b"not a synthetic model")
    found = dict(list_cached(tmp_path))
    assert set(found) == {"synthetic:tiny,vocab=300,ffn=64@q8_0", "synthetic:tiny@q4_1"}
    assert found["synthetic:tiny@q4_1"] == cached("synthetic:tiny@q4_1", tmp_path).stat().st_size


def test_what_a_killed_process_left_is_removed(tmp_path: Path) -> None:
    (tmp_path / "synthetic").mkdir()
    (tmp_path / "synthetic" / ".tiny-q4_1.gguf.4711.part").write_bytes(b"half")
    path = cached("synthetic:tiny", tmp_path)
    assert list(path.parent.iterdir()) == [path]


def test_a_disk_that_is_too_small_is_noticed_before(tmp_path: Path) -> None:
    with pytest.raises(OSError, match=r"needs 1,063.1 GB of disk space; [\d,.]+ GB are free"):
        cached("synthetic:tiny,vocab=1000000,hidden=1000000", tmp_path)
    assert list((tmp_path / "synthetic").iterdir()) == []


def _make(folder: str) -> int:
    return cached("synthetic:tiny,vocab=20000", Path(folder)).stat().st_ino


def test_processes_that_ask_at_once_get_one_file(tmp_path: Path) -> None:
    with multiprocessing.get_context("spawn").Pool(3) as pool:
        assert len(set(pool.map(_make, [str(tmp_path)] * 3, chunksize=1))) == 1
    assert len(list((tmp_path / "synthetic").iterdir())) == 1


def test_an_outline_says_the_same_and_takes_no_space(tmp_path: Path) -> None:
    model = SyntheticModel.parse("synthetic:llama-8b@q4_k")
    path = model.outline(tmp_path)
    stat = path.stat()
    assert stat.st_size > model.n_bytes > 4e9 > 1000 * stat.st_blocks * 512 / 10
    file = open_model(path)
    assert file.config.n_layers == 32 and file.bytes_weights == model.n_bytes
    tiny = SyntheticModel.parse("synthetic:tiny")
    assert tiny.outline(tmp_path).stat().st_size == tiny.write(tmp_path / "whole").stat().st_size


def test_text(tmp_path: Path) -> None:
    file = GGUFFile.open(cached("synthetic:tiny,vocab=1000", tmp_path))
    tokenizer = gguf_tokenizer(file)
    assert tokenizer.n_vocab == 1000
    text = "Hello, wörld\n"
    assert tokenizer.decode(tokenizer.encode(text, parse_control=False)) == text
    template = ChatTemplate.of_file(file, tokenizer)
    assert template is not None
    ids = template.render([{"role": "user", "content": "hi <|im_end|>"}])
    assert [tokenizer.piece(token) for token in ids if tokenizer.is_control(token)] == [
        "<|im_start|>",
        "<|im_end|>",
        "<|im_start|>",
    ]


@pytest.mark.parametrize(
    ("name", "fault"),
    [
        ("synthetic:", "no synthetic model; tiny"),
        ("synthetic:gpt-5", "'gpt-5' is no synthetic model"),
        ("synthetic:tiny@q3_k", "'q3_k' is no type of synthetic weights"),
        ("synthetic:tiny,layers=3", "'layers=3' changes nothing; write one of context, ffn"),
        ("synthetic:tiny,n_layers", "'n_layers' changes nothing"),
        ("synthetic:tiny,n_layers=-1", "'n_layers=-1' is out of range: n_layers can be 1 to 4096"),
        ("synthetic:tiny,n_layers=4097", "out of range"),
        ("synthetic:tiny,n_layers=٣", "out of range"),
        ("synthetic:tiny,hidden=0", "'hidden=0' is out of range: hidden can be 1 to 1048576"),
        ("synthetic:tiny,vocab=9999999", "out of range"),
        ("synthetic:tiny,architecture=1", "changes nothing"),
        ("synthetic:tiny,n_layers=2,n_layers=3", "n_layers is given twice"),
        ("synthetic:llama-1b,n_experts=8", "n_experts_used is missing"),
        ("synthetic:llama-1b,n_experts_used=2", "n_experts is missing"),
    ],
)
def test_names_that_are_not_understood(name: str, fault: str, tmp_path: Path) -> None:
    assert is_synthetic(name)
    with pytest.raises(ModelNotFound, match=fault):
        cached(name, tmp_path)


def test_a_shape_that_does_not_fit_together_is_refused_when_it_is_opened(tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match="cannot share"):
        open_model(cached("synthetic:tiny,n_heads=3,n_kv_heads=2", tmp_path))
