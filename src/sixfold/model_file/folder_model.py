"""A Hugging Face folder as a `ModelFile`: config.json and safetensors. Nothing in it is ever run or unpickled."""

from __future__ import annotations

import os
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from sixfold.errors import ModelFileError
from sixfold.model_file.architectures import Architecture, tensor_name
from sixfold.model_file.config_json import ConfigJson, architecture_of, folder_config
from sixfold.model_file.model_config import ModelConfig
from sixfold.model_file.model_file import ModelFile, Stored, interleaved, shifted
from sixfold.model_file.regular_file import naming_faults, read_whole
from sixfold.model_file.safetensors import SafetensorsFile, shard_names
from sixfold.model_file.tensor_types import BF16, F16, F32

__all__ = ["FolderModel"]

_WEIGHTS = "model.safetensors"
_INDEX = "model.safetensors.index.json"
_CONFIG = "config.json"
_TOKENIZER = "tokenizer.json"
_TOKENIZER_BYTES_MAX = 128 << 20
_TYPES = {"F32": F32, "F16": F16, "BF16": BF16}


class FolderModel(ModelFile):
    """A folder with config.json and model.safetensors, or with numbered shards and their index."""

    def __init__(self, folder: Path, quantize: str | None = None) -> None:
        """
        Raises:
            ModelFileError: a file is missing or broken; a family or an element type is not supported.
        """
        with naming_faults(folder):
            entry = architecture_of(ConfigJson.read(folder / _CONFIG))
            files = _open_weights(folder)
            tensors = _collect(entry, files)
            config = _read_config(folder, tensors)
            maps = [file.buffer for file in files]
            super().__init__(folder, config, maps, _converted(entry, tensors, config), quantize)


def _open_weights(folder: Path) -> list[SafetensorsFile]:
    if (folder / _WEIGHTS).exists():
        return [SafetensorsFile.open(folder / _WEIGHTS)]
    if not (folder / _INDEX).exists():
        if any(folder.glob("*.bin")) or any(folder.glob("*.pt")) or any(folder.glob("*.pth")):
            raise ModelFileError(
                "the weights are pickled files, which are never opened; a safetensors version is needed"
            )
        raise ModelFileError(f"there is neither {_WEIGHTS} nor {_INDEX}")
    weight_map = shard_names(folder / _INDEX)
    files = {name: SafetensorsFile.open(folder / name) for name in sorted(set(weight_map.values()))}
    for tensor, name in weight_map.items():
        if tensor not in files[name].tensors:
            raise ModelFileError(f"{name} has no tensor {tensor[:200]!r}, which the index promises")
    return list(files.values())


def _collect(entry: Architecture, files: list[SafetensorsFile]) -> dict[str, list[Stored]]:
    """All tensors under GGUF's names, still in the folder's conventions; experts in order."""
    found: dict[str, dict[int, Stored]] = {}
    for file in files:
        for info in file.tensors.values():
            name = tensor_name(entry, info.name)
            if name is None:
                continue
            if info.dtype not in _TYPES:
                raise ModelFileError(
                    f"{file.path.name}: tensor {info.name!r} has type {info.dtype}, which is not supported (only"
                    f" {', '.join(_TYPES)} are)"
                )
            if not info.shape or 0 in info.shape:
                raise ModelFileError(f"{file.path.name}: tensor {info.name!r} is empty or has no dimension")
            stored = Stored(info.name, _TYPES[info.dtype], info.shape, partial(file.data, info.name))
            place = found.setdefault(name.name, {})
            if (name.expert or 0) in place:
                raise ModelFileError(f"{file.path.name}: tensor {info.name!r} is there a second time")
            place[name.expert or 0] = stored
    return {name: [stored for _, stored in sorted(place.items())] for name, place in found.items()}


def _read_config(folder: Path, tensors: dict[str, list[Stored]]) -> ModelConfig:
    def vocab() -> int:
        if "token_embd.weight" not in tensors:
            raise ModelFileError("there is no embedding among the tensors")
        return tensors["token_embd.weight"][0].shape[0]

    _, config = folder_config(folder / _CONFIG, lambda name: f"blk.0.{name}" in tensors, vocab)
    known = _token_ids(folder)
    if not known:
        return config
    # Some tokenizers know more than the model: pictures' marks, where the text model is used alone.
    n_ids = min(config.vocab, max(known) + 1)
    return replace(config, vocab=n_ids, absent_ids=tuple(i for i in range(n_ids) if i not in known))


class _Added(msgspec.Struct):
    id: int


class _Vocabulary(msgspec.Struct):
    vocab: dict[str, int] | list[Any] = {}


class _TokenizerJson(msgspec.Struct):
    model: _Vocabulary
    added_tokens: list[_Added] = []


def _token_ids(folder: Path) -> set[int]:
    """Ids of tokenizer.json; empty: there is no such file.

    Raises:
        ModelFileError: it cannot be read, or is no tokenizer.
    """
    path = folder / _TOKENIZER
    if not os.path.lexists(path):
        return set()
    raw = read_whole(path, bytes_max=_TOKENIZER_BYTES_MAX)
    try:
        tokenizer = msgspec.json.decode(raw, type=_TokenizerJson)
    except (ValueError, RecursionError) as error:
        raise ModelFileError(f"{path.name}: {error}") from error
    vocab = tokenizer.model.vocab
    ids = set(vocab.values() if isinstance(vocab, dict) else range(len(vocab)))
    return {i for i in (*ids, *(added.id for added in tokenizer.added_tokens)) if i >= 0}


def _converted(entry: Architecture, tensors: dict[str, list[Stored]], config: ModelConfig) -> dict[str, list[Stored]]:
    """The same in GGUF's conventions. Shapes are checked when somebody asks for them."""
    out: dict[str, list[Stored]] = {}
    for name, several in tensors.items():
        if name == "output.weight" and config.tied:
            continue  # some folders keep a copy of the embedding
        if config.rope_style == "interleaved" and name.rsplit(".", 2)[-2] in ("attn_q", "attn_k"):
            if several[0].shape[0] % config.head_dim:
                raise ModelFileError(f"tensor {several[0].source!r} does not divide into heads of {config.head_dim}")
            several = [interleaved(stored, config.head_dim) for stored in several]
        if entry.norm_shift and name.endswith("norm.weight"):
            several = [shifted(stored, entry.norm_shift) for stored in several]
        out[name] = several
    if not config.tied and "output.weight" not in out:
        raise ModelFileError("there is no lm_head.weight, and config.json does not say that the embedding is the head")
    return out
