"""A reader for GGUF model files (versions 2 and 3, little endian).

    [0, 24)         magic "GGUF", u32 version, u64 number of tensors, u64 number of metadata entries
    [24, a)         metadata: string key, u32 value type, value
    [a, b)          tensor directory: string name, u32 n_dims, u64 dims (fastest first), u32 type, u64 offset
    [b, data)       padding to `general.alignment` (32 if absent)
    [data, size)    tensor bytes; offsets count from `data`

A string is a u64 length and that many bytes of UTF-8; an array is u32 element type, u64 count, elements.

The file is mapped, never read as a whole. Everything in it is hostile until checked: each count, length, offset, type
and alignment is compared with what the file can hold before it is used, so a broken file costs a `ModelFileError` and
no memory. Arrays of strings (a vocabulary has a hundred thousand) are stepped over when the file is opened and decoded
when somebody asks: a worker wants the weights only.

Source: the GGUF specification, https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""

from __future__ import annotations

import contextlib
import math
import mmap
import os
import re
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeAlias, cast, overload

from sixfold.errors import ModelFileError
from sixfold.lazy_numpy import np, npt
from sixfold.model_file.regular_file import map_whole, naming_faults
from sixfold.model_file.tensor_types import SUPPORTED_TYPES, TENSOR_TYPES, TensorType

__all__ = ["GGUFFile", "MetadataValue", "StringArray", "TensorInfo"]

_MAGIC = b"GGUF"
_HEADER = struct.Struct("<4sIQQ")
_U32 = struct.Struct("<I")
_U64 = struct.Struct("<Q")

_ENTRIES_MAX = 65_536
"""Metadata entries and, separately, tensors. The largest known files have a few thousand tensors."""
_KEY_BYTES_MAX = 65_535
"""The specification's own bound for a key; tensor names are held to it too."""
_TEXT_BYTES_MAX = 64 << 20
"""One string: chat templates and vocabularies in JSON stay far below."""
_ARRAY_COUNT_MAX = 1 << 26
"""Elements of an array. A vocabulary of 262,144 tokens has about half a million merges."""
_NESTED_COUNT_MAX = 4096
"""Arrays within arrays, in the whole file. No known key has any; a reader that recurses must still be bounded."""
_DIMS_MAX = 4
_ALIGNMENT_DEFAULT = 32
_ALIGNMENT_MAX = 1 << 16
_PARTS_MAX = 1024
_PART_NAME = re.compile(r"(.+)-(\d{5})-of-(\d{5})\.gguf")

_BOOL, _STRING, _ARRAY = 7, 8, 9
_SCALARS: dict[int, struct.Struct] = {
    0: struct.Struct("<B"),
    1: struct.Struct("<b"),
    2: struct.Struct("<H"),
    3: struct.Struct("<h"),
    4: struct.Struct("<I"),
    5: struct.Struct("<i"),
    6: struct.Struct("<f"),
    _BOOL: struct.Struct("<B"),
    10: struct.Struct("<Q"),
    11: struct.Struct("<q"),
    12: struct.Struct("<d"),
}
"""Value type -> reader of one."""


class StringArray(Sequence[str]):
    """The strings of one metadata array, decoded at first use. Positions were checked when the file was opened."""

    def __init__(self, buffer: mmap.mmap, key: str, start: int, count: int) -> None:
        self._buffer = buffer
        self._key = key
        self._start = start
        self._count = count
        self._strings: list[str] | None = None

    def strings(self) -> list[str]:
        """All of them.

        Raises:
            ModelFileError: one is not UTF-8.
        """
        if self._strings is None:
            buffer, pos, read = self._buffer, self._start, _U64.unpack_from
            found: list[str] = []
            try:
                for _ in range(self._count):
                    start = pos + 8
                    pos = start + read(buffer, pos)[0]
                    found.append(buffer[start:pos].decode())
            except UnicodeDecodeError as error:
                raise ModelFileError(f"{self._key}[{len(found)}] is not valid UTF-8") from error
            self._strings = found
        return self._strings

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[str]: ...
    def __getitem__(self, index: int | slice) -> str | Sequence[str]:
        return self.strings()[index]

    def __iter__(self) -> Iterator[str]:
        return iter(self.strings())


