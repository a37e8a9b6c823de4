"""One face for every kind of model file: numbers, and tensors by name, in one set of conventions (GGUF's).

    file = open_model(path)
    file.config                                               ModelConfig
    file.matrix("blk.0.attn_q.weight", n_rows, k)             bytes of a matrix, in place where possible
    file.expert_matrices("blk.0.ffn_up_exps.weight", e, n, k) one for each expert
    file.vector("blk.0.attn_norm.weight", n)                  float32
    file.unused()                                             what nobody asked for

What differs between files is settled below this face: q and k rows of the llama family stand in GGUF's interleaved
order; Gemma's norms contain their +1; fused tensors (`attn_qkv`, and a `ffn_up` that holds the gate's rows first) are
asked for by their parts.
"""

from __future__ import annotations

import mmap
from abc import ABC
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from sixfold.errors import ModelFileError
from sixfold.lazy_numpy import np, npt
from sixfold.model_file.model_config import ModelConfig
from sixfold.model_file.quantize import FLOAT_TYPES, QUANTIZED_TYPES, quantize, to_float32
from sixfold.model_file.regular_file import naming_faults
from sixfold.model_file.tensor_types import F32, Q8_0, TENSOR_TYPES

__all__ = ["Matrix", "ModelFile", "Stored", "row_bytes"]

if TYPE_CHECKING:
    Bytes = npt.NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class Matrix:
    """A matrix as its bytes: rows one after the other, each of k values in blocks of its type."""

    ggml_type: int
    """GGUF's number of the element type."""
    data: Bytes
    """[bytes], read-only; it keeps the map of the file alive."""
    n_rows: int
    k: int
    name: str = ""
    """Of the tensor, as the file spells it, for messages."""


@dataclass(frozen=True, slots=True)
class Stored:
    """A tensor that a file has, under GGUF's name and conventions."""

    source: str
    """Its name as the file spells it."""
    ggml_type: int
    shape: tuple[int, ...]
    """In NumPy's order: columns last."""
    read: Callable[[], Bytes]
    """Its bytes."""

    def rows(self, begin: int, end: int) -> Stored:
        """A part of its rows; no copy."""
        width = self.n_bytes // self.shape[0]
        read = self.read
        return replace(self, shape=(end - begin, *self.shape[1:]), read=lambda: read()[begin * width : end * width])

    @property
    def n_bytes(self) -> int:
        n_values = 1
        for size in self.shape:
            n_values *= size
        return row_bytes(self.ggml_type, n_values)


def row_bytes(ggml_type: int, k: int) -> int:
    """Bytes of k values: whole blocks."""
    kind = TENSOR_TYPES[ggml_type]
    return k // kind.block_values * kind.block_bytes


