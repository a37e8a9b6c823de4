"""The Python face of `native/`: packed matrices, KV memory and recorded programs.

The extension checks type, shape and contiguity of every argument before it computes (`TypeError` for a wrong element
type or memory order, `ValueError` for a wrong shape or index) and releases the GIL while it does.

A program is a flat list of fused operations over a residual stream x [tokens, hidden]:

    embed                  x = table[token_ids] * scale
    norm_qkv_rope_write    q, k, v = W norm(x) + bias; norm of q and k; rotate q and k; write k and v to the KV blocks
    attention              a = softmax(cap(q k^T * scale)) v, over the row's block table, causal, within the window
    proj_residual          x += post_norm(W a + bias)
    norm_gateup_act        h = act(gate) * up,  gate, up = W norm(x)
    down_residual          x += post_norm(W h)
    norm_experts_residual  x += sum of share_e W_e h_e over a token's experts
    final_norm_head        logits = cap(W norm(x[logit_tokens]))

Every norm is an RMSNorm. Norms (but the last), biases, windows and caps are optional: None or 0 leaves them out.

`Program.run(token_ids, positions, row_of_token, slot_of_row, block_tables, logit_tokens, greedy, out_ids, out_nan,
logits=None, hidden_tokens=None, hidden=None)` replays it for one step:

    token_ids     [T] int32
    positions     [T] int32, absolute; within a row rising by one
    row_of_token  [T] int32, not falling: the tokens of a row are neighbours
    slot_of_row   [R] int32: row -> row of block_tables
    block_tables  [slots, blocks] int32, rows contiguous (a view of a wider table is fine)
    logit_tokens  [L] int32: indices into the step's tokens
    greedy        [L] uint8: 1 = only the argmax is wanted, 0 = write the logits
    out_ids       [L] int32, written: argmax of every row, ties to the lowest id; -1 where nothing is above -inf
    out_nan       [L] uint8, written: 1 = the row holds NaN or +inf, or nothing above -inf
    logits        [rows with greedy = 0, vocabulary] float32, written in order; None when there is none
    hidden_tokens [H] int32: indices into the step's tokens; None when there is none
    hidden        [H, hidden] float32, written: the head's input, norm(x[hidden_tokens]), before it is rounded

A row's results depend on its own tokens and positions alone: not on the other rows of the step, not on how a prompt is
cut into steps, not on the number of threads.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sixfold import _native
from sixfold._native import Embedding, KVCache, PackedMatrix, Program, RopeTable, ThreadPool
from sixfold.config import BLOCK_SIZE
from sixfold.model_file import Matrix

__all__ = [
    "BLOCK_SIZE",
    "Embedding",
    "KVCache",
    "Limits",
    "Matrix",
    "PackedMatrix",
    "Program",
    "RopeTable",
    "ThreadPool",
    "available_isas",
    "measure_limits",
    "measure_products",
    "pack_embedding",
    "pack_matrix",
    "rope_table",
]

Float32 = npt.NDArray[np.float32]

_ROPE_STEP = 128
"""Positions at a time: in complex128 all of a long context would take more memory than the table."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What the machine can do, measured with the threads of a pool."""

    bytes_read_per_s: float
    int8_macs_per_s: float
    bf16_macs_per_s: float


def available_isas() -> list[str]:
    """Instruction sets whose kernels run on this CPU, the fastest first. `SIXFOLD_ISA` forces one at import."""
    return _native.isas()


def pack_matrix(
    pool: ThreadPool, tensors: Sequence[Matrix], *, interleave: bool = False, activations: str = "int8"
) -> PackedMatrix:
    """Pack tensors into one matrix y = W x, with the pool's threads.

    Args:
        tensors: stacked one below the other; or, with `interleave`, alternating by 16 rows (gate and up).
        activations: `int8` multiplies quantized weights with activations quantized per 32 values, and weights of 16
            bits, float16 being rounded to bfloat16, with bfloat16 activations. `float32` stores all weights as float32,
            with float32 activations; so does `int8` for tensors that would need different activations.

    Raises:
        ValueError: a type without a kernel, shapes that do not fit, a wrong number of bytes, a scale or weight that is
            not finite; where one tensor is at fault, it is named.
    """
    sources = [(t.name, t.ggml_type, t.data, t.n_rows, t.k) for t in tensors]
    return _native.pack_matrix(pool, sources, interleave, activations == "float32")


def pack_embedding(tensor: Matrix, *, finite: bool = False) -> Embedding:
    """The rows of an embedding table, read in place: the array stays referenced.

    Args:
        finite: the tensor has been packed as a matrix, too, so its numbers have been looked at.

    Raises:
        ValueError: as `pack_matrix`.
    """
    return Embedding(tensor.name, tensor.ggml_type, tensor.data, tensor.n_rows, tensor.k, finite)


def rope_table(n_positions: int, frequencies: npt.NDArray[np.float64], style: str, *, factor: float = 1.0) -> RopeTable:
    """Cosines and sines of position * frequency, computed in float64.

    Args:
        frequencies: [rotated dimensions / 2] angle per position of each pair.
        style: `interleaved` rotates pairs (2i, 2i + 1), `half` pairs (i, i + rotated dimensions / 2).
        factor: multiplies them all.

    Source: RoFormer (arXiv 2104.09864), section 3.4.2.
    """
    # A position is a multiple of _ROPE_STEP and a rest, and e^i(a + b) = e^ia e^ib: a tenth of the work of a sine each.
    starts = np.exp(1j * np.arange(0, n_positions, _ROPE_STEP)[:, None] * frequencies) * factor
    rests = np.exp(1j * np.arange(_ROPE_STEP)[:, None] * frequencies)
    cos, sin = (np.empty((len(starts), *rests.shape), np.float32) for _ in range(2))
    for i, start in enumerate(starts):
        turned = rests * start
        cos[i], sin[i] = turned.real, turned.imag
    shape = (-1, len(frequencies))
    return RopeTable(cos.reshape(shape)[:n_positions], sin.reshape(shape)[:n_positions], style)


def measure_limits(pool: ThreadPool, n_bytes: int = 192 << 20) -> Limits:
    """Rates of this machine: reading n_bytes over and over, multiplying in registers. About a fifth of a second."""
    return Limits(*_native.measure_limits(pool, n_bytes))


def measure_products(pool: ThreadPool, matrices: Sequence[PackedMatrix], rows: int, rounds: int) -> list[float]:
    """Seconds of each of `rounds` passes over matrices of one shape and kind, shared out as programs do it."""
    return _native.measure_products(pool, matrices, rows, rounds)
