"""Thousands of damaged models, GGUF files and folders: each is opened and read, or refused with ModelFileError.

Nothing else is raised, and nothing is allocated beyond what a file of that size may need.
"""

from __future__ import annotations

import json
import random
import shutil
import struct
import tracemalloc
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from tests import gguf_writer as w
from tests import safetensors_writer
from tests.fixtures import tiny_models as tiny
from tests.fuzz.mutations import changed, damage, write_anew

from sixfold.errors import ModelFileError
from sixfold.model_file import ModelFile, open_model
from sixfold.model_file.safetensors import SafetensorsFile

N_HEADERS, N_JSON, N_MODELS, N_CONFIGS = 10_000, 3000, 2000, 1200
BYTES_MAX = 8 << 20
"""At one time: the files have at most 100 kB, of which a few are decoded."""


def hundreds_refused(n: int, attempt: Callable[[int], None]) -> int:
    """Runs `attempt` n times under the memory bound; -> how often it was refused."""
    n_refused = 0
    tracemalloc.start()
    try:
        for i in range(n):
            try:
                attempt(i)
            except ModelFileError as error:
                n_refused += 1
                assert len(error.message) < 2000, i
        assert tracemalloc.get_traced_memory()[1] < BYTES_MAX
    finally:
        tracemalloc.stop()
    return n_refused


def read_everything(file: ModelFile) -> None:
    """As a family does it; then what it would not ask for."""
    c = file.config
    for i in range(c.n_layers):
        for name, n_rows in (("attn_q", c.q_size), ("attn_k", c.kv_size)):
            file.matrix(f"blk.{i}.{name}.weight", n_rows, c.hidden).data.max()
        if c.n_experts:
            file.expert_matrices(f"blk.{i}.ffn_up_exps.weight", c.n_experts, c.expert_ffn, c.hidden)
        else:
            file.matrix(f"blk.{i}.ffn_up.weight", c.ffn, c.hidden)
        if file.has(f"blk.{i}.attn_norm.weight"):
            file.vector(f"blk.{i}.attn_norm.weight", c.hidden)
    file.matrix("token_embd.weight", c.vocab, c.hidden)
    c.rope.inverse_frequencies(c.rope_dims, c.context)
    assert file.unused() is not None


def small_tensors() -> dict[str, safetensors_writer.Stored]:
    values = np.arange(64, dtype=np.float32)
    return {
        "a.weight": safetensors_writer.stored(values.reshape(8, 8), "BF16"),
        "b.weight": safetensors_writer.stored(values, "F32"),
        "model.layers.0.mlp.down_proj.weight": safetensors_writer.stored(values.reshape(2, 32), "F16"),
    }


def test_o52_damaged_safetensors(tmp_path: Path) -> None:
    rng, path = random.Random(1), tmp_path / "f.safetensors"
    raw = safetensors_writer.safetensors(small_tensors())
    structure = 8 + struct.unpack("<Q", raw[:8])[0]

    def attempt(i: int) -> None:
        write_anew(path, damage(raw, rng, structure))
        file = SafetensorsFile.open(path)
        for name in file.tensors:
            file.data(name).sum()

    assert N_HEADERS // 2 < hundreds_refused(N_HEADERS, attempt) < N_HEADERS


def test_o52_rewritten_safetensors(tmp_path: Path) -> None:
    """Damage that leaves JSON valid: other numbers, types, names and nesting in their places."""
    rng, path = random.Random(2), tmp_path / "f.safetensors"
    raw = safetensors_writer.safetensors(small_tensors())
    n = struct.unpack("<Q", raw[:8])[0]
    header, data = json.loads(raw[8 : 8 + n]), raw[8 + n :]

    def attempt(i: int) -> None:
        write_anew(path, safetensors_writer.head(changed(header, rng)) + data)
        for name in (file := SafetensorsFile.open(path)).tensors:
            file.data(name).sum()

    assert N_JSON // 2 < hundreds_refused(N_JSON, attempt) < N_JSON