MetadataValue: TypeAlias = "bool | int | float | str | StringArray | memoryview[Any] | list[MetadataValue]"
"""Numbers in arrays are read-only views of the map, in the file's own type; an array of arrays is a list."""


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """Where a tensor lies and what it is. `shape` is in NumPy's order: (rows, columns), columns contiguous."""

    name: str
    ggml_type: int
    shape: tuple[int, ...]
    offset: int
    """Of its first byte, from the beginning of the file (of a split one: of its part)."""
    n_bytes: int

    @property
    def type_name(self) -> str:
        return TENSOR_TYPES[self.ggml_type].name


class GGUFFile:
    """An open GGUF file. Arrays handed out are views of the map and keep it alive; there is nothing to close."""

    def __init__(self, path: Path, buffer: mmap.mmap) -> None:
        self.path = path
        self._buffer = buffer
        self.asked: set[str] = set()
        """Keys of the metadata that somebody has asked for."""
        cursor = _Cursor(buffer)
        n_tensors, n_entries = _read_header(cursor)
        self.metadata: Mapping[str, MetadataValue] = MappingProxyType(_read_metadata(cursor, n_entries))
        self.tensors: dict[str, TensorInfo] = _read_directory(cursor, n_tensors, self._alignment())
        self._owners: dict[str, GGUFFile] = {}
        """Tensors that lie in the other parts of a split file."""

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> GGUFFile:
        """Map and check a file. Takes about 0.02 s for a vocabulary of 49,152 tokens, whatever the size of the weights.

        Of a split file (`...-00001-of-0000N.gguf`) the first part is opened; it has the metadata, and the other parts
        are looked for beside it.

        Raises:
            ModelFileError: it cannot be opened, is not GGUF, is truncated, inconsistent or of an unsupported version;
                a part is missing or belongs to another file.
        """
        file = cls._open_one(Path(path))
        with file.naming_faults():
            file._open_parts()
        return file

    @classmethod
    def _open_one(cls, path: Path) -> GGUFFile:
        buffer = map_whole(path, bytes_min=_HEADER.size, kind="GGUF")
        with naming_faults(path):
            return cls(path, buffer)

    def _open_parts(self) -> None:
        count = self.u32("split.count", 1)
        if count <= 1:
            return
        match = _PART_NAME.fullmatch(self.path.name)
        if match is None or int(match[3]) != count or count > _PARTS_MAX:
            raise self._fault(f"this is one of {count} parts, and its name does not end like -00001-of-{count:05}.gguf")
        first = f"{match[1]}-00001-of-{match[3]}.gguf"
        if self.u32("split.no") != 0 or int(match[2]) != 1:
            raise self._fault(f"this is not the first part of a split model; give {first}")
        for number in range(1, count):
            part = GGUFFile._open_one(self.path.with_name(f"{match[1]}-{number + 1:05}-of-{match[3]}.gguf"))
            if part.u32("split.no") != number or part.u32("split.count") != count:
                raise self._fault(f"{part.path.name} does not say that it is part {number + 1} of {count}")
            if twice := self.tensors.keys() & part.tensors.keys():
                raise self._fault(f"tensor {min(twice)!r} is in {part.path.name} a second time")
            self.tensors |= part.tensors
            self._owners |= dict.fromkeys(part.tensors, part)
        announced = self.u32("split.tensors.count", len(self.tensors))
        if announced != len(self.tensors):
            raise self._fault(f"the parts have {len(self.tensors)} tensors; {announced} are announced")

    @property
    def maps(self) -> list[mmap.mmap]:
        """Of this file and its other parts."""
        return [self._buffer, *(part._buffer for part in dict.fromkeys(self._owners.values()))]

    def naming_faults(self) -> contextlib.AbstractContextManager[None]:
        """Within it, a ModelFileError that does not name this file yet gets its name in front."""
        return naming_faults(self.path)

    def _fault(self, message: str) -> ModelFileError:
        return ModelFileError(f"{self.path.name}: {message}")

    # --- metadata -----------------------------------------------------------------------------------------------

    def u32(self, key: str, default: int | None = None) -> int:
        """An integer in [0, 2**32), of whatever integer type the file has it in.

        Raises:
            ModelFileError: it is missing and there is no default, or it is something else.
        """
        value = self._get(key, default)
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 1 << 32:
            raise self._fault(f"{key} is not an unsigned 32-bit number")
        return value

    def f32(self, key: str, default: float | None = None) -> float:
        """A finite number.

        Raises:
            ModelFileError: it is missing and there is no default, or it is something else.
        """
        value = self._get(key, default)
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            raise self._fault(f"{key} is not a finite number")
        return float(value)

    def text(self, key: str, default: str | None = None) -> str:
        """A string.

        Raises:
            ModelFileError: it is missing and there is no default, or it is something else.
        """
        value = self._get(key, default)
        if not isinstance(value, str):
            raise self._fault(f"{key} is not a string")
        return value

    def flag(self, key: str, default: bool | None = None) -> bool:
        """A truth value.

        Raises:
            ModelFileError: it is missing and there is no default, or it is something else.
        """
        value = self._get(key, default)
        if not isinstance(value, bool):
            raise self._fault(f"{key} is not a truth value")
        return value

    def strings(self, key: str) -> list[str]:
        """The strings of an array.

        Raises:
            ModelFileError: it is missing, something else, or not UTF-8.
        """
        value = self._get(key, None)
        if not isinstance(value, StringArray):
            raise self._fault(f"{key} is not an array of strings")
        with self.naming_faults():
            return value.strings()

    def numbers(self, key: str) -> memoryview[Any]:
        """The numbers of an array, [count], read-only, in the file's own type: `format` tells which.

        Raises:
            ModelFileError: it is missing or something else.
        """
        value = self._get(key, None)
        if not isinstance(value, memoryview):
            raise self._fault(f"{key} is not an array of numbers")
        return value

    def _get(self, key: str, default: MetadataValue | None) -> MetadataValue:
        self.asked.add(key)
        value = self.metadata.get(key, default)
        if value is None:
            raise self._fault(f"{key} is missing from the metadata")
        return value

    def _alignment(self) -> int:
        alignment = self.u32("general.alignment", _ALIGNMENT_DEFAULT)
        if not 0 < alignment <= _ALIGNMENT_MAX or alignment & (alignment - 1):
            raise self._fault(f"general.alignment is {alignment}; it must be a power of two up to {_ALIGNMENT_MAX}")
        return alignment

    # --- tensors ------------------------------------------------------------------------------------------------

    def tensor(self, name: str) -> TensorInfo:
        """The directory entry of a tensor.

        Raises:
            ModelFileError: there is none of that name.
        """
        info = self.tensors.get(name)
        if info is None:
            raise self._fault(f"there is no tensor {name}")
        return info

    def data(self, name: str) -> npt.NDArray[np.uint8]:
        """A tensor's bytes as they are in the file: uint8 [n_bytes], a read-only view of the map.

        Raises:
            ModelFileError: there is none of that name, or its type cannot be computed with.
        """
        info = self.tensor(name)
        if info.ggml_type not in SUPPORTED_TYPES:
            known = ", ".join(TENSOR_TYPES[number].name for number in sorted(SUPPORTED_TYPES))
            raise self._fault(f"tensor {name} has type {info.type_name}, which is not supported (only {known} are)")
        buffer = self._owners.get(name, self)._buffer
        return np.frombuffer(buffer, np.uint8, count=info.n_bytes, offset=info.offset)


