"""Makes safetensors files and model folders for tests: the format written down a second time.

[0, 8)      u64 n
[8, 8 + n)  JSON: name -> {"dtype", "shape", "data_offsets": [begin, end)}, offsets from 8 + n; spaces at the end
[8 + n, ..) tensor bytes
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

Stored = tuple[str, tuple[int, ...], bytes]
"""dtype by its name in the format, shape, bytes."""


def stored(values: npt.NDArray[np.float32], dtype: str = "F32") -> Stored:
    """`values` as F32, F16 or BF16; BF16 by cutting the low half: the values must be exact in it."""
    match dtype:
        case "F32":
            raw = values.astype("<f4")
        case "F16":
            raw = values.astype("<f2")
        case "BF16":
            raw = (values.astype("<f4").view("<u4") >> 16).astype("<u2")
        case _:
            raise ValueError(dtype)
    return dtype, values.shape, raw.tobytes()


def head(entries: Mapping[str, Any]) -> bytes:
    text = json.dumps(entries).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text


def safetensors(tensors: Mapping[str, Stored], metadata: Mapping[str, str] | None = None) -> bytes:
    """A whole file."""
    entries: dict[str, Any] = {"__metadata__": dict(metadata or {"format": "pt"})}
    offset = 0
    for name, (dtype, shape, raw) in tensors.items():
        entries[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [offset, offset + len(raw)]}
        offset += len(raw)
    return head(entries) + b"".join(raw for _, _, raw in tensors.values())


def write_folder(folder: Path, config: Mapping[str, Any], tensors: Mapping[str, Stored], *, shards: int = 1) -> Path:
    """A model folder: config.json and model.safetensors, or numbered shards with their index."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    names = list(tensors)
    if shards == 1:
        (folder / "model.safetensors").write_bytes(safetensors(tensors))
        return folder
    weight_map = {}
    for i in range(shards):
        file = f"model-{i + 1:05}-of-{shards:05}.safetensors"
        part = {name: tensors[name] for name in names[i::shards]}
        (folder / file).write_bytes(safetensors(part))
        weight_map |= dict.fromkeys(part, file)
    total = sum(len(raw) for _, _, raw in tensors.values())
    index = {"metadata": {"total_size": total}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return folder
