"""A GGUF model in several files: opened by its first part, refused when a part is missing or not its own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.fixtures import forward
from tests.fixtures import tiny_models as tiny

from sixfold.errors import ModelFileError
from sixfold.model_file import GGUFFile, open_model
from sixfold.model_file.gguf_writer import NewTensor, write

Change = Callable[[int, dict[str, Any]], dict[str, Any]]


def split(folder: Path, n_parts: int, change: Change = lambda i, metadata: metadata) -> Path:
    """The tiny llama model in parts; `change` may alter a part's metadata. -> the first part."""
    cfg = tiny.config("llama")
    tensors = tiny.gguf_tensors(cfg, tiny.weights("llama"), tiny.F32)
    paths = []
    for i in range(n_parts):
        own: Sequence[NewTensor] = tensors[i::n_parts]
        metadata = {"split.no": i, "split.count": n_parts, "split.tensors.count": len(tensors)}
        if i == 0:
            metadata = tiny.gguf_metadata(cfg) | tiny.vocabulary(cfg["vocab_size"]) | metadata
        paths.append(write(folder / f"m-{i + 1:05}-of-{n_parts:05}.gguf", change(i, metadata), own))
    return paths[0]


def test_parts_are_one_model(tmp_path: Path) -> None:
    whole, parts = open_model(tiny.gguf(tmp_path, "llama")), open_model(split(tmp_path, 3))
    ids, _ = tiny.references("llama")[1]
    assert np.array_equal(forward.logits(whole, ids), forward.logits(parts, ids))
    assert parts.unused() == []


def test_one_part_of_one(tmp_path: Path) -> None:
    assert len(GGUFFile.open(split(tmp_path, 1)).tensors) == len(GGUFFile.open(tiny.gguf(tmp_path, "llama")).tensors)


def test_a_later_part_names_the_first(tmp_path: Path) -> None:
    split(tmp_path, 2)
    with pytest.raises(ModelFileError, match=r"not the first part of a split model; give m-00001-of-00002\.gguf"):
        open_model(tmp_path / "m-00002-of-00002.gguf")


def test_a_missing_part(tmp_path: Path) -> None:
    first = split(tmp_path, 3)
    (tmp_path / "m-00002-of-00003.gguf").unlink()
    with pytest.raises(ModelFileError, match=r"m-00002-of-00003\.gguf: cannot be opened"):
        open_model(first)


def test_a_renamed_part(tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match=r"one of 2 parts, and its name does not end like -00001-of-00002\.gguf"):
        open_model(split(tmp_path, 2).rename(tmp_path / "model.gguf"))


@pytest.mark.parametrize(
    ("key", "value", "fault"),
    [
        ("split.no", 0, "does not say that it is part 2 of 2"),
        ("split.count", 3, "does not say that it is part 2 of 2"),
        ("split.no", "x", "split.no is not an unsigned 32-bit number"),
    ],
)
def test_a_part_of_another_model(key: str, value: Any, fault: str, tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match=fault):
        open_model(split(tmp_path, 2, lambda i, metadata: metadata | {key: value} if i else metadata))


def test_another_number_of_tensors(tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match="tensors; 99 are announced"):
        open_model(split(tmp_path, 2, lambda i, metadata: metadata | {"split.tensors.count": 99}))


def test_a_tensor_in_two_parts(tmp_path: Path) -> None:
    first = split(tmp_path, 2)
    cfg = tiny.config("llama")
    tensors = tiny.gguf_tensors(cfg, tiny.weights("llama"), tiny.F32)
    write(tmp_path / "m-00002-of-00002.gguf", {"split.no": 1, "split.count": 2}, tensors)
    with pytest.raises(ModelFileError, match=r"is in m-00002-of-00002\.gguf a second time"):
        open_model(first)


def test_an_absurd_number_of_parts(tmp_path: Path) -> None:
    path = write(tmp_path / "m-00001-of-99999.gguf", {"split.no": 0, "split.count": 99999})
    with pytest.raises(ModelFileError, match="one of 99999 parts"):
        open_model(path)