class _Cursor:
    """A position in the map that cannot leave it."""

    def __init__(self, buffer: mmap.mmap) -> None:
        self.buffer = buffer
        self.size = len(buffer)
        self.pos = 0
        self.n_nested = 0
        """Arrays within arrays met so far."""

    def left(self) -> int:
        return self.size - self.pos

    def read(self, layout: struct.Struct, what: str) -> Any:
        """The one value of `layout`, or a tuple of several."""
        if layout.size > self.left():
            raise ModelFileError(f"the file ends inside {what}")
        values = layout.unpack_from(self.buffer, self.pos)
        self.pos += layout.size
        return values[0] if len(values) == 1 else values

    def text(self, what: str, bytes_max: int) -> str:
        n_bytes = self.read(_U64, what)
        if n_bytes > self.left():
            raise ModelFileError(f"the file ends inside {what} ({n_bytes} bytes announced, {self.left()} left)")
        if n_bytes > bytes_max:
            raise ModelFileError(f"{what} is longer than {bytes_max} bytes")
        raw = self.buffer[self.pos : self.pos + n_bytes]
        self.pos += n_bytes
        try:
            return raw.decode()
        except UnicodeDecodeError as error:
            raise ModelFileError(f"{what} is not valid UTF-8") from error


def _read_header(cursor: _Cursor) -> tuple[int, int]:
    """-> (number of tensors, number of metadata entries)."""
    magic, version, n_tensors, n_entries = cursor.read(_HEADER, "the header")
    if magic != _MAGIC:
        raise ModelFileError("not a GGUF file (wrong magic)")
    if version & 0xFFFF == 0:
        raise ModelFileError("the file is big endian; only little endian is supported")
    if version not in (2, 3):
        raise ModelFileError(f"GGUF version {version} is not supported (only 2 and 3 are)")
    for what, count in (("tensors", n_tensors), ("metadata entries", n_entries)):
        if count > _ENTRIES_MAX:
            raise ModelFileError(f"the header announces {count} {what}; at most {_ENTRIES_MAX} are accepted")
    return n_tensors, n_entries


