"""A reader for safetensors files and for the index of a model in several of them.

    [0, 8)      u64 n, little endian
    [8, 8 + n)  JSON: name -> {"dtype", "shape", "data_offsets": [begin, end)}, and "__metadata__": name -> string
    [8 + n, ..) tensor bytes; offsets count from here, and every byte belongs to one tensor

Nothing is believed before it is checked: the header is taken apart entry by entry, so that a hostile one (nested,
repeated, absurd) costs a ModelFileError and no memory beyond its own size.

Source: the format's description, https://github.com/huggingface/safetensors#format
"""

from __future__ import annotations

import json
import math
import mmap
import os
import re
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from sixfold.errors import ModelFileError
from sixfold.lazy_numpy import np, npt
from sixfold.model_file.regular_file import map_whole, naming_faults, read_whole

__all__ = ["SafetensorsFile", "SafetensorsTensor", "shard_names"]

_HEADER_BYTES_MAX = 16 << 20
"""The largest known headers (thousands of experts) have a few megabytes."""
_INDEX_BYTES_MAX = 32 << 20
_TENSORS_MAX = 262_144
_ENTRY_CHARS_MAX = 1024
_NAME_CHARS_MAX = 1024
_DIMS_MAX = 8
_SHARDS_MAX = 4096
_U64 = struct.Struct("<Q")

DTYPE_BYTES = {
    "F64": 8, "F32": 4, "F16": 2, "BF16": 2, "F8_E4M3": 1, "F8_E5M2": 1, "F8_E8M0": 1, "C64": 8, "BOOL": 1,
    "I64": 8, "I32": 4, "I16": 2, "I8": 1, "U64": 8, "U32": 4, "U16": 2, "U8": 1,
}  # fmt: skip
"""Every element type that can be checked; which of them can be computed with is the caller's to say."""

_SPACE = re.compile(r"[ \t\r\n]*+")
_STRING = re.compile(r'"[^"\\\x00-\x1f]*+(?:\\.[^"\\\x00-\x1f]*+)*+"')
_ENTRY = re.compile(r"\{[^{}]*+\}")
_FIELDS = {"dtype", "shape", "data_offsets"}


@dataclass(frozen=True, slots=True)
class SafetensorsTensor:
    """Where a tensor lies and what it is."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    offset: int
    """Of its first byte, from the beginning of the file."""
    n_bytes: int


class SafetensorsFile:
    """An open safetensors file. Arrays handed out are views of the map and keep it alive; there is nothing to close."""

    def __init__(self, path: Path, buffer: mmap.mmap) -> None:
        self.path = path
        self.buffer = buffer
        self.metadata: dict[str, str] = {}
        self.tensors: dict[str, SafetensorsTensor] = {}
        self._read_header()

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> SafetensorsFile:
        """Map and check a file.

        Raises:
            ModelFileError: it cannot be opened, is truncated or inconsistent; the message begins with its name.
        """
        path = Path(path)
        buffer = map_whole(path, bytes_min=_U64.size, kind="safetensors")
        with naming_faults(path):
            return cls(path, buffer)

    def data(self, name: str) -> npt.NDArray[np.uint8]:
        """A tensor's bytes: uint8 [n_bytes], a read-only view of the map, or a copy where they lie at an odd place."""
        info = self.tensors[name]
        raw = np.frombuffer(self.buffer, np.uint8, count=info.n_bytes, offset=info.offset)
        return raw.copy() if info.offset % DTYPE_BYTES[info.dtype] else raw

    def _read_header(self) -> None:
        n_bytes = _U64.unpack_from(self.buffer)[0]
        left = len(self.buffer) - _U64.size
        if n_bytes > left:
            raise ModelFileError(f"the file ends inside the header ({n_bytes} bytes announced, {left} left)")
        if n_bytes > _HEADER_BYTES_MAX:
            raise ModelFileError(f"the header is longer than {_HEADER_BYTES_MAX} bytes")
        start = _U64.size + n_bytes
        try:
            text = self.buffer[_U64.size : start].decode()
        except UnicodeDecodeError as error:
            raise ModelFileError("the header is not valid UTF-8") from error
        header = _Header(text)
        header.read()
        self.metadata = header.metadata
        n_data = len(self.buffer) - start
        for name, (dtype, shape, begin, end) in header.entries.items():
            _check_place(name, dtype, shape, begin, end, n_data)
            self.tensors[name] = SafetensorsTensor(name, dtype, shape, start + begin, end - begin)
        self._check_disjoint(start)

    def _check_disjoint(self, start: int) -> None:
        end, owner = start, "the header"
        for info in sorted(self.tensors.values(), key=lambda tensor: (tensor.offset, tensor.n_bytes)):
            if info.offset < end:
                raise ModelFileError(f"tensors {owner!r} and {info.name!r} overlap")
            if info.offset > end:
                raise ModelFileError(f"{info.offset - end} bytes before tensor {info.name!r} belong to none")
            end, owner = info.offset + info.n_bytes, info.name
        if end != len(self.buffer):
            raise ModelFileError(f"the last {len(self.buffer) - end} bytes belong to no tensor")