@pytest.mark.parametrize("family", ["llama3", "gemma3", "phi3_longrope", "mixtral", "qwen2_yarn", "olmo3"])
def test_o52_rewritten_configurations(family: str, tmp_path: Path) -> None:
    rng = random.Random(family)
    folder = tiny.folder(tmp_path, family, dtype="BF16")
    config = tiny.config(family)
    n = N_CONFIGS // 6

    def attempt(i: int) -> None:
        write_anew(folder / "config.json", json.dumps(changed(config, rng)).encode())
        read_everything(open_model(folder, quantize=rng.choice((None, "q4_1"))))

    assert n // 8 < hundreds_refused(n, attempt) < n


def test_o52_damaged_folders(tmp_path: Path) -> None:
    """Configurations that are no JSON, indices that lie, shards that are not there."""
    rng = random.Random(4)
    whole = tiny.folder(tmp_path, "qwen3", dtype="BF16", shards=2)
    files = ("config.json", "model.safetensors.index.json")
    contents = {name: (whole / name).read_bytes() for name in files}
    n = N_MODELS // 2

    def attempt(i: int) -> None:
        name = rng.choice(files)
        if name != "config.json" and rng.random() < 0.5:
            index = json.loads(contents[name])
            raw = json.dumps(changed(index, rng)).encode()
        else:
            raw = damage(contents[name], rng, len(contents[name]))
        for other in files:
            write_anew(whole / other, raw if other == name else contents[other])
        read_everything(open_model(whole))

    assert n // 4 < hundreds_refused(n, attempt) < n


def test_o52_damaged_models(tmp_path: Path) -> None:
    """GGUF files whose numbers no longer fit their tensors; the damage is in metadata and directory."""
    rng, path = random.Random(5), tmp_path / "f.gguf"
    raw = bytes_of_a_model(tmp_path)
    structure = raw.index(b"tokenizer.ggml.model")

    def attempt(i: int) -> None:
        write_anew(path, damage(raw, rng, structure))
        # A damaged weight may overflow where it becomes float32: that is no fault of the reader.
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)
            read_everything(open_model(path, quantize=rng.choice((None, "q8_0"))))

    assert N_MODELS // 2 < hundreds_refused(N_MODELS, attempt) < N_MODELS


def bytes_of_a_model(folder: Path) -> bytes:
    cfg = tiny.config("llama") | {"num_hidden_layers": 1}
    tensors = {k: v for k, v in tiny.weights("llama").items() if "layers.1." not in k}
    metadata = tiny.gguf_metadata(cfg) | {"tokenizer.ggml.model": "none"}
    return tiny.gguf_writer.encode(metadata, tiny.gguf_tensors(cfg, tensors, tiny.F16))


@pytest.mark.parametrize("count", [0, 1, 2, 4, 1 << 16, (1 << 32) - 1])
def test_o52_absurd_numbers_of_layers(count: int, tmp_path: Path) -> None:
    """The number of layers decides how much is looked at; it must not decide how much is allocated."""
    cfg = tiny.config("llama")
    metadata = tiny.gguf_metadata(cfg) | {"llama.block_count": w.Typed(4, struct.pack("<I", count))}
    path = tmp_path / "m.gguf"
    path.write_bytes(tiny.gguf_writer.encode(metadata, tiny.gguf_tensors(cfg, tiny.weights("llama"), tiny.F16)))
    tracemalloc.start()
    try:
        with pytest.raises(ModelFileError):
            file = open_model(path)
            read_everything(file)
            if file.unused():
                raise ModelFileError("not every tensor belongs to a layer")
        assert tracemalloc.get_traced_memory()[1] < BYTES_MAX
    finally:
        tracemalloc.stop()


def test_pickles_are_never_opened(tmp_path: Path) -> None:
    folder = tiny.folder(tmp_path, "llama")
    shutil.move(folder / "model.safetensors", folder / "pytorch_model.bin")
    with pytest.raises(ModelFileError, match="pickled files, which are never opened"):
        open_model(folder)