class ModelFile(ABC):
    """An open model. Arrays handed out keep the maps of its files alive; there is nothing to close."""

    path: Path
    config: ModelConfig

    def __init__(
        self,
        path: Path,
        config: ModelConfig,
        maps: Sequence[mmap.mmap],
        tensors: Mapping[str, list[Stored]],
        method: str | None,
    ) -> None:
        """
        Args:
            maps: of its files.
            tensors: GGUF's name -> the tensor; one for each expert where a folder keeps them apart.
            method: how float matrices are quantized when they are read: a key of `QUANTIZED_TYPES`, or None.

        Raises:
            ModelFileError: no such method, or nothing that it could change; a fused tensor has another size than its
                parts.
        """
        if method is not None and method not in QUANTIZED_TYPES:
            raise ModelFileError(f"{method!r} is not a way to quantize; {', '.join(QUANTIZED_TYPES)} are")
        self.path = path
        self.config = config
        self._maps = maps
        self._method = method
        self._tensors = _without_padding(_without_fusion(tensors, config), config.vocab)
        self._used: set[str] = set()
        if method and all(
            self._type_of(n, stored) == stored.ggml_type for n, s in self._tensors.items() for stored in s
        ):
            raise ModelFileError(f"--quantize {method} would change nothing: no matrix has a floating-point type")

    @property
    def name(self) -> str:
        """The file's or folder's name, for messages."""
        return self.path.name

    def naming_faults(self) -> AbstractContextManager[None]:
        """Within it, a ModelFileError that does not name this file or folder yet gets its name in front."""
        return naming_faults(self.path)

    @property
    def bytes_mapped(self) -> int:
        """Of its files."""
        return sum(map(len, self._maps))

    @property
    def bytes_weights(self) -> int:
        """Of all tensors, as they will be handed out."""
        return sum(row_bytes(ggml_type, n_values) for _, ggml_type, n_values in self.stored_types())

    def stored_types(self) -> Iterator[tuple[str, int, int]]:
        """(name, type that it will be handed out in, number of values) of every tensor."""
        for name, several in self._tensors.items():
            for stored in several:
                yield name, self._type_of(name, stored), _n_values(stored)

    def has(self, name: str) -> bool:
        return name in self._tensors

    def shape(self, name: str) -> tuple[int, ...]:
        """In NumPy's order; experts first where there are several.

        Raises:
            ModelFileError: there is no such tensor.
        """
        several = self._find(name)
        return several[0].shape if len(several) == 1 else (len(several), *several[0].shape)

    def matrix(self, name: str, n_rows: int, k: int) -> Matrix:
        """
        Raises:
            ModelFileError: it is missing, or has another shape.
        """
        several = self._find(name)
        if len(several) != 1 or several[0].shape != (n_rows, k):
            raise self._fault(f"tensor {name!r} has shape {self.shape(name)}, not {(n_rows, k)}")
        return self._matrix(name, several[0])

    def expert_matrices(self, name: str, n_experts: int, n_rows: int, k: int) -> list[Matrix]:
        """The matrices of a layer's experts, stacked in the file or apart.

        Raises:
            ModelFileError: one is missing, or has another shape.
        """
        several = self._find(name)
        if len(several) == 1 and several[0].shape == (n_experts, n_rows, k):
            whole = several[0]
            flat = replace(whole, shape=(n_experts * n_rows, k))
            several = [flat.rows(i * n_rows, (i + 1) * n_rows) for i in range(n_experts)]
        elif len(several) != n_experts or any(stored.shape != (n_rows, k) for stored in several):
            raise self._fault(f"tensor {name!r} has shape {self.shape(name)}, not {(n_experts, n_rows, k)}")
        return [self._matrix(name, stored) for stored in several]

    def vector(self, name: str, size: int) -> npt.NDArray[np.float32]:
        """
        Raises:
            ModelFileError: it is missing, has another size or no float type, or holds a value that is not finite.
        """
        (stored, *more) = self._find(name)
        if more or stored.shape != (size,) or stored.ggml_type not in FLOAT_TYPES:
            raise self._fault(f"tensor {name!r} is not a vector of {size} floating-point values")
        self._used.add(stored.source)
        values = to_float32(stored.read(), stored.ggml_type)
        if not np.isfinite(values).all():
            raise self._fault(f"tensor {name!r} holds a value that is not finite")
        return values

    def unused(self) -> list[str]:
        """Tensors of the file that nobody has asked for, as it spells them."""
        return sorted({s.source for several in self._tensors.values() for s in several} - self._used)

    def release(self) -> None:
        """Let go of what was read so far: it stays in the system's cache, and counts as this process's no longer."""
        for buffer in self._maps:
            buffer.madvise(mmap.MADV_DONTNEED)

    def _find(self, name: str) -> list[Stored]:
        if name not in self._tensors:
            raise self._fault(f"there is no tensor {name}")
        return self._tensors[name]

    def _type_of(self, name: str, stored: Stored) -> int:
        """The type that a tensor is handed out in."""
        plain = self._method is None or stored.ggml_type not in FLOAT_TYPES or len(stored.shape) < 2
        if plain or stored.shape[-1] % 32 or ".ffn_gate_inp." in name or not name.endswith(".weight"):
            return stored.ggml_type
        # The head decides which token is drawn, and the embedding is small beside the layers: both keep 8 bits.
        return QUANTIZED_TYPES[self._method or ""] if name.startswith("blk.") else Q8_0

    def _matrix(self, name: str, stored: Stored) -> Matrix:
        self._used.add(stored.source)
        n_rows, k = stored.shape
        to = self._type_of(name, stored)
        data = stored.read()
        if to != stored.ggml_type:
            try:
                data = quantize(data, stored.ggml_type, n_rows, k, to)
            except ModelFileError as error:
                raise self._fault(f"tensor {name!r}: {error.message}") from error
        return Matrix(to, data, n_rows, k, stored.source)

    def _fault(self, message: str) -> ModelFileError:
        return ModelFileError(f"{self.name}: {message}")