def _check_place(name: str, dtype: str, shape: tuple[int, ...], begin: int, end: int, n_data: int) -> None:
    if dtype not in DTYPE_BYTES:
        raise ModelFileError(f"tensor {name!r} has the unknown element type {dtype[:40]!r}")
    if end > n_data:
        raise ModelFileError(f"the file ends inside tensor {name!r}")
    n_bytes = math.prod(shape) * DTYPE_BYTES[dtype]
    if begin > end or end - begin != n_bytes:
        raise ModelFileError(f"tensor {name!r} has {end - begin} bytes; its type and shape make {n_bytes}")


class _Header:
    """The JSON object of a header, taken apart without ever building what does not belong there."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._pos = 0
        self.metadata: dict[str, str] = {}
        self.entries: dict[str, tuple[str, tuple[int, ...], int, int]] = {}
        """name -> element type, shape, begin, end"""

    def read(self) -> None:
        seen: set[str] = set()
        self._expect("{")
        if not self._taken("}"):
            while True:
                name = self._string()
                if name in seen:
                    raise ModelFileError(f"{name!r} appears twice in the header")
                seen.add(name)
                if len(seen) > _TENSORS_MAX or len(name) > _NAME_CHARS_MAX:
                    raise ModelFileError(
                        f"more than {_TENSORS_MAX} tensors, or a name above {_NAME_CHARS_MAX} characters"
                    )
                self._expect(":")
                if name == "__metadata__":
                    self._read_metadata()
                else:
                    self.entries[name] = self._entry(name)
                if self._taken("}"):
                    break
                self._expect(",")
        self._skip_space()
        if self._pos != len(self._text):
            raise ModelFileError("something stands behind the header's JSON")

    def _read_metadata(self) -> None:
        self._expect("{")
        if self._taken("}"):
            return
        while True:
            key = self._string()
            if key in self.metadata:
                raise ModelFileError(f"metadata key {key[:80]!r} appears twice")
            self._expect(":")
            self.metadata[key] = self._string()
            if self._taken("}"):
                return
            self._expect(",")

    def _entry(self, name: str) -> tuple[str, tuple[int, ...], int, int]:
        self._skip_space()
        match = _ENTRY.match(self._text, self._pos)
        if match is None or match.end() - match.start() > _ENTRY_CHARS_MAX:
            raise ModelFileError(f"the header's entry of {name!r} is not a small JSON object")
        self._pos = match.end()
        try:
            pairs: Any = json.loads(match[0], object_pairs_hook=list)
        except (ValueError, RecursionError) as error:
            raise ModelFileError(f"the header's entry of {name!r} is not valid JSON") from error
        fields = dict(pairs)
        if len(pairs) != len(_FIELDS) or fields.keys() != _FIELDS:
            raise ModelFileError(
                f"the header's entry of {name!r} does not have dtype, shape and data_offsets, once each"
            )
        dtype, shape, offsets = fields["dtype"], fields["shape"], fields["data_offsets"]
        if not (isinstance(dtype, str) and _are_counts(shape) and _are_counts(offsets)):
            raise ModelFileError(f"the header's entry of {name!r} has a field of another type")
        if len(shape) > _DIMS_MAX or len(offsets) != 2:
            raise ModelFileError(f"tensor {name!r} has {len(shape)} dimensions and {len(offsets)} offsets")
        return dtype, tuple(shape), offsets[0], offsets[1]

    def _string(self) -> str:
        self._skip_space()
        match = _STRING.match(self._text, self._pos)
        if match is None:
            raise ModelFileError(f"the header is not valid JSON (a string was expected at {self._pos})")
        self._pos = match.end()
        if "\\" not in match[0]:
            return match[0][1:-1]
        try:
            return str(json.loads(match[0]))
        except ValueError as error:
            raise ModelFileError(f"the header is not valid JSON (at {match.start()})") from error

    def _expect(self, character: str) -> None:
        if not self._taken(character):
            raise ModelFileError(f"the header is not valid JSON ({character!r} was expected at {self._pos})")

    def _taken(self, character: str) -> bool:
        self._skip_space()
        found = self._text.startswith(character, self._pos)
        self._pos += found
        return found

    def _skip_space(self) -> None:
        match = _SPACE.match(self._text, self._pos)
        assert match is not None
        self._pos = match.end()


def _are_counts(values: Any) -> bool:
    return isinstance(values, list) and all(type(value) is int and 0 <= value < 1 << 63 for value in values)


class _Index(msgspec.Struct):
    weight_map: dict[str, str]


def shard_names(index: Path) -> dict[str, str]:
    """The index of a model in several files: tensor -> name of the file beside the index.

    Raises:
        ModelFileError: it cannot be read or is not such an index.
    """
    raw = read_whole(index, bytes_max=_INDEX_BYTES_MAX)
    try:
        weight_map = msgspec.json.decode(raw, type=_Index).weight_map
    except (ValueError, RecursionError) as error:
        raise ModelFileError(f"{index.name}: {error}") from error
    for file in set(weight_map.values()):
        # A name, never a path: the index must not reach out of its folder.
        if Path(file).name != file or not file.endswith(".safetensors"):
            raise ModelFileError(f"{index.name}: {file[:80]!r} is not the name of a safetensors file")
    if not 1 <= len(set(weight_map.values())) <= _SHARDS_MAX:
        raise ModelFileError(f"{index.name}: names {len(set(weight_map.values()))} files")
    return weight_map