def _read_metadata(cursor: _Cursor, n_entries: int) -> dict[str, MetadataValue]:
    metadata: dict[str, MetadataValue] = {}
    for i in range(n_entries):
        key = cursor.text(f"the key of metadata entry {i}", _KEY_BYTES_MAX)
        if key in metadata:
            raise ModelFileError(f"metadata key {key!r} appears twice")
        metadata[key] = _read_value(cursor, key, cursor.read(_U32, key))
    return metadata


def _read_value(cursor: _Cursor, key: str, kind: int) -> MetadataValue:
    if kind == _STRING:
        return cursor.text(key, _TEXT_BYTES_MAX)
    if kind == _ARRAY:
        return _read_array(cursor, key, nested=False)
    if kind not in _SCALARS:
        raise ModelFileError(f"{key} has the unknown value type {kind}")
    value: int | float = cursor.read(_SCALARS[kind], key)
    if kind == _BOOL:
        if value not in (0, 1):
            raise ModelFileError(f"{key} is neither true nor false ({value})")
        return bool(value)
    return value


def _read_array(cursor: _Cursor, key: str, *, nested: bool) -> MetadataValue:
    kind: int = cursor.read(_U32, key)
    count: int = cursor.read(_U64, key)
    if count > _ARRAY_COUNT_MAX:
        raise ModelFileError(f"{key} announces {count} elements; at most {_ARRAY_COUNT_MAX} are accepted")
    if kind == _STRING:
        return _step_over_strings(cursor, key, count)
    if kind == _ARRAY:
        # One level is all: each element is an array of plain values.
        cursor.n_nested += count
        if nested or cursor.n_nested > _NESTED_COUNT_MAX:
            raise ModelFileError(f"{key} nests arrays too deeply or too often")
        return [_read_array(cursor, key, nested=True) for _ in range(count)]
    if kind not in _SCALARS:
        raise ModelFileError(f"{key} is an array of the unknown value type {kind}")
    n_bytes = count * _SCALARS[kind].size
    if n_bytes > cursor.left():
        raise ModelFileError(f"the file ends inside {key} ({n_bytes} bytes announced, {cursor.left()} left)")
    if not count:
        return memoryview(b"")
    raw = memoryview(cursor.buffer)[cursor.pos : cursor.pos + n_bytes]
    cursor.pos += n_bytes
    if kind != _BOOL:
        return raw.cast(cast("Any", _SCALARS[kind].format[1:]))
    if max(raw) > 1:
        raise ModelFileError(f"{key} holds values that are neither true nor false")
    return raw.cast("?")