def _n_values(stored: Stored) -> int:
    return stored.n_bytes // TENSOR_TYPES[stored.ggml_type].block_bytes * TENSOR_TYPES[stored.ggml_type].block_values


def _without_padding(tensors: dict[str, list[Stored]], vocab: int) -> dict[str, list[Stored]]:
    """Embedding and head without the rows behind the vocabulary: those must never be drawn."""
    for name in ("token_embd.weight", "output.weight"):
        if name in tensors and tensors[name][0].shape[0] > vocab:
            tensors[name] = [stored.rows(0, vocab) for stored in tensors[name]]
    return tensors


def _without_fusion(tensors: Mapping[str, list[Stored]], config: ModelConfig) -> dict[str, list[Stored]]:
    """Every fused tensor replaced by its parts."""
    q, kv = config.q_size, config.kv_size
    out = dict(tensors)
    for i in range(config.n_layers):
        for kind in ("weight", "bias"):
            _split(
                out,
                f"blk.{i}.attn_qkv.{kind}",
                {f"blk.{i}.attn_{x}.{kind}": n for x, n in zip("qkv", (q, kv, kv), strict=True)},
            )
            gate, up = f"blk.{i}.ffn_gate.{kind}", f"blk.{i}.ffn_up.{kind}"
            if gate not in out and up in out and out[up][0].shape[0] == 2 * config.ffn:
                _split(out, up, {gate: config.ffn, up: config.ffn})
    return out


def _split(tensors: dict[str, list[Stored]], fused: str, parts: Mapping[str, int]) -> None:
    if fused not in tensors:
        return
    (whole,) = tensors.pop(fused)
    if whole.shape[0] != sum(parts.values()):
        raise ModelFileError(f"tensor {whole.source!r} has {whole.shape[0]} rows, not {sum(parts.values())}")
    begin = 0
    for name, n_rows in parts.items():
        if name in tensors:
            raise ModelFileError(f"tensors {whole.source!r} and {name!r} are the same")
        tensors[name] = [whole.rows(begin, begin + n_rows)]
        begin += n_rows


def shifted(stored: Stored, shift: float) -> Stored:
    """A vector with a number added to every value, as F32."""

    def read() -> Bytes:
        values = to_float32(stored.read(), stored.ggml_type) + np.float32(shift)
        return values.astype("<f4").view(np.uint8)

    return replace(stored, ggml_type=F32, read=read)


def interleaved(stored: Stored, head_dim: int) -> Stored:
    """Rows (i, i + d/2) of every head made neighbours: a folder's order of q and k made GGUF's."""

    def read() -> Bytes:
        width = stored.n_bytes // stored.shape[0]
        heads = stored.read().reshape(-1, 2, head_dim // 2, width)
        return np.ascontiguousarray(heads.swapaxes(1, 2)).reshape(-1)

    return replace(stored, read=read)
