"""The Python face of `native/`: packed matrices, KV memory and recorded programs.

The extension checks type, shape and contiguity of every argument before it computes (`TypeError` for a wrong element
type or memory order, `ValueError` for a wrong shape or index) and releases the GIL while it does.

A program is a flat list of fused operations over a residual stream x [tokens, hidden]:

    embed                 x = table[token_ids]
    norm_qkv_rope_write   q, k, v = W rms_norm(x); rotate q and k; write k and v to the KV blocks
    attention             a = softmax(q k^T * scale) v, over the row's block table, causal
    proj_residual         x += W a
    norm_gateup_act       h = act(gate) * up,  gate, up = W rms_norm(x)
    down_residual         x += W h
    final_norm_head       logits = W rms_norm(x[logit_tokens])

`Program.run(token_ids, positions, row_of_token, slot_of_row, block_tables, logit_tokens, greedy, out_ids, out_nan,
logits=None)` replays it for one step:

    token_ids     [T] int32
    positions     [T] int32, absolute; within a row rising by one
    row_of_token  [T] int32, not falling: the tokens of a row are neighbours
    slot_of_row   [R] int32: row -> row of block_tables
    block_tables  [slots, blocks] int32, rows contiguous (a view of a wider table is fine)
    logit_tokens  [L] int32: indices into the step's tokens
    greedy        [L] uint8: 1 = only the argmax is wanted, 0 = write the logits
    out_ids       [L] int32, written: argmax of every row, ties to the lowest id; -1 without a finite value
    out_nan       [L] uint8, written: 1 = the row holds NaN, or no value above -inf
    logits        [rows with greedy = 0, vocabulary] float32, written in order; None when there is none

A row's results depend on its own tokens and positions alone: not on the other rows of the step, not on how a prompt is
cut into steps, not on the number of threads.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sixfold import _native
from sixfold._native import Embedding, KVCache, PackedMatrix, Program, ThreadPool
from sixfold.config import BLOCK_SIZE

__all__ = [
    "BLOCK_SIZE",
    "Embedding",
    "KVCache",
    "Limits",
    "PackedMatrix",
    "Program",
    "Tensor",
    "ThreadPool",
    "available_isas",
    "measure_limits",
    "pack_embedding",
    "pack_matrix",
    "rope_tables",
]

Float32 = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Tensor:
    """Raw bytes of a matrix as they lie in a GGUF file."""

    ggml_type: int
    """GGUF's number: 0 F32, 1 F16, 3 Q4_1, 8 Q8_0."""
    data: npt.NDArray[np.uint8]
    """[bytes]"""
    n_rows: int
    k: int
    """Values of a row: a multiple of 32."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What the machine can do, measured with the threads of a pool."""

    bytes_read_per_s: float
    int8_macs_per_s: float


def available_isas() -> list[str]:
    """Instruction sets whose kernels run on this CPU, the fastest first. `SIXFOLD_ISA` forces one at import."""
    return _native.isas()


def pack_matrix(
    pool: ThreadPool, tensors: Sequence[Tensor], *, interleave: bool = False, activations: str = "int8"
) -> PackedMatrix:
    """Pack tensors into one matrix y = W x, with the pool's threads.

    Args:
        tensors: stacked one below the other; or, with `interleave`, alternating by 16 rows (gate and up).
        activations: `int8` multiplies quantized weights with activations quantized per 32 values;
            `float32` stores quantized weights as float32. F16 and F32 weights always see float32 activations.

    Raises:
        ValueError: a type without a kernel, shapes that do not fit, a wrong number of bytes.
    """
    sources = [(t.ggml_type, t.data, t.n_rows, t.k) for t in tensors]
    return _native.pack_matrix(pool, sources, interleave, activations == "float32")


def pack_embedding(tensor: Tensor) -> Embedding:
    """The rows of an embedding table, read in place: the array stays referenced.

    Raises:
        ValueError: as `pack_matrix`.
    """
    return Embedding(tensor.ggml_type, tensor.data, tensor.n_rows, tensor.k)


def rope_tables(
    n_positions: int, head_dim: int, base: float, factors: npt.NDArray[np.floating] | None = None
) -> tuple[Float32, Float32]:
    """cos and sin [n_positions, head_dim / 2] of position * base^(-2i / head_dim) / factors[i]; computed in float64.

    Source: RoFormer (arXiv 2104.09864), section 3.4.2.
    """
    frequency = base ** (-np.arange(0, head_dim, 2, dtype=np.float64) / head_dim)
    if factors is not None:
        frequency = frequency / np.asarray(factors, np.float64)
    angle = np.arange(n_positions, dtype=np.float64)[:, None] * frequency
    return np.cos(angle).astype(np.float32), np.sin(angle).astype(np.float32)


def measure_limits(pool: ThreadPool, n_bytes: int = 192 << 20) -> Limits:
    """Memory read and int8 multiply rates of this machine; takes about a tenth of a second."""
    return Limits(*_native.measure_limits(pool, n_bytes))