def _step_over_strings(cursor: _Cursor, key: str, count: int) -> StringArray:
    """Check the lengths and move past the strings. The hot loop of opening a file: 0.1 us a string."""
    buffer, start, read = cursor.buffer, cursor.pos, _U64.unpack_from
    if count > cursor.left() // 8:
        raise ModelFileError(f"the file ends inside {key} ({count} strings announced, {cursor.left()} bytes left)")
    pos, last = start, cursor.size - 8
    for i in range(count):
        if pos > last:
            raise ModelFileError(f"the file ends inside {key}[{i}]")
        pos += 8 + read(buffer, pos)[0]
    if pos > cursor.size:
        raise ModelFileError(f"the file ends inside {key}[{count - 1}]")
    cursor.pos = pos
    return StringArray(buffer, key, start, count)


def _read_directory(cursor: _Cursor, n_tensors: int, alignment: int) -> dict[str, TensorInfo]:
    entries: dict[str, tuple[int, tuple[int, ...], int, int]] = {}
    for i in range(n_tensors):
        name = cursor.text(f"the name of tensor {i}", _KEY_BYTES_MAX)
        if name in entries:
            raise ModelFileError(f"tensor {name!r} appears twice")
        entries[name] = _read_entry(cursor, name)
    start = -(-cursor.pos // alignment) * alignment
    tensors: dict[str, TensorInfo] = {}
    for name, (number, shape, offset, n_bytes) in entries.items():
        if offset % alignment:
            raise ModelFileError(f"tensor {name} begins at offset {offset}, which is not a multiple of {alignment}")
        if start + offset + n_bytes > cursor.size:
            raise ModelFileError(f"the file ends inside tensor {name}")
        tensors[name] = TensorInfo(name, number, shape, start + offset, n_bytes)
    _check_disjoint(tensors)
    return tensors


def _read_entry(cursor: _Cursor, name: str) -> tuple[int, tuple[int, ...], int, int]:
    """-> (type number, shape in NumPy's order, offset from the data section, bytes)."""
    what = f"the directory entry of tensor {name}"
    n_dims: int = cursor.read(_U32, what)
    if not 1 <= n_dims <= _DIMS_MAX:
        raise ModelFileError(f"tensor {name} has {n_dims} dimensions; 1 to {_DIMS_MAX} are accepted")
    dims = [int(cursor.read(_U64, what)) for _ in range(n_dims)]
    number: int = cursor.read(_U32, what)
    offset: int = cursor.read(_U64, what)
    kind = TENSOR_TYPES.get(number)
    if kind is None:
        raise ModelFileError(f"tensor {name} has the unknown type {number}")
    n_bytes = _size(name, kind, dims)
    return number, tuple(reversed(dims)), offset, n_bytes


def _size(name: str, kind: TensorType, dims: list[int]) -> int:
    """Bytes of a tensor. Python's integers do not overflow: an absurd product is just larger than the file."""
    if min(dims) < 1:
        raise ModelFileError(f"tensor {name} has an empty dimension")
    if dims[0] % kind.block_values:
        raise ModelFileError(
            f"tensor {name} has rows of {dims[0]} values; {kind.name} needs a multiple of {kind.block_values}"
        )
    return math.prod(dims) // kind.block_values * kind.block_bytes


def _check_disjoint(tensors: dict[str, TensorInfo]) -> None:
    end, owner = 0, ""
    for info in sorted(tensors.values(), key=lambda tensor: tensor.offset):
        if info.offset < end:
            raise ModelFileError(f"tensors {owner} and {info.name} overlap")
        end, owner = info.offset + info.n_bytes, info.name
