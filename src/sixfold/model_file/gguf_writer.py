"""Writes GGUF files (version 3, little endian): the layout that gguf.py reads, written down in the other direction.

For synthetic models and for tests. The head of a file needs names, types and shapes only; the bytes of a tensor are
made when its turn comes, so a file may be larger than memory.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from sixfold.model_file.tensor_types import TENSOR_TYPES

__all__ = ["NO_STRINGS", "NewTensor", "TensorBytes", "Typed", "encode", "write", "write_outline"]

ALIGNMENT = 32
"""Of tensors, as GGUF has it where `general.alignment` does not say otherwise."""

TensorBytes: TypeAlias = "bytes | npt.NDArray[Any]"

_ARRAY_KINDS = {"u1": 0, "i1": 1, "u2": 2, "i2": 3, "u4": 4, "i4": 5, "f4": 6, "b1": 7, "u8": 10, "i8": 11, "f8": 12}
"""NumPy's letter and size -> GGUF's number of a value type."""


@dataclass(frozen=True, slots=True)
class Typed:
    """A metadata value with its type number and its bytes given."""

    kind: int
    raw: bytes


NO_STRINGS = Typed(9, struct.pack("<IQ", 8, 0))
"""An empty array of strings: an empty list does not tell what it is empty of."""


@dataclass(frozen=True, slots=True)
class NewTensor:
    """A tensor to be written. `shape` is in NumPy's order: columns last."""

    name: str
    ggml_type: int
    shape: tuple[int, ...]
    data: TensorBytes | Callable[[], Iterable[TensorBytes]]
    """Its bytes, or a function that gives them piece by piece."""

    @property
    def n_bytes(self) -> int:
        kind = TENSOR_TYPES[self.ggml_type]
        return int(np.prod(self.shape, dtype=object)) // kind.block_values * kind.block_bytes


def string(value: str) -> bytes:
    raw = value.encode()
    return struct.pack("<Q", len(raw)) + raw


def metadata_value(value: Any) -> bytes:
    """Type number and bytes of a `Typed`, bool, int (as u32), float (f32), str, NumPy array, or list.

    A list holds str, bool, float (f32) or int (i32).

    Raises:
        TypeError: it is something else.
        struct.error, OverflowError: a number does not fit.
    """
    match value:
        case Typed():
            return struct.pack("<I", value.kind) + value.raw
        case bool():
            return struct.pack("<IB", 7, value)
        case int():
            return struct.pack("<II", 4, value)
        case float():
            return struct.pack("<If", 6, value)
        case str():
            return struct.pack("<I", 8) + string(value)
        case np.ndarray():
            kind = _ARRAY_KINDS[value.dtype.kind + str(value.dtype.itemsize)]
            return struct.pack("<IIQ", 9, kind, value.size) + value.astype(value.dtype.newbyteorder("<")).tobytes()
        case [str(), *_]:
            return struct.pack("<IIQ", 9, 8, len(value)) + b"".join(map(string, value))
        case [bool(), *_]:
            return metadata_value(np.array(value, np.bool_))
        case [float(), *_]:
            return metadata_value(np.array(value, np.float32))
        case list():
            return metadata_value(np.array(value, np.int32))
    raise TypeError(f"a value of type {type(value).__name__} has no place in GGUF metadata")


def tensor_entry(name: str, shape: Sequence[int], ggml_type: int, offset: int) -> bytes:
    """One entry of the tensor directory; `shape` in NumPy's order, `offset` from the data section."""
    dims = list(reversed(shape))
    return string(name) + struct.pack(f"<I{len(dims)}QIQ", len(dims), *dims, ggml_type, offset)


def head(metadata: Mapping[str, Any], tensors: Sequence[NewTensor], *, version: int = 3) -> bytes:
    """Everything before the data section, padding included."""
    parts = [struct.pack("<4sIQQ", b"GGUF", version, len(tensors), len(metadata))]
    parts += [string(key) + metadata_value(value) for key, value in metadata.items()]
    offset = 0
    for tensor in tensors:
        parts.append(tensor_entry(tensor.name, tensor.shape, tensor.ggml_type, offset))
        offset += padded(tensor.n_bytes)
    raw = b"".join(parts)
    return raw + bytes(padded(len(raw)) - len(raw))


def padded(n_bytes: int) -> int:
    """`n_bytes` and what fills it up to the next tensor's place."""
    return -(-n_bytes // ALIGNMENT) * ALIGNMENT


def pieces(metadata: Mapping[str, Any], tensors: Sequence[NewTensor]) -> Iterable[TensorBytes]:
    """A whole file, piece by piece.

    Raises:
        ValueError: a tensor's bytes are not as many as its type and shape say.
    """
    yield head(metadata, tensors)
    for tensor in tensors:
        n_bytes = 0
        for piece in tensor.data() if callable(tensor.data) else (tensor.data,):
            n_bytes += len(piece) if isinstance(piece, bytes) else piece.nbytes
            yield piece
        if n_bytes != tensor.n_bytes:
            raise ValueError(f"tensor {tensor.name} has {n_bytes} bytes; its type and shape make {tensor.n_bytes}")
        yield bytes(padded(n_bytes) - n_bytes)


def write_outline(path: Path, metadata: Mapping[str, Any], tensors: Sequence[NewTensor]) -> None:
    """Write a file's head, and nothing for its tensors: of the same size, but it takes no space.

    Raises:
        OSError: it cannot be written.
    """
    with path.open("wb") as file:
        file.write(head(metadata, tensors))
        file.truncate(file.tell() + sum(padded(tensor.n_bytes) for tensor in tensors))


def encode(metadata: Mapping[str, Any], tensors: Sequence[NewTensor] = ()) -> bytes:
    """A whole small file as bytes."""
    return b"".join(piece if isinstance(piece, bytes) else piece.tobytes() for piece in pieces(metadata, tensors))


def write(path: str | os.PathLike[str], metadata: Mapping[str, Any], tensors: Sequence[NewTensor] = ()) -> Path:
    """Write a file; `path` appears when it is complete. Takes the place of a file that is there already.

    Raises:
        OSError: it cannot be written.
        ValueError: a tensor's bytes are not as many as its type and shape say.
    """
    path = Path(path)
    partial = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with partial.open("wb") as file:
            for piece in pieces(metadata, tensors):
                file.write(piece if isinstance(piece, bytes) else np.ascontiguousarray(piece).data)
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)
    return path
